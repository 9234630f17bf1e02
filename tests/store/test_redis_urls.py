"""What the address of a Redis store says, and what is refused in one."""
# ruff: noqa: S106 - no passwords, but what stands in an address

import pytest

from windlass.model.errors import Invalid
from windlass.store.redis.urls import Replicas, ServerAddress, read_url


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", ServerAddress()),
        ("redis://one", ServerAddress("one")),
        ("redis://one:1/2", ServerAddress("one", 1, db=2)),
        ("redis://one/2/", ServerAddress("one", db=2)),
        ("redis://one/2?db=3", ServerAddress("one", db=3)),
        ("redis://[::1]:1", ServerAddress("::1", 1)),
        ("redis://:p%40ss@one", ServerAddress("one", password="p@ss")),
        ("redis://ann:secret@one", ServerAddress("one", username="ann", password="secret")),
        ("redis://one?username=ann&password=s%26t", ServerAddress("one", username="ann", password="s&t")),
        ("unix:///run/a%20b.sock?db=1", ServerAddress(path="/run/a b.sock", db=1)),
        ("unix://ann:secret@/run/redis.sock", ServerAddress(path="/run/redis.sock", username="ann", password="secret")),
        ("redis+cluster://one:1", ServerAddress("one", 1)),
    ],
)  # fmt: skip
def test_where_a_server_is_and_how_to_log_in(url: str, address: ServerAddress) -> None:
    target = read_url(url)
    assert target.address == address
    assert target.cluster == url.startswith("redis+cluster")


def test_replicas_that_must_have_a_job() -> None:
    assert read_url("redis://one?replicas=2&replicated_within=500ms&replicas_synced=yes").replicas == Replicas(
        2, 0.5, synced=True
    )
    assert read_url("redis://one").replicas is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "'nonsense' is not redis, "),
        ("http://one", "'http' is not redis, "),
        ("redis://one:port", "not the address of a server: "),
        ("redis://one/first", "'first' is no number of a database"),
        ("redis://one?replica=1", "replica: only replicas, "),
        ("redis://one?ssl_ca_certs=/a", "ssl_ca_certs: only "),
        ("unix://", "name the socket: unix:///"),
        ("redis+sentinel://one:1", "name the master that the sentinels watch"),
    ],
)
def test_what_is_no_address_is_refused_with_what_to_write(url: str, says: str) -> None:
    with pytest.raises(Invalid) as fault:
        read_url(url)
    assert says in fault.value.detail
    assert fault.value.at == "store"
