"""An answer that goes on: what is new is sent as it comes, to a reader who must keep up."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from windlass.server.outbox import MOST_BUFFERED, Frame, Outbox

ABORT = "windlass.abort"
"""The extension that cuts a connection off: whoever reads nothing would also not read that it is closed."""

UNSTORED = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Stream(Response):
    """Sends what a generator says until it ends, its reader goes, or too much waits for that reader.

    Lets go of what was opened for it, whether or not it was ever begun.
    """

    def __init__(
        self,
        said: AsyncGenerator[bytes, None],
        form: str,
        opened: AsyncExitStack,
        ended: "asyncio.Future[None]",
    ) -> None:
        """`ended`: done when nothing more is to be said."""
        super().__init__(media_type=form, headers=UNSTORED)
        del self.headers["content-length"]
        self._said = said
        self._opened = opened
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(data: Frame) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async with self._opened, aclosing(self._said):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            outbox = Outbox(put)
            telling, leaving = asyncio.create_task(self._tell(outbox)), asyncio.create_task(_gone(receive))
            try:
                any_of: set[asyncio.Future[Any]] = {telling, leaving, self._ended}
                await asyncio.wait(any_of, return_when=asyncio.FIRST_COMPLETED)
                if self._ended.done() or (telling.done() and telling.result()):
                    await outbox.empty()
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                elif telling.done() and (abort := scope.get("extensions", {}).get(ABORT)) is not None:
                    abort()
                    await leaving
            finally:
                telling.cancel()
                leaving.cancel()
                await asyncio.wait({telling, leaving})
                outbox.close()

    async def _tell(self, outbox: Outbox) -> bool:
        """Whether all was said, and not too much of it waits."""
        async for data in self._said:
            outbox.add(data)
            if outbox.waiting > MOST_BUFFERED:
                return False
        return True


def head_of(form: str) -> Response:
    """How such an answer begins, for those who ask for no more."""
    response = Response(media_type=form, headers=UNSTORED)
    del response.headers["content-length"]
    return response


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
