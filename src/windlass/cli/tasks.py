"""`windlass tasks pause|resume`: rest for a task, in all its queues."""

from collections.abc import Callable
from typing import Annotated

from cyclopts import App, Parameter

from windlass.cli import saying
from windlass.cli.pausing import For, Why, paused, told
from windlass.cli.place import HERE, OPTIONS, Place, opened
from windlass.model.limit import Pause
from windlass.model.operations import GetTask, Operation, PauseTask

tasks = App(name="tasks", help="Pause tasks.", group_parameters=OPTIONS)

Task = Annotated[str, Parameter(name="TASK", help="Its name.")]


@tasks.command
async def pause(task: Task, /, *, how_long: For = None, why: Why = "", place: Place = HERE) -> None:
    """Let no job of a task start for a while, whatever its queue.

    For example:
      windlass tasks pause charge_card --why "the bank is down"
    """
    await _ask(PauseTask(task=task, pause=paused(how_long, why)), task, place)


@tasks.command
async def resume(task: Task, /, *, place: Place = HERE) -> None:
    """Let the jobs of a task start again."""
    await _ask(PauseTask(task=task, pause=Pause()), task, place)


@tasks.command
async def show(task: Task, /, *, place: Place = HERE) -> None:
    """Say whether a task is paused."""
    await _ask(GetTask(task=task), task, place, say=saying.write)


async def _ask(
    operation: Operation[Pause], task: str, place: Place, *, say: Callable[[str], None] = saying.remark
) -> None:
    async with opened(place, create=True) as queue:
        found = await queue(operation)
    if place.json:
        saying.write_json(found)
    else:
        say(f"task {task}: {told(found) or 'not paused'}")
