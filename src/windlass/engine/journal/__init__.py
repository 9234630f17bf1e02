"""The journal: a log on the local disk in front of the store, so that accepted means durable.

`format` and `bodies` are bytes, `segments` are files and their repair, `writer` is group commit, `journal` puts these
together, `drainer` carries jobs into the store, `service` answers operations, `opening` starts it all. No other room
knows how any of it is done.
"""

from windlass.engine.journal.files import Disk, File, Files
from windlass.engine.journal.journal import Journal, JournalSettings
from windlass.engine.journal.opening import open_journaled
from windlass.engine.journal.service import Journaled

__all__ = ["Disk", "File", "Files", "Journal", "JournalSettings", "Journaled", "open_journaled"]
