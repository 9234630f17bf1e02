"""The queue over HTTP: every operation of the table as a route, in MessagePack and JSON.

Holds a service and knows the model; knows neither a store nor what an operation does. Payloads pass through undecoded,
unless a client reads one in another format than it was sent in.
"""
