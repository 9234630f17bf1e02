"""Other people's words at our edge: their routes, field names and codes. No state, no decisions of its own.

A dialect turns a request into our operations and the answer into theirs; whoever puts a server together chooses which
dialects it speaks.
"""
