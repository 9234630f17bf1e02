"""Routes of other queues, for their existing clients: their paths, field names and status words.

Each route is an alias of our operations: a table names the route, the operation and the renames. No state, and no
decisions of its own. A bridge (`blueque`) does the same for clients that know keys instead of routes.
The program that starts a server chooses its dialects.
"""
