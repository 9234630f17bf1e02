"""Celery, without a result backend. It has no bulk call: a group sends its tasks one after the other."""

import time

import body
from celery import Celery

app = Celery("bench", broker=body.URL)
app.conf.task_ignore_result = True
app.conf.worker_hijack_root_logger = False
if body.SAFE:
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True
    # Without the other two, what is due is looked for every hundred seconds, ten jobs at a time.
    app.conf.broker_transport_options = {
        "visibility_timeout": 5,
        "unacked_restore_throttle": 1,
        "unacked_restore_limit": 1000,
    }


@app.task(name="noop")
def noop(text: str) -> None:
    pass


@app.task(name="stamp")
def stamp(text: str) -> None:
    body.stamp(text)


@app.task(name="nap")
def nap(text: str) -> None:
    time.sleep(body.NAP)
    body.tick(text)


def send(task: str, text: str) -> None:
    app.tasks[task].delay(text)
