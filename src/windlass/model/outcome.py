"""How one run of a job ended, as its worker reports it. What becomes of the job is decided in `lifecycle`."""

from enum import StrEnum

from msgspec import Struct

from windlass.model.job import Error, Reason


class Verdict(StrEnum):
    """What an attempt says of itself."""

    OK = "ok"  # 2xx
    FAILED = "failed"  # 4xx: ran well, cannot succeed; final
    RETRY = "retry"  # 1xx: run me again
    ERROR = "error"  # 5xx: something broke; run again


CODES = {Verdict.RETRY: 100, Verdict.OK: 200, Verdict.FAILED: 400, Verdict.ERROR: 500}


class Outcome(Struct, frozen=True, kw_only=True):
    """How an attempt ended, as its worker reports it."""

    verdict: Verdict
    code: int | None = None  # finer than the verdict; null = that of CODES
    error: Error | None = None
    reason: Reason | None = None  # what the worker knows beyond the verdict: `timeout`, `crashed` …
    delay: float | None = None  # seconds before the next run that the task asked for; null = by its retry policy
