"""Gates in the hands of people: opened, closed, declared and looked at."""

from __future__ import annotations

import asyncio

import pytest

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.gate import GateBody, body_of, gate_config
from redrive.core.states import State
from redrive.core.verbs import GateWrite
from redrive.errors import ConfigError, NotFound
from redrive.office.gates import close_gate, declare_gate, list_gates, open_gate, show_gate
from redrive.stores.audit import AuditRecord
from redrive.testing.faults import FaultyStore
from tests.engine.gated import BY, behind, broken, fine, handle, view
from tests.support.lab import Lab


async def test_one_opened_by_hand_stays_open_until_it_is_closed_by_hand(lab: Lab) -> None:
    await behind(lab)
    app = await lab.app()
    handle(app, fine)
    gate = await open_gate(lab.store, "smtp", BY)
    assert (gate.state, gate.by, gate.why, gate.next_probe_at) == ("open", "ann", "their maintenance", None)
    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.pass_time("45s")
        item = await lab.item(item_id)
        assert (item.state, item.attempt, item.deliveries) == (State.READY, 0, 0)
        gate = await close_gate(lab.store, "smtp", Act("bob", "it is back", "request-2"))
        assert (gate.state, gate.by, gate.why) == ("closed", "bob", "it is back")
        await lab.pass_time("1s")
        assert (await lab.item(item_id)).state is State.DONE


async def test_acts_on_gates_are_on_the_record(lab: Lab) -> None:
    await behind(lab)
    await open_gate(lab.store, "smtp", BY)
    await close_gate(lab.store, "smtp", Act("bob", "it is back", "request-2"))
    entries = await lab.store.journal("audit")
    assert [(entry.actor, entry.reason, entry.request_id) for entry in entries] == [
        ("ann", "their maintenance", "request-1"),
        ("bob", "it is back", "request-2"),
    ]
    records = [codec.decode(entry.body, AuditRecord) for entry in entries]
    assert [(record.change, record.changed) for record in records] == [
        ("gate open", ("smtp",)),
        ("gate close", ("smtp",)),
    ]


async def test_declaring_keeps_the_state_and_writes_only_what_is_new(lab: Lab) -> None:
    await behind(lab)
    await open_gate(lab.store, "smtp", BY)
    before = await lab.store.gate("smtp")
    await declare_gate(lab.store, "smtp", gate_config())
    await declare_gate(lab.store, "smtp")
    assert await lab.store.gate("smtp") == before
    await declare_gate(lab.store, "smtp", gate_config(probes=3))
    gate = await view(lab)
    assert (gate.state, gate.by, gate.config.probes) == ("open", "ann", 3)
    await declare_gate(lab.store, "ftp")
    assert [(each.name, each.state) for each in await list_gates(lab.store)] == [("ftp", "closed"), ("smtp", "open")]


async def test_half_open_is_told_while_a_probe_may_run(memory_lab: Lab) -> None:
    lab = memory_lab
    await behind(lab)
    app = await lab.app()
    handle(app, broken)
    await app.enqueue_many("q", [None] * 20)
    async with lab.working(app):
        await lab.pass_time("1s")
    gate = await view(lab)
    assert (gate.state, gate.opened) == ("open", 1)
    assert gate.next_probe_at is not None
    lab.clock.advance(gate.next_probe_at - lab.clock.now())
    assert (await view(lab)).state == "half-open"


async def test_an_unknown_gate_is_told_with_the_nearest(lab: Lab) -> None:
    await behind(lab)
    for call in (open_gate, close_gate):
        with pytest.raises(NotFound, match="did you mean 'smtp'"):
            await call(lab.store, "smpt", BY)
    with pytest.raises(NotFound, match="declare it"):
        await show_gate(lab.store, "elsewhere")
    with pytest.raises(ConfigError, match="not a name of a gate"):
        await declare_gate(lab.store, "two words")


async def test_people_and_workers_may_write_at_the_same_time(memory_lab: Lab) -> None:
    lab = memory_lab
    await behind(lab)
    faulty = FaultyStore(lab.store)
    hold = faulty.hold("set_gate")
    act = asyncio.create_task(open_gate(faulty, "smtp", BY))
    await hold.reached.wait()
    gate = await lab.store.gate("smtp")
    assert gate is not None
    await lab.store.set_gate(GateWrite("smtp", gate.version, body=codec.encode(GateBody(gate_config(least=7)))))
    hold.release()
    assert (await act).state == "open"
    assert body_of(await lab.store.gate("smtp")).config.least == 7


async def test_until_idle_does_not_wait_behind_a_gate_opened_by_hand(lab: Lab) -> None:
    """Like a paused queue: nothing will come of it by itself. Behind one that opened by itself a probe will."""
    await behind(lab)
    app = await lab.app()
    handle(app, fine)
    item_id = await app.enqueue("q")
    await open_gate(lab.store, "smtp", BY)
    await lab.drive(app.run(until_idle=True), limit="10s")
    assert (await lab.item(item_id)).deliveries == 0
    await close_gate(lab.store, "smtp", BY)
    await lab.drain(app)
    assert (await lab.item(item_id)).state is State.DONE


async def test_until_idle_waits_for_the_probe_of_a_gate_that_opened_by_itself(lab: Lab) -> None:
    await behind(lab)
    app = await lab.app()
    left = 20

    async def asked() -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            await broken()

    handle(app, asked)
    ids = await app.enqueue_many("q", [None] * 25)
    await lab.drain(app)
    for item_id in ids:
        assert (await lab.item(item_id)).state is State.DONE
