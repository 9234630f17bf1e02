"""NDJSON: a body whose every line is a job."""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from windlass.model import wire
from windlass.model.admission import check_new
from windlass.model.errors import Invalid, TooLarge
from windlass.model.job import NewJob
from windlass.server import bodies
from windlass.server.limits import Limits
from windlass.server.translation import is_text

BREATH = 500
"""Lines after which other requests get their turn."""

_line = msgspec.json.Decoder(NewJob)


async def jobs_of(data: bytes, limits: Limits) -> AsyncIterator[NewJob]:
    """The jobs of a body; a fault is told with the number of its line."""
    if data.count(b"\n") > limits.most_lines:
        raise TooLarge(f"a body may have {limits.most_lines} lines: send less at once", at="body")
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield _job(line, limits, f"line {number}")
        if number % BREATH == 0:
            await asyncio.sleep(0)


def _job(line: bytes, limits: Limits, at: str) -> NewJob:
    if not is_text(line):
        raise Invalid("this is not UTF-8", at=at)
    try:
        new = bodies.marked_job(_line.decode(line), "json")
    except wire.FAULTS as fault:
        raise type(fault)(fault.detail, at=f"{at}.{fault.at}".strip(".")) from None
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise wire.invalid(fault, at=at, kind=NewJob) from None
    return check_new(new, limits.most_payload, at)
