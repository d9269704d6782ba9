"""R24 keys under worker kills. No overtakes, no limit exceeded, no slot leaked."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.core.verbs import QueueChange
from redrive.stores.url import store_from_url
from tests.promises.test_r24_limits import MOST, PER_KEY, no_leaks
from tests.support.rig.bound import Bound, most_at_once, overtakes
from tests.support.rig.size import LIMITED, LINES, Size, proof_size

SIZE = f"{LINES[proof_size()].kills} and {LIMITED[proof_size()].kills} kills"

WORKERS = {Size.SHORT: 4, Size.FULL: 8}
SECONDS = {Size.SHORT: 200, Size.FULL: 3_000}


async def ordered(url: str, logs: Path, size: Size) -> None:
    run = Bound(url, logs, "ordered", LINES[size], seed=24)
    faults = await run.play(QueueChange(order="block"), workers=WORKERS[size], limit=SECONDS[size])
    assert faults == {}
    assert overtakes(run.records) == []
    assert run.blocked_seen, "nobody was ever seen to wait behind a letter: this proves too little"


async def limited(url: str, logs: Path, size: Size) -> None:
    run = Bound(url, logs, "limited", LIMITED[size], seed=24)
    change = QueueChange(max_running=MOST, max_per_key=PER_KEY)
    faults = await run.play(change, workers=WORKERS[size], limit=SECONDS[size])
    assert faults == {}
    assert most_at_once(run.records) == (MOST, PER_KEY)
    store = await store_from_url(url).open()
    try:
        await no_leaks(store, "limited")
    finally:
        await store.close()


@pytest.mark.timeout(3600)
async def test_r24_nobody_overtakes_when_workers_are_killed(shared: str, tmp_path: Path) -> None:
    await ordered(shared, tmp_path, proof_size())


@pytest.mark.timeout(3600)
async def test_r24_limits_hold_when_workers_are_killed(shared: str, tmp_path: Path) -> None:
    await limited(shared, tmp_path, proof_size())
