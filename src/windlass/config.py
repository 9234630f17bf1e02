"""The settings, declared once: file key, environment variable and flag are derived from the names of the fields.

`worker.grace` is `[worker] grace` in `windlass.toml`, `WINDLASS_WORKER_GRACE` in the environment, and `--grace` as a
flag, where a command has it; a flag (or an argument of `Windlass`) goes before the environment, which goes before the
file. Knows how people write durations and sizes; asks the machine for nothing but the one file.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from windlass.model import duration, wire
from windlass.model.errors import Invalid, Missing
from windlass.model.names import DEFAULT_TENANT, Name
from windlass.model.retry import Seconds
from windlass.model.worker import Slots

FILE = "windlass.toml"
FILE_VARIABLE = "WINDLASS_CONFIG"
"""Names another file in the place of `windlass.toml`."""

SERVER_VARIABLE = "WINDLASS_SERVER"
"""Names a server in the place of a store."""

DEFAULT_STORE = "windlass.db"

Bytes = Annotated[int, Meta(ge=1, le=2**53)]
Some = Annotated[int, Meta(ge=1, le=2**31)]


class WorkerSection(Struct, frozen=True, kw_only=True):
    """How a worker of this host works."""

    queues: Annotated[list[Name], Meta(max_length=256)] = []
    """The queues it takes jobs from, dearest first; none = every queue that the app's tasks name, in turn."""
    slots: Slots = 32
    """Jobs it runs at once."""
    contexts: Some | None = None
    """Processes that share the jobs; none = one for each processor."""
    lease: Seconds | None = None
    """Time without a sign of life after which its jobs are taken for lost; none = the engine's lease."""
    grace: Seconds = 30.0
    """Time that running jobs get to end when it is told to stop."""
    max_jobs: Some | None = None
    """Jobs after which it ends; none = it goes on. A worker inside a server always goes on."""
    context_max_jobs: Some | None = None
    """Jobs after which a process is replaced by a fresh one; none = never."""
    max_memory: Bytes | None = None
    """Memory beyond which a process is replaced by a fresh one; none = never."""
    max_output: Bytes = 64 << 20
    """What a job alone in its process may print before it is killed."""
    max_age: Seconds | None = None
    """Age at which a process is replaced by a fresh one; none = never."""
    name: Annotated[str, Meta(max_length=128)] = ""
    """What people call it; empty = host and process."""
    handlers: bool = True
    """Whether it also runs jobs whose code is kept in the queue."""
    sandbox: Literal["limits", "confined", "isolated"] = "confined"
    """How far that code is kept away from the machine; where this cannot be had, none is run."""
    network: bool = False
    """Whether handlers that ask for the network get it."""
    reach: list[str] = []
    """Where `http` handlers (of a server, push workers too) may be beyond the open network: each with its port."""
    telemetry: str | None = None
    """A folder for a file with a row for each run: when, how long, which task, which process; none = no file."""


class FunctionsSection(Struct, frozen=True, kw_only=True):
    """What code that is kept in the queue may take of this host."""

    folder: str | None = None
    """Where it has its folders; none = in the machine's folder for temporary files."""
    environment: list[str] = []
    """Variables of the worker's environment that it may see besides the few that are harmless."""
    contexts: Some | None = None
    """Processes of interpreters at most, idle ones included; none = four for each processor."""
    idle: Seconds = 60.0
    """Time after which one without work is ended."""
    memory: Bytes = 512 << 20
    """Memory for one of them with all its processes, unless its handler asks for less."""
    cpu: Seconds = 3600.0
    """Processor time of one job, in all its processes, unless its handler asks for less."""
    processes: Some = 64
    """Processes and threads of one tenant, times `contexts`."""
    files: Annotated[int, Meta(ge=16, le=2**20)] = 256
    """Files that one process may have open."""
    file_size: Bytes = 256 << 20
    """The largest file that it may write."""
    disk: Bytes = 1 << 30
    """Files of one context together, unless its handler asks for less."""
    disk_files: Some = 10_000
    """Files and folders of one context."""
    output: Bytes = 64 << 20
    """What one job may print."""
    result: Bytes = 16 << 20
    """The largest result."""
    python: str | None = None
    """The interpreter of Python; none = the one that is found."""
    node: str | None = None
    """The same of Node."""
    php: str | None = None
    """The same of PHP."""
    sh: str | None = None
    """The shell."""


class EngineSection(Struct, frozen=True, kw_only=True):
    """How jobs are taken in and handed out."""

    lease: Seconds = 15.0
    """Time without a sign of life after which a job, or a worker, is taken for lost."""
    most_payload: Bytes = wire.MOST_PAYLOAD
    """The largest payload."""
    most_result: Bytes = wire.MOST_RESULT
    """The largest result."""
    replicas: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Replicas of a Redis store that must have a new job before it counts as accepted; none = as its address says."""
    replicated_within: Annotated[float, Meta(gt=0, le=60)] = 1.0
    """Seconds that they are waited for."""
    replicas_synced: bool = False
    """Whether they must have it on disk (Redis 7.2 or newer)."""


class JournalSection(Struct, frozen=True, kw_only=True):
    """How a server keeps what it has accepted, in front of a store on another machine."""

    keep: Seconds = 600.0
    """Time that what the store has is kept too, to give it again to a store that loses its newest jobs."""
    segment_bytes: Bytes = 64 << 20
    """The size at which the next file is begun."""
    most_full: Annotated[float, Meta(gt=0, le=1)] = 0.95
    """The part of its disk beyond which nothing more is accepted."""


class ServerSection(Struct, frozen=True, kw_only=True):
    """What a server lets people do."""

    allow_upload: bool = False
    """Whether it takes in handlers: code that workers run."""


class NotificationsSection(Struct, frozen=True, kw_only=True):
    """What becomes of notifications: what is sent to a server at `/v2/notify`."""

    offload: bool = True
    """Whether they are answered once they are queued; no = once a worker has done them."""
    recover: bool = False
    """Whether one that the queue cannot take is done at once, by the app of the server (`--app`)."""
    max_retry: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """How many re-runs one gets that fails, if it is queued."""
    retry_after: Seconds = 20.0
    """Time from the start of the first run to that of the second; it doubles each time."""
    keep_success: Seconds = 86400.0
    """Time that one that succeeded stays on record."""
    keep_failure: Seconds = 7 * 86400.0
    """Time that one that failed stays on record."""
    trailing_null: bool = False
    """Whether lists end with a null, for programs that count on it."""
    wrapped_summary: bool = False
    """Whether each entry of a summary stands inside `runtime`, as in a listing."""


class ClientJobsSection(Struct, frozen=True, kw_only=True):
    """What becomes of jobs that are sent in as lines to `/{client}/job/{type}/add`."""

    keep_success: Seconds | None = 14 * 86400.0
    """Time that one that succeeded stays on record; none = for ever."""
    keep_failure: Seconds | None = 14 * 86400.0
    """Time that one that failed stays on record; none = for ever."""
    expires: Seconds | None = 30 * 86400.0
    """Time within which one must have been started, or it fails; none = never."""


class Config(Struct, frozen=True, kw_only=True):
    """Every setting there is."""

    store: str = DEFAULT_STORE
    """Where jobs live: a file, or redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://."""
    tenant: str = DEFAULT_TENANT
    """Whose jobs are meant; `-` = everybody's."""
    worker: WorkerSection = WorkerSection()
    functions: FunctionsSection = FunctionsSection()
    engine: EngineSection = EngineSection()
    journal: JournalSection = JournalSection()
    server: ServerSection = ServerSection()
    notifications: NotificationsSection = NotificationsSection()
    client_jobs: ClientJobsSection = ClientJobsSection()


def variable(path: str) -> str:
    """The environment variable of a setting: `worker.lease` is `WINDLASS_WORKER_LEASE`."""
    return "WINDLASS_" + path.replace(".", "_").upper()


def flag(path: str) -> str:
    """The flag of a setting, in the command that has it: `worker.max_jobs` is `--max-jobs`."""
    return "--" + path.rpartition(".")[2].replace("_", "-")


class Setting(NamedTuple):
    """One leaf of the tree."""

    path: str
    hint: Any
    default: Any


def _settings(section: type[Struct], above: str = "") -> Iterator[Setting]:
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        path, hint = f"{above}{field.name}", hints[field.name]
        if isinstance(hint, type) and issubclass(hint, Struct):
            yield from _settings(hint, f"{path}.")
        else:
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            yield Setting(path, hint, default)


SETTINGS = {setting.path: setting for setting in _settings(Config)}
SECTIONS = {path.partition(".")[0] for path in SETTINGS if "." in path}


def here(*, store: str | None = None, server: str | None = None, tenant: str | None = None, **flags: Any) -> Config:
    """The settings that hold in this process for these arguments; those that are null were not given."""
    address = server or store or os.environ.get(SERVER_VARIABLE) or None
    return load(os.environ, Path.cwd(), {"store": address, "tenant": tenant, **flags})


def load(environ: Mapping[str, str], folder: Path, flags: Mapping[str, Any]) -> Config:
    """The settings that hold in a folder: `windlass.toml` in it or the nearest one above, under the environment, under
    flags (by path). A relative store in the file is meant from where the file is.
    """
    named = environ.get(FILE_VARIABLE)
    path = folder / named if named else _nearest(folder)
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        if named:
            raise Missing(f"there is no file {path}", at=FILE_VARIABLE) from None
        text = ""
    except (OSError, UnicodeDecodeError) as fault:
        raise Invalid(f"cannot be read: {fault}", at=str(path)) from None
    return combine(text, environ, flags, file=path.name, base=None if path.parent == folder else path.parent)


def _nearest(folder: Path) -> Path:
    """The file that holds for a folder, if there is any."""
    places = [one / FILE for one in (folder, *folder.parents)]
    return next((path for path in places if path.exists()), places[0])


def combine(
    text: str, environ: Mapping[str, str], flags: Mapping[str, Any], *, file: str = FILE, base: Path | None = None
) -> Config:
    """The same from the text of the file, which lies in the folder `base`. All that is wrong is said at once."""
    values: dict[str, Any] = {}
    faults: list[str] = []
    for source, path, given in _given(text, environ, flags, file):
        try:
            values[path] = _read(path, given)
        except Invalid as fault:
            faults.append(f"{source}: {fault.detail}")
        else:
            if path == "store" and base is not None and source.startswith(f"{file}: "):
                values[path] = _from(base, values[path])
    if len(faults) > 1:
        raise Invalid("\n  ".join([f"{len(faults)} faults in the settings", *faults]))
    if faults:
        raise Invalid(faults[0])
    return _build(Config, values)


def _given(
    text: str, environ: Mapping[str, str], flags: Mapping[str, Any], file: str
) -> Iterator[tuple[str, str, Any]]:
    """What was said, where, of which setting; whatever comes later counts."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise Invalid(f"not TOML: {fault}", at=file) from None
    for path, given in _flat(table):
        yield f"{file}: {path}", path, given
    for name, given in environ.items():
        if given and (meant := _path_of(name)) is not None:  # an empty variable is one that is not set
            yield name, meant, given
    for path, given in flags.items():
        if given is not None:
            yield flag(path), path, given


def _from(base: Path, store: str) -> str:
    """An address as it is meant in a file of that folder: a relative path begins there."""
    scheme, separator, rest = store.rpartition("://")
    if scheme not in ("", "sqlite") or rest == ":memory:" or (not separator and ":" in store):
        return store
    return f"{scheme}{separator}{base / rest}"


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        path = f"{above}{key}"
        if path in SECTIONS and isinstance(value, dict):
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _path_of(name: str) -> str | None:
    """The setting that a variable means. Those that only begin like ours are not ours, unless they name a section."""
    for path in SETTINGS:
        if name == variable(path):
            return path
    for section in SECTIONS:
        if name.startswith(f"{variable(section)}_"):
            return f"{section}.{name.removeprefix(variable(section) + '_').lower()}"
    return None


def _read(path: str, given: Any) -> Any:
    if path not in SETTINGS:
        near = difflib.get_close_matches(path, SETTINGS, n=1)
        raise Invalid("there is no such setting" + (f"; did you mean {near[0]}?" if near else ""))
    hint = SETTINGS[path].hint
    try:
        return msgspec.convert(_from_text(given, hint) if isinstance(given, str) else given, hint, strict=False)
    except msgspec.ValidationError as fault:
        raise Invalid(wire.invalid(fault, kind=hint).detail) from None


def _from_text(text: str, hint: Any) -> Any:
    """What a text says where something else may be meant: a duration, a size, a list, nothing."""
    kinds = (hint, *get_args(hint))
    if NoneType in kinds and text.strip().lower() in ("", "none", "never"):
        return None
    if Seconds in kinds:
        return duration.seconds(text)
    if Bytes in kinds:
        return size(text)
    if any(get_origin(kind) is list for kind in kinds):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?(?=b))?b?\s*\Z", re.IGNORECASE)


def size(text: str) -> int:
    """A number of bytes as people write it: 4096, "512MB", "1.5 GiB"."""
    parts = _SIZE.match(text)
    if parts is None:
        raise Invalid(f"{text!r} is not a size: write 4096, '512MB' or '1GiB'")
    unit = f"{parts[2]}b".lower() if parts[2] else ""
    return round(float(parts[1]) * UNITS[unit])


S = TypeVar("S", bound=Struct)


def _build(section: type[S], values: Mapping[str, Any], above: str = "") -> S:
    hints = get_type_hints(section)
    fields: dict[str, Any] = {}
    for name in section.__struct_fields__:
        path = f"{above}{name}"
        if path in SECTIONS:
            fields[name] = _build(hints[name], values, f"{path}.")
        elif path in values:
            fields[name] = values[path]
    return section(**fields)
