"""What an operator says of a queue: whose turn it is there, its tiers, what its jobs get unless they ask."""

import itertools
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from windlass.model.duration import Seconds, Time
from windlass.model.errors import Invalid
from windlass.model.limit import Pause
from windlass.model.names import Name
from windlass.model.new_job import OnLost
from windlass.model.output import DEFAULT_OUTPUT, OutputPolicy

MOST_TIERS = 16

Percent = Annotated[str, Meta(pattern=r"^[0-9]{1,3}(\.[0-9]+)?%$(?!\n)")]

Policy = Literal["priority", "fair"]

Bytes = Annotated[int, Meta(ge=1, le=2**53)]

Announcement = Annotated[str, Meta(max_length=2000)]

Weight = Annotated[float, Meta(gt=0, le=1_000_000)]


class Tier(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A time class."""

    name: Name
    seconds: Annotated[float, Meta(gt=0, le=31_536_000)]
    """The longest run of a job at this tier."""
    cap: Annotated[int, Meta(ge=1)] | Percent = "100%"
    """At most so many jobs run at this tier or a longer one: a number, or a share of the live slots.

    Of the shortest tier always 100%: slots are its bound.
    """


class QueueSettings(Pause, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a queue is run."""

    policy: Policy | None = None
    """`priority`: lowest number first, then arrival. `fair`: tenants and tasks take turns by weight. Absent: as
    `priority`, but where a worker serves all tenants these take turns, and where it runs only handlers tasks do."""
    weights: Annotated[dict[Name, Weight], Meta(max_length=10_000)] = field(default_factory=dict)
    """Under `fair`: turns of a task, or in everybody's settings of a tenant, for each turn of the others."""
    tiers: Annotated[list[Tier], Meta(max_length=MOST_TIERS)] = field(default_factory=list)
    """Time classes, shortest first; empty = jobs run as long as their timeout says."""
    timeout: Seconds | None = None
    """For jobs that name none."""
    isolate: bool = False
    """Whether each job runs in a process of its own."""
    on_lost: OnLost = "retry"
    """For jobs that do not say: whether one whose process or worker was killed or stopped runs again, or has failed."""
    output: OutputPolicy = DEFAULT_OUTPUT
    """For jobs that do not say: how much each may put out."""
    keep_success: Seconds | UnsetType | None = UNSET
    """For jobs that do not say; absent = a day."""
    keep_failure: Seconds | UnsetType | None = UNSET
    """For jobs that do not say; absent = a week."""
    announcement: Announcement = ""
    """What those who use it should know, maintenance for instance."""
    most_payload: Bytes | None = None
    """Bytes of a payload; null = as many as the server allows. It never allows more than the server."""
    most_files: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    """Bytes of the files of one job, those that come with it and those that its run leaves; the same."""


Clearable = Literal[
    "policy",
    "weights",
    "tiers",
    "timeout",
    "isolate",
    "on_lost",
    "output",
    "keep_success",
    "keep_failure",
    "announcement",
    "most_payload",
    "most_files",
]


class QueueChange(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is to be different about a queue; what is absent stays."""

    paused: bool | UnsetType = UNSET
    until: Time | UnsetType | None = UNSET
    why: Annotated[str, Meta(max_length=500)] | UnsetType = UNSET
    policy: Policy | UnsetType = UNSET
    weights: Annotated[dict[Name, Weight], Meta(max_length=10_000)] | UnsetType = UNSET
    tiers: Annotated[list[Tier], Meta(max_length=MOST_TIERS)] | UnsetType = UNSET
    timeout: Seconds | UnsetType | None = UNSET
    isolate: bool | UnsetType = UNSET
    on_lost: OnLost | UnsetType = UNSET
    output: OutputPolicy | UnsetType = UNSET
    keep_success: Seconds | UnsetType | None = UNSET
    keep_failure: Seconds | UnsetType | None = UNSET
    announcement: Announcement | UnsetType = UNSET
    most_payload: Bytes | UnsetType | None = UNSET
    most_files: Annotated[int, Meta(ge=0, le=2**53)] | UnsetType | None = UNSET
    clear: list[Clearable] = []
    """Settings to reset to their defaults."""


def check_tiers(tiers: list[Tier], at: str = "tiers") -> None:
    """Refuse tiers that are not in order, whose caps grow with time, or whose shortest has a cap of its own."""
    for place, (shorter, longer) in enumerate(itertools.pairwise(tiers), start=1):
        if longer.seconds <= shorter.seconds:
            raise Invalid(
                f"{longer.name} is not longer than {shorter.name}: shortest first", at=f"{at}[{place}].seconds"
            )
        if _comparable(shorter.cap, longer.cap) and _size(longer.cap) > _size(shorter.cap):
            raise Invalid(
                f"the cap of {longer.name} ({longer.cap}) is larger than that of {shorter.name} ({shorter.cap}): "
                "a longer tier's jobs count at the shorter ones too, so caps must not grow with time",
                at=f"{at}[{place}].cap",
            )
    for place, tier in enumerate(tiers):
        if isinstance(tier.cap, str) and not 0 < _size(tier.cap) <= 100:  # noqa: PLR2004 - per cent
            raise Invalid(f"{tier.cap} is no share of the slots: more than 0%, at most 100%", at=f"{at}[{place}].cap")
    if tiers and not (isinstance(tiers[0].cap, str) and _size(tiers[0].cap) == 100):  # noqa: PLR2004 - per cent
        raise Invalid(
            f"the shortest tier, {tiers[0].name}, is bounded by the slots alone: its cap is 100%; "
            "to bound all jobs of the queue set a limit",
            at=f"{at}[0].cap",
        )
    if len({tier.name for tier in tiers}) < len(tiers):
        raise Invalid("two tiers have the same name", at=at)


def _comparable(one: int | str, other: int | str) -> bool:
    return isinstance(one, str) == isinstance(other, str)


def _size(cap: int | str) -> float:
    return float(cap.removesuffix("%")) if isinstance(cap, str) else cap


def tier_of(tiers: list[Tier], wanted: str | float) -> Tier:
    """The tier that a job asks for, by name or by the seconds it needs."""
    for tier in tiers:
        if tier.name == wanted or (not isinstance(wanted, str) and wanted <= tier.seconds):
            return tier
    known = ", ".join(f"{tier.name} ({tier.seconds:g} s)" for tier in tiers)
    raise Invalid(f"{wanted!r} is no tier of this queue: {known}", at="tier")
