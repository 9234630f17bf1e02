"""Edits by callers, as moves: with `lifecycle` and `dependency`, the only place that says which state comes next."""

from datetime import datetime

from msgspec.structs import replace

from windlass.model.edit import JobEdit
from windlass.model.errors import Conflict
from windlass.model.job import Job, State
from windlass.model.lifecycle import WAITING, Move, Step, make_move


def edit(job: Job, change: JobEdit) -> Move:
    """A caller edits the job, in whatever state it is."""
    return replace(make_move(job, Step.EDIT, job.reason), waits_for=job.waits_for, edit=change)


def edit_waiting(job: Job, change: JobEdit, due: datetime | None, now: datetime) -> Move:
    """A caller edits more than annotations: only what waits can be another job. `due`: when it is due from now on."""
    if job.state not in WAITING:
        hint = "cancel it, and run a copy" if job.state is State.RUNNING else "run a copy"
        raise Conflict(f"job {job.id} is {job.state}: only a job that waits can be edited; {hint}", at="id")
    if due is not None and due > now:
        return replace(make_move(job, Step.DEFER, job.reason), run_at=due, edit=change)
    if job.state is State.SCHEDULED:
        return replace(make_move(job, Step.PROMOTE, job.reason), run_at=None, edit=change)
    return edit(job, change)
