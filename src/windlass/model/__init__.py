"""The words of the queue as pure data and pure functions.

Knows msgspec and the standard library's pure parts. Must not know a clock, randomness, a file, a
socket, a process, a store or a server: whatever this package needs of the world is passed in.
"""
