"""What the rules say of a lane by its names alone: until when it is shut, and who takes turns there.

Pure: rules and names in, numbers out.
"""

from collections.abc import Mapping

from windlass.store.flow import ANY, Rules
from windlass.store.micros import to_micros

NOBODY, TENANTS, TASKS = 0, 1, 2
"""Who takes turns, as `lane.turns` says it."""


def shut_until(rules: Rules, tenant: str, queue: str, task: str) -> int | None:
    """The end of the longest closure; whether that has passed is not asked."""
    if not rules.shut:
        return None
    names = (tenant, queue, task)
    ends = [to_micros(until) for pattern, until in rules.shut.items() if _matches(pattern, names)]
    return max(ends, default=None)


def _matches(pattern: str, names: tuple[str, str, str]) -> bool:
    return all(said in (ANY, name) for said, name in zip(pattern.split(","), names, strict=True))


def turns_of(rules: Rules, tenant: str, queue: str) -> int:
    if task_weights(rules, tenant, queue) is not None:
        return TASKS
    return TENANTS if queue in rules.fair_queues else NOBODY


def task_weights(rules: Rules, tenant: str, queue: str) -> Mapping[str, float] | None:
    """The weights of the tasks of a line, if they take turns."""
    lines = rules.fair_lines
    return lines.get(f"{tenant},{queue}", lines.get(f"{ANY},{queue}")) if lines else None
