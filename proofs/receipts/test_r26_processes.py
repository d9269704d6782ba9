"""R-26 two processes make dead letters in one store while a recovery runs. Each is accounted for, none twice."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from proofs.receipts.feeder import lease, refuse
from redrive.core.states import State
from redrive.errors import ReceiptRefused
from redrive.receipts import Receipt, ReceiptClient
from redrive.receipts.model import final_id

ROOT = Path(__file__).parents[2]
NAMES = ("ann", "bob")
COUNT = 1_000


async def test_r26_two_processes_with_a_thousand_each_and_a_recovery_lose_none(
    shared: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("size", f"2 x {COUNT:,} receipts")
    await check(shared, COUNT)


async def test_r26_two_processes_with_a_thousand_each_and_nothing_else(shared: str) -> None:
    async with ReceiptClient(None, shared, transport=refuse, work=False, log=False) as client:
        feeders = [await _feeder(shared, name, COUNT) for name in NAMES]
        _let_end(feeders)
        assert [await feeder.wait() for feeder in feeders] == [0, 0]
        found = await client.dead_letters.get_all()
        assert len(found) == await client.metrics.refresh() == 2 * COUNT
        assert {each.receipt.lease_id for each in found} == {lease(name, n) for name in NAMES for n in range(COUNT)}
        assert {each.attempts for each in found} == {1}
        assert (await client.app.check()).findings == ()


async def check(url: str, count: int) -> None:
    accepted: Counter[str] = Counter()

    async def accept_most(receipt: Receipt, key: str, tenant_id: str | None) -> None:
        if receipt.lease_id.endswith("7"):
            raise ReceiptRefused("no", code="INVALID_STATE_TRANSITION")
        accepted[key] += 1

    ids = {lease(name, n): final_id("receipts", None, lease(name, n)) for name in NAMES for n in range(count)}
    async with ReceiptClient(None, url, transport=accept_most, work=False, log=False) as client:
        feeders = [await _feeder(url, name, count) for name in NAMES]
        ended = asyncio.gather(*(feeder.wait() for feeder in feeders))
        between = 0
        while not ended.done():
            between += len((await client.recover(concurrency=8)).delivered)
            if between:  # while they live; now they may end when all is said
                _let_end(feeders)
        assert await ended == [0, 0]
        assert between, "it was running in between"
        await client.recover(concurrency=8)
        left = {each.id: each for each in await client.dead_letters.get_all()}
        assert len(left) + len(accepted) == 2 * count
        assert set(left) | set(accepted) == set(ids.values())
        assert set(accepted.values()) == {1}, "none was delivered twice"
        for item_id in accepted:
            assert (await client.app.get(item_id)).state is State.DONE
        assert (await client.app.check()).findings == ()


async def _feeder(url: str, name: str, count: int) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "proofs.receipts.feeder", url, name, str(count))
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=os.environ, stdin=asyncio.subprocess.PIPE)


def _let_end(feeders: Sequence[asyncio.subprocess.Process]) -> None:
    for feeder in feeders:
        assert feeder.stdin is not None
        feeder.stdin.close()
