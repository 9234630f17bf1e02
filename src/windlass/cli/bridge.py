"""`windlass bridge`: jobs for the clients of other queues that speak no HTTP."""

import logging
import socket
from typing import Annotated

import uvloop
from cyclopts import App, Parameter
from msgspec.structs import asdict

from windlass.cli import COMMANDS, console
from windlass.cli.options import option
from windlass.cli.target import HERE, OPTIONS, Target
from windlass.dialect.blueque import BridgeOptions
from windlass.engine import Settings
from windlass.run_bridge import bridge as serve

bridge = App(name="bridge", help=COMMANDS["bridge"][2], group_parameters=OPTIONS)


@bridge.command
def blueque(
    *,
    redis: Annotated[str, option("URL", "The Redis server that the clients use: redis://, rediss:// or unix://.")],
    queue: Annotated[
        list[str] | None, option("NAME", "A queue to serve; repeatable. Default: all that clients have named.")
    ] = None,
    task: Annotated[
        str | None, option("NAME", "The task that runs them. Default: the one with the name of the queue.")
    ] = None,
    node: Annotated[
        str | None,
        option("NAME", "The name under which it reserves tasks; keep it over restarts. Default: the host's."),
    ] = None,
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), help="Log more.")] = False,
    target: Target = HERE,
) -> None:
    """Run the tasks that Blueque clients put into Redis, and write their progress into the keys that clients read.

    For example:
      windlass bridge blueque --redis redis://localhost --queue transcode

    Tasks of the queue `transcode` become jobs of the task `transcode` in the queue `transcode`, with their parameters
    as one text. A worker must take from that queue. Each job has a process of its own and is never started twice.
    TERM or Ctrl-C ends the bridge; jobs go on, and the next bridge of the same name reports them.
    """
    settings = target.settings()
    console.log(logging.DEBUG if verbose else logging.INFO)
    options = BridgeOptions(
        url=redis, node=node or f"{socket.gethostname()}_bridge", queues=tuple(queue or ()), task=task
    )
    engine = Settings(**asdict(settings.engine))
    uvloop.run(serve(options, settings.store, engine, tenant=settings.tenant))
