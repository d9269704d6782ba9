"""R19: syncs and writes that fail. Nothing may be acknowledged that is not on the disk, whatever comes after."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from redrive import Redrive
from redrive.core.item import NewItem
from redrive.errors import OutcomeUnknown, StoreError
from redrive.stores.base import Store
from redrive.stores.sqlite import checkpoint
from redrive.stores.url import store_from_url
from tests.support.disk import kernel
from tests.support.disk.callers import Callers, working
from tests.support.disk.cuts import forked
from tests.support.disk.disk import Disk
from tests.support.disk.load import DATABASE, build, url
from tests.support.disk.look import Faults, Promises, look

ROUNDS = 50
ITEMS = 16
OPENINGS = 10
FATES = 3
"""Cuts after each failure, each with another fate of what is not certain."""
INDEX = 4_096
"""Pages of the log after which its index, the -shm file, must grow."""
BODY = 1_000_000

Told = dict[str, Any]


def failing(folder: Path, numbers: str, binding: str) -> Iterator[Told]:
    """`numbers`: "3" fails the third sync from the very beginning, "3-5" the third to the fifth; several by commas."""
    yield from _fail(folder, Disk.fail_syncs, numbers, binding)


def failing_writes(folder: Path, numbers: str, binding: str) -> Iterator[Told]:
    """The same with the n-th write."""
    yield from _fail(folder, Disk.fail_writes, numbers, binding)


def _fail(folder: Path, fail: Callable[..., None], numbers: str, binding: str) -> Iterator[Told]:
    kernel.private_mounts()
    with Disk(folder / "disk") as disk:
        for chosen in numbers.split(","):
            disk.format()
            fail(disk, *_numbers(chosen))
            told = asyncio.run(_work(disk, url(disk.folder, binding=binding), folder / "image"))
            yield {"failing": chosen, **disk.counts(), **told}


def _numbers(chosen: str) -> range:
    first, _, last = chosen.partition("-")
    return range(int(first), int(last or first) + 1)


async def _work(disk: Disk, store: str, image: Path) -> Told:
    app, refusals = await _opened(store)
    async with app:
        callers = Callers(app)
        async with working(app):
            await asyncio.gather(*(_one_by_one(callers, range(first, ROUNDS, 2)) for first in range(2)))
        faults = await _after_cuts(disk, callers.promises, image)
        durability = app.info().durability
    faults |= await look(disk.folder / DATABASE, callers.promises, all_over=True)
    return {"durability": durability, "refusals": refusals + callers.refusals, "faults": faults}


async def _one_by_one(callers: Callers, numbers: range) -> None:
    for number in numbers:
        await callers.enqueue(number, f"item-{number}")


async def _opened(store: str) -> tuple[Redrive, Counter[str]]:
    refusals: Counter[str] = Counter()
    for _ in range(OPENINGS):
        app = build(store)
        try:
            return await app.open(), refusals
        except StoreError as error:
            refusals[type(error).__name__] += 1
    raise AssertionError(f"the store does not open: {refusals}")


async def _after_cuts(disk: Disk, promises: Promises, image: Path, fates: int = FATES) -> Faults:
    faults: Faults = {}
    for seed in range(fates):
        for kind, keys in (await look(disk.cut(seed, image) / DATABASE, promises)).items():
            faults[f"{kind} after cut {seed}"] = keys
        shutil.rmtree(image)
    return faults


# -- the process does not live to see the end of it ------------------------------------------------------------------


def failing_then_killed(folder: Path, numbers: str, binding: str) -> Iterator[Told]:
    """The process is killed when a sync has failed. The next one finds what the kernel still has in memory."""
    yield from _kill(folder, numbers, binding, beside="nobody")


def failing_then_killed_beside_a_reader(folder: Path, numbers: str, binding: str) -> Iterator[Told]:
    """The next one is a reader, who needs the log as it is, and only then comes one that writes."""
    yield from _kill(folder, numbers, binding, beside="reader")


def _kill(folder: Path, numbers: str, binding: str, *, beside: str) -> Iterator[Told]:
    kernel.private_mounts()
    with Disk(folder / "disk") as disk:
        for chosen in numbers.split(","):
            disk.format()
            disk.fail_syncs(*_numbers(chosen))
            store = url(disk.folder, binding=binding)
            promises = _until_killed(disk, store)
            faults = asyncio.run(_after_cuts(disk, promises, folder / "image"))
            disk.fail_syncs()
            with _beside(disk, beside):
                faults |= asyncio.run(_repeat(disk, store, promises, folder / "image"))
            yield {"failing": chosen, "faults": faults}


def _until_killed(disk: Disk, store: str) -> Promises:
    reader, writer = os.pipe()

    def work() -> None:
        disk.leave()
        asyncio.run(_put_until_refused(store_from_url(store), writer))

    pid = forked(work)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        accepted = set(pipe.read().split())
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "it was to kill itself"
    return Promises({f"item-{number}" for number in range(2 * ITEMS)}, accepted)


async def _put_until_refused(store: Store, told: int) -> None:
    try:
        await store.open()
        for number in range(ITEMS):
            await store.put([NewItem(f"item-{number}", "ok", b"{}")])
            os.write(told, f"item-{number}\n".encode())
    except StoreError:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


async def _repeat(disk: Disk, store: str, promises: Promises, image: Path) -> Faults:
    """As callers do: what was not accepted is put again under its id, and then life goes on."""
    opened = await store_from_url(store).open()
    for number in range(2 * ITEMS):
        await opened.put([NewItem(f"item-{number}", "ok", b"{}")])
        promises.accepted.add(f"item-{number}")
    faults = await _after_cuts(disk, promises, image)
    await opened.close()
    return faults


# -- synced, and yet refused -----------------------------------------------------------------------------------------


def without_room_for_the_index(folder: Path, beside: str, binding: str) -> Iterator[Told]:
    """The log takes a commit and is synced, and then its index cannot grow: nobody may say that it was not written.

    `beside`: "nobody", or "reader", who needs the old log, so that it cannot be begun anew.
    """
    kernel.private_mounts()
    checkpoint.LOOK = checkpoint.AFTER = 10 * INDEX
    with Disk(folder / "disk") as disk:
        store = url(disk.folder, binding=binding)
        asyncio.run(_first(store))
        with _beside(disk, beside):
            yield asyncio.run(_grow(disk, store, folder / "image"))


async def _first(address: str) -> None:
    store = await store_from_url(address).open()
    await store.put([NewItem("first", "ok", b"{}")])
    await store.close()


def _beside(disk: Disk, who: str) -> contextlib.AbstractContextManager[None]:
    return _reader(disk) if who == "reader" else contextlib.nullcontext()


@contextlib.contextmanager
def _reader(disk: Disk) -> Iterator[None]:
    ready, done = os.pipe()

    def read() -> None:
        disk.leave()
        connection = sqlite3.connect(disk.folder / DATABASE, isolation_level=None)
        connection.execute("begin")
        connection.execute("select count(*) from item").fetchone()
        os.write(done, b"1")
        signal.pause()

    pid = forked(read)
    os.close(done)
    assert os.read(ready, 1), "the reader could not read"
    os.close(ready)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def _grow(disk: Disk, address: str, image: Path) -> Told:
    store = await store_from_url(address).open()
    promises = Promises({"first"}, {"first"})
    luck = random.Random(19)
    disk.fill(0, name="-shm")
    answers: Counter[str] = Counter()
    for number in range(2 * INDEX * 4096 // BODY):
        answers[await _put(store, promises, f"item-{number}", luck.randbytes(BODY))] += 1
        if disk.counts()["no_room"]:
            break
    faults = await _after_cuts(disk, promises, image, fates=1)
    disk.fill(None)
    assert await _put(store, promises, "last", b"{}") == "accepted"
    await store.close()
    return {"answers": answers, **disk.counts(), "faults": faults}


async def _put(store: Store, promises: Promises, item_id: str, body: bytes) -> str:
    promises.asked.add(item_id)
    try:
        await store.put([NewItem(item_id, "ok", body)])
    except OutcomeUnknown:
        return "unknown"
    except StoreError as error:
        promises.refused.add(item_id)
        return type(error).__name__
    promises.accepted.add(item_id)
    return "accepted"
