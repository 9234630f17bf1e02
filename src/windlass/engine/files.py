"""Files: those sent before the jobs that name them, those that runs leave, and how large they may be in a queue."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from windlass.engine.context import EngineContext, fence
from windlass.model.errors import FilesMissing, Invalid, Missing, TooLarge, Unavailable
from windlass.model.names import EVERY_TENANT, MOST_FILES, JobKey, check_file_name, key_of
from windlass.model.new_job import NewJob
from windlass.model.operations import (
    Enqueue,
    EnqueueMany,
    FileEntry,
    Finished,
    GetFile,
    GetFiles,
    Operation,
    PutFile,
    Released,
)
from windlass.store.optional import FileStore

KEPT_FOR = 3600.0
"""Seconds for which a file that was sent stays after its last use."""

MOST_SENT = 64 << 20
"""Bytes of such files of one tenant; those that were not used for longest make room."""


def file_store(context: EngineContext) -> FileStore:
    if context.store.files is None:
        raise Unavailable("this store keeps no files: send them with their jobs", at="files")
    return context.store.files


async def put_file(context: EngineContext, operation: PutFile) -> None:
    if operation.tenant == EVERY_TENANT:
        raise Invalid("a file belongs to one tenant, not to '-'", at="tenant")
    data, most = operation.data, context.settings.most_payload
    if len(data) > most:
        raise TooLarge(f"{len(data)} bytes, at most {most}: keep large files elsewhere", at="data")
    if hashlib.sha256(data).hexdigest() != operation.hash:
        raise Invalid("the data has another SHA-256: send exactly the bytes that it names", at="hash")
    digest = bytes.fromhex(operation.hash)
    await file_store(context).upload(operation.tenant, digest, data, seconds=KEPT_FOR, most=MOST_SENT)


async def get_files(context: EngineContext, operation: GetFiles) -> list[FileEntry]:
    job = (await context.find(operation.id, operation.tenant)).job
    left = {} if context.store.files is None else await context.store.files.left(key_of(job))
    return [FileEntry(name=name, size=size) for name, size in left.items()]


async def get_file(context: EngineContext, operation: GetFile) -> bytes:
    job = (await context.find(operation.id, operation.tenant)).job
    data = None if context.store.files is None else await context.store.files.read(key_of(job), operation.name)
    if data is None:
        raise Missing(f"job {job.id} has left no file {operation.name[:60]!r}", at="name")
    return data


# Files of new jobs


async def with_files(context: EngineContext, operation: Enqueue) -> Enqueue:
    """The job with the files that it names by their SHA-256, once it is known to be within all bounds."""
    if operation.job.hashes:
        (new,) = await _resolved(context, operation.tenant, [operation.job], lambda _: "job")
        operation = replace(operation, job=new)
    if operation.most_files is not None and (size := size_of(operation.job.files)) > operation.most_files:
        raise TooLarge(f"{size} bytes of files, at most {operation.most_files} are allowed here", at="job.files")
    await check_bounds(context, operation.tenant, [operation.job], lambda _: "job")
    return operation


async def with_files_of_many(context: EngineContext, operation: EnqueueMany) -> EnqueueMany:
    naming = [new for new in operation.jobs if new.hashes]
    if naming:
        jobs = await _resolved(context, operation.tenant, operation.jobs, "jobs[{}]".format)
        operation = replace(operation, jobs=jobs)
    await check_bounds(context, operation.tenant, operation.jobs, "jobs[{}]".format)
    return operation


async def _resolved(
    context: EngineContext, tenant: str, news: Sequence[NewJob], at: Callable[[int], str]
) -> list[NewJob]:
    for place, new in enumerate(news):
        for name in new.hashes:
            check_file_name(name, at=f"{at(place)}.hashes")
            if name in new.files:
                raise Invalid(f"{name[:60]!r} is in files too: send it in one of them", at=f"{at(place)}.hashes")
        if len(new.hashes) + len(new.files) > MOST_FILES:
            raise Invalid(f"more than {MOST_FILES} files", at=f"{at(place)}.hashes")
    wanted = list(dict.fromkeys(sha for new in news for sha in new.hashes.values()))
    digests = {sha: _digest(sha) for sha in wanted}
    found = await file_store(context).uploaded(tenant, list(digests.values()), KEPT_FOR)
    if missing := [sha for sha in wanted if digests[sha] not in found]:
        raise FilesMissing(
            f"{len(missing)} of {len(wanted)} files are not here: send them, then the job again",
            at="hashes",
            missing=missing,
        )
    return [_with_found(new, {name: found[digests[sha]] for name, sha in new.hashes.items()}) for new in news]


def _digest(sha: str) -> bytes:
    try:
        digest = bytes.fromhex(sha)
    except (ValueError, TypeError):
        digest = b""
    if len(digest) != hashlib.sha256().digest_size or sha != digest.hex():
        raise Invalid("a SHA-256 has 64 hexadecimal digits, in lower case", at="hashes")
    return digest


def _with_found(new: NewJob, found: dict[str, bytes]) -> NewJob:
    return replace(new, files={**new.files, **found}, hashes={}) if found else new


async def check_bounds(context: EngineContext, tenant: str, news: Sequence[NewJob], at: Callable[[int], str]) -> None:
    """Refuse jobs with a larger payload or more bytes of files than their queue allows."""
    config = await context.flow_config.current()
    if not config.has_bounds:
        return
    for place, new in enumerate(news):
        settings = config.settings(tenant, new.queue)
        size = len(memoryview(new.payload))
        if settings.most_payload is not None and size > settings.most_payload:
            what = f"{size} bytes, at most {settings.most_payload} are allowed in queue {new.queue}"
            raise TooLarge(what, at=f"{at(place)}.payload")
        _check_files(new.files, settings.most_files, new.queue, f"{at(place)}.files")


async def check_lines(context: EngineContext, tenant: str, queue: str, payloads: Iterable[Raw | bytes]) -> None:
    """The same for jobs that are lines of a text."""
    config = await context.flow_config.current()
    most = config.settings(tenant, queue).most_payload if config.has_bounds else None
    if most is not None and (largest := max((len(memoryview(one)) for one in payloads), default=0)) > most:
        raise TooLarge(f"a line of {largest} bytes, at most {most} are allowed in queue {queue}", at="text")


def _check_files(files: dict[str, bytes], most: int | None, queue: str, at: str) -> None:
    if most is not None and (size := size_of(files)) > most:
        raise TooLarge(f"{size} bytes of files, at most {most} are allowed in queue {queue}", at=at)


def size_of(files: dict[str, bytes]) -> int:
    return sum(map(len, files.values()))


# Files that runs leave


async def attach(context: EngineContext, reports: Sequence[tuple[Finished | Released, str]]) -> None:
    """Keep what runs have left, before their end is written: who sees the end finds the files."""
    given = [(place, item, JobKey(item.id, tenant)) for place, (item, tenant) in enumerate(reports) if item.files]
    if not given:
        return
    config, store = await context.flow_config.current(), file_store(context)
    reading = await context.store.jobs.read([key for _, _, key in given])
    for (place, item, key), record in zip(given, reading.records, strict=True):
        if record is None:
            continue
        most = config.settings(key.tenant, record.job.queue).most_files
        _check_files(item.files, most, record.job.queue, f"jobs[{place}].files")
        await store.attach(key, fence(item.token), item.files)


ANSWERS: dict[type[Operation[Any]], Callable[[EngineContext, Any], Awaitable[Any]]] = {
    PutFile: put_file,
    GetFiles: get_files,
    GetFile: get_file,
}
