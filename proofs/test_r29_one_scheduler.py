"""R29 one scheduler. The leading scheduler of three is killed or stopped again and again: every tick fires once.

Missed ticks and clocks set forward or back are in tests/engine/test_schedule*.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from redrive.core.schedule import Schedule, tick_id
from redrive.office.schedules import declare_schedules
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from tests.support.rig.patience import eventually
from tests.support.rig.scheduler import LEADS, Schedulers, instant, ticks
from tests.support.rig.size import LEADERS, proof_size

SIZE = f"{LEADERS[proof_size()]} kills and stops"

EVERY = {"often": 200, "less-often": 500}
"""Milliseconds, by name: more often than people may ask for, so that much happens between two blows."""
STOPPED = int(3 * LEADS * 1000) // EVERY["often"]
"""Ticks that others fire while one is stopped: three times what it was elected for."""
LIMIT = 60.0


def expected(name: str, first: str, last: str, every: int) -> list[str]:
    """All from the first to the last, by arithmetic alone: intervals count from the epoch."""
    return [tick_id(name, tick) for tick in range(instant(first), instant(last) + 1, every)]


async def one_scheduler(url: str, logs: Path, blows: int) -> None:
    """The blows fall on whoever it is: one of three leads, and one that was stopped may still think that it does."""
    dice = random.Random(29)
    store = await store_from_url(url).open()
    try:
        await declare_schedules(store, [Schedule(name, "ticks", b"null", every=every) for name, every in EVERY.items()])
        with Schedulers(url, logs) as fleet:
            for _ in range(3):
                fleet.start()
            await _more_ticks(store, 2)
            for number in range(blows):
                victim = dice.choice(fleet.alive)
                if number % 2:
                    fleet.stop(victim)
                    await _more_ticks(store, STOPPED)
                    fleet.wake(victim)
                else:
                    fleet.kill(victim)
                    fleet.start()
                await _more_ticks(store, 1)
                fleet.check()
        count = 0
        for name, every in EVERY.items():
            fired = await ticks(store, name)
            assert fired == expected(name, fired[0], fired[-1], every), f"a tick of {name} is missing, or one too many"
            count += len(fired)
        (row,) = (await store.tally()).queues
        assert row.ready == count
    finally:
        await store.close()


async def _more_ticks(store: Store, count: int) -> None:
    before = len(await ticks(store, "often"))

    async def there() -> bool:
        return len(await ticks(store, "often")) >= before + count

    await eventually(there, limit=LIMIT, what=f"{count} more ticks", poll=0.05)


@pytest.mark.timeout(1800)
async def test_r29_every_tick_once_whoever_leads(shared: str, tmp_path: Path) -> None:
    await one_scheduler(shared, tmp_path, LEADERS[proof_size()])
