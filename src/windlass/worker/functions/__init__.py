"""Uploaded functions: code that lives in the queue, run in contexts of any language, kept apart from the machine.

A *context* is one process of an interpreter under one sandbox tier, for one tenant, with one handler (or those of one
`eid`) in it; it runs batches of jobs one after the other. Knows handlers and processes; not the queue they come from.
"""

from windlass.worker.functions.functions import Functions
from windlass.worker.functions.terms import FunctionJob, FunctionOptions, FunctionOutcome, Hears, Tier

__all__ = ["FunctionJob", "FunctionOptions", "FunctionOutcome", "Functions", "Hears", "Tier"]
