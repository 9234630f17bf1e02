"""From a payload to a Python function and back: arguments, results, and what a running task can call.

Knows Python's signatures and the queue's encodings; knows neither stores nor processes. Shared by the
sender of a call (`windlass.app`) and its runner (a worker's context).
"""
