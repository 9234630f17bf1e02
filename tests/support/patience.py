"""How long tests wait for what should take a moment.

Reaching it means that something hangs, never that it is slow: how fast it is, `./dev bench` judges.
"""

PATIENCE = 60.0
"""Seconds: long enough for a crowded machine, and less than what pytest allows a test."""

LONGEST_WAIT = 60.0
"""Seconds: the longest wait that a request may ask for."""

NOTIFIED = 50.0
"""Seconds: a request that waits longest, and that is answered within these, was notified of what it waited for."""
