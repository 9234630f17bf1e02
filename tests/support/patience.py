"""How long tests wait for what should take a moment.

Reaching it means that something hangs, never that it is slow: how fast it is, `./dev bench` judges.
"""

PATIENCE = 60.0
"""Seconds: long enough for a crowded machine, and less than what pytest allows a test."""
