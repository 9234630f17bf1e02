"""The guardian: the zygote's parent. When the supervisor or the zygote is gone, it ends everything that came of them.

It runs no code of the user's, so nothing can make it hang, and it is forked before the app is imported. Processes that
a task started and that have left their session come to it when the zygote has died.
"""

import os
import select
import signal
from typing import NoReturn

from windlass.worker.processes import adopt_orphans, die_with_parent, end_children, wake_with_parents_end


def become_zygote(life: int, control: int) -> None:
    """Fork: the child returns from here as the zygote, the parent stays behind as its guardian.

    `life`: a pipe that the supervisor holds open for as long as it lives. `control`: the zygote's alone.
    """
    os.setsid()  # what is typed at the supervisor's terminal is the supervisor's business
    guardian = os.getpid()
    if os.fork() == 0:
        die_with_parent(guardian)
        os.close(life)
        os.setsid()
        return
    os.close(control)
    _guard(life)


def _guard(life: int) -> NoReturn:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # those who signal a whole group mean the supervisor
    adopt_orphans()
    wake_with_parents_end()
    poll = select.poll()
    poll.register(life, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while not _zygote_is_gone() and life not in dict(poll.poll()):
        os.read(woken, 1 << 10)
    end_children()
    os._exit(0)


def _zygote_is_gone() -> bool:
    """Its only child until then. One that is stopped is not gone."""
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return pid != 0
