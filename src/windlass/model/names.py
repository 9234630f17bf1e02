"""Names and ids: what may be called what, and which bytes name a job.

An id is a UUID made by the caller, so that sending a job twice makes one job. Its last byte is the
mark of the job's queue: a store spread over several partitions finds the partition from the id alone.
"""

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Annotated, NamedTuple, Protocol

from msgspec import Meta

from windlass.model.errors import Invalid

# `$` also matches before a last newline; the lookahead refuses that, in Python and in JSON Schema alike.
NAME_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$(?!\n)"

WEIGHTED_PATTERN = NAME_PATTERN.replace("$", r"(=([1-9]|1[0-6]))?$")
"""A name, or a name and a number: `mail=3`."""

Name = Annotated[
    str,
    Meta(pattern=NAME_PATTERN, description="Letters, digits, `_`, `.` and `-`; 1 to 128; a letter or digit first."),
]

EVERY_TENANT = "-"
"""Stands for all tenants wherever a tenant is asked for; no tenant can have this name."""

ID_SIZE = 16
"""Bytes of an id."""

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"

MEDIA_PATTERN = r"^[ -~]*$(?!\n)"
"""A content type goes into headers, and before the bytes that it speaks of."""

_NAME = re.compile(NAME_PATTERN)
_MEDIA = re.compile(MEDIA_PATTERN)


class JobKey(NamedTuple):
    """Which job: an id belongs to its tenant, so two tenants may have a job of the same id each."""

    id: str
    tenant: str


class OfTenant(Protocol):
    """Anything that names a job by its id and tenant."""

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...


def key_of(job: OfTenant) -> JobKey:
    return JobKey(job.id, job.tenant)


_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z")


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def check_name(name: str, *, at: str) -> str:
    if not is_name(name):
        raise Invalid(f"{name[:140]!r} is not a name: letters, digits, '_', '.', '-'; 1 to 128 of them", at=at)
    return name


def is_id(text: str) -> bool:
    return _UUID.match(text) is not None


def check_id(text: str, *, at: str = "id") -> str:
    if not is_id(text):
        raise Invalid(f"{text[:60]!r} is not a UUID in lower case", at=at)
    return text


MOST_FILES = 32
"""Files that come with one job, or that a run leaves."""

FileName = Annotated[str, Meta(min_length=1, max_length=255)]

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]

MOST_FILE_NAME = 255
"""Bytes of a file's name, as file systems have it."""


def check_file_name(name: str, *, at: str) -> str:
    if "/" in name or not name.isprintable() or name in (".", ".."):
        raise Invalid(
            f"{name[:60]!r} is not the name of a file: no '/' and no control characters, nor '.' or '..' alone", at=at
        )
    if len(name.encode()) > MOST_FILE_NAME:
        raise Invalid(f"{name[:60]!r}… is longer than the {MOST_FILE_NAME} bytes of a file's name", at=at)
    return name


def check_content_type(text: str, *, at: str = "content_type") -> str:
    if not _MEDIA.match(text):
        raise Invalid(f"{text[:60]!r} is not a content type: printable ASCII, as in application/json", at=at)
    return text


def without_password(address: str) -> str:
    """An address as it may be shown: what stands in it for a password is left out."""
    shown = re.sub(r"\A((?:[a-z+]+:/+)?[^:]*):.*@", r"\1:…@", address, flags=re.DOTALL)
    return re.sub(r"([?&](?:sentinel_)?password=)[^&]*", r"\1…", shown)


def check_mark(id: str, queue: str) -> None:
    """Refuse an id that is not of this queue, on every store: or code would work on a file and break on a cluster."""
    mark = _mark_text(queue)
    if not id.endswith(mark):
        raise Invalid(
            f"ids of jobs in queue {queue!r} end with {mark}: send {id[:-2]}{mark}, or this as the key; see `job_id`",
            at="id",
        )


def job_id(uuid: object, queue: str = DEFAULT_QUEUE) -> str:
    """The id for a job of this queue that a UUID of your own stands for: the same, but for its last two digits.

    A store finds the partition of the queue by them: the lowest byte of the CRC-32 of the queue's name.
    """
    return marked_id(check_id(str(uuid)), queue)


@lru_cache(maxsize=4096)
def _mark_text(queue: str) -> str:
    return f"{queue_mark(queue):02x}"


@lru_cache(maxsize=4096)
def queue_mark(queue: str) -> int:
    """The byte that the ids of a queue's jobs end with: CRC-32 of its name, lowest eight bits."""
    return zlib.crc32(queue.encode()) & 0xFF


def part_of(id: str, parts: int) -> int:
    """Which of so many partitions of a store holds a job, by the mark of its queue."""
    return int(id[-2:], 16) % parts


def fresh_id(uuid7: bytes, queue: str) -> str:
    """An id for a new job of this queue, from the bytes of a fresh UUIDv7."""
    return text_id(marked(uuid7, queue))


def marked(uuid7: bytes, queue: str) -> bytes:
    """The same as bytes."""
    return uuid7[:15] + bytes((queue_mark(queue),))


def marked_id(uuid7: str, queue: str) -> str:
    """The same from its text."""
    return f"{uuid7[:-2]}{queue_mark(queue):02x}"


def keyed_id(tenant: str, queue: str, key: str) -> str:
    """The id that a caller's own key stands for: the same key is the same job while its record lives."""
    return _made_id(f"{tenant}\0{queue}\0{key}", queue)


def child_id(parent: str, name: str, queue: str) -> str:
    """The id of a job that another one brings about: the same name is the same job, whichever run brings it about."""
    return _made_id(f"{parent}\0{name}", queue)


def _made_id(text: str, queue: str) -> str:
    digest = bytearray(hashlib.sha256(text.encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80  # version 8: made by rules of our own
    digest[8] = digest[8] & 0x3F | 0x80
    digest[15] = queue_mark(queue)
    return text_id(bytes(digest))


def text_id(raw: bytes) -> str:
    """The id that these bytes, or a `raw_key`, begin with."""
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"


def raw_id(text: str) -> bytes:
    return bytes.fromhex(text.replace("-", ""))


def raw_key(id: str, tenant: str) -> bytes:
    """A job's key in every store: the bytes of its id, then its tenant's name; of the default tenant the id alone."""
    try:
        raw = bytes.fromhex(id.replace("-", ""))
    except ValueError:
        raise Invalid(f"{id[:60]!r} is not a UUID", at="id") from None
    return raw if tenant == DEFAULT_TENANT else raw + tenant.encode()


def tenant_of(raw: bytes) -> str:
    """The tenant in a `raw_key`."""
    return raw[ID_SIZE:].decode() or DEFAULT_TENANT


# Ids by the thousand, without a step of Python for each. Those that are made together differ only in their counter,
# which is in a UUID of version 7 where RFC 9562 has `rand_a`, behind its time. So they ascend.

_PAIR = 2
_PAIRED = 40
"""Characters of an id whose bytes are written in pairs, with one between a pair and the next."""
_SURPLUS = (4, 29, 34)
"""Where that is one more than the text of an id has."""

_A_MILLISECOND = 4096
"""Ids that one millisecond has counts for; further ones take their time from the next."""

_COUNTS = [(0x7000 + count).to_bytes(2) for count in range(_A_MILLISECOND)]
_COUNT_TEXTS = [count.hex() for count in _COUNTS]


def ids_like(uuid7: bytes, number: int) -> bytes:
    """So many ids, one after the other, of which only a fresh UUID was given."""
    tail = uuid7[8:]
    return b"".join(head + (tail + head).join(_COUNTS[:some]) + tail for head, some in _heads(uuid7, number))


def texts_like(uuid7: bytes, number: int) -> list[str]:
    """The same ids as texts."""
    texts: list[str] = []
    for head, some in _heads(uuid7, number):
        before, after = text_id(head + uuid7[6:])[:14], text_id(uuid7)[18:]
        texts += f"{before}{f'{after} {before}'.join(_COUNT_TEXTS[:some])}{after}".split()
    return texts


def _heads(uuid7: bytes, number: int) -> Iterator[tuple[bytes, int]]:
    """The time that each millisecond's ids begin with, and how many these are."""
    milliseconds = int.from_bytes(uuid7[:6])
    for later, start in enumerate(range(0, number, _A_MILLISECOND)):
        yield (milliseconds + later).to_bytes(6), min(_A_MILLISECOND, number - start)


def text_ids(raw: bytes) -> list[str]:
    """Concatenated raw ids, as texts."""
    if not raw:
        return []
    text, number = bytearray(raw.hex("-", _PAIR) + "\n", "ascii"), len(raw) // ID_SIZE
    text[_PAIRED - 1 :: _PAIRED] = b"\n" * number
    for place in _SURPLUS:
        text[place::_PAIRED] = b" " * number
    return text.translate(None, b" ").decode().split()


def raw_ids(texts: Iterable[str]) -> bytes:
    """The same ids as bytes, one after the other."""
    return bytes.fromhex("".join(texts).replace("-", ""))
