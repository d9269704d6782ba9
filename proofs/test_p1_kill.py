"""P1 accepted work survives kill -9. Each item that enqueue returned is in the store when its process is killed."""

from __future__ import annotations

import subprocess
import sys

from redrive import Redrive
from redrive.core import codec
from redrive.core.states import State
from tests.support.rig.fleet import ROOT, environment

COUNT = 50
SIZE = f"{COUNT} items"


async def test_p1_what_enqueue_returned_survives_kill_9(shared: str) -> None:
    command = [sys.executable, "-m", "tests.support.rig.feeder", shared]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE) as feeder:  # noqa: ASYNC220 - nothing else runs here
        assert feeder.stdout is not None
        lines = [feeder.stdout.readline() for _ in range(COUNT)]
        feeder.kill()
        lines += feeder.stdout.readlines()
    promised = dict(line.decode().split() for line in lines if line.endswith(b"\n"))
    app = Redrive(shared, log=False)
    async with app:
        assert app.info().durability == "power-loss"
        for item_id, number in promised.items():
            item = await app.get(item_id)
            assert (item.state, codec.load_payload(item.payload)) == (State.READY, {"number": int(number)})
    assert len(promised) >= COUNT
