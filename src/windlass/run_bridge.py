"""`windlass bridge`: serves the clients of another queue until a signal ends it.

Puts the packages together, like `run_worker`; the bridges themselves are in `dialect`.
"""

import asyncio
import signal

from windlass.addresses import open_service
from windlass.dialect import blueque
from windlass.dialect.blueque import BridgeOptions
from windlass.engine import Settings
from windlass.system import SystemClock


async def bridge(options: BridgeOptions, address: str, settings: Settings, *, tenant: str) -> None:
    """TERM and INT end it; what it has taken stays with the queue."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_service(address, settings) as service:
        await blueque.run(service, tenant, options, SystemClock(), stop)
