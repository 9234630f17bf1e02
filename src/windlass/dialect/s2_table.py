"""The routes of a queue of pushers and workers: what each takes and answers."""

from typing import Annotated

from msgspec import Meta, Struct

from windlass.dialect.s2_words import (
    TYPES,
    WORKER_JOB,
    Failure,
    Introduction,
    Joined,
    Queued,
    Sent,
    Status,
    Submission,
    Success,
)
from windlass.model.operations import OPERATIONS, Cancel, Enqueue, Finish, Register, Renew, Show, Unregister
from windlass.server.described import Content, Described

TAG = "dialect-s2"

BOTH = tuple(TYPES.values())

WORKER_ID = "worker-id"
WHICH = {WORKER_ID: "Which worker it is."}

ASKED = frozenset({404, 406})
SENT = frozenset({406, 415})


class Patience(Struct, frozen=True):
    """How long a poll waits."""

    timeout: Annotated[float, Meta(ge=0, le=60)] = 5.0


STATUS = Content(Status, BOTH, {"status": "done", "retry_count": 0, "message": "", "result": {"pages": 3}})

PUSH = Described(
    verbs=["POST"],
    path="/job",
    name="S2Push",
    tag=TAG,
    summary="Queue a job.",
    scope=OPERATIONS[Enqueue].scope,
    takes=[Content(Submission, BOTH, {"name": "render", "argument": {"scene": 7}, "keep_result": True})],
    answers={201: [Content(Queued, BOTH)]},
    refuses=SENT | {429},
)
LOOK = Described(
    verbs=["GET"],
    path="/job/{id}",
    name="S2Status",
    tag=TAG,
    summary="How a job fares. A result that was kept is handed out once, within an hour; then it is null.",
    scope=OPERATIONS[Show].scope,
    answers={200: [STATUS]},
    refuses=ASKED,
)
POLL = Described(
    verbs=["GET"],
    path="/job/{id}/polling",
    name="S2Poll",
    tag=TAG,
    summary="The same, once the job has ended for good.",
    scope=OPERATIONS[Show].scope,
    query=Patience,
    answers={200: [STATUS]},
    refuses=ASKED | {408},
)
CANCEL = Described(
    verbs=["DELETE"],
    path="/job/{id}",
    name="S2Cancel",
    tag=TAG,
    summary="Cancel a job that has not started.",
    scope=OPERATIONS[Cancel].scope,
    answers={204: []},
    refuses=frozenset({404, 409}),
)

DELIVER = Described(
    verbs=["POST"],
    path=f"{{$request.body#/url}}{WORKER_JOB}",
    name="S2Deliver",
    tag=TAG,
    summary="One job for a worker, in the format that it registered in. 202 takes it, and only that counts as a run; "
    "404 says that the name is not known; after anything else it goes elsewhere.",
    takes=[Content(Sent, BOTH)],
    answers={202: [], 400: [], 404: []},
)

JOIN = Described(
    verbs=["POST"],
    path="/worker",
    name="S2Register",
    tag=TAG,
    summary="Register a worker, whose jobs are sent to it.",
    scope=OPERATIONS[Register].scope,
    takes=[Content(Introduction, BOTH, {"name": "w1", "max_jobs": 4, "url": "https://worker.example"})],
    answers={201: [Content(Joined, BOTH)]},
    refuses=SENT | {409},
    calls={"job": DELIVER},
)
LIVE = Described(
    verbs=["PUT"],
    path="/worker",
    name="S2Live",
    tag=TAG,
    summary="A worker lives: to be said at least once in each `lease`.",
    scope=OPERATIONS[Renew].scope,
    headers=WHICH,
    needs=frozenset(WHICH),
    answers={204: []},
    refuses=frozenset({404}),
)
LEAVE = Described(
    verbs=["DELETE"],
    path="/worker",
    name="S2Unregister",
    tag=TAG,
    summary="A worker takes its leave.",
    scope=OPERATIONS[Unregister].scope,
    headers=WHICH,
    needs=frozenset(WHICH),
    answers={204: []},
    refuses=frozenset({404}),
)
DONE = Described(
    verbs=["POST"],
    path="/done",
    name="S2Done",
    tag=TAG,
    summary="How a run ended: under the id that was sent to the worker. What comes late, or twice, changes nothing.",
    scope=OPERATIONS[Finish].scope,
    headers=WHICH,
    needs=frozenset(WHICH),
    takes=[Content(Success | Failure, BOTH, {"job_id": "…", "type": "success", "result": {"pages": 3}})],
    answers={204: []},
    refuses=frozenset({404, 409, 415, 429}),
)

TABLE = (PUSH, LOOK, POLL, CANCEL, JOIN, LIVE, LEAVE, DONE)
