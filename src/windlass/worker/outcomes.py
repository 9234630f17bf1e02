"""What became of a run, in the queue's words."""

import logging
from collections.abc import Sequence

from msgspec import UNSET, Raw

from windlass.model.job import TEXT, Error, NewJob, Reason
from windlass.model.lifecycle import CODES, Verdict
from windlass.model.operations import Finished
from windlass.worker.frames import Ending
from windlass.worker.functions.terms import FunctionOutcome
from windlass.worker.held import Held, Stop
from windlass.worker.processes import describe_status

STOPPED = {
    Stop.TIMEOUT: (Reason.TIMEOUT, "ran longer than its time limit of {held.limit:g} s"),
    Stop.OUTPUT: (Reason.OUTPUT, "printed more than this worker allows"),
    Stop.MEMORY: (Reason.MEMORY, "took more memory than this worker allows"),
}
"""Why a worker stops a job by itself, and how it says so."""

CRASHED = Error(type="Crashed")

MOST_TOLD = 300
"""Characters of an error that are told in the log."""

log = logging.getLogger("windlass.job")

VERDICTS = {code // 100: verdict for verdict, code in CODES.items()}
"""What the first digit of a code means; any other asks for another run."""


def finished(held: Held, ending: Ending) -> Finished:
    """The report on a run that has ended."""
    if ending.verdict is Verdict.OK:
        result = UNSET if ending.result is None else Raw(ending.result)
        return Finished(
            id=held.id,
            token=held.token,
            tenant=held.tenant,
            outcome=Verdict.OK,
            code=ending.code,
            result=result,
            jobs=ending.jobs,
        )
    error, reason = ending.error or Error(), None
    if held.stopping in STOPPED:
        reason, error = _stopped(held, held.stopping, error.traceback)
    elif error.type == CRASHED.type and held.stopping is Stop.CANCEL:
        error = Error(type="Cancelled", message="killed: it ran on when it was told to stop", traceback=error.traceback)
    elif error.type == CRASHED.type:
        reason = Reason.CRASHED
    verdict = Verdict.ERROR if reason else ending.verdict
    _complain(held, verdict, error)
    return Finished(
        id=held.id,
        token=held.token,
        tenant=held.tenant,
        outcome=verdict,
        code=None if reason else ending.code,
        error=error,
        reason=reason,
        delay=ending.delay,
    )


def _complain(held: Held, verdict: Verdict, error: Error) -> None:
    """Tell whoever looks at this worker that a run went wrong; not of one that was stopped for no fault of its own."""
    if held.stopping is not None and held.stopping not in STOPPED:
        return
    what = "asks for another run" if verdict is Verdict.RETRY else "failed"
    first = f"{error.type}: {error.message}".strip(": ").partition("\n")[0][:MOST_TOLD]
    said = "".join(one if one.isprintable() else "\ufffd" for one in first)
    log.warning("%s %s %s in attempt %d: %s", held.id, held.job.task, what, held.job.attempt, said)


def _stopped(held: Held, why: Stop, traceback: str) -> tuple[Reason, Error]:
    reason, text = STOPPED[why]
    return reason, Error(type=reason.value.capitalize(), message=text.format(held=held), traceback=traceback)


def crashed(held: Held, status: int, peak_memory: int, last_lines: str) -> Ending:
    """The end of a job whose process has died."""
    how, code = describe_status(status)
    peak = f"; peak memory {peak_memory / 2**20:.0f} MiB" if peak_memory else ""
    message = f"{how} (exit code {code}{peak})"
    return Ending(held.number, Verdict.ERROR, error=Error(type=CRASHED.type, message=message, traceback=last_lines))


def answered(held: Held, outcome: FunctionOutcome, delays: Sequence[float] = ()) -> Finished:
    """The report on a run of uploaded code. `delays`: for each job that it made, how long that waits; none = not."""
    verdict = VERDICTS.get(outcome.code // 100, Verdict.RETRY)
    code = outcome.code if outcome.code // 100 in VERDICTS else CODES[verdict]
    if verdict is Verdict.OK:
        return Finished(
            id=held.id,
            token=held.token,
            tenant=held.tenant,
            sandbox=held.sandbox,
            handler_version=held.version,
            outcome=verdict,
            code=code,
            result=UNSET if outcome.result is None else Raw(outcome.result),
            content_type=outcome.content_type,
            jobs=[
                _chained(held, task, payload, delays[place] if delays else 0.0)
                for place, (task, payload) in enumerate(outcome.jobs)
            ],
        )
    error = Error(type=outcome.type, message=outcome.message, traceback=outcome.traceback)
    reason = outcome.reason if held.stopping is not Stop.CANCEL else None
    if held.stopping in STOPPED:
        verdict = Verdict.ERROR
        reason, error = _stopped(held, held.stopping, outcome.traceback)
    _complain(held, verdict, error)
    return Finished(
        id=held.id,
        token=held.token,
        tenant=held.tenant,
        sandbox=held.sandbox,
        handler_version=held.version,
        outcome=verdict,
        code=None if reason or outcome.reason else code,
        error=error,
        reason=reason,
        delay=outcome.delay,
    )


def _chained(held: Held, task: str, payload: str, delay: float) -> NewJob:
    """A job that another one asked for: where there are workers for it, and on the same terms, as it names none."""
    parent = held.job
    return NewJob(
        task=task,
        payload=Raw(payload.encode()),
        content_type=TEXT,
        delay=delay or None,
        queue=parent.queue,
        priority=parent.priority,
        timeout=parent.timeout,
        max_retry=parent.max_retry,
        retry=parent.retry,
        keep_result=parent.keep_result,
        keep_result_for=parent.keep_result_for,
        keep_success=parent.keep_success,
        keep_failure=parent.keep_failure,
        expires=None if parent.expires is None else parent.expires + delay,
    )


def refused(held: Held, why: str) -> Finished:
    """The report on a job that this worker will not run."""
    error = Error(type="Refused", message=why)
    return Finished(id=held.id, token=held.token, tenant=held.tenant, outcome=Verdict.ERROR, error=error)
