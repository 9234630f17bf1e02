"""What lies between a payload and a Python function: arguments, results, and what a task can say while it runs.

Knows Python's signatures and the queue's encodings; knows neither stores nor processes. Shared by whoever sends a call
(`windlass.app`) and whoever runs it (a worker's context).
"""
