"""Windlass: a job queue that starts as a file and grows to Redis with the same code."""

from importlib.metadata import version

__version__ = version("windlass")
