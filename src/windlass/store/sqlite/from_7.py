"""What `from_7.sql` needs: options of jobs and rules, as format 7 packed them, under the names of format 8."""

from typing import Any

from msgspec import msgpack

NEW_NAMES = {
    "unattended": "owner_timeout",
    "edition": "version",
    "grouping": "group_epoch",
    "allowances": "limit_rules",
    "fair_lines": "fair_tenant_queues",
    "shut": "paused_until",
    "sorting": "regrouping",
    "marks": "fingerprints",
}


def with_new_names(*values: Any) -> bytes:
    """Of packed options or rules, a schedule, a worker with the options of its tasks, or a chain of follow-ups."""
    (packed,) = values
    found = msgpack.decode(packed)
    if isinstance(found, list):
        tenant, chain = found
        return msgpack.encode([tenant, [[_renamed(job), payload] for job, payload in chain]])
    found = _renamed(found)
    if "options" in found:
        found["options"] = {task: _renamed(options) for task, options in found["options"].items()}
    return msgpack.encode(found)


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        NEW_NAMES.get(name, name): _renamed(value) if name in ("job", "then") and value else value
        for name, value in fields.items()
    }
