"""The routes of a queue of notifications: what each takes and answers."""

from typing import Any, Literal

from msgspec import Struct, field

from windlass.dialect.s4_words import CORRELATOR, PATH, SERVICE, TENANT, TIME_INDEX, Notification, Runtime, Told
from windlass.model.job import TEXT
from windlass.model.operations import OPERATIONS, Count, Delete, Enqueue, List
from windlass.server.described import Content, Described

TAG = "dialect-s4"

PREFIXES = {"/management/queue": "", "/wq/management": "Wq"}
"""Two ways to say the same, and what sets the names of the second ones apart."""

SCOPE = {
    SERVICE: "The service that is meant.",
    TENANT: "The same; goes before it.",
    PATH: "The path in it; `/` if there is none.",
    CORRELATOR: "Which of the notifications there.",
}
INDEX = {TIME_INDEX: "Travels with the job."}

ENTITY = {"id": "room-1", "type": "Room", "temperature": {"type": "Number", "value": 21.5}}


class Asked(Struct, frozen=True):
    """Which tasks are meant."""

    task_status: Literal["pending", "succeeded", "failed"] | None = field(default=None, name="taskStatus")


NOTIFY = Described(
    verbs=["POST"],
    path="/v2/notify",
    name="S4Notify",
    tag=TAG,
    summary="Queue a notification. 500 if the queue cannot take it, or if its work was waited for and did not succeed.",
    scope=OPERATIONS[Enqueue].scope,
    headers=SCOPE | INDEX,
    takes=[Content(Notification, example={"subscriptionId": "s1", "data": [ENTITY]})],
    answers={200: [Content(str, (TEXT,))]},
    refuses=frozenset({429}),
)


def _managing(prefix: str, mark: str) -> tuple[Described, ...]:
    def one(verb: str, path: str, name: str, summary: str, kind: type[Any], **more: Any) -> Described:
        return Described(
            verbs=[verb],
            path=f"{prefix}/notifications{path}",
            name=f"S4{name}{mark}",
            tag=TAG,
            summary=summary,
            scope=OPERATIONS[kind].scope,
            headers=SCOPE,
            **more,
        )

    return (
        one("GET", "", "List", "Tasks with their input.", List, query=Asked, answers={200: [Content(list[Told])]}),
        one("DELETE", "", "Delete", "Drop all tasks of the scope, in whatever state.", Delete, answers={204: []}),
        one(
            "GET", "/summary", "Summary", "How each fares.", List, query=Asked, answers={200: [Content(list[Runtime])]}
        ),
        one("GET", "/count", "Count", "How many there are.", Count, query=Asked, answers={200: [Content(int)]}),
    )


MANAGING = tuple(_managing(prefix, mark) for prefix, mark in PREFIXES.items())

TABLE = (NOTIFY, *(entry for entries in MANAGING for entry in entries))
