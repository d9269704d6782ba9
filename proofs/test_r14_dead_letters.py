"""R14 dead letters on servers that refuse writes. The item stays live, with an alarm, until the letter is stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from redrive import Policy, Redrive, never
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.errors import StoreFull
from redrive.events import Finished, StoreFailed
from tests.promises.test_r14_dead_letters import PAYLOAD, check_complete
from tests.support.lab import Seen
from tests.support.rig.patience import eventually
from tests.support.rig.spoil import Mend, Spoil, spoilable

LIMIT = 60.0
"""Seconds for what comes at once."""


# -- on servers that refuse ------------------------------------------------------------------------------------------

TROUBLES = [("postgres", "full"), ("postgres", "read-only"), ("redis", "replica"), ("redis", "alone")]


class Caught:
    """An app whose handler has begun when the server is spoiled, and fails after that."""

    def __init__(self, url: str) -> None:
        self.app = Redrive(url, log=False)
        self.seen = Seen(self.app)
        self.runs = 0
        self._begun, self._go = asyncio.Event(), asyncio.Event()

        @self.app.handler("payments", policy=Policy(backoff=never()), lease="30s")
        async def charge() -> None:
            self.runs += 1
            self._begun.set()
            await self._go.wait()
            raise ValueError("no")

    @contextlib.asynccontextmanager
    async def spoiled(self, spoil: Spoil) -> AsyncIterator[tuple[str, Mend]]:
        item_id = str(await self.app.enqueue("payments", PAYLOAD))
        worker = asyncio.create_task(self.app.run())
        try:
            await asyncio.wait_for(self._begun.wait(), LIMIT)
            mend = spoil()
            self._go.set()
            yield item_id, mend
        finally:
            await self.app.stop(grace=0)
            await worker


@pytest.mark.parametrize(("kind", "how"), TROUBLES)
async def test_r14_a_server_that_refuses_the_letter_has_a_live_item_and_an_alarm(
    tmp_path: Path, kind: str, how: str
) -> None:
    with spoilable(kind, how, tmp_path) as (url, spoil):
        caught = Caught(url)
        async with caught.app as app, caught.spoiled(spoil) as (item_id, mend):
            await eventually(lambda: _alarmed(caught.seen), limit=LIMIT, what="the alarm")
            item = (await app.letters.get(item_id)).item
            assert (item.state, item.letter, item.deliveries) == (State.LEASED, None, 1)
            assert caught.seen.of(Finished) == []
            mend()
            await eventually(lambda: bool(caught.seen.of(Finished)), limit=LIMIT, what="the letter is stored")
            found = await app.letters.get(item_id)
        assert caught.runs == 1, "the work was not done again for the sake of its letter"
        check_complete(found, "no_retry", [Ending.FAILED])


def _alarmed(seen: Seen) -> bool:
    return "pump" in {event.part for event in seen.of(StoreFailed)}


async def test_r14_a_redis_without_memory_refuses_work_and_still_takes_letters(tmp_path: Path) -> None:
    """Nobody may add to it, and what is in it comes to its end."""
    with spoilable("redis", "full", tmp_path) as (url, spoil):
        caught = Caught(url)
        async with caught.app as app, caught.spoiled(spoil) as (item_id, mend):
            await eventually(lambda: bool(caught.seen.of(Finished)), limit=LIMIT, what="the letter is stored")
            check_complete(await app.letters.get(item_id), "no_retry", [Ending.FAILED])
            with pytest.raises(StoreFull):
                await app.enqueue("payments", PAYLOAD)
            mend()
            await app.enqueue("payments", PAYLOAD)
        assert not _alarmed(caught.seen)
