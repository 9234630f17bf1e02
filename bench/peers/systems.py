"""The queues that are compared, and how each one's worker is started. Their tasks and producers are in `apps/`.

A setting is a way to run a worker; where it is not known beforehand which is the quickest, all are measured. Results
are off wherever that helps, logs say only what goes wrong, asyncio runs on uvloop, and all else is as it comes.
"""

from typing import NamedTuple


class Setting(NamedTuple):
    """One way to run a worker."""

    label: str
    command: tuple[str, ...]
    """A program of its environment and its arguments.

    `{url}` is the server, `{apps}` the folder of the apps, `{name}` differs between workers.
    """
    share: float = 0.5
    """Its part of the chosen number of jobs, so that a slow one does not take minutes and a quick one some seconds."""
    task: str = "noop"
    stamp: str = "stamp"
    slots: int = 100
    """Jobs at once, for systems that read it from `BENCH_SLOTS`."""
    isolated: bool = False
    """Whether each job has a process of its own."""
    default: bool = False
    """Whether this is what a user gets who sets nothing: measured among themselves."""


class System(NamedTuple):
    """A queue."""

    name: str
    install: tuple[str, ...]
    settings: tuple[Setting, ...]
    safe: Setting
    """For the test that kills a worker: ten jobs at once where it can, `BENCH_SAFE` in the environment."""
    backlog: tuple[tuple[str, ...], ...] = ()
    """Redis commands whose numbers add up to the jobs that are not done."""
    safe_backlog: tuple[tuple[str, ...], ...] = ()
    """The same under `BENCH_SAFE`, if it is another."""
    bulk: bool = False
    """Whether it can queue many jobs in one call."""
    crowd: bool = False
    """Whether its callers at the same time share a round trip."""
    file: bool = False
    """Whether it also keeps jobs in a file, synced before the call returns: `BENCH_URL` is a path then."""
    node: bool = False
    """Whether it is written for Node: measured beside the Python queues, with a bar of its own."""

    @property
    def producer(self) -> tuple[str, ...]:
        """The program of its environment that queues jobs, and its first words."""
        if self.node:
            return ("node", f"{{apps}}/{self.name}_app.js", "produce")
        return ("python", "{apps}/producer.py", f"{self.name}_app")


def _windlass(*flags: str) -> tuple[str, ...]:
    return ("windlass", "worker", "windlass_app:app", *flags)


WINDLASS = System(
    name="windlass",
    install=(),
    settings=(
        Setting("-c 200", _windlass("-c", "200"), 5),
        Setting("defaults", _windlass(), 2, default=True),
        Setting("-c 1000", _windlass("-c", "1000"), 5),
        Setting("-c 200, in threads", _windlass("-c", "200"), 5, task="noop_thread"),
        Setting("-c 32, isolated", _windlass("-c", "32"), 0.1, task="alone", stamp="stamp_alone", isolated=True),
    ),
    safe=Setting("-c 10, lease 2 s", _windlass("-c", "10")),
    bulk=True,
    crowd=True,
    file=True,
)


def _celery(*flags: str) -> tuple[str, ...]:
    return ("celery", "-A", "celery_app", "worker", "-l", "warning", "-n", "{name}@%h", *flags)


CELERY = System(
    name="celery",
    install=("celery[redis]", "hiredis"),
    settings=(
        Setting("prefork -c 2", _celery("-c", "2", "--prefetch-multiplier", "64")),
        Setting("threads -c 8", _celery("-P", "threads", "-c", "8", "--prefetch-multiplier", "16")),
        Setting("solo", _celery("-P", "solo", "--prefetch-multiplier", "128")),
        Setting("defaults", _celery(), default=True),
    ),
    safe=Setting("threads -c 10, acks late, visibility 5 s", _celery("-P", "threads", "-c", "10")),
    backlog=(("LLEN", "celery"), ("HLEN", "unacked")),
)


def _rq(*flags: str) -> tuple[str, ...]:
    return ("rq", "worker", "--url", "{url}", "--quiet", *flags)


RQ = System(
    name="rq",
    install=("rq", "hiredis"),
    settings=(
        Setting("SimpleWorker", _rq("-w", "rq.SimpleWorker"), 0.15),
        Setting("Worker (forks)", _rq(), 0.02, isolated=True, default=True),
    ),
    safe=Setting(
        "Worker, 3 tries", _rq("--maintenance-interval", "1", "--job-monitoring-interval", "1"), slots=1, isolated=True
    ),
    backlog=(("LLEN", "rq:queue:default"), ("ZCARD", "rq:wip:default")),
    bulk=True,
)


def _dramatiq(processes: int, threads: int) -> tuple[str, ...]:
    return (*_DRAMATIQ, "--processes", str(processes), "--threads", str(threads))


_DRAMATIQ = ("dramatiq", "dramatiq_app")


DRAMATIQ = System(
    name="dramatiq",
    install=("dramatiq[redis]", "hiredis"),
    settings=(
        Setting("-p 1 -t 8", _dramatiq(1, 8)),
        Setting("-p 2 -t 8", _dramatiq(2, 8)),
        Setting("defaults", _DRAMATIQ, default=True),
    ),
    safe=Setting("-p 1 -t 10, heartbeat 3 s", _dramatiq(1, 10)),
    backlog=(("HLEN", "dramatiq:default.msgs"),),
)


def _huey(kind: str, workers: int) -> tuple[str, ...]:
    return ("huey_consumer", "huey_app.huey", "-q", "-n", "-k", kind, "-w", str(workers))


HUEY = System(
    name="huey",
    install=("huey", "redis", "hiredis"),
    settings=(
        Setting("1 thread", _huey("thread", 1)),
        Setting("4 threads", _huey("thread", 4)),
        Setting("2 processes", _huey("process", 2)),
        Setting("defaults", ("huey_consumer", "huey_app.huey", "-q"), default=True),
    ),
    safe=Setting("10 threads", _huey("thread", 10)),
    backlog=(("LLEN", "huey.redis.bench"),),
    file=True,
)

_ARQ = ("arq", "arq_app.Worker", "--custom-log-dict", "arq_app.quiet")

ARQ = System(
    name="arq",
    install=("arq", "hiredis", "uvloop"),
    settings=(
        Setting("max_jobs 100", _ARQ, 0.2),
        Setting("defaults (max_jobs 10)", _ARQ, 0.1, slots=10, default=True),
    ),
    safe=Setting("max_jobs 10, timeout 5 s", _ARQ, slots=10),
    backlog=(("ZCARD", "arq:queue"),),
)

SAQ = System(
    name="saq",
    install=("saq[redis,hiredis]", "uvloop", "typing_extensions"),  # it imports the last one and does not say so
    settings=(
        Setting("concurrency 100", ("saq", "saq_app.settings"), 0.25),
        Setting("defaults (concurrency 10)", ("saq", "saq_app.settings"), 0.25, slots=10, default=True),
    ),
    safe=Setting("concurrency 10, timeout 3 s, sweep 1 s", ("saq", "saq_app.settings"), slots=10),
    backlog=(("ZCARD", "saq:default:incomplete"),),
)


def _taskiq(tasks: int) -> tuple[str, ...]:
    return (*_TASKIQ, "--workers", "1", "--max-async-tasks", str(tasks))


_TASKIQ = ("taskiq", "worker", "taskiq_app:broker", "--log-level", "WARNING")


TASKIQ = System(
    name="taskiq",
    install=("taskiq", "taskiq-redis", "hiredis", "uvloop"),
    settings=(
        Setting("list broker, 100 tasks", _taskiq(100)),
        Setting(
            "list broker, defaults", ("taskiq", "worker", "taskiq_app:broker", "--log-level", "WARNING"), default=True
        ),
    ),
    safe=Setting("stream broker, 10 tasks, idle 3 s", _taskiq(10)),
    backlog=(("LLEN", "taskiq"),),
    # The stream is never trimmed: what counts is what was read and not acknowledged.
    safe_backlog=(("EVAL", "\"return redis.call('XPENDING', 'taskiq', 'taskiq')[1]\"", "0"),),
)

STREAQ = System(
    name="streaq",
    install=("streaq", "hiredis", "uvloop"),
    settings=(
        Setting("concurrency 100", ("streaq", "run", "streaq_app:worker"), 0.25),
        Setting("defaults (concurrency 16)", ("streaq", "run", "streaq_app:worker"), 0.25, slots=16, default=True),
    ),
    safe=Setting("concurrency 10, idle 3 s", ("streaq", "run", "streaq_app:worker"), slots=10),
    backlog=(("XLEN", "streaq:default:queues:normal"),),
    bulk=True,
)

_BULLMQ = ("node", "{apps}/bullmq_app.js", "work")

BULLMQ = System(
    name="bullmq",
    install=("bullmq", "ioredis"),
    settings=(
        Setting("concurrency 100", _BULLMQ, 2),
        Setting("concurrency 500", _BULLMQ, 2, slots=500),
    ),
    safe=Setting("concurrency 10, lock 3 s, stalled 1 s", _BULLMQ, slots=10),
    backlog=(("LLEN", "bull:bench:wait"), ("LLEN", "bull:bench:active")),
    bulk=True,
    node=True,
)

PEERS = (RQ, CELERY, DRAMATIQ, HUEY, ARQ, SAQ, TASKIQ, STREAQ, BULLMQ)
