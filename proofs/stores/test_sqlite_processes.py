"""Processes share one SQLite file: they open and fill it together, wake each other, and are killed without loss."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from redrive.core.select import EVERYTHING
from redrive.stores.migrate import known
from redrive.testing.clock import FakeClock
from tests.stores.sqlite_kit import Open, exists, lane, new
from tests.stores.test_sqlite_processes import line, start

PUTS = """
async def main():
    store = await SqliteStore(path).open()
    for n in range(50):
        assert (await store.put([NewItem(f"{name}-{n}", "q", b"{}")])).added
    await store.close()
asyncio.run(main())
"""

PUTS_WHEN_TOLD = """
async def main():
    store = await SqliteStore(path).open()
    say("open")
    await hear()
    await store.put([NewItem(name, "q", b"{}")])
    await hear()
    await store.close()
asyncio.run(main())
"""

PUTS_FOR_EVER = """
async def main():
    store = await SqliteStore(path).open()
    n = 0
    while True:
        batch = [NewItem(f"{name}-{n}-{m}", "q", b"{}") for m in range(7)]
        await store.put(batch)
        say(n)
        n += 1
asyncio.run(main())
"""

FILLS_ITS_DISK = """
async def main():
    store = await SqliteStore(path).open()
    await store.put([NewItem("before", "q", b"x" * 1000)])
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path + "-wal").st_size + 20_000, hard))
    try:
        await store.put([NewItem("big", "q", os.urandom(1_000_000))])
    except StoreUnavailable as error:
        say(error)
    assert [row.ready for row in (await store.tally()).queues] == [1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert (await store.put([NewItem("big", "q", os.urandom(1_000_000))])).added == ("big",)
    await store.close()
    say("survived")
asyncio.run(main())
"""


def tell(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def test_processes_open_and_fill_one_new_file_together(opened: Open, path: Path) -> None:
    processes = [await start(PUTS, path, f"p{n}") for n in range(4)]
    assert [await process.wait() for process in processes] == [0] * 4
    store = await opened()
    (row,) = (await store.tally()).queues
    assert row.ready == 200
    assert len((await store.find(EVERYTHING, 1_000)).items) == 200
    seqs = await lane(store).submit(lambda tx: tx.execute("select count(*) from redrive_migration").fetchone())
    assert seqs == (known("sqlite")[-1].number,)


async def test_another_process_wakes_a_waiter(opened: Open, path: Path) -> None:
    """Fake time stands still here, so nothing but the datagram can end the wait."""
    clock = FakeClock()
    store = await opened(clock=clock)
    process = await start(PUTS_WHEN_TOLD, path, "woken")
    assert await line(process) == "open"
    waiting = asyncio.ensure_future(store.wait(["q"], 60_000))
    while not clock.sleepers:
        await asyncio.wait({waiting}, timeout=0.005)
    assert not waiting.done()
    tell(process)
    async with asyncio.timeout(10):
        await waiting
    assert await exists(store, "woken")
    tell(process)
    assert await process.wait() == 0


async def test_what_was_acknowledged_survives_a_kill(opened: Open, path: Path) -> None:
    process = await start(PUTS_FOR_EVER, path, "p")
    heard = [int(await line(process)) for _ in range(30)]
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    heard += [int(word) for word in (await process.stdout.read()).split()]
    await process.wait()
    store = await opened()
    (row,) = (await store.tally()).queues
    # All of each batch or none of it, and none that was acknowledged is missing.
    assert row.ready % 7 == 0
    assert row.ready >= 7 * len(heard)
    assert await exists(store, f"p-{heard[-1]}-6")
    # Its socket was left behind; the first put finds it so.
    assert len(list(Path(f"{path}-wake").iterdir())) == 2
    await store.put([new("next")])
    assert len(list(Path(f"{path}-wake").iterdir())) == 1


async def test_a_full_disk_is_said_and_survived(opened: Open, path: Path) -> None:
    process = await start(FILLS_ITS_DISK, path, "p")
    said = await line(process)
    assert str(path) in said
    assert await line(process) == "survived"
    assert await process.wait() == 0
    assert (await (await opened()).tally()).queues[0].ready == 2
