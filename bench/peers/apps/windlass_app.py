"""Windlass itself, through the same door as the peers."""

import time

import body

from windlass import Windlass

body.quicken()
app = Windlass(body.URL)


@app.task
async def noop(text: str) -> None:
    pass


@app.task
def noop_thread(text: str) -> None:
    pass


@app.task(isolate=True)
def alone(text: str) -> None:
    pass


@app.task
async def stamp(text: str) -> None:
    body.stamp(text)


@app.task(isolate=True)
def stamp_alone(text: str) -> None:
    body.stamp(text)


@app.task
def nap(text: str) -> None:
    time.sleep(body.NAP)
    body.tick(text)


def send(task: str, text: str) -> None:
    app.tasks[task].enqueue(text)


def send_many(task: str, texts: list[str]) -> None:
    app.tasks[task].map(texts)


async def asend(task: str, text: str) -> None:
    await app.tasks[task].aenqueue(text)
