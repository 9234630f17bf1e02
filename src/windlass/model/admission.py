"""Whether a new job may be taken in: its bounds, and what does not go together."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse

from msgspec.structs import replace

from windlass.model import wire
from windlass.model.errors import Invalid, TooLarge
from windlass.model.names import MOST_FILES, check_content_type, check_file_name, check_id, check_mark
from windlass.model.new_job import NOTHING, NewJob
from windlass.model.operations import MOST_LINES

MOST_THEN = 10
"""Jobs that may follow each other by `then`."""


class ValidatedJobs(list[NewJob]):
    """Jobs that were validated against a payload bound: an engine with the same bound need not check them again."""

    def __init__(self, most_payload: int, news: Iterable[NewJob] = ()) -> None:
        super().__init__(news)
        self.most_payload = most_payload

    def part(self, start: int, end: int) -> "ValidatedJobs":
        return ValidatedJobs(self.most_payload, self[start:end])


def check_new(new: NewJob, most_payload: int, at: str) -> NewJob:
    """The same job if it is valid; else raises with the path of the field at fault."""
    try:
        sound = wire.checked_job(new)
        check_content_type(sound.content_type)
        wire.check_size(sound.payload, most_payload)
        _check_files(sound, most_payload)
        _check_together(sound)
        if sound.yielding and (sound.after or sound.delay is not None or sound.run_at is not None):
            raise Invalid(
                "a yielding job starts at once or not at all: it cannot wait for a time or a job", at="yielding"
            )
        _check_unique(sound)
        if sound.stdin is not None:
            if sound.on_lost == "adopt":
                raise Invalid("a standard input ends with its worker: on_lost cannot be adopt", at="on_lost")
            sound = replace(sound, input=True, isolate=True)
        if sound.id is not None:
            check_id(sound.id)
            check_mark(sound.id, sound.queue)
        if sound.after or sound.with_results is not None:
            _check_after(sound)
        if sound.then is not None:
            sound = replace(sound, then=_checked_then(sound.then, most_payload))
    except wire.FAULTS as fault:
        raise type(fault)(fault.detail, at=f"{at}.{fault.at}".strip(".")) from None
    return sound


def _check_together(new: NewJob) -> None:
    """What does not go together."""
    if new.id is not None and new.key is not None:
        raise Invalid("send an id or a key, not both", at="key")
    if new.delay is not None and new.run_at is not None:
        raise Invalid("send a delay or a run_at, not both", at="run_at")
    if new.on_failure is not None and new.keep_failure == 0:
        raise Invalid("on_failure passes the record on: keep_failure cannot be 0", at="keep_failure")


def check_all(news: Sequence[NewJob], most_payload: int, at: Callable[[int], str]) -> ValidatedJobs:
    """The same for several. Neighbours mostly ask for the same: that is looked at once."""
    if isinstance(news, ValidatedJobs) and news.most_payload <= most_payload:
        return news
    found = ValidatedJobs(most_payload)
    before: tuple[NewJob, type] | None = None
    for place, new in enumerate(news):
        asked = replace(new, id=None, payload=NOTHING), type(new.id)
        if asked != before or new.files or new.hashes or len(memoryview(new.payload)) > most_payload:
            sound, before = check_new(new, most_payload, at(place)), asked
            as_sent = sound is new
            found.append(sound)
            continue
        if new.id is not None:
            _check_own_id(new.id, new.queue, place, at)
        found.append(new if as_sent else replace(sound, id=new.id, payload=new.payload))
    return found


def _check_own_id(id: str, queue: str, place: int, at: Callable[[int], str]) -> None:
    try:
        check_id(id)
        check_mark(id, queue)
    except Invalid as fault:
        raise Invalid(fault.detail, at=f"{at(place)}.{fault.at}") from None


def _check_unique(new: NewJob) -> None:
    if new.unique is None and new.unique_key is None:
        return
    if new.unique is None:
        raise Invalid("say also for how long there is one such job: unique=pending, queued or a time", at="unique_key")
    if new.yielding:
        raise Invalid("a yielding job starts at once or not at all: it cannot be unique", at="unique")
    if isinstance(new.unique, float | int) and new.keep_success is not None and new.keep_success < new.unique:
        raise Invalid(
            f"a success is known for {new.keep_success:g} s: keep_success must be at least as long as this", at="unique"
        )


def _check_after(new: NewJob) -> None:
    if new.with_results == "one" and len(new.after) != 1:
        raise Invalid(f"`one` is the result of one job, not of {len(new.after)}: use `list`", at="with_results")
    if new.after and (new.delay is not None or new.run_at is not None):
        raise Invalid("a job waits for other jobs or for a time, not for both", at="after")
    for place, id in enumerate(new.after):
        check_id(id, at=f"after[{place}]")
    if len(set(new.after)) < len(new.after):
        raise Invalid("the same job is named twice", at="after")


def _checked_then(then: object, most_payload: int) -> NewJob:
    if not isinstance(then, NewJob):
        raise Invalid(f"a {type(then).__name__} is not a job", at="then")
    chain = list(_chain(then))
    if len(chain) > MOST_THEN:
        raise Invalid(f"more than {MOST_THEN} jobs that follow each other", at="then")
    size = sum(len(memoryview(new.payload)) + sum(map(len, new.files.values())) for new in chain)
    if size > most_payload:
        raise TooLarge(f"{size} bytes of payloads and files, at most {most_payload}", at="then")
    return check_new(then, most_payload, "then")


def _chain(then: object) -> Iterator[NewJob]:
    """It and all that follow it, as far as one more than allowed."""
    for _ in range(MOST_THEN + 1):
        if not isinstance(then, NewJob):
            return
        yield then
        then = then.then


def _check_files(new: NewJob, most: int) -> None:
    if new.hashes:  # those of a request are replaced by the files before this
        raise Invalid("a job that another one brings about must bring its files itself", at="hashes")
    if not new.files:
        return
    for name in new.files:
        check_file_name(name, at="files")
    size = sum(map(len, new.files.values())) + len(memoryview(new.payload))
    if size > most:
        raise TooLarge(f"{size} bytes with the payload, at most {most}: keep large files elsewhere", at="files")


def check_left_files(files: Mapping[str, bytes], most: int, at: str) -> None:
    """The files that a run leaves."""
    if len(files) > MOST_FILES:
        raise TooLarge(f"{len(files)} files, at most {MOST_FILES} are kept", at=at)
    for name in files:
        check_file_name(name, at=at)
    if (size := sum(map(len, files.values()))) > most:
        raise TooLarge(f"{size} bytes of files, at most {most} are kept", at=at)


def payloads_in(text: str) -> list[bytes]:
    """The payloads of a text: its lines, but for blank ones and those that begin with `#`.

    Thousands come at a time, so there is no step of Python for each of them where nothing has to be left out.
    """
    lines = _encoded(text).split(b"\n", MOST_LINES + 1)
    if len(lines) > MOST_LINES + 1:
        raise TooLarge(f"a text may have {MOST_LINES} lines: send less at once", at="text")
    if "#" in text:
        lines = [line for line in lines if not line.startswith(b"#")]
    if "\r" in text:
        lines = [line.removesuffix(b"\r") for line in lines]
    return list(filterfalse(bytes.isspace, filter(None, lines)))


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as fault:
        raise Invalid(f"cannot be sent: {fault}", at="text") from None
