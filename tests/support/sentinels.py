"""Real sentinels, and groups of two servers that three of them watch."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from tests.support.relays import Wire
from tests.support.scoreboard import await_
from tests.support.servers import Server

NAME = "main"


class Sentinel(Server):
    """A sentinel. It may watch a master from its start."""

    flags = ("--sentinel",)

    def __init__(self, folder: Path, master: int | None = None, *, quorum: int = 1) -> None:
        super().__init__("redis", folder)
        self._master = master
        self._quorum = quorum

    def watch(self, port: int) -> None:
        """The master is there; what it knew of another is forgotten."""
        with redis.Redis(port=self.port, decode_responses=True) as line:
            if self._master is not None:
                line.execute_command("SENTINEL", "REMOVE", NAME)
            line.execute_command("SENTINEL", "MONITOR", NAME, "127.0.0.1", port, self._quorum)
        self._master = port

    def master(self) -> int:
        """The port of the master, as it says."""
        with redis.Redis(port=self.port, decode_responses=True) as line:
            return int(line.sentinel_get_master_addr_by_name(NAME)[1])

    def known(self) -> dict[str, str]:
        """What it knows of its group."""
        with redis.Redis(port=self.port, decode_responses=True) as line:
            said = line.execute_command("SENTINEL", "MASTER", NAME)
        return dict(said) if isinstance(said, dict) else dict(zip(said[::2], said[1::2], strict=True))

    def _settings(self) -> str:
        lines = [f"port {self.port}", "bind 127.0.0.1", f'dir "{self.folder}"']
        if self._master is not None:
            lines += [
                f"sentinel monitor {NAME} 127.0.0.1 {self._master} {self._quorum}",
                f"sentinel down-after-milliseconds {NAME} 1000",
                f"sentinel failover-timeout {NAME} 3000",
            ]
        return "\n".join(lines) + "\n"

    def _answers(self) -> bool:
        return self.running and "redis_mode:sentinel" in self.ask("INFO", "server")


def address(sentinels: Sequence[Sentinel]) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in sentinels)}/{NAME}"


class Group:
    """Two servers and three sentinels. The first master is reached over a wire: by clients, sentinels, its replica."""

    def __init__(self, servers: tuple[Server, Server], wire: Wire, sentinels: list[Sentinel]) -> None:
        self.first, self.second = servers
        self.wire = wire
        self.sentinels = sentinels
        self.url = address(sentinels)
        self._out_of_reach = False

    def force_failover(self) -> None:
        self.sentinels[0].ask("SENTINEL", "FAILOVER", NAME)

    def kill(self) -> None:
        self._out_of_reach = True
        self.first.kill()

    def cut_off(self) -> None:
        self._out_of_reach = True
        self.wire.cut()

    def await_switch(self) -> None:
        """Until a first sentinel names another master."""
        await_("a switch", lambda: any(one.master() != self.wire.port for one in self.sentinels))

    def is_left(self) -> bool:
        """Whether the first master is out of reach, or has no clients but sentinels and this test."""
        if self._out_of_reach:
            return True
        clients = self.first.ask("CLIENT", "LIST", "TYPE", "normal").splitlines()
        return sum("name=sentinel" not in one for one in clients) == 1

    def is_whole(self) -> bool:
        """Whether all know each other: else none could be elected."""
        known = [one.known() for one in self.sentinels]
        return all(
            one["num-other-sentinels"] == "2" and one["num-slaves"] == "1" and one["flags"] == "master" for one in known
        )


def has_replica(server: Server) -> bool:
    return "state=online" in server.ask("INFO", "replication")


def replicate(master: Server, replica: Server, port: int | None = None) -> None:
    """Until the replica has all; another port may lead to the master."""
    replica.ask("REPLICAOF", "127.0.0.1", str(port or master.port))
    await_("the replica is there", lambda: has_replica(master))


@contextmanager
def watched_group(folder: Path) -> Iterator[Group]:
    def place(name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    with ExitStack() as running:
        first, second = (running.enter_context(Server("redis", place(name), fsync="no")) for name in ("one", "two"))
        wire = running.enter_context(Wire(first.port))
        first.ask("CONFIG", "SET", "replica-announce-port", str(wire.port))
        replicate(first, second, wire.port)
        sentinels = [
            running.enter_context(Sentinel(place(f"sentinel{number}"), wire.port, quorum=2)) for number in range(3)
        ]
        group = Group((first, second), wire, sentinels)
        await_("they know each other", group.is_whole)
        yield group
