"""Deliveries of a remote process. Polls, leases and ends of deliveries: tests/webhooks/test_hub*.py."""

from __future__ import annotations

import asyncio

from redrive.engine.remote import Job, Remote
from redrive.testing import FakeClock


async def test_a_report_counts_though_its_worker_is_stopped_at_the_same_time() -> None:
    remote: Remote[str, int] = Remote("r", FakeClock(), most_bytes=10)
    work = asyncio.create_task(remote.work("a", lambda: Job("job", 1_000, 1)))
    await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop
    jobs, _ = await remote.poll((), asyncio.get_running_loop().create_future(), lambda: asyncio.sleep(0))  # noqa: TID251 - as above
    assert jobs == ("job",)
    assert remote.report("a", 7)
    work.cancel()
    assert await work == 7
    remote.close()
