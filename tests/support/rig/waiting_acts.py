"""R3: the part of the scenario with acts on waiting items, the lease of one by its id, and letters that are sent,
called back, edited and taken in.
"""

from __future__ import annotations

from msgspec.structs import replace

from redrive import Redrive
from redrive.core.acts import Act
from redrive.core.select import Ids
from redrive.engine.replays import ReplayLeader
from redrive.events import Events
from redrive.stores.audit import AuditRecord, entry
from redrive.stores.base import Store
from redrive.stores.clock import Clock
from tests.support.rig import records as r
from tests.support.rig.bonds import ORIGINAL
from tests.support.rig.log import Write, now_ns

WHY = "to see it"


async def act_on_waiting(app: Redrive, store: Store, clock: Clock, log: Write) -> None:
    """None of them would be due before the drain: `rushed` and `named` are run before, the others end as letters."""
    for item_id in ("rushed", "named", "expired", "in-place"):
        log(r.Invoke(item_id, "ok", now_ns(), payload=ORIGINAL))
        await app.enqueue("ok", ORIGINAL, id=item_id, delay="30m")
        log(r.Told(item_id, "ok", now_ns()))
    await app.set_policy("rushed", {"max_attempts": 5}, reason=WHY)
    await app.run_now("rushed", reset=True, reason=WHY)
    await app.run_item("named")
    await app.expire(["expired", "in-place"], reason=WHY)
    started = await app.letters.replay("expired", background=True, reason=WHY)
    await app.replays.pause(started.replay, reason=WHY)
    await app.replays.set_rate(started.replay, "50/s", reason=WHY)
    await app.replays.resume(started.replay, reason=WHY)
    leader = ReplayLeader(store, "leader", events=Events(), clock=clock)
    await leader.turn()
    await leader.resign()
    undone = await app.replays.undo(started.replay, reason=WHY)
    assert undone.changed == ("expired",)
    await app.edit("expired", "edited", reason=WHY)
    letter = await store.get("expired")
    log(r.Invoke("taken-in", "ok", now_ns(), payload=ORIGINAL))
    await store.take_in([replace(letter, item=replace(letter.item, id="taken-in"))], Act("scenario", WHY, "take in"))
    await store.append([entry(AuditRecord("note", Ids(()), ("taken-in",)), Act("scenario", WHY, "append"))])
    log(r.Told("taken-in", "ok", now_ns()))
