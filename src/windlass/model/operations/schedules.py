"""Operations on schedules: which job is made at which times."""

from windlass.model.limit import Pause
from windlass.model.names import Name
from windlass.model.operations.jobs import Accepted
from windlass.model.operations.table import Operation, operation
from windlass.model.schedule import NewSchedule, ScheduleCard


@operation("PUT", "/schedules/{name}", "operate", body="schedule")
class PutSchedule(Operation[ScheduleCard], frozen=True, kw_only=True):
    """Make jobs at the times of a schedule, in the place of any schedule of that name."""

    name: Name
    schedule: NewSchedule


@operation("GET", "/schedules/{name}", "read")
class GetSchedule(Operation[ScheduleCard], frozen=True, kw_only=True):
    """A schedule, its next ticks and its last runs."""

    name: Name


@operation("GET", "/schedules", "read")
class Schedules(Operation[list[ScheduleCard]], frozen=True, kw_only=True):
    """All schedules of a tenant."""


@operation("PATCH", "/schedules/{name}", "operate", body="pause")
class PauseSchedule(Operation[ScheduleCard], frozen=True, kw_only=True):
    """Let a schedule make no jobs for a while, or let it make them again."""

    name: Name
    pause: Pause


@operation("POST", "/schedules/{name}/run", "operate", 201)
class RunSchedule(Operation[Accepted], frozen=True, kw_only=True):
    """Make the job of a schedule now, beside its ticks."""

    name: Name


@operation("DELETE", "/schedules/{name}", "operate", 204)
class RemoveSchedule(Operation[None], frozen=True, kw_only=True):
    """Make these jobs no more. One that code declares and that was changed goes back to its declaration."""

    name: Name
