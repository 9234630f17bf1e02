"""How long a moment is on this machine just now.

A bar of wall time is meant for a machine of its own: where others want the cores too, everything waits its turn, and
the bar is stretched by as much. What can be judged by a count, or by processor time, needs none of this.
"""

import os
from pathlib import Path


def crowding() -> float:
    """How many want each core, over the last minute or at this moment, and one more for whoever is asking."""
    minute, _, _, at_once, _ = Path("/proc/loadavg").read_text().split()
    wanting = max(float(minute), float(at_once.split("/")[0]))
    return 1.0 + wanting / (os.cpu_count() or 1)


def stretched(seconds: float) -> float:
    return seconds * crowding()
