"""Those who have accepted jobs into the journal and want to know which of them the store had already."""

import asyncio
from collections import deque
from collections.abc import Mapping

from windlass.model.errors import Unavailable, WindlassError


class _Asked:
    """One of them."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.existing: list[int] = []
        self.answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()


class Asking:
    """All of them, in the order of their jobs."""

    def __init__(self) -> None:
        self._asked: deque[_Asked] = deque()

    async def ask(self, first: int, last: int, within: float) -> list[int] | None:
        """Which of the jobs from one sequence to another were not new; null = it cannot be said in time."""
        asked = _Asked(first, last)
        self._asked.append(asked)
        try:
            async with asyncio.timeout(within):
                return await asked.answer
        except (WindlassError, TimeoutError):
            return None

    def answer(self, upto: int, created: Mapping[int, bool]) -> None:
        """The store has all up to a sequence; of which of them it is known whether they were new. Others are."""
        while self._asked and self._asked[0].first <= upto:
            asked = self._asked[0]
            last = min(asked.last, upto)
            asked.existing += [one for one in range(asked.first, last + 1) if not created.get(one, True)]
            asked.first = last + 1
            if asked.first <= asked.last:
                return
            self._asked.popleft()
            if not asked.answer.done():
                asked.answer.set_result(asked.existing)

    def give_up(self, fault: Exception) -> None:
        """The store takes no jobs: nobody can say."""
        while self._asked:
            asked = self._asked.popleft()
            if not asked.answer.done():
                asked.answer.set_exception(Unavailable(str(fault)))
