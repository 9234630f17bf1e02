"""Dramatiq on Redis. It has no bulk call: a group sends its messages one after the other."""

import time

import body
import dramatiq
from dramatiq.brokers.redis import RedisBroker

# In a safe run maintenance, which finds dead workers by chance, comes with every tenth command.
patience = {"heartbeat_timeout": 3000, "maintenance_chance": 100_000} if body.SAFE else {}
broker = RedisBroker(url=body.URL, **patience)
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(text: str) -> None:
    pass


@dramatiq.actor
def stamp(text: str) -> None:
    body.stamp(text)


@dramatiq.actor
def nap(text: str) -> None:
    time.sleep(body.NAP)
    body.tick(text)


def send(task: str, text: str) -> None:
    broker.get_actor(task).send(text)
