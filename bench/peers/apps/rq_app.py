"""RQ. Results are left on, because it is quicker with them; in a safe run a job has three more tries."""

import time

import body
from redis import Redis
from rq import Queue, Retry

queue = Queue(connection=Redis.from_url(body.URL))
options = {"retry": Retry(max=3)} if body.SAFE else {}


def noop(text: str) -> None:
    pass


def stamp(text: str) -> None:
    body.stamp(text)


def nap(text: str) -> None:
    time.sleep(body.NAP)
    body.tick(text)


TASKS = {"noop": noop, "stamp": stamp, "nap": nap}


def send(task: str, text: str) -> None:
    queue.enqueue(TASKS[task], text, **options)


def send_many(task: str, texts: list[str]) -> None:
    queue.enqueue_many([Queue.prepare_data(TASKS[task], args=(text,), **options) for text in texts])
