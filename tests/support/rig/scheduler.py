"""A process that does nothing but fire schedules: `python -m tests.support.rig.scheduler <store URL> <log folder>`.

It leads for half a second instead of fifteen, so that a proof need not wait long for the next to take over.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import datetime
from pathlib import Path

from redrive.core.select import Match
from redrive.engine import schedule
from redrive.engine.schedule import Scheduler
from redrive.events import Events
from redrive.stores.base import Store
from redrive.stores.clock import SystemClock
from redrive.stores.url import store_from_url
from tests.support.rig import records as r
from tests.support.rig.fleet import Fleet
from tests.support.rig.log import Log, now_ns
from tests.support.rig.worker import die_with_parent

LEADS = 0.5
"""Seconds."""


class Schedulers(Fleet):
    def __init__(self, url: str, logs: Path) -> None:
        super().__init__(url, logs, lease=LEADS)
        self._command = [sys.executable, "-m", "tests.support.rig.scheduler", url, str(logs)]


def instant(item_id: str) -> int:
    return round(datetime.fromisoformat(item_id.partition("@")[2]).timestamp() * 1000)


async def ticks(store: Store, name: str) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await store.ids(Match("id", "glob", f"{name}@*"), cursor=cursor)
        found += page.ids
        cursor = page.next
        if cursor is None:
            return sorted(found, key=instant)


async def main(url: str, logs: Path) -> None:
    schedule.TTL, schedule.RENEW = int(LEADS * 1000), int(LEADS * 300)
    schedule.POLL, schedule.IDLE = 50, 50
    pid = os.getpid()
    store = await store_from_url(url).open()
    Log(logs / f"events-{pid}.log")(r.Worker(f"scheduler-{pid}", pid, now_ns()))
    await Scheduler(store, f"scheduler-{pid}", events=Events(), clock=SystemClock()).run()


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
