"""The app that workers in tests run: tasks of every kind, the well-behaved and the others.

Copied into the folder of each harness; its tasks tell what happens to them by writing lines to a file there.
"""

import asyncio
import ctypes
import itertools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from windlass import Cancelled, Fail, RateLimited, Retry, Snooze, Windlass, current

app = Windlass(tenant=os.environ["HARNESS_TENANT"])

NOTES = Path(__file__).with_name("notes")


def note(*words: object) -> None:
    """Written at once and whole, whatever happens next."""
    file = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


# Four ways to run


@app.task
def add(a: int, b: int) -> int:
    note("add", current.job.id, os.getpid())
    return a + b


@app.task
async def co_add(a: int, b: int) -> int:
    note("add", current.job.id, os.getpid())
    await asyncio.sleep(0)
    return a + b


@app.task(isolate=True)
def alone_add(a: int, b: int) -> int:
    note("add", current.job.id, os.getpid())
    return a + b


@app.task(isolate=True)
async def alone_co_add(a: int, b: int) -> int:
    note("add", current.job.id, os.getpid())
    await asyncio.sleep(0)
    return a + b


@app.task
def repeat(text: str) -> str:
    note("repeat", current.job.id)
    return text


# Waiting, and being early


@app.task
def nap(seconds: float, word: str = "nap") -> int:
    note("start", word, os.getpid())
    time.sleep(seconds)
    note("end", word, current.job.attempt)
    return os.getpid()


@app.task
def stay(word: str) -> None:
    """Until the test lets all of them go, or this one."""
    note("start", word, os.getpid())
    while not (NOTES.with_name("let go").exists() or NOTES.with_name(f"let go {word}").exists()):
        time.sleep(0.01)
    note("end", word, current.job.attempt)


@app.task
async def co_stay(word: str) -> None:
    """The same for a coroutine."""
    note("start", word, os.getpid())
    while not NOTES.with_name("let go").exists():  # noqa: ASYNC110 - a file says so
        await asyncio.sleep(0.01)
    note("end", word, current.job.attempt)


@app.task(on_lost="adopt")
def lasting(word: str = "lasting", megabytes: int = 0) -> int:
    """Says where it is, ten times a second, until the test lets it go; it takes so much memory."""
    taken = b"x" * (megabytes << 20)
    note("start", word, os.getpid())
    place = 0
    while not NOTES.with_name("let go").exists():
        print(place, flush=True)  # noqa: T201
        current.progress(place, None)
        place += 1
        time.sleep(0.1)
    note("end", word, current.job.attempt)
    del taken
    return place


@app.task(on_lost="adopt", input=True)
async def co_lasting() -> list[str]:
    """The same for a coroutine that listens."""
    note("start", "co_lasting", os.getpid())
    heard: list[str] = []
    while not heard or heard[-1] != "end":
        heard.append((await current.ainput()).decode())
        note("heard", heard[-1])
    return heard


@app.task(on_lost="adopt")
def lasting_parent() -> None:
    """With a process that has left its session."""
    leave_offspring()
    note("start", "parent", os.getpid())
    while not NOTES.with_name("let go").exists():
        time.sleep(0.02)


@app.task
async def co_nap(seconds: float, word: str = "nap") -> int:
    note("start", word, os.getpid())
    await asyncio.sleep(seconds)
    note("end", word, current.job.attempt)
    return os.getpid()


@app.task(isolate=True)
def alone_nap(seconds: float, word: str = "nap") -> int:
    note("start", word, os.getpid())
    time.sleep(seconds)
    note("end", word, current.job.attempt)
    return os.getpid()


@app.task(on_lost="fail")
def begun_once() -> None:
    note("start", os.getpid())
    time.sleep(60)


@app.task
def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    note("computing", os.getpid())
    while time.monotonic() < until:
        pass
    note("computed")


@app.task
def stamp(sent_at: int) -> None:
    note("late", time.time_ns() - sent_at)


@app.task
async def co_stamp(sent_at: int) -> None:
    note("late", time.time_ns() - sent_at)


# Never ending, each in its own way


def began() -> None:
    note("began", current.job.task, current.job.attempt, os.getpid())


@app.task
async def co_asleep() -> None:
    began()
    await asyncio.sleep(60)


@app.task
async def co_deaf() -> None:
    began()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("deaf", current.job.task)


@app.task
def busy() -> None:
    began()
    while True:
        pass


@app.task
def asleep() -> None:
    began()
    time.sleep(60)


@app.task
def deaf() -> None:
    began()
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:  # noqa: BLE001 - the very thing that is tested
            note("deaf", current.job.task)


@app.task
def obedient() -> str:
    began()
    while not current.cancelled:
        try:
            time.sleep(0.01)
        except Cancelled:
            note("asked to stop")
            return "half of it"
    return "half of it"


@app.task(isolate=True)
def alone_obedient() -> None:
    began()
    while not current.cancelled:
        time.sleep(0.01)
    note("obeyed", threading.active_count())


@app.task(isolate=True)
def alone_mother() -> None:
    if os.fork() == 0:
        for _ in range(20):
            _ = current.cancelled
            time.sleep(0.01)
        os._exit(0)
    os.wait()
    note("alone again")
    while not current.cancelled:
        time.sleep(0.01)
    note("obeyed")


@app.task
def complain(how: str) -> int:
    match how:
        case "error":
            raise ValueError("no good\nat all")
        case "bell":
            raise ValueError("\abell")
        case "fail":
            raise Fail("never")
        case "retry":
            raise Retry("again")
    note("snoozed")
    if len(NOTES.read_text().split("snoozed")) == 2:
        raise Snooze(0.05)
    return current.job.attempt


def pick(how: str) -> None:
    note("picked", how)
    raise ConnectionResetError if how == "net" else KeyError(how)


@app.task(max_retry=1, retry={"base": 0}, retry_on=ConnectionError)
def picky(how: str) -> None:
    pick(how)


@app.task(max_retry=1, retry={"base": 0}, never_on=(KeyError, TypeError))
async def co_picky(how: str) -> None:
    pick(how)


@app.task(max_retry=1, retry={"base": 0}, retry_on=ConnectionError, isolate=True)
def alone_picky(how: str) -> None:
    pick(how)


@app.task(max_retry=1, retry={"base": 0}, never_on=KeyError, isolate=True)
async def alone_co_picky(how: str) -> None:
    pick(how)


def come_back(how: str) -> str:
    """A child that is not ended where it was made, and a parent that goes on."""
    if (child := os.fork()) == 0:
        if how == "raises":
            raise ValueError("the child")
        if how == "leaves":
            sys.exit(7)
        return "child"
    return f"parent of one that ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"


@app.task
def mother(how: str) -> str:
    return come_back(how)


@app.task
async def co_mother(how: str) -> str:
    return come_back(how)


@app.task(isolate=True)
def alone_child(how: str) -> str:
    return come_back(how)


@app.task(isolate=True)
def alone_asleep() -> None:
    began()
    time.sleep(60)


@app.task(isolate=True)
async def alone_co_asleep() -> None:
    began()
    await asyncio.sleep(60)


@app.task(isolate=True)
def alone_deaf() -> None:
    began()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            while True:
                time.sleep(0.01)
        except BaseException:  # noqa: BLE001
            note("deaf", current.job.task)


def leave_offspring() -> None:
    """A process that has left its session and lost its parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note("offspring", os.getpid())
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        os._exit(0)
    os.wait()


@app.task
def parent(seconds: float = 60) -> None:
    began()
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
    leave_offspring()
    time.sleep(seconds)


@app.task(isolate=True)
def alone_parent(seconds: float = 60) -> None:
    """It ends before if the test lets it go."""
    began()
    leave_offspring()
    over = time.monotonic() + seconds
    while time.monotonic() < over and not NOTES.with_name("let go").exists():
        time.sleep(0.01)


# Fatal


def die(how: str) -> None:
    began()
    print(f"about to die by {how}", flush=True)  # noqa: T201 - goes to the job's output
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "abort":
            os.abort()
        case "overflow":
            sys.setrecursionlimit(1 << 30)
            _fall()


def _fall() -> None:
    ctypes.CFUNCTYPE(None)(_fall)()


@app.task
def crash(how: str) -> None:
    die(how)


@app.task
async def co_crash(how: str) -> None:
    die(how)


@app.task(isolate=True)
def alone_crash(how: str) -> None:
    die(how)


@app.task
def hold_gil(seconds: float) -> None:
    note("start", "holding", os.getpid())
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    note("end", "holding", current.job.attempt)


@app.task(isolate=True)
def eat(megabytes: int) -> None:
    began()
    eaten = []
    for _ in range(megabytes):
        eaten.append(bytearray(os.urandom(1 << 20)))
        time.sleep(0.001)
    time.sleep(60)


@app.task(isolate=True)
def burn(megabytes: int, children: int = 0) -> None:
    """Takes memory and a CPU, also in so many child processes, until the test lets it go. Then it fails."""
    taken = b"x" * (megabytes << 20)
    print("burning", flush=True)  # noqa: T201
    if not all(os.fork() for _ in range(children)):
        children = -1
    note("start", "burn", os.getpid())
    while not NOTES.with_name("let go").exists():
        sum(range(10_000))
    if children < 0:
        os._exit(0)
    raise ValueError(len(taken))


@app.task
def say_and_stay(word: str) -> None:
    print(word, flush=True)  # noqa: T201
    while not NOTES.with_name("let go").exists():
        time.sleep(0.02)


@app.task
def swell(megabytes: int) -> int:
    """Take memory and never give it back."""
    globals().setdefault("swollen", []).append(bytearray(os.urandom(megabytes << 20)))
    return os.getpid()


@app.task(isolate=True)
def chatter(megabytes: int) -> None:
    began()
    for _ in range(megabytes):
        os.write(1, b"x" * (1 << 20))


@app.task
def huge_result(megabytes: int) -> bytes:
    return bytes(megabytes << 20)


@app.task
def call(customer: int, refused_for: float = 0.0) -> None:
    """Call a customer, who refuses the first time if the test wants that."""
    if refused_for and not (NOTES.exists() and f"refused {customer}\n" in NOTES.read_text()):
        note("refused", customer)
        raise RateLimited(after=refused_for)
    note("called", customer)


@app.task
def measure(data: bytes) -> int:
    return len(data)


@app.task
async def block(seconds: float) -> None:
    """Keep all other tasks of this event loop waiting."""
    note("start", "blocking", os.getpid())
    time.sleep(seconds)  # noqa: ASYNC251 - the very thing that is tested


class WordlessError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def _blurt(what: str) -> None:
    match what:
        case "nothing":
            raise WordlessError
        case "half a character":
            raise ValueError("a\ud800")
        case "half a line":
            current.log("a\ud800")
            current.progress(1, note="a\ud800")
        case "no number":
            current.progress("many")  # type: ignore[arg-type]
        case "no limit":
            raise RateLimited(1, limit="a b")
        case "a long line":
            current.log("start" + "x" * (3 << 20) + "end")
        case "no code":
            raise Fail("it has", code="none")  # type: ignore[arg-type]


@app.task(max_retry=0)
def blurt(what: str) -> None:
    _blurt(what)


@app.task(max_retry=0)
async def co_blurt(what: str) -> None:
    _blurt(what)


@app.task(max_retry=0, isolate=True)
def alone_blurt(what: str) -> None:
    _blurt(what)


@app.task
async def hold_loop() -> None:
    """The same until the test lets go."""
    note("start", "holding", os.getpid())
    while not NOTES.with_name("let go").exists():
        time.sleep(0.01)  # noqa: ASYNC251


# Printing


def _say(word: str, times: int) -> None:
    for place in range(times):
        print(word, place)  # noqa: T201
        print(word, place, file=sys.stderr)  # noqa: T201


@app.task
def say(word: str, times: int) -> None:
    for _ in range(times):
        _say(word, 1)
        time.sleep(0.001)


@app.task
async def co_say(word: str, times: int) -> None:
    for _ in range(times):
        _say(word, 1)
        await asyncio.sleep(0.001)


@app.task(isolate=True)
def alone_say(word: str, times: int) -> None:
    _say(word, times)


@app.task
def say_by_log(word: str) -> None:
    """With a logger that was made while the app was imported."""
    LOGGER.warning(word)
    sys.stdout.buffer.write(word.encode())


LOGGER = logging.getLogger("said")
LOGGER.addHandler(logging.StreamHandler())


def _numbers(size: int | None) -> Iterator[str]:
    """Text of a size, or without an end, in small pieces."""
    left = size
    for number in itertools.count():
        piece = str(number)[:left]
        yield piece
        left = None if left is None else left - len(piece)
        if left == 0:
            return


@app.task
def flood(size: int | None) -> None:
    for piece in _numbers(size):
        sys.stdout.write(piece)


@app.task
async def co_flood(size: int | None) -> None:
    for piece in _numbers(size):
        sys.stdout.write(piece)
        if size is None:
            await asyncio.sleep(0)


@app.task(isolate=True)
def alone_flood(size: int | None) -> None:
    for piece in _numbers(size):
        os.write(1, piece.encode())


# Files


def _draw(word: str) -> list[str]:
    names = sorted(path.name for path in current.folder.iterdir())
    note("folder", current.folder)
    (current.folder / "copy").write_bytes((current.folder / "scene.txt").read_bytes() * 2)
    current.attach(current.folder / "copy", "copied")
    (current.folder / "out" / f"{word}.svg").write_text(f"<svg>{word}</svg>")
    if word == "stay":
        time.sleep(60)
    if word == "fail":
        raise Fail("it could not be drawn")
    return names


@app.task
def draw(word: str) -> list[str]:
    return _draw(word)


@app.task
async def co_draw(word: str) -> list[str]:
    return _draw(word)


@app.task(isolate=True)
def alone_draw(word: str) -> list[str]:
    return _draw(word)


# With a standard input


@app.task(stdin="pipe")
def cat() -> int:
    """Say it again, line by line; how many bytes there were."""
    size = 0
    for line in sys.stdin:
        size += len(line)
        sys.stdout.write(f"> {line}")
        sys.stdout.flush()
    return size


@app.task(stdin="terminal", on_lost="fail")
def shell(*program: str) -> None:
    note("shell", os.getpid())
    program = program or ("sh", "-i")
    os.environ["PS1"] = "$ "
    os.execvp(program[0], program)  # noqa: S606


@app.task(stdin="terminal", on_lost="fail")
def asked() -> str:
    """A task in Python at a terminal."""
    try:
        return input("your name? ")
    except KeyboardInterrupt:
        return "interrupted"


# Starting processes


def _start(how: str) -> None:
    match how:
        case "program":
            note("offspring", subprocess.Popen(["sleep", "600"]).pid)
        case "orphans":
            said = subprocess.run(  # noqa: S602 - the very thing that is tested
                "sleep 600 >&- 2>&- & echo $!; setsid sleep 600 >&- 2>&- & echo $!",
                shell=True,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            for orphan in said.stdout.split():
                note("offspring", orphan)
        case "fork":
            if (pid := os.fork()) == 0:
                time.sleep(600)
            note("offspring", pid)
        case "pool":
            pool = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
            pool.start()
            note("offspring", pool.pid)


@app.task
def start(how: str, word: str) -> None:
    _start(how)
    while not NOTES.with_name(f"let go {word}").exists():
        time.sleep(0.01)


@app.task
async def co_start(how: str, word: str) -> None:
    if how == "program":
        note("offspring", (await asyncio.create_subprocess_exec("sleep", "600")).pid)
    else:
        _start(how)
    while not NOTES.with_name(f"let go {word}").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@app.task
async def co_drone() -> None:
    """Print a line of a kibibyte ten times a second, until the test lets go."""
    while not NOTES.with_name("let go").exists():
        print("x" * 1023)  # noqa: T201
        await asyncio.sleep(0.1)
