"""NDJSON: a body whose every line is a job."""

import asyncio

import msgspec

from windlass.model import wire
from windlass.model.admission import Sound, check_all
from windlass.model.errors import Invalid, TooLarge
from windlass.model.job import NewJob
from windlass.server import bodies
from windlass.server.limits import Limits

BREATH = 500
"""Lines after which other requests get their turn."""

_line = msgspec.json.Decoder(NewJob)


Line = tuple[int, bytes]
"""The number of a line that is not empty, and its text. No more than that, for there are thousands."""


async def jobs_of(data: bytes, limits: Limits) -> tuple[Sound, list[int]]:
    """The jobs of a body, and the numbers of their lines; an error names its line."""
    if data.count(b"\n") > limits.most_lines:
        raise TooLarge(f"a body may have {limits.most_lines} lines: send less at once", at="body")
    _check_text(data)
    lines = [line for line in enumerate(data.split(b"\n"), start=1) if line[1].strip()]
    found = Sound(limits.most_payload)
    for start in range(0, len(lines), BREATH):
        found += _jobs(lines[start : start + BREATH], limits)
        await asyncio.sleep(0)
    return found, [number for number, _ in lines]


def _check_text(data: bytes) -> None:
    """What a decoder skips, payloads above all, it does not look at."""
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        number = 1 + data.count(b"\n", 0, fault.start)
        raise Invalid("this is not UTF-8", at=f"line {number}") from None


def _jobs(lines: list[Line], limits: Limits) -> Sound:
    news = [_job(number, text) for number, text in lines]
    return check_all(news, limits.most_payload, lambda place: f"line {lines[place][0]}")


def _job(number: int, text: bytes) -> NewJob:
    try:
        return bodies.marked_job(_line.decode(text), "json")
    except wire.FAULTS as fault:
        raise type(fault)(fault.detail, at=f"line {number}.{fault.at}".strip(".")) from None
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise wire.invalid(fault, at=f"line {number}", kind=NewJob) from None
