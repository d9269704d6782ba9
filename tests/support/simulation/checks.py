"""The verdict on a simulation: that of the rig, and what only a simulation can see."""

from __future__ import annotations

from itertools import pairwise

from redrive.core.item import Millis
from tests.support.rig import records as r
from tests.support.rig.survey import survey
from tests.support.rig.verdict import Verdict, judge
from tests.support.simulation.world import World


async def verdict_on(world: World) -> tuple[Verdict, dict[str, dict[str, str]]]:
    """The faults by class, and the rig's verdict for its numbers."""
    asked = [record.id for record in world.records if isinstance(record, r.Invoke)]
    surveyed = await survey(world.memory, asked)
    verdict = judge(world.records, surveyed)
    faults = verdict.faults
    for name, why in {**world.found, "abandoned": {**_abandoned(world), **world.found["abandoned"]}}.items():
        faults[name] = {**faults.get(name, {}), **why}
    faults["replayed_twice"] = {
        key: f"replayed {final.item.replays} times, asked for {world.replays[key]} times"
        for key, final in surveyed.finals.items()
        if final.item.replays > world.replays[key]
    }
    faults["missed"] = _missed(world)
    faults["damaged"] = {one.kind: f"{one.count} {one.text}" for one in (await world.memory.check()).findings}
    return verdict, {name: why for name, why in faults.items() if why}


def _abandoned(world: World) -> dict[str, str]:
    """Leases that lapsed although their holder was alive, could reach the store, and did not try to extend them."""
    struck = {record.pid for record in world.records if isinstance(record, r.Struck) and record.signal != "cont"}
    workers = {record.pid for record in world.records if isinstance(record, r.Worker)}
    found = {}
    for record in world.records:
        if not isinstance(record, r.Reclaimed):
            continue
        key = record.id, record.delivery - 1
        hold = world.leases.holds.get(key)
        if hold is None or key in world.leases.tried or hold.process.pid not in workers - struck:
            continue
        until: Millis = record.ns // 1_000_000
        if any(hold.since <= when <= until for when in world.store_jumps):
            continue
        if hold.process.disturbance(hold.since, until) < hold.ttl // 2:
            found[record.id] = f"delivery {key[1]} lapsed, and {hold.process.name} never tried to extend it"
    return found


def _missed(world: World) -> dict[str, str]:
    """Every tick of the schedule becomes an item, whoever was there at its time."""
    return {
        str(after): f"no tick between {before} and {after}"
        for before, after in pairwise(sorted(world.ticks.values()))
        if after - before != world.plan.lease and not any(before < removal <= after for removal in world.removals)
    }
