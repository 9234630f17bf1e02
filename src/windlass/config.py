"""The settings, declared once: file key, environment variable and flag are derived from the names of the fields.

`worker.grace` is `[worker] grace` in `windlass.toml`, `WINDLASS_WORKER_GRACE` in the environment, and `--grace` as a
flag of a command. A flag (or an argument of `Windlass`) overrides the environment, which overrides the file. Knows how
people write durations and sizes; reads nothing but the one file.
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
from windlass.model.duration import OwnLease, Seconds
from windlass.model.errors import Invalid, Missing
from windlass.model.names import DEFAULT_TENANT, WEIGHTED_PATTERN, Name, without_password
from windlass.model.worker import Labels, Slots

FILE = "windlass.toml"
FILE_VARIABLE = "WINDLASS_CONFIG"
"""Names another file instead of `windlass.toml`."""

SERVER_VARIABLE = "WINDLASS_SERVER"
"""Names a server instead of a store."""

DEFAULT_STORE = "windlass.db"

HTTP = ("http", "https", "http+unix")

PATHS = frozenset({"store", "data", "outbox", "server.socket", "worker.telemetry", "functions.folder"})
"""Settings that are a place on disk: a relative one in the file starts at the file's folder."""

Bytes = Annotated[int, Meta(ge=1, le=2**53)]
WeightedQueue = Annotated[str, Meta(pattern=WEIGHTED_PATTERN)]
"""A queue, and how many turns it has if more than one."""

Some = Annotated[int, Meta(ge=1, le=2**31)]


class WorkerSection(Struct, frozen=True, kw_only=True):
    """The worker."""

    queues: Annotated[list[WeightedQueue], Meta(max_length=256)] = []
    """The queues to take jobs from: `a,b`, or `a=3,b` for three turns of `a` to one of `b`; none = all queues of the
    app's tasks."""
    strict: bool = False
    """Whether it takes jobs of a queue only when those before it have none; else its queues take turns."""
    offers: Labels = []
    """What this worker has, such as gpu, for tasks and handlers that need it; a worker takes no others of those."""
    slots: Slots = 32
    """Jobs to run at once."""
    contexts: Some | None = None
    """Processes that share the slots; none = one per CPU."""
    lease: Seconds | None = None
    """Time without a heartbeat after which its jobs count as lost; none = the engine's lease."""
    grace: Seconds = 30.0
    """Time for running jobs to finish after the first stop signal."""
    stop_jobs: bool = False
    """Whether it ends all its jobs when it stops, also those with `on_lost` = `adopt`."""
    adopt_lease: OwnLease = 600.0
    """Time that jobs with `on_lost` = `adopt` go on without a worker."""
    max_jobs: Some | None = None
    """Jobs after which it exits; none = never. A worker inside a server never exits."""
    context_max_jobs: Some | None = None
    """Jobs after which a process is replaced; none = never."""
    max_memory: Bytes | None = None
    """Memory above which a process is replaced; none = never."""
    max_output: Bytes = 64 << 20
    """Output after which an isolated job is killed."""
    max_age: Seconds | None = None
    """Age at which a process is replaced; none = never."""
    name: Annotated[str, Meta(max_length=128)] = ""
    """Its name in listings; empty = host and process id."""
    handlers: bool = True
    """Whether it also runs jobs of tasks that have a handler."""
    sandbox: Literal["limits", "confined", "isolated"] = "confined"
    """How handlers are isolated from the machine; if the machine cannot do it, they are not run."""
    network: bool = False
    """Whether handlers that need the network get it."""
    reach: list[str] = []
    """Private addresses, with ports, that `http` handlers (of a server: push workers too) may use."""
    processes: Annotated[int, Meta(ge=1, le=256)] = 1
    """Workers under one parent, each with its own slots and contexts; of the command `worker`."""
    telemetry: str | None = None
    """A folder for a CSV file with a row per run: start, duration, task, process; none = no file."""


class FunctionsSection(Struct, frozen=True, kw_only=True):
    """Resources of this host for handlers."""

    folder: str | None = None
    """The parent of their working folders; none = the system's temporary folder."""
    environment: list[str] = []
    """Environment variables of the worker that they see, besides a few harmless ones."""
    contexts: Some | None = None
    """Interpreter processes at most, including idle ones; none = four per CPU."""
    idle: Seconds = 60.0
    """Time after which an idle one is stopped."""
    memory: Bytes = 512 << 20
    """Memory of one context with all its processes, unless the handler sets less."""
    cpu: Seconds = 3600.0
    """CPU time of one job in all its processes, unless the handler sets less."""
    processes: Some = 64
    """Processes and threads of one tenant, times `contexts`."""
    files: Annotated[int, Meta(ge=16, le=2**20)] = 256
    """Open files per process."""
    file_size: Bytes = 256 << 20
    """The largest file."""
    disk: Bytes = 1 << 30
    """Disk space of one context, unless the handler sets less."""
    disk_files: Some = 10_000
    """Files and folders of one context."""
    output: Bytes = 64 << 20
    """Output of one job."""
    result: Bytes = 16 << 20
    """The largest result."""
    python: str | None = None
    """The Python interpreter; none = the first in the PATH."""
    node: str | None = None
    """The Node interpreter."""
    php: str | None = None
    """The PHP interpreter."""
    sh: str | None = None
    """The shell."""


class EngineSection(Struct, frozen=True, kw_only=True):
    """Leases, limits of size, replication."""

    lease: Seconds = 15.0
    """Time without a heartbeat after which a job or worker counts as lost."""
    most_payload: Bytes = wire.MOST_PAYLOAD
    """The largest payload."""
    most_result: Bytes = wire.MOST_RESULT
    """The largest result."""
    replicas: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Redis replicas that must have a new job before it is accepted; none = as the store's URL says."""
    replicated_within: Annotated[float, Meta(gt=0, le=60)] = 1.0
    """Seconds to wait for them."""
    replicas_synced: bool = False
    """Whether they must have it on disk (Redis 7.2 or newer)."""


class JournalSection(Struct, frozen=True, kw_only=True):
    """The journal of a server, in front of a store on another machine."""

    keep: Seconds = 600.0
    """Time for which drained jobs are kept, to restore them to a store that loses its newest jobs."""
    most_full: Annotated[float, Meta(gt=0, le=1)] = 0.95
    """The used part of its disk above which no jobs are accepted."""


class ServerSection(Struct, frozen=True, kw_only=True):
    """The server."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 7717
    """The port; 0 = any free one."""
    socket: str = ""
    """The path of a unix socket to listen on instead."""
    journal: bool = True
    """Whether it keeps a journal of accepted jobs on disk, in front of a Redis store."""
    app: str | None = None
    """The app whose tasks it runs, as `module:name`; none = handlers only."""
    worker: bool = True
    """Whether it runs workers: for its app, and for handlers."""
    allow_upload: bool = False
    """Whether it accepts handlers: code that workers run."""


class NotificationsSection(Struct, frozen=True, kw_only=True):
    """Notifications: requests to `/v2/notify` of a server."""

    offload: bool = True
    """Whether they are answered when they are queued; no = when a worker has run them."""
    recover: bool = False
    """Whether the server's app (`--app`) runs those at once that the queue cannot accept."""
    max_retry: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Retries after a failure, for queued ones."""
    retry_after: Seconds = 20.0
    """Time from the start of the first run to the second; it doubles each time."""
    keep_success: Seconds = 86400.0
    """How long to keep records of successes, unless the queue has its own setting."""
    keep_failure: Seconds = 7 * 86400.0
    """How long to keep records of failures, unless the queue has its own setting."""
    trailing_null: bool = False
    """Whether lists end with a null, for clients that expect it."""
    wrapped_summary: bool = False
    """Whether each entry of a summary is nested in `runtime`, as in a listing."""


class ClientJobsSection(Struct, frozen=True, kw_only=True):
    """Jobs that are sent as lines to `/{client}/job/{type}/add`."""

    keep_success: Seconds | None = 14 * 86400.0
    """How long to keep records of successes, unless the queue has its own setting; none = forever."""
    keep_failure: Seconds | None = 14 * 86400.0
    """How long to keep records of failures, unless the queue has its own setting; none = forever."""
    expires: Seconds | None = 30 * 86400.0
    """Time within which a job must start, or it fails; none = no limit."""


class AsySection(Struct, frozen=True, kw_only=True):
    """The online drawing program at `/asy` of a server, and the worker that runs it (`windlass.asy_app`)."""

    program: str = "asy -noV -f {format} -o {out} {verbose} {main}"
    """The command line of a batch task. Of a job: {main}, {format}, {verbosity}, {verbose} (as many -v); {out} is where
    the result goes."""
    shell: str = "asy -noV"
    """The command line of a shell."""
    public: Name | None = None
    """The tenant of connections without a token; none = every connection needs one."""
    owner_timeout: Seconds = 600.0
    """Time after which a task is cancelled whose server has died."""


class Config(Struct, frozen=True, kw_only=True):
    """All settings."""

    store: str = DEFAULT_STORE
    """Where jobs are stored: a file, or redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://."""
    tenant: str = DEFAULT_TENANT
    """The tenant; `-` = all tenants."""
    data: str | None = None
    """The folder of a server's token and journal, and of jobs that outlive their workers; none =
    ~/.local/state/windlass."""
    outbox: str | None = None
    """A SQLite file of yours with a table windlass_outbox: workers and servers queue the jobs in it; none = no file."""
    worker: WorkerSection = WorkerSection()
    functions: FunctionsSection = FunctionsSection()
    engine: EngineSection = EngineSection()
    journal: JournalSection = JournalSection()
    server: ServerSection = ServerSection()
    notifications: NotificationsSection = NotificationsSection()
    client_jobs: ClientJobsSection = ClientJobsSection()
    asy: AsySection = AsySection()


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
    """The settings of this process, for these arguments; null = not given."""
    address = server or store
    if not address and (named := os.environ.get(SERVER_VARIABLE)):
        address = check_server(named, at=SERVER_VARIABLE, of_store=variable("store"))
    return load(os.environ, Path.cwd(), {"store": address or None, "tenant": tenant, **flags})


def data_folder(environ: Mapping[str, str], found: Config | None = None) -> Path:
    """The folder of a server's or worker's own data, by these settings; null = those of the current folder."""
    named = (found or load(environ, Path.cwd(), {})).data
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "/")) / ".local" / "state")
    return Path(named or Path(state) / "windlass")


def is_server(address: str) -> bool:
    """Whether a Windlass server answers there, not a store."""
    return address.partition("://")[0] in HTTP and "://" in address


def check_server(address: str, *, at: str, of_store: str) -> str:
    """Refuse an address that is not of a server; `of_store`: where a store is named instead."""
    if not is_server(address):
        forms = "give http://, https:// or http+unix://"
        raise Invalid(
            f"{without_password(address)!r} is not the URL of a server: {forms}; for a store use {of_store}", at=at
        )
    return address


def load(environ: Mapping[str, str], folder: Path, flags: Mapping[str, Any]) -> Config:
    """The settings for a folder: `windlass.toml` in it or the nearest one above, overridden by the environment, then by
    flags (by path). A relative path in the file is relative to the file's folder.
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
    """The settings file for a folder; it may not exist."""
    places = [one / FILE for one in (folder, *folder.parents)]
    return next((path for path in places if path.exists()), places[0])


def combine(
    text: str, environ: Mapping[str, str], flags: Mapping[str, Any], *, file: str = FILE, base: Path | None = None
) -> Config:
    """The same, from the text of the file in the folder `base`. All errors are raised at once."""
    values: dict[str, Any] = {}
    faults: list[str] = []
    for source, path, given in _given(text, environ, flags, file):
        try:
            values[path] = _read(path, given)
        except Invalid as fault:
            faults.append(f"{source}: {fault.detail}")
        else:
            if path in PATHS and base is not None and source.startswith(f"{file}: "):
                values[path] = _from(base, values[path])
    if len(faults) > 1:
        raise Invalid("\n  ".join([f"{len(faults)} errors in the settings", *faults]))
    if faults:
        raise Invalid(faults[0])
    return _build(Config, values)


def _given(
    text: str, environ: Mapping[str, str], flags: Mapping[str, Any], file: str
) -> Iterator[tuple[str, str, Any]]:
    """The given values: source, setting, value. Later ones override earlier ones."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise Invalid(f"not TOML: {fault}", at=file) from None
    for path, given in _flat(table):
        yield f"{file}: {path}", path, given
    for name, given in environ.items():
        if given and (meant := _path_of(name)) is not None:  # an empty variable counts as not set
            yield name, meant, given
    for path, given in flags.items():
        if given is not None:
            yield flag(path), path, given


def _from(base: Path, store: str | None) -> str | None:
    """The store, or another place, of a settings file in that folder: a relative path starts there."""
    if not store:
        return store
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
    """The setting of a variable; null = not ours. With the prefix of a section it is ours, even if misspelled."""
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
    """A text as the type of its setting: a duration, a size, a list, none."""
    kinds = (hint, *get_args(hint))
    if NoneType in kinds and text.strip().lower() in ("", "none", "never"):
        return None
    if Seconds in kinds or OwnLease in kinds:
        return duration.seconds(text)
    if Bytes in kinds:
        return size(text)
    if any(get_origin(kind) is list for kind in kinds):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?(?=b))?b?\s*\Z", re.IGNORECASE)


def size(text: str) -> int:
    """A size in bytes, as people write it: 4096, "512MB", "1.5 GiB"."""
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
