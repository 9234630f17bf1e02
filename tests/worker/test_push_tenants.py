"""Where the workers of one tenant may be: not on the server's machine, nor in the networks behind it.

Unless the operator allows address and port, or the token is of all tenants.
"""

import asyncio
from collections.abc import Sequence

import httpx2
import pytest

from tests.support.http_servers import LOCAL, web
from tests.support.patience import PATIENCE
from tests.support.push_servers import OK, Station, receiver, station
from windlass.client import Client
from windlass.model.errors import Denied
from windlass.model.job import State
from windlass.model.new_job import NewJob
from windlass.model.operations import AddToken, Enqueue, Register, Show, Workers
from windlass.model.push import read_url
from windlass.model.worker import NewWorker
from windlass.store.protocol import Store
from windlass.worker.network import Allowed, Network, read_allowed

NOBODYS = Network(Allowed(), answer_within=PATIENCE)


async def token(hub: Station, tenant: str) -> str:
    return (await hub.client(AddToken(tenant=tenant, scopes=["work", "enqueue", "read"]))).token


async def register(hub: Station, tenant: str, url: str, key: str, **more: object) -> httpx2.Response:
    """What a server says to a worker at this address."""
    async with web(hub.address, key) as client:
        body = {"name": "w", "url": url, "format": "json", **more}
        return await client.post(f"/v1/{tenant}/workers", json=body)


FORBIDDEN = (
    *("http://127.0.0.1:{port}/", "https://localhost:{port}/", "http://0177.0.0.1:{port}/", "http://[::1]:{port}/"),
    *("https://10.0.0.1/", "https://192.168.1.1:8443/", "https://169.254.169.254/", "https://[fd00::1]/"),
)


async def test_a_tenants_worker_is_not_taken_where_only_this_machine_can_reach(real_store: Store) -> None:
    async with station(real_store, network=NOBODYS) as hub, receiver(OK, format="json") as worker:
        key = await token(hub, "shop")
        for url in FORBIDDEN:
            address = url.format(port=read_url(worker.url).port)
            refused = await register(hub, "shop", address, key)
            assert (refused.status_code, refused.json()["at"]) == (403, "worker.url"), refused.text
            assert "--reach" in refused.json()["detail"]
            liar = await register(hub, "shop", address, key, trusted=True)
            assert liar.status_code == 403
            async with web(hub.address, key) as client:
                old = await client.post("/worker", json={"name": "w", "max_jobs": 1, "url": address.rstrip("/")})
            assert old.status_code == 403, old.text
        assert await hub.engine(Workers(tenant="-")) == []


async def test_with_a_token_of_all_tenants_it_is_taken_and_sent_jobs(real_store: Store) -> None:
    async with station(real_store, network=NOBODYS) as hub, receiver(OK, format="json") as worker:
        key = await token(hub, "-")
        taken = await register(hub, "shop", worker.url, key)
        assert taken.status_code == 201, taken.text
        async with Client(hub.address, key) as client:
            job = await client(Enqueue(tenant="shop", job=NewJob(task="work")))
        (sent,) = await worker.has(1)
        assert sent.claimed.job.id == job.id
        assert (await hub.engine(Workers(tenant="shop")))[0].trusted


async def test_what_the_operator_allows_is_reached_at_that_port_only(real_store: Store) -> None:
    async with receiver(OK, format="json") as worker, receiver(OK, format="json") as other:
        network = Network(read_allowed([f"127.0.0.0/8:{read_url(worker.url).port}"]), answer_within=PATIENCE)
        async with station(real_store, network=network) as hub:
            key = await token(hub, "shop")
            assert (await register(hub, "shop", worker.url, key)).status_code == 201
            assert (await register(hub, "shop", other.url, key)).status_code == 403
            async with Client(hub.address, key) as client:
                await client(Enqueue(tenant="shop", job=NewJob(task="work")))
            await worker.has(1)
            assert other.connections == 0


async def test_a_name_that_means_this_machine_later_is_not_followed(real_store: Store) -> None:
    said = iter([["8.8.8.8"]])

    async def find(host: str, port: int) -> Sequence[str]:
        return next(said, ["127.0.0.1"])

    async with receiver(OK, format="json") as worker:
        async with station(real_store, network=Network(Allowed(), find, answer_within=PATIENCE)) as hub:
            key = await token(hub, "shop")
            url = f"https://rebinds.example:{read_url(worker.url).port}/"
            assert (await register(hub, "shop", url, key)).status_code == 201
            job = await hub.engine(Enqueue(tenant="shop", job=NewJob(task="work")))
            await asyncio.sleep(1)
            assert (await hub.engine(Show(tenant="shop", id=job.id))).state is State.QUEUED
        assert worker.connections == 0


async def test_a_new_name_is_taken(real_store: Store) -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    async with station(real_store, network=Network(Allowed(), unknown)) as hub:
        assert (await register(hub, "shop", "https://later.example/", await token(hub, "shop"))).status_code == 201


async def test_it_is_the_servers_word_also_in_process(real_store: Store) -> None:
    """Whoever asks the server's own service has to say that the worker is trusted."""
    async with station(real_store, network=NOBODYS) as hub:
        new = NewWorker(name="w", url="http://127.0.0.1:9/")
        with pytest.raises(Denied):
            await hub.push(Register(worker=new))
        async with Client(hub.address, LOCAL) as client:
            assert (await client(Register(worker=new))).secret
