"""More attempts to break out: what outlives a job, what no list of files covers, ways around a refused call."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.functions.test_sandbox import cell, refused, works
from tests.support.function_harness import Bench, Heard, bench, handler, jobs, let_others_in
from windlass.worker.functions.sandbox import kernel

__all__ = ["cell"]


def refused_calls() -> dict[str, int]:
    machine = kernel.machine()
    assert machine is not None
    return machine.refused


async def test_it_leaves_no_memory_behind_that_outlives_it(cell: Bench) -> None:
    """Segments, semaphores and queues of the system stay until somebody removes them, and others find them."""
    numbers = refused_calls()
    await refused(
        cell,
        f"system_call({numbers['shmget']}, 4711, 1 << 20, 0o1666)",
        f"system_call({numbers['shmat']}, 0, 0, 0)",
        f"system_call({numbers['semget']}, 4711, 1, 0o1666)",
        f"system_call({numbers['msgget']}, 4711, 0o1666)",
        "call('mq_open', b'/mine', os.O_CREAT | os.O_RDWR, 0o666, None)",
        "open('/dev/shm/mine', 'wb').write(b'x')",
    )


async def test_it_has_no_uncounted_files_in_memory(cell: Bench) -> None:
    await refused(cell, "os.memfd_create('mine')", f"system_call({kernel.EVERYWHERE['memfd_secret']}, 0)")


async def test_a_pair_of_sockets_leads_to_no_others(cell: Bench, tmp_path: Path) -> None:
    """Either of a pair of datagram sockets could send to any address, or be connected anew."""
    let_others_in(tmp_path)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract,
    ):
        heard.bind(str(tmp_path / "s"))
        (tmp_path / "s").chmod(0o777)
        name = f"windlass-attempt-{os.getpid()}"
        abstract.bind(f"\0{name}")
        for kind in ("socket.SOCK_DGRAM", "socket.SOCK_DGRAM | socket.SOCK_CLOEXEC"):
            await refused(
                cell,
                f"socket.socketpair(socket.AF_UNIX, {kind})[0].sendto(b'x', {str(tmp_path / 's')!r})",
                f"socket.socketpair(socket.AF_UNIX, {kind})[0].sendto(b'x', '\\0{name}')",
                f"socket.socketpair(socket.AF_UNIX, {kind})[0].connect({str(tmp_path / 's')!r})",
            )
        await refused(
            cell, f"socket.socketpair()[0].connect({str(tmp_path / 's')!r})", "socket.socketpair(socket.AF_TIPC)"
        )
        await works(cell, "(lambda one, other: one.send(b'x'))(*socket.socketpair())")
        for one in (heard, abstract):
            one.settimeout(0)
            with pytest.raises(BlockingIOError):
                one.recv(1)


async def test_it_changes_nothing_about_files_that_it_cannot_open(cell: Bench, tmp_path: Path) -> None:
    """Landlock knows reading and writing; rights, owners, times and attributes it lets pass."""
    let_others_in(tmp_path)
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    before = token.stat()
    where = str(token)
    await refused(
        cell,
        f"os.chmod({where!r}, 0o666)",
        f"os.chown({where!r}, 1, 1)",
        f"os.lchown({where!r}, 1, 1)",
        f"os.setxattr({where!r}, 'user.mine', b'x')",
        f"(os.symlink({where!r}, 'way'), os.chmod('way', 0o666))",
        f"os.chmod('/proc/self/fd/%d' % os.open({where!r}, os.O_PATH), 0o666)",
        f"system_call({kernel.BY_PATH_EVERYWHERE['fchmodat2']}, -100, 0, 0o666, 0)",
    )
    after = token.stat()
    assert (stat.S_IMODE(after.st_mode), after.st_uid) == (0o600, before.st_uid)


@pytest.fixture(params=["confined", "isolated"])
async def two(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Bench, int]]:
    """A bench, and the process of a context of the same tenant that runs meanwhile."""
    async with bench(tier=request.param) as shop:
        heard = Heard()
        waits = (
            "import os, time\nSECRET = 'other' + 'wise'\ndef run(p):\n    print('here', flush=True)\n    time.sleep(60)"
        )
        running = asyncio.create_task(
            shop.functions.run(handler("python", waits, task="waits"), jobs(b"", start=77), heard)
        )
        await heard.until("0077", b"here")
        pid = heard.pids["0077"]
        assert pid is not None
        yield shop, pid
        assert "0077" not in heard.outcomes, "it was disturbed"
        shop.functions.stop("0077", "acme", "enough")
        await running


async def test_a_context_cannot_disturb_another_of_its_own_tenant(two: tuple[Bench, int]) -> None:
    shop, pid = two
    await refused(
        shop,
        f"os.kill({pid}, 0)",
        f"os.kill({pid}, 9)",
        f"(libc.kill(-1, 15), os.kill({pid}, 0))",
        f"call('ptrace', 16, {pid}, 0, 0)",
        f"system_call({kernel.EVERYWHERE['pidfd_getfd']}, system_call(434, {pid}, 0), 4, 0)",
        f"os.open('/proc/{pid}/fd/4', os.O_WRONLY)",
        f"open('/proc/{pid}/environ', 'rb').read()",
        f"open('/proc/{pid}/mem', 'rb')",
        f"__import__('signal').pidfd_send_signal(os.pidfd_open({pid}), 9)",
    )


async def test_nothing_of_the_machine_itself_can_be_changed(cell: Bench) -> None:
    name = os.uname().nodename
    numbers = refused_calls()
    await refused(
        cell,
        "socket.sethostname('mine')",
        "call('setdomainname', b'x', 1)",
        f"system_call({kernel.EVERYWHERE['quotactl_fd']}, 0, 0, 0, 0)",
        f"system_call({numbers['fanotify_init']}, 0, 0)",
    )
    assert os.uname().nodename == name


@pytest.mark.parametrize("lang", ["node", "php", "sh"])
async def test_what_languages_need_still_works(lang: str) -> None:
    """What is refused above is what their own libraries can do without."""
    body = {
        "node": "const {execFileSync} = require('node:child_process'); const {Worker} = require('node:worker_threads');"
        "function run(p) { return execFileSync('/bin/echo', [p]).toString().trim() }",
        "php": "function run($p) { file_put_contents('a', $p); chmod('a', 0600); touch('a'); "
        "return trim(shell_exec('cat a')); }",
        "sh": "cat > a; chmod 700 a; touch a; printf '\"%s\"' $(cat a)",
    }[lang]
    async with bench() as shop:
        heard = await shop.run(handler(lang, body), b"fine")
        assert (heard.one.code, heard.one.result) == (200, b'"fine"'), heard.one
