"""Each tick is one item, whoever fires it: several schedulers, leaders that sleep or die, stores that fail, clocks that
change, and nobody there for hours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.acts import Act, Cancel
from redrive.core.decide import ToDone
from redrive.core.schedule import KIND
from redrive.core.select import Ids
from redrive.core.verbs import (
    DocumentWrite,
    LeaseRequest,
    QueueChange,
    Settlement,
    Tally,
    Want,
)
from redrive.engine.schedule import Scheduler
from redrive.events import Events, StoreFailed, TicksMissed
from redrive.office.schedules import declare_schedules
from redrive.stores.keyring import Keyring
from redrive.testing._relay import Answer, P, Relay
from redrive.testing.faults import Fault, Point
from tests.engine.crew import HOUR, SECOND, Crew, crew, quick_crew, schedule

__all__ = ["crew", "quick_crew"]


# -- exactly once --------------------------------------------------------------------------------------------------


async def test_three_schedulers_fire_each_tick_once_and_in_time(crew: Crew) -> None:
    await declare_schedules(crew.store, [schedule()])
    for _ in range(3):
        await crew.join()
    await crew.lab.pass_time("65s")
    assert await crew.fired() == crew.ticks()
    assert len(await crew.fired()) == 6
    puts = [len(store.calls_of("put")) for store in crew.stores]
    assert sorted(puts) == [0, 0, 6], "the leader alone does the work"
    assert all(item.enqueued_at - item.due_at < 5 for item in await crew.items())
    assert crew.told == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["document", "elect", "tally", "write_documents", "put"])
async def test_a_leader_that_sleeps_for_three_leases_does_no_harm(crew: Crew, verb: str, when: Any) -> None:
    """It comes back in the middle of what it was doing, believing that no time has passed."""
    await declare_schedules(crew.store, [schedule(catch_up="skip")])
    leader = await crew.join()
    await crew.join()
    await crew.join()
    await crew.lab.pass_time("15s")
    hold = leader.hold(verb, when)
    await crew.lab.until(hold.reached.is_set)
    await crew.lab.pass_time("45s")
    hold.release()
    await crew.lab.pass_time("60s")
    assert await crew.fired() == crew.ticks()
    assert crew.told == []


@pytest.mark.parametrize("point", range(1, 9))
async def test_a_leader_that_dies_anywhere_leaves_nothing_undone(crew: Crew, point: int) -> None:
    await declare_schedules(crew.store, [schedule(catch_up="skip")])
    store = await crew.join()
    await crew.lab.pass_time("9s")
    task = crew.tasks[0]

    def die(_: Point) -> None:
        task.cancel()

    store.crash_at(store.points + point, die)
    await crew.join()
    await crew.lab.pass_time("61s")
    assert task.done()
    assert await crew.fired() == crew.ticks()
    assert crew.told == []


async def test_ticks_of_an_encrypted_queue_are_owed_until_a_leader_has_the_key(quick_crew: Crew) -> None:
    crew, keys = quick_crew, Keyring({"k1": bytes(range(32))}, current="k1")
    crew.lab.store.use_keys(keys)
    beat = schedule(catch_up="all")
    await crew.store.configure(beat.queue, QueueChange(encrypt=True))
    await declare_schedules(crew.store, [beat])
    crew.lab.store.use_keys(None)
    await crew.join()
    await crew.lab.pass_time("25s")
    assert await crew.fired() == []
    assert "its payload is encrypted with key 'k1'" in crew.of(TicksMissed)[0].reason
    await crew.kill()
    crew.lab.store.use_keys(keys)
    await crew.join()
    await crew.lab.pass_time("25s")
    assert await crew.fired() == crew.ticks()
    assert {item.payload for item in await crew.items()} == {beat.payload}


async def test_one_that_comes_back_is_refused_what_nobody_wants_any_more(crew: Crew) -> None:
    """It slept with a tick in hand; the schedule was removed before anybody else fired it."""
    await declare_schedules(crew.store, [schedule(), schedule("other")])
    leader = await crew.join()
    await crew.join()
    await crew.lab.pass_time("15s")
    hold = leader.hold("write_documents")
    await crew.lab.until(hold.reached.is_set)
    await crew.office.remove("beat", reason="no longer needed")
    await crew.lab.pass_time("45s")
    hold.release()
    await crew.lab.pass_time("20s")
    assert await crew.fired() == crew.ticks()[:1]
    assert await crew.fired("other") == crew.ticks()


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("verb", ["document", "documents", "elect", "tally", "write_documents", "put"])
async def test_a_store_that_fails_delays_ticks_and_loses_none(quick_crew: Crew, verb: str, fault: Fault) -> None:
    crew = quick_crew
    await declare_schedules(crew.store, [schedule(catch_up="skip"), schedule("slow", every="1m", catch_up="skip")])
    first = await crew.join()
    await crew.join()
    for number in (1, 2, 3, 5, 8):
        first.at(verb, number, fault)
    await crew.lab.pass_time("2m")
    assert await crew.fired() == crew.ticks()
    assert await crew.fired("slow") == crew.ticks(60 * SECOND)
    assert crew.of(TicksMissed) == []


async def test_a_pruned_tick_is_not_fired_again(crew: Crew) -> None:
    """Whoever takes over repeats the last round; its ids stay taken."""
    await declare_schedules(crew.store, [schedule()])
    await crew.join()
    await crew.lab.pass_time("11s")
    (item,) = await crew.items()
    act = Act("ann", "test", "request")
    await crew.store.amend(Ids((item.id,)), Cancel(), act)
    assert len(await crew.store.prune(Ids((item.id,)), 10, act)) == 1
    await crew.kill()
    await crew.join()
    await crew.lab.pass_time("30s")
    assert await crew.fired() == crew.ticks()[1:]


# -- missed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "kept"), [("skip", 0), ("last", 1), ("all", 5)])
async def test_what_nobody_was_there_to_fire_goes_by_the_rule(crew: Crew, rule: str, kept: int) -> None:
    lab = crew.lab
    await declare_schedules(crew.store, [schedule(every="1h", catch_up=rule)])
    lab.clock.advance("59m")
    await crew.join()
    await lab.pass_time("61s")
    await crew.kill()
    lab.clock.advance("5h2m")
    await crew.join()
    await lab.pass_time("5s")
    lab.clock.advance("57m")
    await lab.pass_time("1m")
    ticks = crew.ticks(HOUR)
    assert len(ticks) == 7
    assert await crew.fired() == [ticks[0], *ticks[6 - kept : 6], ticks[6]]
    (missed,) = crew.of(TicksMissed)
    assert (missed.schedule, missed.missed, missed.fired) == ("beat", 5, kept)
    assert rule in missed.reason


async def test_ticks_from_before_it_was_there_are_not_missed(crew: Crew) -> None:
    await declare_schedules(crew.store, [schedule(every="1m", catch_up="all")])
    await crew.join()
    await crew.lab.pass_time("1m")
    await declare_schedules(crew.store, [schedule("late", every="1m", catch_up="all")])
    began = crew.lab.clock.now()
    await crew.kill()
    await crew.join()
    await crew.lab.pass_time("150s")
    assert await crew.fired("late") == crew.ticks(60 * SECOND, after=began)
    assert crew.told == []


async def test_a_full_queue_gets_its_ticks_later(crew: Crew) -> None:
    """What it cannot take is not lost and stops nobody else."""
    lab = crew.lab
    await crew.store.configure("full", QueueChange(capacity=2))
    full = schedule("full", "full", every="10s", catch_up="all")
    await declare_schedules(crew.store, [full, schedule()])
    await crew.join()
    await lab.pass_time("55s")
    assert len(await crew.fired("full")) == 2
    assert await crew.fired() == crew.ticks()
    assert [event.fired for event in crew.of(TicksMissed)] == [0]
    await crew.store.configure("full", QueueChange(capacity=None))
    await lab.pass_time("2s")
    assert await crew.fired("full") == crew.ticks()
    await crew.kill()
    await crew.join()
    await lab.pass_time("30s")
    assert await crew.fired("full") == crew.ticks()


async def test_a_queue_that_is_smaller_than_what_it_is_owed_gets_what_it_has_room_for(crew: Crew) -> None:
    """More ticks are owed than it will ever take at once: they come as room is made, and none twice."""
    lab = crew.lab
    await crew.store.configure("small", QueueChange(capacity=2))
    await declare_schedules(crew.store, [schedule(queue="small", every="5s", catch_up="skip")])
    await lab.pass_time("27s")
    await crew.join()
    await lab.pass_time("2s")
    assert await crew.fired() == crew.ticks(5 * SECOND)[:2]
    for turn in range(3):
        leased = await crew.store.lease(LeaseRequest("w", (Want("small", 9, HOUR, 3),), f"turn {turn}"))
        await crew.store.settle([Settlement(item.id, item.deliveries, ToDone()) for item in leased.items])
        await lab.pass_time("2s")
    assert await crew.fired() == crew.ticks(5 * SECOND)


async def test_what_a_full_queue_did_not_take_is_owed_by_the_next_leader_too(crew: Crew) -> None:
    lab = crew.lab
    await crew.store.configure("full", QueueChange(capacity=2))
    await declare_schedules(crew.store, [schedule("full", "full", catch_up="skip"), schedule()])
    await crew.join()
    await lab.pass_time("45s")
    await crew.kill()
    await crew.store.configure("full", QueueChange(capacity=None))
    await crew.join()
    await lab.pass_time("25s")
    assert await crew.fired("full") == crew.ticks()


async def test_while_one_runs_the_next_can_be_left_out(crew: Crew) -> None:
    await declare_schedules(crew.store, [schedule(every="10s", dedupe_key="beat")])
    await crew.join()
    await crew.lab.pass_time("35s")
    assert await crew.fired() == crew.ticks()[:1]
    assert [(event.missed, event.fired) for event in crew.of(TicksMissed)] == [(1, 0), (1, 0)]
    assert "held by beat@" in crew.of(TicksMissed)[0].reason


class Ahead(Relay):
    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        answer = await verb(*args, **kwargs)
        return replace(answer, at=answer.at + 60 * SECOND) if isinstance(answer, Tally) else answer


# -- clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("day", "walls"),
    [
        ((2026, 3, 29), ["03:00+0200"]),
        ((2026, 10, 25), ["02:30+0200"]),
        ((2026, 6, 1), ["02:30+0200"]),
    ],
)
async def test_local_times_come_once_a_day_also_when_clocks_change(
    quick_crew: Crew, day: tuple[int, int, int], walls: list[str]
) -> None:
    crew, zone = quick_crew, ZoneInfo("Europe/Berlin")
    midnight = int(datetime(*day, tzinfo=zone).timestamp()) * 1000
    crew.lab.clock.advance(midnight - crew.lab.clock.now())
    await declare_schedules(crew.store, [schedule(cron="30 2 * * *", timezone="Europe/Berlin", catch_up="skip")])
    await crew.join()
    for half_hour in range(1, 12):
        crew.lab.clock.advance(midnight + half_hour * HOUR // 2 - 5 * SECOND - crew.lab.clock.now())
        await crew.lab.pass_time("30s")
    fired = [datetime.fromtimestamp(tick / 1000, zone) for tick in await crew.fired()]
    assert [wall.strftime("%H:%M%z") for wall in fired] == walls


async def test_a_clock_that_is_ahead_makes_no_tick_early(quick_crew: Crew) -> None:
    """The store's clock says when something is due; here a scheduler takes it to be a minute ahead."""
    crew = quick_crew
    await declare_schedules(crew.store, [schedule()])
    await Scheduler(Ahead(crew.store), "ahead", events=Events(), clock=crew.lab.clock).turn()
    items = await crew.items()
    assert len(items) == 6
    assert [item.due_at for item in items] == [crew.began // SECOND * SECOND + n * 10_000 for n in range(1, 7)]
    assert all(item.due_at > crew.lab.clock.now() for item in items)


# -- cost ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_ten_thousand_idle_schedules_cost_one_read_a_second(quick_crew: Crew) -> None:
    crew = quick_crew
    await declare_schedules(crew.store, [schedule(f"s{number}", every="1000d") for number in range(10_000)])
    leader, other = await crew.join(), await crew.join()
    await crew.lab.pass_time("30s")
    before = len(leader.calls), len(other.calls)
    await crew.lab.pass_time("60s")
    verbs = [call.verb for call in leader.calls[before[0] :]]
    assert {verb: verbs.count(verb) for verb in set(verbs)} == {"document": 60, "elect": 12, "tally": 6}
    assert len(other.calls) - before[1] == 24


async def test_without_schedules_there_is_one_read_every_five_seconds(quick_crew: Crew) -> None:
    store = await quick_crew.join()
    await quick_crew.lab.pass_time("60s")
    assert len(store.calls) == len(store.calls_of("document")) == 13


async def test_one_that_cannot_be_read_does_not_stop_the_others(quick_crew: Crew) -> None:
    crew = quick_crew
    await declare_schedules(crew.store, [schedule()])
    broken = codec.encode({"schedule": {"name": "x", "queue": "q", "payload": "", "cron": "no"}, "since": 0})
    for key, body in (("bad", b"{"), ("odd", broken)):
        await crew.store.write_documents([DocumentWrite(KIND, key, body)])
    await crew.join()
    await crew.lab.pass_time("25s")
    assert await crew.fired() == crew.ticks()
    texts = [event.error for event in crew.told if isinstance(event, StoreFailed)]
    assert len(texts) == 2
    assert "'bad'" in texts[0]
    assert "cron" in texts[1]
