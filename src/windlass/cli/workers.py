"""`windlass workers ls`: who is at work."""

from collections.abc import Sequence

from cyclopts import App

from windlass.cli import saying
from windlass.cli.place import HERE, OPTIONS, Place, opened
from windlass.model.names import EVERY_TENANT
from windlass.model.operations import Handlers, Workers
from windlass.model.worker import Worker
from windlass.system import SystemClock

workers = App(name="workers", help="Look at workers.", group_parameters=OPTIONS)


@workers.command
async def ls(*, place: Place = HERE) -> None:
    """List the workers that are alive."""
    async with opened(place) as queue:
        found = await queue(Workers())
        handled = {str(one.lang) for one in await queue(Handlers())} if any(one.unable for one in found) else set[str]()
    if place.json:
        saying.write_json(found)
    elif found:
        saying.paper().print(table_of(found))
        for one in found:
            for lang in handled & one.unable.keys():
                why = one.unable[lang]
                saying.remark(f"{one.name} cannot run {lang}: {why}")
    else:
        saying.remark("no workers; `windlass worker` starts one")


def table_of(found: Sequence[Worker]) -> saying.Table:
    now = SystemClock().now()
    whose = ("tenant",) if any(one.tenant == EVERY_TENANT for one in found) else ()
    columns = ("worker", *whose, "node", "pid", "queues", "running", "handlers", "seen")
    made = saying.Table(*columns, right=("pid", "running"))
    for one in found:
        made.add(
            one.name,
            *(("all" if one.tenant == EVERY_TENANT else one.tenant,) if whose else ()),
            one.node,
            str(one.pid or ""),
            ",".join(one.queues),
            f"{one.running} of {one.slots}",
            _handlers(one),
            saying.ago(one.seen_at, now),
        )
    return made


def _handlers(worker: Worker) -> str:
    """The languages of handlers that it runs."""
    if not worker.handlers:
        return ""
    return "all" if worker.languages is None else ",".join(worker.languages)
