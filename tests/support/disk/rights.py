"""R19: a folder whose rights are taken away and given back, met by a process with no more rights than others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from redrive import Redrive
from redrive.errors import StoreError
from tests.support.disk import kernel
from tests.support.disk.load import DATABASE, build, url
from tests.support.disk.look import Promises, look

Told = dict[str, Any]


def folder_turned_read_only(folder: Path, _: str, binding: str) -> Iterator[Told]:
    """A new store is refused; one that is open goes on, because its files are; both work when the rights are back."""
    kernel.obey_permissions()
    place = folder / "place"
    place.mkdir()
    yield asyncio.run(_turn(place, url(place, binding=binding)))


async def _turn(place: Path, store: str) -> Told:
    promises = Promises()
    async with build(store) as app:
        await _enqueue(app, promises)
        place.chmod(0o555)
        told = {"open": await _told(_enqueue(app, promises))}
        place.chmod(0o755)
        await _enqueue(app, promises)
    # Closed, so there is no log any more: opening means writing into the folder.
    place.chmod(0o555)
    told["new"] = await _told(_open(store))
    (place / DATABASE).chmod(0o444)
    told["file too"] = await _told(_open(store))
    (place / DATABASE).chmod(0o644)
    place.chmod(0o755)
    async with build(store) as again:
        await _enqueue(again, promises)
        await again.run(until_idle=True)
    return {"told": told, "faults": await look(place / DATABASE, promises, all_over=True)}


async def _enqueue(app: Redrive, promises: Promises) -> None:
    item_id = str(await app.enqueue("ok", {"text": "x"}))
    promises.asked.add(item_id)
    promises.accepted.add(item_id)


async def _open(store: str) -> None:
    async with build(store):
        pass


async def _told(attempt: Coroutine[None, None, None]) -> str:
    try:
        await attempt
    except StoreError as error:
        return type(error).__name__
    return "accepted"
