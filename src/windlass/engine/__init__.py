"""Answers operations over a store, does the periodic upkeep, publishes events."""

from windlass.engine.context import Settings
from windlass.engine.engine import ANSWERS, Engine, validated

__all__ = ["ANSWERS", "Engine", "Settings", "validated"]
