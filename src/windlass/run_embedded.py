"""A worker that another program brings along: `async with app.worker("shop:app")`, in the lifespan of a web server.

It is a process of its own, because nothing in the web server shall keep it from renewing its leases. It ends with the
program, however that ends, and is started again if it dies. Run as a module, this is that process.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from windlass import config
from windlass.model.errors import Invalid
from windlass.worker.linux import end_with_parent

log = logging.getLogger("windlass.worker")

STEADY = 5.0
"""Seconds after which a process counts as started."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a process is started again: doubled each time that it was not steady."""


@asynccontextmanager
async def embedded_worker(target: str, settings: Mapping[str, Any]) -> AsyncIterator[None]:
    """A worker of this app as long as this is open; at the end its jobs get its grace to finish."""
    if not target:
        raise Invalid("name the app as the worker imports it: app.worker('shop:app')", at="target")
    environ = {**os.environ, **{_variable(name): _text(value) for name, value in settings.items()}}
    worker = _Embedded(target, environ)
    await worker.start()
    keeping = asyncio.create_task(worker.keep())
    try:
        yield
    finally:
        keeping.cancel()
        await worker.stop()


def _variable(name: str) -> str:
    if (path := f"worker.{name}") not in config.SETTINGS:
        known = ", ".join(one.partition(".")[2] for one in config.SETTINGS if one.startswith("worker."))
        raise Invalid(f"there is no such setting of a worker; there are {known}", at=name)
    return config.variable(path)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


class _Embedded:
    """The process of the worker, or the one that has taken its place."""

    def __init__(self, target: str, environ: Mapping[str, str]) -> None:
        self._target = target
        self._environ = environ
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "windlass.run_embedded", str(os.getpid()), "worker", self._target]
        # A session of its own: what is typed at the terminal is for the web server, which then ends this one.
        self._process = await asyncio.create_subprocess_exec(*command, env=self._environ, start_new_session=True)

    async def keep(self) -> None:
        """Start another process when one has ended, until cancelled."""
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE
        while self._process is not None:
            began = loop.time()
            status = await self._process.wait()
            pause = FIRST_PAUSE if loop.time() - began >= STEADY else min(2 * pause, LONGEST_PAUSE)
            log.warning("the worker of %s ended with status %d; another starts in %g s", self._target, status, pause)
            await asyncio.sleep(pause)
            await self.start()

    async def stop(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()


if __name__ == "__main__":
    from windlass import cli

    end_with_parent(int(sys.argv[1]))
    sys.path.insert(0, "")
    sys.exit(cli.run(sys.argv[2:]))
