"""Requests that arrive while others are being answered are answered together next.

One thread does the work, so that SQLite, torch and the order of answers stay simple. A request that finds it
idle is answered at once; the busier the service, the more share one visit to the disk and one product.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


class Batches(Generic[Asked, Answered]):
    """`work` answers several requests, in their order; an exception among them is raised where asked."""

    def __init__(self, work: Callable[[Sequence[Asked]], Sequence[Answered | Exception]]) -> None:
        self._work = work
        self._waiting: list[tuple[Asked, asyncio.Future[Answered]]] = []
        self._busy = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onboarding")

    async def ask(self, request: Asked) -> Answered:
        """Waits for the answer to one request."""
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if not self._busy:
            self._begin()
        return await answer

    def close(self) -> None:
        """Ends the thread when its work is done."""
        self._worker.shutdown()

    def _begin(self) -> None:
        batch, self._waiting, self._busy = self._waiting, [], True
        requests = [request for request, _ in batch]
        work = asyncio.get_running_loop().run_in_executor(self._worker, self._work, requests)
        work.add_done_callback(lambda done: self._end([answer for _, answer in batch], done))

    def _end(
        self,
        waiting: Sequence[asyncio.Future[Answered]],
        done: asyncio.Future[Sequence[Answered | Exception]],
    ) -> None:
        self._busy = False
        if self._waiting:
            self._begin()  # the thread works on while these are told
        failure = done.exception()
        answers: Sequence[object] = [failure] * len(waiting) if failure else done.result()
        for future, answer in zip(waiting, answers, strict=True):
            if future.done():
                continue  # whoever asked has gone
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)  # type: ignore[arg-type]
