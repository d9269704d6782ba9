"""Processes share one SQLite file: they open and fill it together, wake each other, and are killed without loss."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from redrive.core.select import EVERYTHING
from redrive.stores.migrate import known
from redrive.testing.clock import FakeClock
from tests.stores.sqlite_kit import Open, exists, lane, new
from tests.stores.test_sqlite_processes import PRELUDE

Start = Callable[[str, str], subprocess.Popen[str]]

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
    sys.stdin.readline()
    await store.put([NewItem(name, "q", b"{}")])
    sys.stdin.readline()
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


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Starts a script on the file of the test, under a name. Its pipes are closed with the test."""
    with ExitStack() as stack:

        def start(script: str, name: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", PRELUDE + script, str(path), name]
            pipe = subprocess.PIPE
            started = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
            stack.callback(started.kill)
            return started

        yield start


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


async def test_processes_open_and_fill_one_new_file_together(opened: Open, start: Start) -> None:
    processes = [start(PUTS, f"p{n}") for n in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    store = await opened()
    (row,) = (await store.tally()).queues
    assert row.ready == 200
    assert len((await store.find(EVERYTHING, 1_000)).items) == 200
    seqs = await lane(store).submit(lambda tx: tx.execute("select count(*) from redrive_migration").fetchone())
    assert seqs == (known("sqlite")[-1].number,)


async def test_another_process_wakes_a_waiter(opened: Open, start: Start) -> None:
    """Fake time stands still here, so nothing but the datagram can end the wait."""
    clock = FakeClock()
    store = await opened(clock=clock)
    process = start(PUTS_WHEN_TOLD, "woken")
    assert line(process) == "open"
    waiting = asyncio.ensure_future(store.wait(["q"], 60_000))
    while not clock.sleepers:
        await asyncio.wait({waiting}, timeout=0.005)
    assert not waiting.done()
    tell(process)
    await waiting
    assert await exists(store, "woken")
    tell(process)
    assert process.wait() == 0


async def test_what_was_acknowledged_survives_a_kill(opened: Open, path: Path, start: Start) -> None:
    process = start(PUTS_FOR_EVER, "p")
    heard = [int(line(process)) for _ in range(30)]
    process.kill()
    assert process.stdout is not None
    heard += [int(word) for word in process.stdout.read().split()]
    process.wait()
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


async def test_a_full_disk_is_said_and_survived(opened: Open, path: Path, start: Start) -> None:
    process = start(FILLS_ITS_DISK, "p")
    said = line(process)
    assert str(path) in said
    assert line(process) == "survived"
    assert process.wait() == 0
    assert (await (await opened()).tally()).queues[0].ready == 2
