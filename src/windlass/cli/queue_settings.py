"""`windlass queues pause|resume|set`: how a queue is run."""

from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import UNSET

from windlass.cli import saying
from windlass.cli.pausing import For, Why, told, until
from windlass.cli.place import HERE, Place, opened
from windlass.model import duration
from windlass.model.errors import Invalid
from windlass.model.lifecycle import OnLost
from windlass.model.operations import ChangeQueue, QueueCard
from windlass.model.queue import Clearable, Policy, QueueChange, Tier

Queue = Annotated[str, Parameter(name="QUEUE", help="Its name.")]

TIER_PARTS = 3


async def pause(queue: Queue, /, *, how_long: For = None, why: Why = "", place: Place = HERE) -> None:
    """Let no job of a queue start for a while. What runs goes on; what comes is taken in.

    For example:
      windlass queues pause mail --for 30m --why "server is being moved"
    """
    await _change(queue, QueueChange(paused=True, until=until(how_long), why=why), place)


async def resume(queue: Queue, /, *, place: Place = HERE) -> None:
    """Let the jobs of a queue start again."""
    await _change(queue, QueueChange(paused=False), place)


async def change(
    queue: Queue,
    /,
    *,
    policy: Annotated[
        Policy | None,
        Parameter(
            metavar="POLICY", help="Whose turn it is: `priority` = strictly by it, or `fair` = tasks take turns."
        ),
    ] = None,
    weight: Annotated[
        list[str] | None,
        Parameter(
            metavar="NAME=N",
            help="Turns of a task (with --tenant - of a tenant) for one of the others. `none` takes all away.",
        ),
    ] = None,
    tier: Annotated[
        list[str] | None,
        Parameter(metavar="NAME:TIME:CAP", help="A time class, shortest first: slow:30s:20%. `none` takes all away."),
    ] = None,
    limit: Annotated[
        str | None, Parameter(name="--timeout", metavar="TIME", help="For jobs that name none; `none` = no limit.")
    ] = None,
    isolate: Annotated[
        bool | None, Parameter(negative="--no-isolate", help="Whether each job runs in a process of its own.")
    ] = None,
    on_lost: Annotated[
        OnLost | None,
        Parameter(metavar="HOW", help="What becomes of a job whose worker is lost: retry, requeue, fail."),
    ] = None,
    keep_success: Annotated[
        str | None, Parameter(metavar="TIME", help="How long records of successes stay; `none` = for ever.")
    ] = None,
    keep_failure: Annotated[
        str | None, Parameter(metavar="TIME", help="The same for jobs that failed or were cancelled.")
    ] = None,
    clear: Annotated[
        list[Clearable] | None,
        Parameter(
            metavar="NAME",
            help="Take back what was said of policy, weights, tiers, timeout, isolate, on_lost, keep_….",
        ),
    ] = None,
    place: Place = HERE,
) -> None:
    """Say how a queue is run. What is not named stays as it is; `--clear` takes a setting back.

    For example:
      windlass queues set web --tier fast:3s:100% --tier medium:10s:50% --tier slow:30s:20%
      windlass queues set mail --policy fair --weight newsletter=1 --weight receipt=5
      windlass queues set video --timeout 2h --isolate --on-lost fail
      windlass queues set mail --clear weights --clear keep_success
    """
    given: dict[str, Any] = {"policy": policy, "isolate": isolate, "on_lost": on_lost, "clear": clear}
    if weight is not None:
        given["weights"] = {} if weight == ["none"] else dict(_weight(text) for text in weight)
    if tier is not None:
        given["tiers"] = [] if tier == ["none"] else [_tier(text) for text in tier]
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, text in (("timeout", limit), ("keep_success", keep_success), ("keep_failure", keep_failure)):
        if text is not None:
            chosen[name] = None if text == "none" else duration.seconds(text, at=f"--{name.replace('_', '-')}")
    if not chosen:
        raise Invalid("nothing to change: --policy, --tier, --timeout … say what", at="queue")
    await _change(queue, QueueChange(**chosen), place)


def _weight(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise Invalid(f"{text!r} is not NAME=NUMBER", at="--weight") from None


def _tier(text: str) -> Tier:
    parts = text.split(":")
    if len(parts) not in (TIER_PARTS - 1, TIER_PARTS):
        raise Invalid(f"{text!r} is not NAME:TIME or NAME:TIME:CAP, such as slow:30s:20%", at="--tier")
    cap: str | int = parts[2] if len(parts) == TIER_PARTS else "100%"
    if isinstance(cap, str) and cap.isdecimal():
        cap = int(cap)
    return Tier(name=parts[0], seconds=duration.seconds(parts[1], at="--tier"), cap=cap)


async def _change(queue: str, change: QueueChange, place: Place) -> None:
    async with opened(place, create=True) as to:
        card = await to(ChangeQueue(queue=queue, change=change))
    if place.json:
        saying.write_json(card)
    else:
        saying.remark(describe(card))


def describe(card: QueueCard) -> str:
    """How a queue is run, in one line."""
    parts = [told(card), card.policy or ("priority" if card.weights else "")]
    parts += [f"{name}={number:g}" for name, number in card.weights.items()]
    parts += [f"{tier.name} {tier.seconds:g} s at most {tier.cap}" for tier in card.tiers]
    if card.timeout is not None:
        parts.append(f"timeout {card.timeout:g} s")
    if card.isolate:
        parts.append("isolated")
    if card.on_lost != "retry":
        parts.append(f"on loss {card.on_lost}")
    for word, keep in (("successes", card.keep_success), ("failures", card.keep_failure)):
        if keep is not UNSET:
            parts.append(f"{word} kept {'for ever' if keep is None else f'{keep:g} s'}")
    return f"queue {card.queue}: {', '.join(part for part in parts if part) or 'by priority'}"
