"""Escape attempts of uploaded code, and what refuses them."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.function_harness import (
    SLACK,
    Bench,
    Heard,
    bench,
    handler,
    jobs,
    let_others_in,
    results,
    there,
    until_gone,
)
from tests.support.patience import PATIENCE
from tests.support.servers import Server
from windlass.model.job import JSON, Reason
from windlass.worker.functions.sandbox import kernel
from windlass.worker.functions.sandbox.folders import Users

ATTEMPT = """
import ctypes, errno, os, socket, stat, struct, subprocess, sys, time
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
    return 'done'
def system_call(number, *args):
    found = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in args))
    if found < 0:
        raise OSError(ctypes.get_errno(), str(number))
    return found
def run(source):
    try:
        return ['done', repr(eval(source))[:200]]
    except BaseException as fault:
        return ['refused', type(fault).__name__, getattr(fault, 'errno', None)]
"""


@pytest.fixture(params=["confined", "confined as one user", "isolated", "isolated as one user"])
async def cell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """Code that tries to break out; also where it has the worker's own user and, here, all the rights of root."""
    monkeypatch.setenv("WINDLASS_TOKEN", "secret")
    monkeypatch.setenv("WINDLASS_STORE", "redis://secret")
    if "one user" in request.param:
        monkeypatch.setattr(Users, "of", lambda *_: None)
    async with bench(tier=request.param.split()[0]) as found:
        yield found


async def attempts(cell: Bench, *sources: str, **more: Any) -> list[Any]:
    """What each attempt came to."""
    payloads = [json.dumps(source).encode() for source in sources]
    heard = await cell.run(handler("python", ATTEMPT, **more), *payloads, content_type=JSON)
    assert [one.code for one in heard.outcomes.values()] == [200] * len(sources), heard.outcomes
    return [json.loads(one.result or b"") for one in heard.outcomes.values()]


async def refused(cell: Bench, *sources: str, **more: Any) -> None:
    for source, found in zip(sources, await attempts(cell, *sources, **more), strict=True):
        assert found[0] == "refused", (source, found)
        assert found[1] not in ("SyntaxError", "NameError", "AttributeError", "TypeError"), (source, found)


async def test_it_sees_nothing_of_the_workers_environment(cell: Bench) -> None:
    ((done, names),) = await attempts(cell, "sorted(os.environ)")
    assert done == "done"
    assert set(eval(names)) <= {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "PWD", "TMPDIR", "TZ"}  # noqa: S307


async def test_it_sees_no_memory_and_no_environment_of_other_processes(cell: Bench) -> None:
    for pid in (os.getpid(), "self/../" + str(os.getpid()), 1):
        names = ("environ", "mem", "maps", "cmdline", "fd", "root/etc/passwd", "cwd")
        paths = [f"/proc/{pid}/{name}" for name in names]
        found = await attempts(
            cell, *(f"os.listdir({p!r}) if os.path.isdir({p!r}) else open({p!r}).read()" for p in paths)
        )
        for path, one in zip(paths, found, strict=True):
            # Where it has processes of its own, number 1 is one of those.
            assert one[0] == "refused" or (pid == 1 and "secret" not in one[1]), (path, one)
    parents = [f"open('/proc/%d/{name}' % os.getppid()).read()" for name in ("environ", "mem")]
    for one in await attempts(cell, *parents):
        assert one[0] == "refused" or "secret" not in one[1]


async def test_it_reaches_no_files_but_its_own(cell: Bench, tmp_path: Path) -> None:
    let_others_in(tmp_path)
    token, journal = tmp_path / "token", tmp_path / "jobs.db"
    token.write_text("secret")
    token.chmod(0o600)
    journal.write_text("secret")
    journal.chmod(0o666)
    await refused(
        cell,
        f"open({str(token)!r}).read()",
        f"open({str(journal)!r}).read()",
        f"open({str(journal)!r}, 'a').write('x')",
        f"os.truncate({str(journal)!r}, 0)",
        f"os.listdir({str(tmp_path)!r})",
        f"os.link({str(journal)!r}, 'mine')",
        f"os.rename({str(journal)!r}, 'mine')",
        f"os.unlink({str(journal)!r})",
        f"(os.symlink({str(journal)!r}, 'way'), open('way').read())",
        f"(os.symlink({str(tmp_path)!r}, 'path'), os.open('path/token', os.O_RDONLY))",
        "open('/etc/shadow').read()",
        "open('/root/.profile').read()",
        "os.listdir('/root')",
        "os.listdir('/home')",
        "open('/usr/bin/mine', 'w')",
        "open('/etc/mine', 'w')",
        "open('/proc/sys/kernel/core_pattern', 'w')",
        "open('/proc/sysrq-trigger', 'w')",
        "open('/dev/mem', 'rb').read(1)",
        "open('/dev/kmsg').read(1)",
        "os.mknod('device', 0o600 | stat.S_IFBLK, os.makedev(8, 0))",
        "open('/sys/kernel/mm/transparent_hugepage/enabled', 'w')",
    )
    assert journal.read_text() == "secret"
    await works(
        cell, "open('mine', 'w').write('x')", "open('/usr/bin/env', 'rb').read(4)", "open('/dev/null', 'w').write('x')"
    )


async def works(cell: Bench, *sources: str, **more: Any) -> None:
    for source, found in zip(sources, await attempts(cell, *sources, **more), strict=True):
        assert found[0] == "done", (source, found)


async def test_it_cannot_reach_the_folder_of_another_context(cell: Bench) -> None:
    heard = Heard()
    keeps = "import os, time\ndef run(p):\n    open('kept', 'w').write('x')\n    print(os.getcwd())\n    time.sleep(60)"
    running = asyncio.create_task(
        cell.functions.run(handler("python", keeps, task="keeps"), jobs(b"", start=99), heard)
    )
    await heard.until("0099", b"\n")
    folder = heard.output["0099", "stdout"].decode().strip()
    assert there(f"{folder}/kept")
    others = (f"open('{folder}/kept').read()", f"open('{folder}/kept', 'a')", f"os.listdir('{folder}')")
    await refused(cell, *others, f"os.chdir('{folder}/..') or os.listdir()", f"os.rename('{folder}', '{folder}x')")
    await refused(cell, *others, tenant="another")
    cell.functions.stop("0099", "acme", "enough")
    await running


async def test_it_has_no_network_of_any_kind(cell: Bench, tmp_path: Path, redis_server: Server) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as path,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        let_others_in(tmp_path)
        path.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0o777)
        abstract.bind("\0windlass-test")
        for one in (path, abstract):
            one.listen()
        port, redis = tcp.getsockname()[1], redis_server.url.rpartition(":")[2].partition("/")[0]
        await refused(
            cell,
            f"socket.create_connection(('127.0.0.1', {port}), 2)",
            f"socket.create_connection(('127.0.0.1', {int(redis)}), 2)",
            f"socket.create_connection(('::ffff:127.0.0.1', {port}), 2)",
            "socket.create_server(('127.0.0.1', 0))",
            f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
            f"socket.socket(socket.AF_UNIX).connect({str(tmp_path / 's')!r})",
            "socket.socket(socket.AF_UNIX).connect('\\0windlass-test')",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        )
        tcp.settimeout(0)
        with pytest.raises(BlockingIOError):
            tcp.accept()


async def test_it_cannot_touch_the_processes_above_it(cell: Bench) -> None:
    worker = os.getpid()
    await refused(
        cell,
        f"os.kill({worker}, 0)",
        f"os.kill({worker}, 9)",
        f"call('ptrace', 16, {worker}, 0, 0)",
        "call('ptrace', 16, os.getppid(), 0, 0)",
        "call('process_vm_readv', os.getppid(), None, 0, None, 0, 0)",
        f"call('process_vm_readv', {worker}, None, 0, None, 0, 0)",
        f"os.setpriority(os.PRIO_PROCESS, {worker}, 19)",
        "os.setpriority(os.PRIO_USER, 0, 19)",  # without a user of its own, the worker would be one of these
        f"os.sched_setaffinity({worker}, [0])",
        f"__import__('resource').prlimit({worker}, 7, (0, 0))",
    )
    await attempts(cell, "os.kill(os.getppid(), 15)")  # where it has processes of its own, its parent is one of those
    its_own = "os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))"  # however nice the tests are
    assert (await attempts(cell, its_own))[0][0] == "done"
    assert (await attempts(cell, "1 + 1"))[0] == ["done", "2"]


async def test_it_cannot_make_the_system_calls_that_it_has_no_business_with(cell: Bench) -> None:
    calls = kernel.machine()
    assert calls is not None
    everything = {**calls.refused, **kernel.EVERYWHERE}
    found = await attempts(cell, *(f"system_call({number}, 0, 0, 0, 0, 0)" for number in everything.values()))
    assert dict(zip(everything, map(tuple, found), strict=True)) == dict.fromkeys(
        everything, ("refused", "PermissionError", 1)
    )
    new_user, as_child = 0x1000_0000, 17
    await refused(cell, f"system_call({calls.clone}, {new_user | as_child}, 0, 0, 0, 0)")
    ((_, _, number),) = await attempts(cell, f"system_call({kernel.CLONE3}, 0, 0)")
    assert number == 38  # not implemented: libraries take another way


async def test_it_cannot_become_another_user(cell: Bench) -> None:
    works_as_root = await attempts(cell, "os.getuid()", "call('prctl', 39, 0, 0, 0, 0)", "libc.prctl(39, 0, 0, 0, 0)")
    assert works_as_root[2] == ["done", "1"]
    if works_as_root[0][1] != "0":
        await refused(cell, "os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.chown('.', 0, 0)")
    ((_, programs),) = await attempts(
        cell, "subprocess.run(['/usr/bin/su', '-c', 'id'], capture_output=True).returncode"
    )
    assert programs != "0" or works_as_root[0][1] == "0"


async def test_it_has_no_descriptors_but_its_six(cell: Bench) -> None:
    ((_, numbers),) = await attempts(cell, "[n for n in range(256) if libc.fcntl(n, 1) >= 0]")
    assert set(json.loads(numbers)) == {0, 1, 2, 3, 4, 5}


async def test_what_it_leaves_in_its_folder_misleads_no_other_run(cell: Bench, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_text("x")
    body = f"""
import os, shutil
def run(p):
    here = os.getcwd()
    for name in os.listdir():
        os.unlink(name)
    os.symlink({str(victim)!r}, 'python.py')
    os.symlink({str(victim)!r}, 'link')
    os.makedirs('locked/in')
    os.symlink({str(victim)!r}, 'locked/in/link')
    for name in ('locked/in', 'locked'):
        try:
            os.chmod(name, 0)
        except PermissionError:
            pass  # without a user of its own it may not
    deep = 'd' * 100
    for _ in range(100):
        os.mkdir(deep)
        os.chdir(deep)
    try:
        os.rename(here, here + 'x')
    except OSError:
        pass
    try:
        os.rmdir(here)
        os.symlink({str(victim)!r}, here)
    except OSError:
        pass
    return here
"""
    heard = await cell.run(handler("python", body, recycle=1), b"")
    assert heard.codes == [200], heard.one
    (folder,) = results(heard)
    await until_gone(folder)
    assert (victim / "precious").read_text() == "x"


@pytest.mark.parametrize("tier", ["limits", "confined", "isolated"])
async def test_a_fork_bomb_is_bounded_and_gone_with_its_job(tier: str) -> None:
    name = f"bomb{os.getpid()}"  # by which its processes are told from everybody else's
    body = f"""
import ctypes, os, time
def run(p):
    ctypes.CDLL(None).prctl(15, {name.encode()!r})  # PR_SET_NAME
    while True:
        try:
            if os.fork() == 0:
                continue
        except OSError:
            print('full', flush=True)
            time.sleep(1)
"""
    async with bench(tier=tier, processes=40, contexts=1) as cell:
        bomb = handler("python", body, tenant=name)  # whose processes are counted by its user, in every test at once
        for slack in SLACK:
            heard = Heard()
            running = asyncio.create_task(cell.functions.run(bomb, jobs(b"", timeout=2.0 * slack), heard))
            if await heard.until("0000", b"full"):
                break
            await running
        assert 10 < _processes(name) < 80
        await asyncio.wait_for(running, PATIENCE)
        assert heard.one.reason is Reason.TIMEOUT
        async with asyncio.timeout(PATIENCE):
            while _processes(name):  # noqa: ASYNC110 - nobody gives a sign
                await asyncio.sleep(0.05)


def _processes(name: str) -> int:
    return sum(one.info["name"] == name for one in psutil.process_iter(["name"]))


@pytest.mark.parametrize("tier", ["limits", "confined", "isolated"])
async def test_files_and_descriptors_are_bounded(tier: str) -> None:
    async with bench(tier=tier, file_size=1_000_000, files=64) as cell:
        large = "(open('large', 'wb').write(b'x' * 900_000), open('larger', 'ab', 0).write(b'x' * 1_000_001))"
        many = "[os.open('/dev/null', 0) for _ in range(80)]"
        found = await attempts(cell, "__import__('resource').getrlimit(4)", large, "os.path.getsize('larger')", many)
        assert found[0] == ["done", "(0, 0)"]  # no core files
        assert found[1][0] == "done"
        assert found[2] == ["done", "1000000"]
        assert found[3][:2] == ["refused", "OSError"]


async def test_under_limits_alone_a_tenant_is_kept_from_others_by_its_user(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root: only root can give tenants users of their own")
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    async with bench(tier="limits") as cell:
        await refused(
            cell,
            f"open({str(token)!r}).read()",
            f"open('/proc/{os.getpid()}/environ').read()",
            "open('/proc/%d/environ' % os.getppid()).read()",
            f"os.kill({os.getpid()}, 0)",
            "os.kill(os.getppid(), 0)",
            "os.setuid(0)",
        )


# The network


async def _answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


@pytest.mark.parametrize("tier", ["confined", "isolated"])
async def test_the_network_is_there_if_handler_and_operator_want_it(tier: str) -> None:
    server = await asyncio.start_server(_answering, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connect = f"socket.create_connection(('127.0.0.1', {port}), 2).recv(5)"
    async with server, bench(tier=tier, network=True) as cell:
        assert await attempts(cell, connect, network=True) == [["done", "b'hello'"]]
        await refused(cell, connect)
        await refused(cell, "socket.socket(socket.AF_UNIX)", "socket.socket(socket.AF_PACKET, 3)", network=True)
    async with bench(tier=tier) as cell:
        outcome = (await cell.run(handler("python", ATTEMPT, network=True), b"")).one
        assert outcome.unrun
        assert outcome.message == "its handler asks for the network, which this worker does not allow"
