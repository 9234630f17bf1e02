"""A journal keeps the jobs of tenants apart, too: an id that one has sent hides nothing of another's."""

from pathlib import Path

from tests.support.drained_journals import down, journaled_at, up
from tests.support.servers import StartServer
from windlass.model.job import Reason
from windlass.model.names import keyed_id
from windlass.model.new_job import NewJob
from windlass.model.operations import Enqueue, EnqueueLines, EnqueueMany, Show

KEYED = keyed_id("bob", "default", "order-1")


async def test_an_id_that_another_tenant_has_sent_before_is_new_while_the_store_is_away(
    tmp_path: Path, start_server: StartServer
) -> None:
    server = start_server("redis", fsync="always")
    async with journaled_at(server.url, tmp_path / "journal") as service:
        server.kill()
        await down(service)
        taken = NewJob(task="taken", id=KEYED)
        assert (await service(Enqueue(tenant="mallory", job=taken))).created
        accepted = await service(Enqueue(tenant="bob", job=NewJob(task="own", key="order-1")))
        assert (accepted.id, accepted.task, accepted.created) == (KEYED, "own", True)
        assert not (await service(Enqueue(tenant="bob", job=NewJob(task="other", key="order-1")))).created
        lines = await service(EnqueueLines(tenant="bob", task="line", text="1\n2\n3"))
        theirs = [NewJob(task="taken", id=id) for id in lines.ids]
        assert (await service(EnqueueMany(tenant="mallory", jobs=theirs))).created == 3
        for tenant, task, line in (("bob", "own", "line"), ("mallory", "taken", "taken")):
            shown = await service(Show(tenant=tenant, id=KEYED))
            assert (shown.tenant, shown.task, shown.reason) == (tenant, task, Reason.ACCEPTED)
            assert (await service(Show(tenant=tenant, id=lines.ids[1]))).task == line
        server.restart()
        await up(service)
        for tenant, task in (("bob", "own"), ("mallory", "taken")):
            assert (await service(Show(tenant=tenant, id=KEYED))).task == task
