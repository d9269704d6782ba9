"""R3: the part of the scenario with acts on waiting items, the lease of one by its id, and the undo of a replay."""

from __future__ import annotations

from redrive import Redrive
from redrive.engine.replays import ReplayLeader
from redrive.events import Events
from redrive.stores.base import Store
from redrive.stores.clock import Clock
from tests.support.rig import records as r
from tests.support.rig.log import Write, now_ns

WHY = "to see it"


async def act_on_waiting(app: Redrive, store: Store, clock: Clock, log: Write) -> None:
    """None of them would be due before the drain: `rushed` and `named` are run before, `expired` ends as a letter."""
    for item_id in ("rushed", "named", "expired"):
        log(r.Invoke(item_id, "ok", now_ns()))
        await app.enqueue("ok", id=item_id, delay="30m")
        log(r.Told(item_id, "ok", now_ns()))
    await app.set_policy("rushed", {"max_attempts": 5}, reason=WHY)
    await app.run_now("rushed", reset=True, reason=WHY)
    await app.run_item("named")
    await app.expire("expired", reason=WHY)
    started = await app.letters.replay("expired", background=True, reason=WHY)
    leader = ReplayLeader(store, "leader", events=Events(), clock=clock)
    await leader.turn()
    await leader.resign()
    undone = await app.replays.undo(started.replay, reason=WHY)
    assert undone.changed == ("expired",)
