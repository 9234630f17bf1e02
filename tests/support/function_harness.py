"""Uploaded functions as tests run them: real interpreters, in real sandboxes."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from tests.support.patience import PATIENCE
from windlass.model.handler import Handler, HandlerOptions, NewHandler, digest_of
from windlass.model.job import JSON, TEXT
from windlass.model.output import Stream
from windlass.system import SystemRandomness
from windlass.worker.functions import FunctionJob, FunctionOptions, FunctionOutcome, Tier
from windlass.worker.functions.pool import Functions
from windlass.worker.network import Allowed, Network

LANGUAGES = ("python", "node", "php", "sh")
WITH_VALUES = ("python", "node", "php")
"""Those that know more than text."""


def handler(
    lang: Any, body: str, *, task: str = "work", tenant: str = "acme", version: int = 1, **more: Any
) -> Handler:
    options = {name: more.pop(name) for name in list(more) if name in HandlerOptions.__struct_fields__}
    new = NewHandler(lang=lang, body=body, options=HandlerOptions(**options), **more)
    fields = {name: getattr(new, name) for name in new.__struct_fields__}
    return Handler(
        **fields, tenant=tenant, task=task, version=version, digest=digest_of(new), created_at=datetime.now(UTC)
    )


class Heard:
    """Everything that is known of some jobs."""

    def __init__(self) -> None:
        self.outcomes: dict[str, FunctionOutcome] = {}
        self.output: dict[tuple[str, Stream], bytes] = {}
        self.pids: dict[str, int | None] = {}
        self.tiers: set[Tier | None] = set()
        self.news = asyncio.Event()

    def began(self, id: str, pid: int | None, tier: Tier | None) -> None:
        assert id not in self.outcomes
        self.pids[id] = pid
        self.tiers.add(tier)
        self._tell()

    def printed(self, id: str, stream: Stream, data: bytes) -> None:
        assert id not in self.outcomes
        self.output[id, stream] = self.output.get((id, stream), b"") + data
        self._tell()

    def ended(self, outcome: FunctionOutcome) -> None:
        assert outcome.id not in self.outcomes, "reported twice"
        self.outcomes[outcome.id] = outcome
        self._tell()

    def _tell(self) -> None:
        self.news.set()

    async def until(self, id: str, text: bytes) -> bool:
        """A running job has printed this; false if it has ended without."""
        async with asyncio.timeout(PATIENCE):
            while not (found := text in self._printed_by(id)) and id not in self.outcomes:
                self.news.clear()
                await self.news.wait()
        return found

    def _printed_by(self, id: str) -> bytes:
        return self.output.get((id, "stdout"), b"") + self.output.get((id, "stderr"), b"")

    @property
    def codes(self) -> list[int]:
        return [outcome.code for _, outcome in sorted(self.outcomes.items())]

    @property
    def one(self) -> FunctionOutcome:
        (outcome,) = self.outcomes.values()
        return outcome


def jobs(
    *payloads: bytes, content_type: str = TEXT, tenant: str = "acme", timeout: float | None = 20.0, start: int = 0
) -> list[FunctionJob]:
    return [
        FunctionJob(id=f"{at:04}", tenant=tenant, payload=payload, content_type=content_type, timeout=timeout)
        for at, payload in enumerate(payloads, start)
    ]


def results(heard: Heard) -> list[Any]:
    """What the jobs answered, in order."""
    return [json.loads(one.result or b"null") for _, one in sorted(heard.outcomes.items())]


SLACK = (1, 5, 20)
"""By what a test multiplies the time of a job in turn, until the job gets as far as it must: machines may be busy."""

SERVERS = ("redis", "valkey")

earlier: set[int] = set()
"""Processes of tests before this one."""


def family() -> list[psutil.Process]:
    """Everything that has come of this test: not servers that tests share, nor what earlier tests left behind."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if one.pid not in earlier and not one.name().startswith(SERVERS)]


def note_who_is_there() -> None:
    """From here on, the family is what comes."""
    earlier.clear()
    earlier.update(one.pid for one in psutil.Process().children(recursive=True))


def let_others_in(folder: Path) -> None:
    """Let every user reach a test's own folder."""
    for one in (folder, *folder.parents[:-2]):
        one.chmod(0o755)


def there(path: str) -> bool:
    return os.path.lexists(path)


def alive(pid: int) -> bool:
    return there(f"/proc/{pid}")


async def until_gone(path: str, within: float = PATIENCE) -> None:
    async with asyncio.timeout(within):
        while there(path):  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.01)


class Bench:
    """Functions to be tried out."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions

    async def run(self, handler: Handler, *payloads: bytes, **more: Any) -> Heard:
        """Run a batch and hear of it."""
        heard = Heard()
        async with asyncio.timeout(PATIENCE):
            await self.functions.run(handler, jobs(*payloads, tenant=handler.tenant, **more), heard)
        return heard

    async def value(self, lang: str, body: str, payload: bytes = b"null", **more: Any) -> FunctionOutcome:
        """What one job comes to, its payload being JSON."""
        return (await self.run(handler(lang, body, **more), payload, content_type=JSON)).one


@asynccontextmanager
async def bench(*, reach: Network | None = None, **options: Any) -> AsyncIterator[Bench]:
    functions = Functions(FunctionOptions(**options), reach or Network(Allowed(near=True)), chance=SystemRandomness())
    try:
        yield Bench(functions)
    finally:
        async with asyncio.timeout(PATIENCE):
            await functions.close()
