"""A cluster of several servers, each with its share of the slots; what lies where."""

from collections.abc import Sequence

from tests.support.servers import Server, StartServer
from tests.support.worker_harness import until
from windlass.model.names import queue_mark
from windlass.store.redis.cluster import SLOTS, slot_of

PARTITIONS = 16
NAMES = tuple(f"q{number}" for number in range(64))


def joined(start_server: StartServer, number: int, node_timeout: int = 15_000) -> list[Server]:
    """Servers that know each other, and when one is away notice it after so many milliseconds."""
    members = [start_server("cluster", joins=True) for _ in range(number)]
    for place, member in enumerate(members):
        low, high = share(place, number)
        member.ask("CLUSTER", "SET-CONFIG-EPOCH", str(place + 1))  # or they would have to agree on it first
        member.ask("CLUSTER", "ADDSLOTSRANGE", str(low), str(high))
        member.ask("CONFIG", "SET", "cluster-node-timeout", str(node_timeout))
        member.flags = ("--cluster-node-timeout", str(node_timeout))
    for member in members[1:]:
        members[0].ask("CLUSTER", "MEET", "127.0.0.1", str(member.port), str(cluster_port(member)))
    until(lambda: all(agreed(member, number) for member in members))
    for member in members:
        member.joins = False  # it has its slots, also when it is started again
    return members


def share(place: int, number: int) -> tuple[int, int]:
    """The first and the last slot of a member."""
    return place * SLOTS // number, (place + 1) * SLOTS // number - 1


def cluster_port(server: Server) -> int:
    settings = (server.folder / "server.conf").read_text().splitlines()
    (port,) = [line.split()[1] for line in settings if line.startswith("cluster-port")]
    return int(port)


def agreed(server: Server, number: int) -> bool:
    info = server.ask("CLUSTER", "INFO")
    return all(word in info for word in ("cluster_state:ok", f"cluster_known_nodes:{number}", "cluster_slots_ok:16384"))


def holder(slot: int, number: int) -> int:
    """The place of the member that holds a slot."""
    return next(place for place in range(number) if share(place, number)[0] <= slot <= share(place, number)[1])


def home(number: int) -> int:
    """The place of the member that holds the first partition: workers and rules are kept there."""
    return holder(slot_of("wl{0}"), number)


def queues_of(place: int, number: int, names: Sequence[str] = NAMES) -> list[str]:
    """Queues that lie on one member."""
    return [name for name in names if holder(slot_of(f"wl{{{queue_mark(name) % PARTITIONS}}}"), number) == place]
