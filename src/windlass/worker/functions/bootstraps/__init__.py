"""What each language's interpreter is started with: one small program per language, which implements the line protocol.

They are copied into a context's folder and run there, so they know nothing of this package and import nothing of it.
"""
