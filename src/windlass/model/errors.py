"""Every error that crosses a package.

WindlassError
├── Invalid          400  what was sent cannot be understood
├── Unauthenticated  401  the request has no valid token
├── Denied           403  the token does not allow this
├── Missing          404  there is no such thing (or it belongs to another tenant)
├── Conflict         409  it is not in a state that allows this
│   └── FilesMissing 409 the files that a job names by their SHA-256 must be sent first
├── TooLarge         413  more bytes or items than allowed
├── Busy             429  too much at once: ask again later
├── Unavailable      503  the store does not answer: ask again later
│   ├── PartAway          the same, of a part: others answer
│   ├── Damaged      503  it will not answer until it is repaired
│   └── NotReplicated 503 it is accepted, but not by as many as it should be
└── Full             507  no room to keep it
    └── JournalFull  507  the server's own journal cannot keep it

Each class carries its wire code, HTTP status and exit status, so that no edge keeps a table of its own.
Errors are text only: nothing that comes back from a store is ever imported or constructed.
"""

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as it travels: problem details."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str
    at: str = ""
    """The path of the faulty field, empty when no single field is at fault."""
    state: str = ""
    """The state of the job that was waited for in vain."""
    accepted: list[str] = []
    """Of several jobs that were sent together and refused in the middle: the ids of the first of them, in the order
    sent, which were accepted all the same.
    """
    unsure: list[str] = []
    """The ids of those that follow and may have been accepted or not: sent again under these ids, each is queued once.
    """
    line: int = 0
    """The number of the first line that was not accepted, or may not have been."""
    missing: list[str] = []
    """The SHA-256 of the files that must be sent first."""


class Partly(Struct, frozen=True):
    """What became of several jobs that were refused in the middle."""

    accepted: list[str]
    """The ids of the first of them, which are queued."""
    unsure: list[str]
    """The ids of those that follow and may be queued or not."""


class WindlassError(Exception):
    """The root: catch this to catch everything the queue can say."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "Something went wrong"
    status: ClassVar[int] = 500
    exit_status: ClassVar[int] = 1

    def __init__(self, detail: str, *, at: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.at = at
        self.partly: Partly | None = None
        """What became of several jobs that were sent together; null = none of them was accepted."""
        self.line = 0
        """The first line of a body that was not accepted."""

    def __str__(self) -> str:
        return f"{self.at}: {self.detail}" if self.at else self.detail

    def problem(self) -> Problem:
        partly = self.partly or Partly([], [])
        return Problem(
            title=self.title,
            status=self.status,
            detail=self.detail,
            code=self.code,
            at=self.at,
            accepted=partly.accepted,
            unsure=partly.unsure,
            line=self.line,
        )


class Invalid(WindlassError):
    """The request is invalid: correct the field named by `at` and send it again."""

    code, title, status, exit_status = "invalid", "Invalid request", 400, 2


class Unauthenticated(WindlassError):
    """No token, or one that is not known."""

    code, title, status, exit_status = "unauthenticated", "Not authenticated", 401, 4


class Denied(WindlassError):
    """The token does not allow this."""

    code, title, status, exit_status = "denied", "Not allowed", 403, 4


class Missing(WindlassError):
    """No such job, worker or record; one of another tenant answers exactly the same."""

    code, title, status, exit_status = "missing", "Not found", 404, 3


class Conflict(WindlassError):
    """The thing exists, but its state does not allow this step."""

    code, title, status, exit_status = "conflict", "Conflict", 409, 4


class FilesMissing(Conflict):
    """Files that jobs name by their SHA-256 are not there: send them, then the jobs again."""

    code, title = "files_missing", "Files are missing"

    def __init__(self, detail: str, *, at: str = "", missing: Sequence[str] = ()) -> None:
        super().__init__(detail, at=at)
        self.missing = list(missing)

    def problem(self) -> Problem:
        return replace(super().problem(), missing=self.missing)


class TooLarge(WindlassError):
    """More bytes or more items than are allowed in one request."""

    code, title, status, exit_status = "too_large", "Too large", 413, 2


class Busy(WindlassError):
    """Too much at once; the same request may be sent again later."""

    code, title, status, exit_status = "busy", "Too busy", 429, 75


class Unavailable(WindlassError):
    """The store does not answer; idempotent requests may be sent again."""

    code, title, status, exit_status = "unavailable", "Unavailable", 503, 75


class PartAway(Unavailable):
    """The part of the store that was to be asked is known not to answer, while others do: nothing was asked of it.

    Of interest where the store is; to others it is as unavailable as all of it.
    """


class Damaged(Unavailable):
    """The store's file is damaged, deleted or replaced: a retry does not help until it is repaired."""

    code, title, exit_status = "damaged", "The store is damaged", 1


class NotReplicated(Unavailable):
    """The jobs are accepted, and too few others are known to have them too: what is said again under the same ids is
    accepted once.
    """

    code, title = "not_replicated", "Accepted, but not replicated"


class Full(WindlassError):
    """There is no room left to keep what was sent; nothing of it was kept."""

    code, title, status, exit_status = "full", "No room left", 507, 75


class JournalFull(Full):
    """The server's journal has no room. It goes on once there is some."""

    code, title = "journal_full", "No room left in the journal"


ERRORS: dict[str, type[WindlassError]] = {
    kind.code: kind
    for kind in (
        Invalid,
        Unauthenticated,
        Denied,
        Missing,
        Conflict,
        FilesMissing,
        TooLarge,
        Busy,
        Unavailable,
        Damaged,
        NotReplicated,
        Full,
        JournalFull,
    )
}


def from_problem(problem: Problem) -> WindlassError:
    """The error that a problem speaks of, so that a client raises what the engine raised."""
    error = ERRORS.get(problem.code, WindlassError)(problem.detail, at=problem.at)
    if isinstance(error, FilesMissing):
        error.missing = problem.missing
    if problem.accepted or problem.unsure:
        error.partly, error.line = Partly(problem.accepted, problem.unsure), problem.line
    return error


for _error in (WindlassError, *ERRORS.values()):
    _error.__module__ = "windlass"  # where people import them from, and what they are called when they are printed
