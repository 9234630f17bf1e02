"""The worker: claims jobs, has them run by other processes, renews their leases and reports how they ended.

Three kinds of process. The *supervisor* talks to the queue and never runs user code, so nothing a task does can keep it
from renewing a lease. The *zygote* has imported the user's app once and forks *contexts* in milliseconds. A context
runs user code: many jobs at once, or exactly one. Only this room starts, feeds and kills processes.
"""
