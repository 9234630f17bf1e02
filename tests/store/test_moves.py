"""What every store promises, second part: moves are written whole or refused, and clocks run out.

Whatever a move says was decided by `model.lifecycle`; here it is only looked at how a store writes it.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.stores import WITH_MODEL, World, ids, token
from windlass.model.job import FINISHED, Error, Job, Reason, State
from windlass.model.lifecycle import Move, Step, cancel, delete, expire, finish, lose, release, rerun, touch_owner
from windlass.model.outcome import Outcome, Verdict
from windlass.model.output import Progress
from windlass.store.data import JobCount, Overdue, Record, StoredResult, Sweep

pytestmark = pytest.mark.parametrize("kind", WITH_MODEL, indirect=True)

SECOND = timedelta(seconds=1)
WEEK = 7 * 86400.0


def failing(world: World, taken: Record, verdict: Verdict = Verdict.FAILED, delay: float | None = None) -> Move:
    error = Error(type="E", message="no", traceback="line 1")
    return finish(taken.job, Outcome(verdict=verdict, error=error, delay=delay), world.clock.now(), 0.0)


# Each move, written whole


async def a_run(world: World, **terms: Any) -> Record:
    """A job that has run for two seconds, with a pid and progress."""
    await world.add(**terms)
    taken = await world.take(world.worker(node="n1"))
    await world.touch(taken, pid=7, progress=Progress(done=1))
    world.clock.advance(2)
    return taken


def after(taken: Record, world: World, **changed: object) -> Job:
    """The job as it should be: as it was claimed, with its pid and progress, and with these changes."""
    seen = replace(taken.job, pid=7, progress=Progress(done=1), updated_at=world.clock.now(), deadline=None)
    return replace(seen, **changed)


async def test_a_retry_is_written_whole(world: World) -> None:
    taken = await a_run(world, max_retry=1, timeout=60)
    move = failing(world, taken, Verdict.ERROR, delay=30.5)
    assert await world.apply(move, taken)
    assert await world.record(taken.job.id) == Record(
        after(
            taken,
            world,
            state=State.SCHEDULED,
            reason=Reason.ERROR,
            run_at=world.clock.now() + 30.5 * SECOND,
            code=500,
            error=move.error,
            errors=[move.error],
        )
    )


async def test_a_failure_is_written_whole(world: World) -> None:
    taken = await a_run(world, timeout=60)
    move = replace(failing(world, taken), finished_at=world.clock.now() - 0.5 * SECOND)
    assert await world.apply(move, taken)
    assert await world.record(taken.job.id) == Record(
        after(
            taken,
            world,
            state=State.FAILED,
            reason=Reason.FAILED,
            code=400,
            error=move.error,
            errors=[move.error],
            finished_at=world.clock.now() - 0.5 * SECOND,
        )
    )


async def test_a_release_is_written_whole(world: World) -> None:
    taken = await a_run(world)
    assert await world.apply(release(taken.job, world.clock.now()), taken)
    assert await world.record(taken.job.id) == Record(
        after(taken, world, state=State.QUEUED, reason=Reason.RELEASED, attempt=0)
    )


async def test_a_snooze_is_written_whole(world: World) -> None:
    taken = await a_run(world)
    now = world.clock.now()
    assert await world.apply(release(taken.job, now, 5.0), taken)
    assert await world.record(taken.job.id) == Record(
        after(taken, world, state=State.SCHEDULED, reason=Reason.SNOOZED, attempt=0, run_at=now + 5 * SECOND)
    )


async def test_a_loss_is_written_whole(world: World) -> None:
    taken = await a_run(world)
    world.clock.advance(60)
    move = lose(taken.job, world.clock.now())
    assert await world.apply(move, taken)
    assert await world.record(taken.job.id) == Record(
        after(taken, world, state=State.QUEUED, reason=Reason.LOST, losses=1, error=move.error, errors=[move.error])
    )


async def test_a_stopped_run_is_still_listed_after_a_success(world: World) -> None:
    taken = await a_run(world)
    move = release(replace(taken.job, pid=7), world.clock.now(), stopped="its worker stopped")
    assert await world.apply(move, taken)
    again = await world.take()
    assert (again.job.attempt, again.job.errors, again.job.pid) == (1, [move.error], None)
    assert await world.succeed(again)
    found = await world.record(taken.job.id)
    assert found is not None
    done = found.job
    assert (done.state, done.attempt, done.errors) == (State.SUCCEEDED, 1, [move.error])


async def test_a_crash_is_written_whole(world: World) -> None:
    taken = await a_run(world)
    outcome = Outcome(verdict=Verdict.ERROR, reason=Reason.CRASHED, code=599)
    move = finish(taken.job, outcome, world.clock.now(), 0.0)
    assert await world.apply(move, taken)
    assert await world.record(taken.job.id) == Record(
        after(
            taken,
            world,
            state=State.QUEUED,
            reason=Reason.CRASHED,
            crashes=1,
            code=599,
            error=move.error,
            errors=[move.error],
        )
    )


@pytest.mark.parametrize("delay", [None, 60.0])
async def test_a_waiting_job_is_cancelled(world: World, delay: float | None) -> None:
    id = await world.add(delay=delay)
    before = await world.job(id)
    world.clock.advance(1)
    now = world.clock.now()
    assert await world.apply(cancel(before))
    assert await world.job(id) == replace(
        before, state=State.CANCELLED, reason=Reason.CANCELLED, updated_at=now, finished_at=now
    )
    world.clock.advance(60)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 0
    assert await world.claim(slots=10) == []


async def test_a_running_job_is_ordered_to_stop_and_runs_on(world: World) -> None:
    taken = await a_run(world, timeout=60)
    assert await world.apply(cancel(taken.job), taken)
    told = after(taken, world, reason=Reason.CANCELLED, deadline=taken.job.deadline)
    assert await world.record(taken.job.id) == Record(told, taken.token)
    assert (await world.touch(taken)).held


async def test_an_order_to_stop_does_not_lengthen_the_lease(world: World) -> None:
    taken = await a_run(world)
    assert await world.apply(cancel(taken.job), taken)
    world.clock.advance(58)
    assert len((await world.store.jobs.overdue(Overdue.LEASE, 10)).records) == 1


async def test_a_job_with_an_order_to_stop_that_has_stopped_is_cancelled(world: World) -> None:
    taken = await a_run(world, max_retry=5)
    assert await world.apply(cancel(taken.job), taken)
    told = await world.record(taken.job.id)
    assert told is not None
    assert await world.apply(failing(world, told, Verdict.ERROR), taken)
    job = await world.job(taken.job.id)
    assert (job.state, job.reason, job.finished_at) == (State.CANCELLED, Reason.CANCELLED, world.clock.now())


@pytest.mark.parametrize("state", [State.QUEUED, State.SCHEDULED, State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_a_deleted_job_leaves_nothing(world: World, state: State) -> None:
    id = await in_state(world, state)
    assert await world.apply(delete(await world.job(id)))
    assert await world.gone(id)
    assert await world.result(id) is None
    assert (await world.store.jobs.counts("-")).jobs == []
    assert await world.jobs() == []
    world.clock.advance(WEEK)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 0
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 0
    assert await world.claim() == []


async def in_state(world: World, state: State) -> str:
    id = await world.add(delay=60 if state is State.SCHEDULED else None, expires=30)
    if state is State.CANCELLED:
        await world.apply(cancel(await world.job(id)))
    elif state in FINISHED:
        taken = await world.take()
        await world.touch(taken, progress=Progress(done=1))
        done = world.succeed(taken, b"42") if state is State.SUCCEEDED else world.apply(failing(world, taken), taken)
        assert await done
    assert (await world.job(id)).state is state
    return id


@pytest.mark.parametrize("how", ["fails", "is released", "is lost", "succeeds"])
async def test_a_job_deleted_while_it_runs_leaves_nothing_when_it(world: World, how: str) -> None:
    id = await world.add(max_retry=5, keep_failure=None, keep_success=None)
    taken = await world.take()
    assert await world.apply(delete(taken.job), taken)
    told = await world.record(id)
    assert told is not None
    assert (told.job.state, told.job.reason) == (State.RUNNING, Reason.DELETED)
    world.clock.advance(60)
    now = world.clock.now()
    endings: dict[str, Callable[[], Move]] = {
        "fails": lambda: failing(world, told, Verdict.ERROR),
        "is released": lambda: release(told.job, now),
        "is lost": lambda: lose(told.job, now),
    }
    ended = await (world.apply(endings[how](), told) if how in endings else world.succeed(told, b"42"))
    assert ended
    assert await world.gone(id)
    assert (await world.store.jobs.counts("-")).jobs == []
    assert await world.result(id) is None


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
async def test_a_finished_job_that_is_run_again_starts_from_its_first_attempt(world: World, state: State) -> None:
    id = await in_state(world, state)
    before = await world.job(id)
    world.clock.advance(3)
    assert await world.apply(rerun(before))
    assert await world.job(id) == replace(
        before,
        state=State.QUEUED,
        reason=None,
        attempt=0,
        code=None,
        progress=None,
        run_at=None,
        finished_at=None,
        updated_at=world.clock.now(),
    )
    assert await world.result(id) is None
    world.clock.advance(WEEK)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 0, "it is no longer finished"
    assert (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records == [], "it may wait again"
    assert (await world.take()).job.attempt == 1


@pytest.mark.parametrize("running", [True, False])
async def test_a_step_in_place_that_the_store_was_not_taught_is_an_error(world: World, running: bool) -> None:
    """Else one that is added to the lifecycle alone would be written as something else."""
    id = await world.add(expires=30)
    taken = await world.take() if running else None
    before = await world.job(id)
    move = touch_owner(replace(before, owner_timeout=60.0))
    assert move is not None
    with pytest.raises(Exception, match="not taught"):
        await world.apply(replace(move, step=Step.PROMOTE), taken)
    assert await world.job(id) == before


async def test_a_rerun_keeps_its_place_of_arrival(world: World) -> None:
    first, second = await world.add(), await world.add()
    assert await world.succeed(await world.take())
    assert await world.apply(rerun(await world.job(first)))
    assert ids(await world.claim(slots=2)) == [first, second]


async def test_a_rerun_may_end_once_more_with_another_result(world: World) -> None:
    id = await world.add()
    await world.succeed(await world.take(), b"first")
    await world.apply(rerun(await world.job(id)))
    taken = await world.take()
    assert await world.result(id) is None
    await world.succeed(taken, b"second")
    assert await world.result(id) == StoredResult(b"second", "text/plain")


async def test_requeued_jobs_keep_their_places_of_arrival(world: World) -> None:
    first, second, third, fourth = [await world.add(max_retry=1) for _ in range(4)]
    taken = {record.job.id: record for record in await world.claim(slots=3)}
    now = world.clock.now()
    assert await world.apply(release(taken[third].job, now), taken[third])
    assert await world.apply(failing(world, taken[second], Verdict.RETRY, delay=0.0), taken[second])
    crashed = Outcome(verdict=Verdict.ERROR, reason=Reason.CRASHED)
    assert await world.apply(finish(taken[first].job, crashed, now, 0.0), taken[first])
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    assert ids(await world.claim(slots=4)) == [first, second, third, fourth]


# Guards


async def test_a_move_is_written_once(world: World) -> None:
    taken = await a_run(world)
    move = failing(world, taken)
    assert await world.apply(move, taken)
    before = await world.record(taken.job.id)
    world.clock.advance(1)
    assert not await world.apply(move, taken)
    assert await world.record(taken.job.id) == before


async def test_a_move_is_refused_when_the_state_is_another(world: World) -> None:
    id = await world.add()
    decided = cancel(await world.job(id))
    taken = await world.take()
    assert not await world.apply(replace(decided, attempt_before=1), taken)
    assert await world.record(id) == Record(taken.job, taken.token)


async def test_a_move_is_refused_at_another_attempt(world: World) -> None:
    taken = await a_run(world)
    before = await world.record(taken.job.id)
    for attempt in (0, 2):
        assert not await world.apply(replace(failing(world, taken), attempt_before=attempt), taken)
    assert await world.record(taken.job.id) == before


async def test_a_waiting_job_is_guarded_by_its_attempt_too(world: World) -> None:
    id = await world.add(max_retry=3)
    stale = cancel(await world.job(id))
    taken = await world.take()
    assert await world.apply(finish(taken.job, Outcome(verdict=Verdict.ERROR, delay=0), world.clock.now(), 0), taken)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    assert (await world.job(id)).state is State.QUEUED
    assert not await world.apply(stale)


async def test_a_move_decided_before_the_order_to_stop_is_refused(world: World) -> None:
    taken = await a_run(world, max_retry=5)
    decided = failing(world, taken, Verdict.ERROR)
    assert await world.apply(cancel(taken.job), taken)
    before = await world.record(taken.job.id)
    assert not await world.apply(decided, taken), "or the order would be lost, and the job run again"
    assert await world.record(taken.job.id) == before


async def test_a_move_decided_before_a_job_was_given_back_is_refused(world: World) -> None:
    id = await world.add()
    decided = cancel(await world.job(id))
    taken = await world.take()
    assert await world.apply(release(taken.job, world.clock.now()), taken)
    assert not await world.apply(decided)
    assert await world.apply(cancel(await world.job(id)))


@pytest.mark.parametrize("fence", [None, b"a lie...", b""])
@pytest.mark.parametrize("make", [cancel, delete])
async def test_a_running_job_is_only_moved_under_its_token(
    world: World, fence: bytes | None, make: Callable[[Job], Move]
) -> None:
    taken = await a_run(world)
    before = await world.record(taken.job.id)
    assert await world.store.jobs.apply([replace(make(taken.job), fence=fence)]) == [False]
    assert await world.store.jobs.apply([replace(failing(world, taken), fence=fence)]) == [False]
    assert await world.record(taken.job.id) == before


async def test_a_move_of_a_job_that_is_not_there_is_refused(world: World) -> None:
    id = await world.add()
    move = delete(await world.job(id))
    assert await world.store.jobs.apply([move, move]) == [True, False]


async def test_refused_moves_do_not_hold_up_the_others(world: World) -> None:
    for n in range(6):
        await world.add(queue=f"q{n % 3}")
    taken = await world.claim(world.worker("q0", "q1", "q2"), slots=6)
    moves = [replace(failing(world, record), fence=token(record)) for record in taken]
    moves[1] = replace(moves[1], fence=b"a lie...")
    moves[3] = replace(moves[3], attempt_before=7)
    assert await world.store.jobs.apply(moves) == [True, False, True, False, True, True]
    running = await world.jobs(states=frozenset({State.RUNNING}))
    assert sorted(ids(running)) == sorted([taken[1].job.id, taken[3].job.id])


async def test_a_loss_is_refused_when_the_lease_was_renewed_meanwhile(world: World) -> None:
    await world.add()
    taken = await world.take(lease=10)
    world.clock.advance(10)
    decided = lose(taken.job, world.clock.now())
    await world.touch(taken, lease=10)
    assert not await world.apply(decided, taken)
    assert (await world.job(taken.job.id)).state is State.RUNNING
    world.clock.advance(9.999999)
    assert not await world.apply(decided, taken)
    world.clock.advance(0.000001)
    assert await world.apply(decided, taken)


async def test_a_thousand_moves_in_one_call(world: World) -> None:
    await world.store.jobs.add([world.draft(queue=f"q{n % 5}") for n in range(1000)])
    jobs = await world.jobs(limit=1000)
    assert await world.store.jobs.apply([cancel(job) for job in jobs]) == [True] * 1000
    tally = [JobCount("default", f"q{n}", "work", State.CANCELLED, 200) for n in range(5)]
    assert (await world.store.jobs.counts("default")).jobs == tally


# Errors


async def test_the_newest_hundred_errors_are_kept(world: World) -> None:
    id = await world.add(max_retry=None)
    for n in range(103):
        taken = await world.take()
        outcome = Outcome(verdict=Verdict.ERROR, error=Error(message=str(n)), delay=0.0)
        assert await world.apply(finish(taken.job, outcome, world.clock.now(), 0.0), taken)
        assert (await world.store.jobs.sweep(Sweep.PROMOTE, 1)).count == 1
    job = await world.job(id)
    assert [error.message for error in job.errors] == [str(n) for n in range(3, 103)]
    assert job.error == job.errors[-1]
    assert job.attempt == 103


async def test_an_error_is_kept_as_it_was_given(world: World) -> None:
    taken = await a_run(world)
    error = Error(type="Ü", message="\0 'quoted' \n" * 100, traceback="x" * 50_000)
    move = finish(taken.job, Outcome(verdict=Verdict.FAILED, error=error), world.clock.now(), 0.0)
    assert await world.apply(move, taken)
    assert (await world.job(taken.job.id)).errors == [move.error]


# Keep clocks


async def ended(world: World, verdict: Verdict, **terms: Any) -> str:
    await world.add(**terms)
    taken = await world.take()
    done = world.succeed(taken, b"42") if verdict is Verdict.OK else world.apply(failing(world, taken), taken)
    assert await done
    return taken.job.id


@pytest.mark.parametrize(("verdict", "other"), [(Verdict.OK, "keep_failure"), (Verdict.FAILED, "keep_success")])
async def test_a_finished_job_is_kept_for_its_time(world: World, verdict: Verdict, other: str) -> None:
    mine = {"keep_failure": "keep_success", "keep_success": "keep_failure"}[other]
    id = await ended(world, verdict, **{mine: 10.5, other: 0.0})
    world.clock.advance(10.499999)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 0
    assert not await world.gone(id)
    world.clock.advance(0.000001)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 1
    assert await world.gone(id)
    assert await world.result(id) is None
    assert (await world.store.jobs.counts("-")).jobs == []
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 0
    assert await world.store.jobs.add([world.draft(id=id)]) == [True]


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.FAILED])
async def test_never_is_never(world: World, verdict: Verdict) -> None:
    id = await ended(world, verdict, keep_success=None, keep_failure=None)
    world.clock.advance(100 * 365 * 86400.0)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 0
    assert not await world.gone(id)


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.FAILED])
async def test_not_at_all_is_at_once(world: World, verdict: Verdict) -> None:
    id = await ended(world, verdict, keep_success=0.0, keep_failure=0.0)
    assert await world.gone(id)
    assert (await world.store.jobs.counts("-")).jobs == []
    assert await world.jobs() == []


async def test_a_cancelled_job_is_kept_like_a_failed_one(world: World) -> None:
    id = await world.add(keep_failure=5, keep_success=None)
    await world.apply(cancel(await world.job(id)))
    world.clock.advance(5)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 1
    assert await world.gone(id)


async def test_the_keep_clock_starts_when_the_end_is_written(world: World) -> None:
    await world.add(keep_success=10)
    taken = await world.take()
    assert await world.succeed(taken, finished_at=world.clock.now() - 9 * SECOND)
    world.clock.advance(9)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 0
    world.clock.advance(1)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 1


async def test_what_was_kept_longest_is_purged_first_and_no_more_than_asked(world: World) -> None:
    late, early, middle = [await ended(world, Verdict.OK, keep_success=keep) for keep in (30, 10, 20)]
    world.clock.advance(30)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 2)).count == 2
    assert ids(await world.jobs()) == [late]
    assert await world.gone(early)
    assert await world.gone(middle)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 2)).count == 1


async def test_a_purge_takes_from_every_queue(world: World) -> None:
    for n in range(30):
        id = await world.add(queue=f"q{n}", keep_failure=n % 3)
        await world.apply(cancel(await world.job(id)))
    world.clock.advance(1)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 1000)).count == 10
    assert len(await world.jobs()) == 10


async def test_a_purge_over_many_queues_takes_no_more_than_asked(world: World) -> None:
    for n in range(20):
        id = await world.add(queue=f"q{n}", keep_failure=1)
        await world.apply(cancel(await world.job(id)))
    world.clock.advance(1)
    assert [(await world.store.jobs.sweep(Sweep.PURGE, 8)).count for _ in range(4)] == [8, 8, 4, 0]


# Waiting for a time


async def test_it_is_known_when_the_next_scheduled_job_is_due(world: World) -> None:
    timetable = world.store.jobs
    assert await timetable.next_due(Sweep.PROMOTE) is None
    await world.add()
    assert await timetable.next_due(Sweep.PROMOTE) is None
    later = await world.add(delay=20, queue="slow")
    assert await timetable.next_due(Sweep.PROMOTE) == 20
    await world.add(delay=10, queue="other")
    assert await timetable.next_due(Sweep.PROMOTE) == 10
    world.clock.advance(9.5)
    assert await timetable.next_due(Sweep.PROMOTE) == 0.5
    world.clock.advance(1)
    assert await timetable.next_due(Sweep.PROMOTE) == 0
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    assert await timetable.next_due(Sweep.PROMOTE) == 9.5
    assert await world.apply(cancel(await world.job(later)))
    assert await timetable.next_due(Sweep.PROMOTE) is None


async def test_a_scheduled_job_is_queued_when_its_time_has_come(world: World) -> None:
    id = await world.add(delay=10)
    world.clock.advance(9.999999)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 0
    before = await world.job(id)
    world.clock.advance(0.000001)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    assert await world.job(id) == replace(before, state=State.QUEUED, updated_at=world.clock.now())
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 0


async def test_a_re_run_is_queued_when_its_time_has_come_and_says_why_it_waited(world: World) -> None:
    taken = await a_run(world, max_retry=1)
    assert await world.apply(failing(world, taken, Verdict.ERROR, delay=10), taken)
    before = await world.job(taken.job.id)
    world.clock.advance(10)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    assert await world.job(taken.job.id) == replace(before, state=State.QUEUED, updated_at=world.clock.now())
    assert before.reason is Reason.ERROR
    assert (await world.take()).job.attempt == 2


async def test_a_re_run_that_is_due_already_still_waits_to_be_promoted(world: World) -> None:
    taken = await a_run(world, max_retry=1)
    assert await world.apply(failing(world, taken, Verdict.ERROR, delay=0), taken)
    assert await world.claim() == []
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    assert len(await world.claim()) == 1


async def test_the_earliest_are_promoted_first_and_no_more_than_asked(world: World) -> None:
    late, early, middle = [await world.add(delay=delay) for delay in (30, 10, 20)]
    world.clock.advance(30)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 2)).count == 2
    assert (await world.job(late)).state is State.SCHEDULED
    assert ids(await world.claim(slots=5)) == [early, middle]
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 2)).count == 1


async def test_a_promotion_takes_from_every_queue(world: World) -> None:
    for n in range(30):
        await world.add(queue=f"q{n}", tenant=f"t{n % 4}", delay=1 + n % 3)
    world.clock.advance(2)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 1000)).count == 20
    assert len(await world.jobs(states=frozenset({State.SCHEDULED}))) == 10


async def test_a_promotion_over_many_queues_takes_no_more_than_asked(world: World) -> None:
    for n in range(20):
        await world.add(queue=f"q{n}", delay=1)
    world.clock.advance(1)
    assert [(await world.store.jobs.sweep(Sweep.PROMOTE, 8)).count for _ in range(4)] == [8, 8, 4, 0]


async def test_a_promoted_job_keeps_its_priority(world: World) -> None:
    later = await world.add(priority=5, delay=1)
    now = await world.add(priority=0)
    first = await world.add(priority=-5, delay=2)
    world.clock.advance(2)
    await world.store.jobs.sweep(Sweep.PROMOTE, 10)
    assert ids(await world.claim(slots=5)) == [first, now, later]


# Leases


async def test_a_lease_that_is_out_is_overdue_from_that_moment(world: World) -> None:
    id = await world.add(payload=b"abc")
    taken = await world.take(lease=10)
    world.clock.advance(9.999999)
    assert (await world.store.jobs.overdue(Overdue.LEASE, 10)).records == []
    world.clock.advance(0.000001)
    reading = await world.store.jobs.overdue(Overdue.LEASE, 10)
    assert reading.now == world.clock.now()
    assert reading.records == [Record(taken.job, taken.token)] == [await world.record(id)]


async def test_overdue_leases_come_earliest_first_and_no_more_than_asked(world: World) -> None:
    leases = (30, 10, 40, 20)
    for n, _ in enumerate(leases):
        await world.add(queue=f"q{n}")
    taken = [await world.take(world.worker(f"q{n}"), lease=lease) for n, lease in enumerate(leases)]
    world.clock.advance(39)
    late, earliest, _, middle = ids(taken)
    found = await world.store.jobs.overdue(Overdue.LEASE, 10)
    assert [record.job.id for record in found.records if record] == [earliest, middle, late]
    found = await world.store.jobs.overdue(Overdue.LEASE, 2)
    assert [record.job.id for record in found.records if record] == [earliest, middle]


async def test_a_job_that_has_ended_has_no_lease(world: World) -> None:
    for _ in range(4):
        await world.add(max_retry=1)
    one, two, three, four = await world.claim(slots=4, lease=10)
    now = world.clock.now()
    assert await world.succeed(one)
    assert await world.apply(failing(world, two), two)
    assert await world.apply(failing(world, three, Verdict.RETRY), three)
    assert await world.apply(release(four.job, now), four)
    world.clock.advance(10)
    assert (await world.store.jobs.overdue(Overdue.LEASE, 10)).records == []


# Expiry


@pytest.mark.parametrize("delay", [None, 60.0])
async def test_a_job_that_was_not_started_in_time_is_overdue_from_that_moment(
    world: World, delay: float | None
) -> None:
    id = await world.add(expires=10, delay=delay)
    world.clock.advance(9.999999)
    assert (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records == []
    world.clock.advance(0.000001)
    reading = await world.store.jobs.overdue(Overdue.EXPIRY, 10)
    assert (reading.now, reading.records) == (world.clock.now(), [await world.record(id)])


async def test_an_expired_job_is_written_whole(world: World) -> None:
    id = await world.add(expires=10, keep_failure=5)
    world.clock.advance(10)
    before = await world.job(id)
    now = world.clock.now()
    move = expire(before, now)
    assert await world.apply(move)
    assert await world.job(id) == replace(
        before,
        state=State.FAILED,
        reason=Reason.EXPIRED,
        error=move.error,
        errors=[move.error],
        updated_at=now,
        finished_at=now,
    )
    assert (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records == []
    assert await world.claim() == []
    world.clock.advance(5)
    assert (await world.store.jobs.sweep(Sweep.PURGE, 10)).count == 1


async def test_a_job_that_was_started_once_never_expires(world: World) -> None:
    await world.add(expires=10, max_retry=3)
    await world.add(expires=10, max_retry=3)
    given_back, retried = await world.claim(slots=2)
    now = world.clock.now()
    assert await world.apply(release(given_back.job, now), given_back)
    assert await world.apply(failing(world, retried, Verdict.RETRY, delay=5), retried)
    world.clock.advance(10)
    assert (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records == []


async def test_a_job_that_has_ended_does_not_expire(world: World) -> None:
    id = await world.add(expires=10)
    await world.apply(cancel(await world.job(id)))
    world.clock.advance(10)
    assert (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records == []


async def test_a_promoted_job_still_expires(world: World) -> None:
    id = await world.add(expires=10, delay=5)
    world.clock.advance(5)
    assert (await world.store.jobs.sweep(Sweep.PROMOTE, 10)).count == 1
    world.clock.advance(5)
    assert (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records == [await world.record(id)]


async def test_expired_jobs_come_earliest_first_and_no_more_than_asked(world: World) -> None:
    late, earliest, _, middle = [await world.add(queue=f"q{n}", expires=n) for n in (30, 10, 40, 20)]
    world.clock.advance(39)
    found = await world.store.jobs.overdue(Overdue.EXPIRY, 10)
    assert [record.job.id for record in found.records if record] == [earliest, middle, late]
    found = await world.store.jobs.overdue(Overdue.EXPIRY, 2)
    assert [record.job.id for record in found.records if record] == [earliest, middle]


async def test_expiring_at_once_still_needs_a_decision(world: World) -> None:
    id = await world.add(expires=0)
    assert (await world.job(id)).state is State.QUEUED
    assert (await world.store.jobs.overdue(Overdue.EXPIRY, 10)).records == [await world.record(id)]
