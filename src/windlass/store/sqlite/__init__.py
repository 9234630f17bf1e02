"""The store in one SQLite file, for one process or several on one machine.

How a call goes: `store` names the duty and hands it to `connection`, whose thread runs it inside a `transaction`
together with whatever else is waiting; after the commit, `notices` wakes those who wait. The duties are functions:
`jobs` (add, read), `listing` (page, tally), `claims` (claim), `work` (touch, succeed), `output`, `moving` (apply),
`following` (bind, ripe), `upkeep` (sweep, overdue) and `workers`. What they share: `lanes` (names and counters),
`records` (rows to records), `values` (times, states, ids), `batches` (one statement for many rows) and `settling` (what
is written at the end of every call).

Flow control: a claim asks `sources` for streams of jobs, `picking` merges them, and `gate` says which may start; what
may not is put away by `parking`. `buckets` counts places and starts, `turns` knows whose turn it is, `groups` and
`patterns` read what the rules say. Its own duties are `ruling` (rules, regulate; remembered by `regulation`),
`regrouping`, `parking` (rouse) and `standing` (waiting, usage, opening). The tables are
in `schema.sql`, and `scrub` says whether a file is sound.
"""

from windlass.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
