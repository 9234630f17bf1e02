"""Huey on Redis or a file, without results. It has no bulk call, and no acknowledgements to make safer."""

import time

import body
from huey import RedisHuey, SqliteHuey

if body.URL.startswith("redis"):
    huey = RedisHuey("bench", url=body.URL, results=False)
else:
    huey = SqliteHuey("bench", filename=body.URL, fsync=True, results=False)


@huey.task()
def noop(text: str) -> None:
    pass


@huey.task()
def stamp(text: str) -> None:
    body.stamp(text)


@huey.task()
def nap(text: str) -> None:
    time.sleep(body.NAP)
    body.tick(text)


TASKS = {"noop": noop, "stamp": stamp, "nap": nap}


def send(task: str, text: str) -> None:
    TASKS[task](text)
