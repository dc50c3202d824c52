"""Requests that wait together are answered together, each with its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from sottovoce.onboarding.batches import Batches


def test_who_waits_while_others_are_answered_shares_the_next_batch() -> None:
    sizes: list[int] = []
    go = threading.Event()

    def work(numbers: Sequence[int]) -> list[int | Exception]:
        go.wait(10)
        sizes.append(len(numbers))
        return [2 * number for number in numbers]

    async def ask() -> list[int]:
        batches = Batches(work)
        asked = [asyncio.create_task(batches.ask(number)) for number in range(9)]
        await asyncio.sleep(0)
        go.set()
        answers = await asyncio.gather(*asked)
        batches.close()
        return answers

    assert asyncio.run(ask()) == [2 * number for number in range(9)]
    assert sizes == [1, 8]


def test_a_refusal_reaches_only_its_own_request_and_a_failure_all() -> None:
    def work(numbers: Sequence[int]) -> list[int | Exception]:
        if 7 in numbers:
            raise OSError("the disk is gone")
        return [ValueError("odd") if number % 2 else number for number in numbers]

    async def ask() -> None:
        batches = Batches(work)
        first = asyncio.create_task(batches.ask(0))
        await asyncio.sleep(0)
        rest = [asyncio.create_task(batches.ask(number)) for number in (1, 2)]
        assert await first == 0
        with pytest.raises(ValueError, match="odd"):
            await rest[0]
        assert await rest[1] == 2
        for number in (7, 7):
            with pytest.raises(OSError, match="gone"):
                await batches.ask(number)
        assert await batches.ask(4) == 4
        batches.close()

    asyncio.run(ask())


def test_who_has_gone_disturbs_nobody() -> None:
    go = threading.Event()

    def work(numbers: Sequence[int]) -> list[int | Exception]:
        go.wait(10)
        return list(numbers)

    async def ask() -> int:
        batches = Batches(work)
        gone, stays = (asyncio.create_task(batches.ask(number)) for number in (1, 2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        go.set()
        answer = await stays
        batches.close()
        return answer

    assert asyncio.run(ask()) == 2


def test_after_its_end_nothing_is_asked() -> None:
    async def ask() -> None:
        batches = Batches(lambda numbers: list(numbers))
        assert await batches.ask(1) == 1
        batches.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            await batches.ask(2)

    asyncio.run(ask())
