"""Functions whose annotations are only text: what they name is defined further down, or is not there at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal


def ship(shipment: Shipment, weights: list[Weight] | None = None) -> Shipment:
    raise NotImplementedError


def half_known(price: Decimal, count: int) -> Decimal:
    raise NotImplementedError


@dataclass
class Shipment:
    to: str
    inside: list[Shipment]


Weight = float
