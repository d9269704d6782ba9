"""R19: on a full disk an operator can still throw letters away, and so make room."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redrive import Redrive
from redrive.errors import StoreError
from tests.support.disk.callers import BIG
from tests.support.disk.load import DATABASE, build, url
from tests.support.disk.look import Promises, look
from tests.support.disk.troubles import Trouble, prepared

LETTERS = 100
TRIES = 2_000
BALLAST = "2MiB"

Told = dict[str, Any]


def same_store(folder: Path, kind: str, binding: str) -> Iterator[Told]:
    """The store that met the full disk is the one the operator works with."""
    with prepared(kind, folder) as trouble:
        yield asyncio.run(_same_store(trouble, url(trouble.folder, binding=binding, ballast=BALLAST)))


async def _same_store(trouble: Trouble, store: str) -> Told:
    async with build(store) as app:
        promises = await _letters(app)
        trouble.begin()
        told = await _refusal(app, promises)
        thrown = await _throw_away(app)
        trouble.end()
        await _goes_on(app, promises)
    faults = await look(trouble.folder / DATABASE, promises)
    return {"told": told, "thrown away": thrown, "faults": faults}


def fresh_store(folder: Path, kind: str, binding: str) -> Iterator[Told]:
    """Nobody has the database open when the disk is full, and the operator comes with a process of their own."""
    with prepared(kind, folder) as trouble:
        yield asyncio.run(_fresh_store(trouble, url(trouble.folder, binding=binding, ballast=BALLAST)))


async def _fresh_store(trouble: Trouble, store: str) -> Told:
    async with build(store) as app:
        promises = await _letters(app)
        trouble.begin()
        told = await _refusal(app, promises)
    # Others take what closing has freed.
    trouble.begin()
    async with Redrive(store, log=False, actor="operator") as app:
        thrown = await _throw_away(app)
    trouble.end()
    async with build(store) as app:
        await _goes_on(app, promises)
    faults = await look(trouble.folder / DATABASE, promises)
    return {"told": told, "thrown away": thrown, "faults": faults}


async def _letters(app: Redrive) -> Promises:
    ids = {str(each) for each in await app.enqueue_many("doomed", [BIG] * LETTERS)}
    await app.run(until_idle=True)
    return Promises(asked=set(ids), accepted=ids)


async def _refusal(app: Redrive, promises: Promises) -> str:
    for _ in range(TRIES):
        try:
            item_id = await app.enqueue("ok", BIG)
        except StoreError as error:
            return type(error).__name__
        promises.asked.add(item_id)
        promises.accepted.add(item_id)
    return "nothing"


async def _throw_away(app: Redrive) -> int:
    """How many letters are gone for good, each with its tombstone."""
    await app.letters.discard("queue:doomed", reason="the disk is full")
    return len(await app.prune("queue:doomed", reason="the disk is full"))


async def _goes_on(app: Redrive, promises: Promises) -> None:
    item_id = str(await app.enqueue("ok", BIG))
    promises.asked.add(item_id)
    promises.accepted.add(item_id)
    async with asyncio.timeout(10):
        await app.run(until_idle=True)
    promises.ended[item_id] = "done"
