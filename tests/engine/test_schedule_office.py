"""Schedules in the hands of people: declared, listed, paused, resumed, run and removed, on the record."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from redrive.core import codec
from redrive.core.schedule import CHANGES, CLOCK, KIND
from redrive.errors import Conflict, NotFound
from redrive.events import TicksMissed
from redrive.office.schedules import declare_schedules
from redrive.stores.audit import AuditRecord
from tests.engine.crew import SECOND, Crew, crew, quick_crew, schedule

__all__ = ["crew", "quick_crew"]


async def test_declaring_again_changes_nothing_and_other_content_counts_anew(crew: Crew) -> None:
    plain = schedule(every="1h")
    await declare_schedules(crew.store, [plain])
    before = await crew.store.document(KIND, "beat"), await crew.store.document(CLOCK, CHANGES)
    crew.lab.clock.advance("5m")
    await declare_schedules(crew.store, [plain])
    assert before == (await crew.store.document(KIND, "beat"), await crew.store.document(CLOCK, CHANGES))
    await crew.office.pause("beat", reason="holiday")
    await declare_schedules(crew.store, [schedule(every="2h")])
    view = await crew.office.get("beat")
    assert (view.when, view.paused, view.paused_by, view.paused_reason) == ("every 2h", True, "ann", "holiday")


async def test_a_paused_one_rests_and_what_came_meanwhile_is_not_made_up_for(crew: Crew) -> None:
    lab = crew.lab
    await declare_schedules(crew.store, [schedule(every="10s", catch_up="all"), schedule("other", every="1m")])
    await crew.join()
    await lab.pass_time("15s")
    view = await crew.office.pause("beat", reason="too loud", actor="bob")
    assert (view.next_at, view.paused, view.paused_by, view.paused_reason) == (None, True, "bob", "too loud")
    await lab.pass_time("1m")
    assert len(await crew.fired()) == 1
    assert (await crew.office.get("beat")).last_at == (await crew.fired())[-1]
    resumed = lab.clock.now()
    view = await crew.office.resume("beat", reason="quiet now")
    assert view.next_at == crew.ticks()[-1] + 10 * SECOND
    assert (view.last_at, view.last_item) == ((await crew.fired())[-1], (await crew.items())[-1].id)
    await lab.pass_time("25s")
    assert (await crew.fired())[1:] == crew.ticks(after=resumed)
    assert crew.of(TicksMissed) == []


async def test_the_list_says_when_it_was_and_when_it_will_be(crew: Crew) -> None:
    await declare_schedules(crew.store, [schedule(), schedule("nightly", cron="0 2 * * *", timezone="Europe/Berlin")])
    assert [(view.name, view.last_at) for view in await crew.office.list()] == [("beat", None), ("nightly", None)]
    await crew.join()
    await crew.lab.pass_time("12s")
    beat, nightly = await crew.office.list()
    (item,) = await crew.items()
    assert (beat.last_at, beat.last_item, beat.next_at) == (item.due_at, item.id, item.due_at + 10 * SECOND)
    assert (nightly.when, nightly.last_item) == ("0 2 * * * Europe/Berlin", "")
    assert nightly.next_at == int(datetime(2026, 1, 1, 1, tzinfo=UTC).timestamp()) * 1000


async def test_running_by_hand_is_one_more_and_on_the_record(crew: Crew) -> None:
    await declare_schedules(crew.store, [schedule(every="1d", priority="high")])
    item_id = await crew.office.run("beat", reason="cannot wait")
    item = await crew.lab.item(item_id)
    assert (item.queue, item.payload, item.priority) == ("q", b'"tick"', "high")
    assert item_id.startswith("beat@run-")
    await crew.office.pause("beat", reason="one is enough")
    await crew.office.remove("beat", reason="over")
    acts = [(entry.actor, entry.reason, entry.body) for entry in await crew.store.journal("audit")]
    assert [(actor, reason) for actor, reason, _ in acts] == [
        ("ann", "cannot wait"),
        ("ann", "one is enough"),
        ("ann", "over"),
    ]
    records = [codec.decode(body, AuditRecord) for *_, body in acts]
    assert [record.change for record in records] == ["schedule run", "schedule pause", "schedule remove"]
    assert {record.changed for record in records} == {("beat",)}
    assert (await crew.lab.item(item_id)).id == item_id, "its items stay"


async def test_by_hand_too_it_does_not_run_beside_itself(crew: Crew) -> None:
    await declare_schedules(crew.store, [schedule(every="1d", dedupe_key="one")])
    first = await crew.office.run("beat", reason="now")
    with pytest.raises(Conflict, match=first):
        await crew.office.run("beat", reason="again")


async def test_an_unknown_name_is_told_with_the_nearest(crew: Crew) -> None:
    await declare_schedules(crew.store, [schedule("nightly", every="1d")])
    for call in (crew.office.pause, crew.office.resume, crew.office.remove, crew.office.run):
        with pytest.raises(NotFound, match="did you mean 'nightly'"):
            await call("nightli", reason="typo")
    with pytest.raises(NotFound):
        await crew.office.get("else")


async def test_changes_by_two_at_once_both_count(quick_crew: Crew) -> None:
    crew = quick_crew
    await declare_schedules(crew.store, [schedule("a", every="1d"), schedule("b", every="1d")])
    await asyncio.gather(
        crew.office.pause("a", reason="x"),
        crew.office.pause("a", reason="y"),
        crew.office.pause("b", reason="z"),
        declare_schedules(crew.store, [schedule("a", every="2d"), schedule("c", every="1d")]),
    )
    views = {view.name: view for view in await crew.office.list()}
    assert views["a"].paused_reason in ("x", "y")
    assert (views["a"].when, views["b"].paused_reason, views["c"].paused) == ("every 2d", "z", False)
