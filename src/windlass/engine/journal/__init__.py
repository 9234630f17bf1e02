"""The journal: a log on the local disk in front of the store, so that accepted means durable.

`batch` turns jobs into bytes, `file` keeps these in SQLite, `journal` adds group commit and finds jobs, `drain` carries
them into the store, `service` answers operations and opens it all. `text` is a journal for people to read and write.
"""

from windlass.engine.journal.journal import Journal, JournalSettings
from windlass.engine.journal.service import Journaled, open_journaled

__all__ = ["Journal", "JournalSettings", "Journaled", "open_journaled"]
