"""The store in one SQLite file, for one process or several on one machine.

A call: `store` names the operation and hands it to `connection`, which runs it in a `transaction` together with the
other calls that wait; after the commit, `events` wakes listeners. Operations are functions of a `Transaction`: `jobs`
(add, read, delete), `transitions` (heartbeats, success, moves), `claims` (by way of `streams`), `dependencies`,
`upkeep`, `listing`, `records`, and for flow control `flow` and `rules`. `file` opens the file and knows its disk;
`schema.sql` has the tables, and `scrub` checks that a file keeps its promises.
"""

from windlass.store.sqlite.store import SqliteStore, facts

__all__ = ["SqliteStore", "facts"]
