"""R15 redrive. Letters replayed in bulk by two operators, both killed again and again: each goes exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.app.internals import store_of
from redrive.core.verbs import QueueChange
from tests.promises.test_r15_redrive import audited, check_once, letters_in
from tests.support.rig.patience import eventually
from tests.support.rig.size import Size, proof_size

# -- with real processes that are killed -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Redrives:
    letters: int
    kills: int
    live: int


REDRIVES = {
    Size.SHORT: Redrives(letters=3_000, kills=10, live=2_000),
    Size.FULL: Redrives(letters=100_000, kills=10, live=20_000),
}

SIZE = f"{REDRIVES[proof_size()].letters:,} letters, {REDRIVES[proof_size()].kills} kills"
LIMIT = 300.0


async def replaying(url: str, ids: Sequence[str], folder: Path, name: str) -> asyncio.subprocess.Process:
    """The real command, with its ids from stdin."""
    file = folder / f"{name}.ids"
    file.write_text("\n".join(ids))
    words = ("letters", "replay", "-", "--yes", "--reason", "fixed", "--request", name, "--store", url)
    with file.open("rb") as source:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "redrive",
            *words,
            stdin=source,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )


async def _killed(process: asyncio.subprocess.Process) -> bool:
    """Whether it was at work."""
    at_work = process.returncode is None
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    return at_work


async def open_letters(app: Redrive) -> int:
    return sum(row.open for row in (await app.tally()).queues)


async def killed(url: str, app: Redrive, ids: Sequence[str], folder: Path, size: Redrives) -> int:
    """Two operators on overlapping sets, both killed again and again as soon as letters move; how many kills hit."""
    step, hits = size.letters // (size.kills + 1), 0
    sets = {"ann": ids[: 2 * len(ids) // 3], "bob": ids[len(ids) // 3 :]}
    for number in range(1, size.kills + 1):
        running = [await replaying(url, asked, folder, name) for name, asked in sets.items()]
        left = size.letters - number * step

        async def enough(left: int = left, running: Sequence[asyncio.subprocess.Process] = running) -> bool:
            return await open_letters(app) <= left or all(each.returncode is not None for each in running)

        try:
            await eventually(enough, limit=LIMIT, what=f"{left} letters are left")
        finally:
            hits += sum([await _killed(each) for each in running])
    for name, asked in sets.items():
        assert await (await replaying(url, asked, folder, name)).wait() in (0, 6, 9)
    return hits


@pytest.mark.timeout(3600)
async def test_r15_operators_killed_in_a_bulk_redrive_while_work_goes_on(shared: str, tmp_path: Path) -> None:
    size = REDRIVES[proof_size()]
    app = Redrive(shared, log=False)
    done: Counter[int] = Counter()

    @app.handler("live", concurrency=50)
    async def work(n: int) -> None:
        done[n] += 1

    async with app:
        store = store_of(app)  # the rig's way in
        ids = await letters_in(store, size.letters)
        # Nobody takes what was sent again: it must still be there to be counted.
        await store.configure("mail", QueueChange(paused=True, by="rig", reason="to be counted"))
        worker = asyncio.create_task(app.run(queues=["live"]))
        await app.enqueue_many("live", [{"n": number} for number in range(size.live)])
        hits = await killed(shared, app, ids, tmp_path, size)
        assert hits >= size.kills, "most of them were killed at work"
        await eventually(lambda: len(done) == size.live, limit=LIMIT, what="live work is done")
        await app.stop()
        await worker
        assert await open_letters(app) == 0
        told = await audited(store)
        assert (len(told), set(told.values())) == (size.letters, {1})
        await check_once(store, ids[:: max(1, size.letters // 2_000)], "ann", "bob")
        assert (await app.audit.verify()).sound
