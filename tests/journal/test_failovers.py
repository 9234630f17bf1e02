"""One failover after the other, half of them with a replica that had heard nothing for a while: nothing is lost."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.drained_journals import CLOCK, in_order, new, until
from tests.support.patience import PATIENCE
from tests.support.relays import Wire
from tests.support.servers import Server, StartServer
from windlass.addresses import open_service
from windlass.model.errors import WindlassError
from windlass.model.operations import Count, Enqueue, Service


@pytest.mark.timeout(500)
@pytest.mark.parametrize("failovers", [2, pytest.param(20, marks=pytest.mark.long)])
async def test_r8_failover_after_failover_loses_nothing(
    failovers: int, tmp_path: Path, start_server: StartServer, capsys: pytest.CaptureFixture[str]
) -> None:
    primary, replica = start_server("redis", fsync="always"), start_server("redis", fsync="always")
    accepted: list[int] = []
    waits: list[float] = []
    with Wire(primary.port) as front, Wire(primary.port) as link:
        async with open_service(f"redis://127.0.0.1:{front.port}/0", journal=str(tmp_path)) as service:

            async def send(number: int) -> None:
                for _ in range(number):
                    await service(Enqueue(job=new(len(accepted))))
                    accepted.append(len(accepted))

            for number in range(failovers):
                await follow(replica, link.port)
                await send(30)
                if number % 2:
                    link.cut()
                    await send(100)
                primary.kill()
                replica.ask("REPLICAOF", "NO", "ONE")
                front.lead(replica.port)
                link.lead(replica.port)
                link.mend()
                await send(10)
                began = CLOCK.monotonic()
                await until(lambda: has(service, len(accepted)))
                waits.append(CLOCK.monotonic() - began)
                primary.start()
                primary, replica = replica, primary
            found = await in_order(service)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{failovers} failovers, {len(accepted)} jobs: whole again after {max(waits):.1f} s at most\n"
        )
    assert found == accepted, "all of them, once, in order"


async def has(service: Service, number: int) -> bool:
    try:
        return (await service(Count())).count >= number
    except WindlassError:
        return False


async def follow(replica: Server, port: int) -> None:
    replica.ask("REPLICAOF", "127.0.0.1", str(port))
    async with asyncio.timeout(PATIENCE):
        while "master_link_status:up" not in replica.ask("INFO", "replication"):
            await CLOCK.sleep(0.05)
