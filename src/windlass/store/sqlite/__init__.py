"""The store in one SQLite file, for one process or several on one machine.

How a call goes: `store` names the duty and hands it to `connection`, whose thread runs it inside a `transaction`
together with whatever else is waiting; after the commit, `notices` wakes those who wait. The duties are functions:
`jobs` (add, read), `listing` (page, tally), `claims` (claim), `work` (touch, succeed), `output`, `moving` (apply),
`following` (bind, ripe), `upkeep` (sweep, overdue) and `workers`. What they share: `lanes` (names and counters),
`records` (rows to records), `values` (times, states, ids) and `batches` (one statement for many rows). The tables are
in `schema.sql`, and `scrub` says whether a file is sound.
"""

from windlass.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
