"""P1, P5, P6: what a store accepted survives kill -9 of the process that was told so.

The child is killed only after it has said what it did, so nothing here waits for time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from redrive.core.acts import Replay
from redrive.core.select import EVERYTHING, Ids
from redrive.core.states import State
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import act

CHILD = """
import asyncio, sys
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import *
from redrive.core.select import Ids
from redrive.core.acts import Replay

ENDINGS = {"finished": finished, "failed": failed, "dead": dead, "replayed": dead}

async def main():
    store = await store_from_url(sys.argv[1]).open()
    await store.put([NewItem(name, QUEUE, name.encode()) for name in ENDINGS])
    items = (await store.lease(asking(len(ENDINGS)))).items
    await store.settle(
        [ENDINGS[item.id](item, follow_ups=[NewItem("after " + item.id, "next", b"2")]) for item in items]
    )
    await store.amend(Ids(("replayed",)), Replay(), act("request-1"))
    await store.put([NewItem("leased", "leased", b"leased")])
    await store.lease(asking(1, queue="leased"))
    print("accepted", flush=True)
    sys.stdin.read()  # until killed

asyncio.run(main())
"""


def kill_once_accepted(url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = child.stdout.readline().strip()
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    assert said == "accepted"


async def test_p1_p5_p6_what_was_accepted_survives_kill_9(shared: str) -> None:
    kill_once_accepted(shared)
    store = await store_from_url(shared).open()
    items = {item.id: item for item in (await store.find(EVERYTHING, 100)).items}
    states = {name: item.state for name, item in items.items() if not name.startswith("after ")}
    assert states == {
        "finished": State.DONE,
        "failed": State.READY,
        "dead": State.DEAD,
        "replayed": State.READY,
        "leased": State.LEASED,
    }
    assert {item.payload for name, item in items.items() if name in states} == {name.encode() for name in states}
    assert items.keys() - states.keys() == {f"after {name}" for name in states if name != "leased"}
    # P5: a crash was counted before it happened.
    assert (items["leased"].deliveries, items["leased"].attempt) == (1, 1)
    # P6: a replay and its record are there together, and it is not done twice.
    history = await store.get("replayed")
    assert (history.item.replays, [deed.request_id for deed in history.deeds]) == (1, ["request-1"])
    assert [entry.request_id for entry in await store.journal("audit")] == ["request-1"]
    assert (await store.amend(Ids(("replayed",)), Replay(), act("request-1"))).already == ("replayed",)
    await store.close()
