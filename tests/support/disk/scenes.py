"""R19: a store in disk trouble, from the first refusal until it has gone on by itself.

    python -m tests.support.disk.scenes <scene> <folder> <what> <binding>

A scene has a process of its own, because its mounts, limits and rights are that process's alone. It prints lines of
JSON: what callers were told, and what was wrong in the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.disk import office, rights, syncs
from tests.support.disk.callers import Callers, working
from tests.support.disk.load import DATABASE, build, often_checkpoint, url
from tests.support.disk.look import Faults, Promises, look
from tests.support.disk.troubles import Trouble, prepared

Told = dict[str, Any]
Scene = Callable[[Path, str, str], Iterator[Told]]


def load(folder: Path, kind: str, binding: str) -> Iterator[Told]:
    """The trouble begins and ends under clients and a worker; nobody restarts anything."""
    with prepared(kind, folder) as trouble:
        yield asyncio.run(_load(trouble, url(trouble.folder, binding=binding), folder / "image"))


async def _load(trouble: Trouble, store: str, image: Path) -> Told:
    async with build(store) as app:
        callers = Callers(app)
        async with working(app), callers.busy():
            await callers.until_accepted(20)
            trouble.begin()
            await callers.until_refused()
            after_cut = await _cut_now(trouble, callers.promises, image)
            readable = len((await app.tally()).queues)
            # Not later: why it failed is found out afterwards, when it may be over.
            refusals = dict(callers.words)
            trouble.end()
    faults = await look(trouble.folder / DATABASE, callers.promises, all_over=True)
    return {"refusals": refusals, "readable": readable, "after cut": after_cut, "faults": faults}


async def _cut_now(trouble: Trouble, promises: Promises, into: Path) -> Faults:
    """What a power cut in the middle of the trouble would have cost."""
    so_far = promises.so_far()
    return {} if trouble.disk is None else await look(trouble.disk.cut(19, into) / DATABASE, so_far)


SCENES: dict[str, Scene] = {
    "load": load,
    "office": office.same_store,
    "fresh-office": office.fresh_store,
    "syncs": syncs.failing,
    "writes": syncs.failing_writes,
    "killed": syncs.failing_then_killed,
    "killed-reader": syncs.failing_then_killed_beside_a_reader,
    "log-index": syncs.without_room_for_the_index,
    "rights": rights.folder_turned_read_only,
}


def main() -> None:
    scene, folder, what, binding = sys.argv[1:5]
    often_checkpoint()
    for told in SCENES[scene](Path(folder), what, binding):
        print(json.dumps(told), flush=True)  # noqa: T201 - the answer to whoever started this process


if __name__ == "__main__":
    main()
