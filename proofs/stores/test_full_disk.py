"""On a disk that is really full an operator makes room in a SQLite store, and work goes on."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.disk.drive import needs
from tests.support.rig.fleet import ROOT, environment

FULL_DISK = """
import asyncio, os, sys
from pathlib import Path
from redrive.core.item import NewItem
from redrive.core.select import Match
from redrive.core.acts import Act, Cancel
from redrive.engine.ids import new_id
from redrive.errors import StoreFull
from redrive.stores.sqlite import SqliteStore, ballast
from tests.support.disk import kernel

folder, binding = Path(sys.argv[1]), sys.argv[2]
MIB = 1024 * 1024
ballast.LOOK_AGAIN = 0
kernel.private_mounts()
kernel.mount_memory(folder, 56 * MIB)
path, filler = folder / "redrive.db", folder / "filler"
reserve = folder / "redrive.db-ballast"

def fill():
    with filler.open("ab", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass

def opened():
    return SqliteStore(path, binding=binding, ballast="4MiB").open()

async def until_full(store, name):
    for n in range(10_000):
        try:
            await store.put([NewItem(f"{name}-{n}-{m}", "q", os.urandom(3_000)) for m in range(20)])
        except StoreFull:
            return n
    raise AssertionError("never full")

def by():
    return Act("ada", "the disk is full", new_id())

async def done(store):
    # What the writer does after it has answered is over when it answers the next one.
    await store.elect("name", "owner", 1)

async def make_room(store):
    assert len((await store.amend(Match("state", "=", "ready"), Cancel(), by())).changed) == 1000
    assert len(await store.prune(Match("state", "=", "cancelled"), 1000, by())) == 1000

async def main():
    store = await opened()
    await store.put([NewItem(f"early-{n}", "q", os.urandom(3_000)) for n in range(1000)])
    await done(store)
    assert reserve.stat().st_size == 4 * MIB
    # Others fill the disk, and leave it again.
    fill()
    await until_full(store, "refused")
    await make_room(store)
    assert reserve.stat().st_size < 4 * MIB, "it was not full"
    filler.unlink()
    await store.put([NewItem("relieved", "q", b"x")])
    await done(store)
    assert reserve.stat().st_size == 4 * MIB
    # We fill it. What is refused is refused, and others than operators have no reserve.
    assert await until_full(store, "first") * 20 > 2000
    for n in range(3):
        await until_full(store, f"refused-{n}")
    assert reserve.stat().st_size == 4 * MIB
    await make_room(store)
    assert reserve.stat().st_size < 4 * MIB, "it was not full"
    again = await until_full(store, "second")
    assert again * 20 >= 900, again
    # Closing frees the log; others take what it had.
    await store.close()
    fill()
    store = await opened()
    await make_room(store)
    again = await until_full(store, "third")
    assert again * 20 >= 900, again
    checkup = await store.check()
    assert not checkup.findings, checkup
    await store.close()

asyncio.run(main())
print("sound")
"""


@pytest.mark.parametrize("binding", ["stdlib", "apsw"])
async def test_on_a_full_disk_an_operator_makes_room_and_work_goes_on(tmp_path: Path, binding: str) -> None:
    needs("memory")
    place = tmp_path / "place"
    place.mkdir()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FULL_DISK, str(place), binding, cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    assert process.returncode == 0, (out + err).decode()
    assert out.decode().splitlines()[-1] == "sound"
