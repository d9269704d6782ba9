"""Rows H-06 to H-08, H-13, H-15 to H-17, H-24, H-25 and H-30: age, retention, replay, and who is told."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from redrive.core.acts import Act
from redrive.core.instants import moment
from redrive.engine.ids import new_id
from redrive.errors import NotFound
from redrive.testing.faults import FaultyStore
from redrive.webhooks import Maintained, Notice, Relay, mark_old_webhooks_as_dead_letter
from tests.support.lab import Lab, Shared, lab
from tests.webhooks.kit import (
    DAY,
    add,
    crash,
    delivering,
    ended,
    next_attempt,
    opened,
    put,
    receiving,
    relay_on,
    running,
)

__all__ = ["lab"]


async def statuses(relay: Relay, ids: list[str]) -> list[str]:
    return [(await relay.webhooks.get(hook)).status for hook in ids]


async def test_h06_h13_a_webhook_older_than_seven_days_dies_at_the_next_hourly_run(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        (older,) = await put(relay, "A")
        lab.clock.advance("1s")
        (exactly,) = await put(relay, "B")
        lab.clock.advance("7d")
        async with running(lab, relay, deliver=False):
            assert await statuses(relay, [older, exactly]) == ["dead_letter", "pending"]
            lab.clock.advance("59m")
            await lab.pass_time("30s")
            assert await statuses(relay, [older, exactly]) == ["dead_letter", "pending"]
            await lab.pass_time("1m")
            assert await statuses(relay, [older, exactly]) == ["dead_letter", "dead_letter"]
        webhook = await relay.webhooks.get(older)
        assert (webhook.received_at, webhook.next_attempt_at) == (moment((await lab.item(older)).enqueued_at), None)
        assert [each.id for each in await relay.webhooks.list(status="dead_letter")] == [exactly, older]
    assert receiver.got == []


async def test_h07_the_callback_is_told_how_many_died_and_not_called_for_none(lab: Lab) -> None:
    told: list[int] = []
    async with receiving(lab) as receiver, opened(lab, receiver, on_dead_letter=told.append) as relay:
        await add(relay, receiver)
        await put(relay, *"abc")
        lab.clock.advance(7 * DAY * 1000 + 1)
        async with running(lab, relay, deliver=False):
            await lab.until(lambda: told == [3])
            for _ in range(2):
                lab.clock.advance("1h")
                await lab.pass_time("1m")
        assert told == [3]
        assert await mark_old_webhooks_as_dead_letter(relay) == 0


async def test_h07_a_callback_that_fails_is_called_again(lab: Lab) -> None:
    told: list[int] = []

    async def tell(dead: int) -> None:
        told.append(dead)
        if len(told) < 3:
            raise ConnectionError("nobody there")

    async with receiving(lab) as receiver, opened(lab, receiver, on_dead_letter=tell) as relay:
        await add(relay, receiver)
        await put(relay, *"ab")
        lab.clock.advance("8d")
        assert await mark_old_webhooks_as_dead_letter(relay) == 2
        async with running(lab, relay, deliver=False):
            await lab.until(lambda: len(told) == 3)
            await lab.pass_time("10m")
        assert told == [2, 2, 2]


@pytest.mark.parametrize("verb", ["amend", "write_documents", "put"])
async def test_h07_a_crash_after_some_died_loses_no_call_and_makes_none_twice(lab: Lab, verb: str) -> None:
    """After the webhooks died, after their number was written down, and after the notice was put."""
    told: list[int] = []
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    async with receiving(lab) as receiver:
        relay = relay_on(lab, receiver, faulty, on_dead_letter=told.append)
        await lab.drive(relay.open())
        await add(relay, receiver)
        await put(relay, *"ab")
        lab.clock.advance("8d")
        held = faulty.hold(verb, "after")
        maintaining = asyncio.create_task(relay.maintain())
        await lab.until(held.reached.is_set)
        faulty.crashed = True
        held.release()
        await crash(lab, relay, faulty, maintaining)
        async with opened(lab, receiver, on_dead_letter=told.append) as relay:
            await put(relay, *"cde")
            async with running(lab, relay, deliver=False):
                await lab.until(lambda: bool(told))
                lab.clock.advance("8d")
                await lab.until(lambda: len(told) == 2, limit="2h")
                await lab.pass_time("5m")
        assert told == [2, 3]


async def sweep(lab: Lab) -> None:
    await lab.store.sweep(500, Act("retention", "kept as long as its queue says", new_id()))


async def test_h08_delivered_ones_are_kept_for_seven_days(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        ids = await put(relay, "A")
        async with running(lab, relay):
            await ended(lab, relay, ids[0])
            lab.clock.advance("2s")
            ids += await put(relay, "B")
            await ended(lab, relay, ids[1])
        first, second = [(await lab.item(hook)).ended_at or 0 for hook in ids]
        assert 2_000 <= second - first < 5_000
        lab.clock.advance(first + 7 * DAY * 1000 + 1_000 - lab.clock.now())
        await sweep(lab)
        with pytest.raises(NotFound):
            await relay.webhooks.get(ids[0])
        assert (await relay.webhooks.get(ids[1])).status == "delivered"
        async with running(lab, relay):
            await lab.pass_time("2m")
        assert len(await relay.webhooks.list()) == 0, "a worker does it by itself"


@pytest.mark.parametrize("retention", ["letters", "seed"])
async def test_h08_failed_and_dead_ones_go_by_the_seed_only_if_asked(
    lab: Lab, retention: Literal["letters", "seed"]
) -> None:
    async with receiving(lab, then=422) as receiver, opened(lab, receiver, retention=retention) as relay:
        await add(relay, receiver)

        async def fail(body: str) -> str:
            (hook,) = await put(relay, body)
            async with running(lab, relay):
                await ended(lab, relay, hook)
            return hook

        failed = [await fail("A")]
        lab.clock.advance("2s")
        failed.append(await fail("B"))
        first, second = [(await lab.item(hook)).leased_at or 0 for hook in failed]
        assert 2_000 <= second - first < 20_000
        lab.clock.advance(first + 7 * DAY * 1000 + 1 - lab.clock.now())
        gone = await relay.maintain() == Maintained(discarded=1)
        assert gone == (retention == "seed")
        assert [each.id for each in await relay.webhooks.list(status="failed")] == failed[::-1][: 2 - gone]
        assert len(await relay.app.letters.find("disposition:trash")) == gone

        dead = await put(relay, "C")
        lab.clock.advance("2s")
        dead += await put(relay, "D")
        lab.clock.advance("8d")
        assert (await relay.maintain()).dead_lettered == 2
        lab.clock.advance(6 * DAY * 1000 - 1_000)
        assert (await relay.maintain()).discarded == gone, "the first one was received 14 d and 1 s ago"
        assert [each.id for each in await relay.webhooks.list(status="dead_letter")] == dead[::-1][: 2 - gone]
        deeds = (await relay.app.history(dead[0])).deeds
        assert [deed.reason for deed in deeds][1:] == ["retention: dead_letter for longer than 14 days"] * gone


async def test_h13_maintenance_runs_at_the_start_and_then_hourly(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:

        async def rounds() -> int:
            await lab.quiet()
            return len(await relay.app.find("queue:webhooks.maintenance state:done"))

        lab.clock.advance("17m")
        began = lab.clock.now()
        async with running(lab, relay):
            assert await rounds() == 1
            for number in range(2, 5):
                lab.clock.advance(began + (number - 1) * 3_600_000 - lab.clock.now() - 1)
                assert await rounds() <= number
                lab.clock.advance("1m")
                await lab.pass_time("1m")
                assert await rounds() == number
        async with running(lab, relay):
            assert await rounds() == 5, "at the start"


async def test_h13_two_relays_do_one_hourly_round(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay, delivering(lab, receiver) as other:

        async def rounds() -> int:
            await lab.pass_time("1m")
            return len(await relay.app.find("queue:webhooks.maintenance state:done"))

        at_start = await rounds()
        assert at_start <= 2
        for number in (1, 2, 3):
            lab.clock.advance("59m")
            assert await rounds() == at_start + number
        assert len(await other.app.find("queue:webhooks.maintenance state:ready,leased,dead")) == 0


async def test_h15_a_muted_endpoint_keeps_its_backlog_in_order(lab: Lab) -> None:
    async with receiving(lab) as receiver, delivering(lab, receiver) as relay:
        await add(relay, receiver)
        receiver.script.append(500)
        ids = await put(relay, "A")
        await lab.quiet()
        await relay.endpoints.mute("shop", reason="they move")
        ids += await put(relay, *"BC")
        lab.clock.advance("30d")
        await lab.pass_time("1m")
        ids += await put(relay, "D")
        assert await relay.maintain() == Maintained(), "its age stands still"
        assert receiver.bodies == ["A"]
        stats = await relay.endpoints.stats("shop")
        assert (stats.status, stats.pending, stats.oldest_pending_at) == (
            "muted",
            4,
            (await relay.webhooks.get(ids[0])).received_at,
        )
        await relay.endpoints.unmute("shop")
        await ended(lab, relay, ids[-1])
        assert receiver.bodies == [*"AABCD"]
        assert await statuses(relay, ids) == ["delivered"] * 4


async def test_h15_what_stood_still_ages_again_after_unmuting(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        lab.clock.advance("1d")
        (hook,) = await put(relay, "A")
        for pause in (relay.endpoints.mute, relay.endpoints.disable):
            lab.clock.advance("2d")
            await pause("shop")
            lab.clock.advance("20d")
            await relay.endpoints.enable("shop")
        lab.clock.advance("3d")
        assert await relay.maintain() == Maintained(), "7 d of 47 d"
        lab.clock.advance("1s")
        assert await relay.maintain() == Maintained(dead_lettered=1)
        assert await statuses(relay, [hook]) == ["dead_letter"]


async def test_h16_a_replay_begins_anew(lab: Lab) -> None:
    told: list[Notice] = []
    async with receiving(lab, 500, 422) as receiver, opened(lab, receiver, notify=told.append) as relay:
        await add(relay, receiver)
        (failed,) = await put(relay, "A")
        async with running(lab, relay):
            await ended(lab, relay, failed)
            await lab.until(lambda: len(told) == 1)
        (dead,) = await put(relay, "B")
        receiver.then = 503
        async with running(lab, relay):
            await lab.until(lambda: len(receiver.got) == 4)
        lab.clock.advance("8d")
        async with running(lab, relay, deliver=False):
            await lab.until(lambda: len(told) == 2)
            await lab.quiet()
        assert [(each.webhook_id, each.status) for each in told] == [(failed, "failed"), (dead, "dead_letter")]
        before = [await relay.webhooks.get(hook) for hook in (failed, dead)]
        assert [(each.attempts, each.notification_sent) for each in before] == [(2, True), (2, True)]
        assert [each.error_message for each in before] == ["the endpoint answered 422", "the endpoint answered 503"]
        for hook, old in zip((failed, dead), before, strict=True):
            done = await relay.webhooks.replay(hook, reason="mended")
            assert done.changed == (hook,)
            new = await relay.webhooks.get(hook)
            assert (new.status, new.attempts, new.error_message, new.reason) == ("pending", 0, None, "")
            assert (new.last_attempt_at, new.delivered_at, new.notification_sent) == (None, None, False)
            assert new.received_at == old.received_at
        receiver.then = 200
        receiver.got.clear()
        async with running(lab, relay):
            assert (await ended(lab, relay, dead)).attempts == 1
        assert [each.attempt for each in receiver.got] == [1, 1]
        assert not (await relay.webhooks.replay([failed, dead], reason="again")).changed, "neither failed nor dead"


async def test_h17_a_notice_that_fails_comes_again_and_succeeds_once(lab: Lab) -> None:
    told: list[Notice] = []

    def tell(notice: Notice) -> None:
        told.append(notice)
        if len(told) in (1, 2, 4):
            raise ConnectionError("nobody there")

    async with receiving(lab, then=422) as receiver, delivering(lab, receiver, notify=tell) as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "A")
        webhook = await ended(lab, relay, hook)
        assert (webhook.status, webhook.attempts, webhook.notification_sent) == ("failed", 1, False)
        await lab.until(lambda: len(told) == 3)
        await lab.quiet()
        assert (await relay.webhooks.get(hook)).notification_sent
        assert set(told) == {told[0]}
        assert (told[0].webhook_id, told[0].endpoint_id, told[0].status) == (hook, "shop", "failed")
        assert told[0].error == "the endpoint answered 422"
        for _ in range(3):  # also when the notice itself is not kept any more
            lab.clock.advance("1h")
            await lab.pass_time("2m")
        assert (len(told), (await relay.webhooks.get(hook)).notification_sent) == (3, True)
        await relay.webhooks.replay(hook, reason="try again")
        await ended(lab, relay, hook)
        await lab.until(lambda: len(told) == 5)
        await lab.pass_time("10m")
        assert (len(told), (await relay.webhooks.get(hook)).notification_sent) == (5, True)
        assert len(receiver.got) == 2


async def test_h24_a_replayed_dead_letter_has_a_fresh_window(lab: Lab) -> None:
    async with receiving(lab, then=503) as receiver, opened(lab, receiver, retention="seed") as relay:
        await add(relay, receiver)
        (hook,) = await put(relay, "A")
        lab.clock.advance("8d")
        assert await relay.maintain() == Maintained(dead_lettered=1)
        await relay.webhooks.replay(hook, reason="mended")
        lab.clock.advance("7d")
        assert await relay.maintain() == Maintained()
        assert await statuses(relay, [hook]) == ["pending"]
        lab.clock.advance("1s")
        assert await relay.maintain() == Maintained(dead_lettered=1)
        lab.clock.advance(7 * DAY * 1000 - 1_000)
        assert await relay.maintain() == Maintained(), "14 d after the replay, 22 d after the receipt"
        lab.clock.advance("1s")
        assert await relay.maintain() == Maintained(discarded=1)


@pytest.mark.parametrize(("order", "sent"), [("skip", "ABCA"), ("block", "AABC"), ("park", "AABC")])
async def test_h25_where_a_replayed_webhook_goes(lab: Lab, order: str, sent: str) -> None:
    """At the end, unless the others waited for it: then at its place."""
    async with receiving(lab, 422) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver, order=order)
        first, *others = await put(relay, "A")
        async with running(lab, relay):
            await ended(lab, relay, first)
        others += await put(relay, *"BC")
        await relay.webhooks.replay(first, reason="mended")
        async with running(lab, relay):
            for hook in (first, *others):
                assert (await ended(lab, relay, hook)).status == "delivered"
        assert receiver.bodies == [*sent]


async def test_h30_a_week_without_a_worker_is_visible(lab: Lab) -> None:
    async with receiving(lab) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver)
        receiver.script.append(503)
        (tried,) = await put(relay, "A")
        async with running(lab, relay):
            await lab.quiet()
        (never,) = await put(relay, "B")
        lab.clock.advance("7d")
        lab.clock.advance("1s")
        async with running(lab, relay, deliver=False):
            await lab.quiet()
        one, other = [await relay.webhooks.get(hook) for hook in (tried, never)]
        assert (one.status, one.attempts, one.reason) == ("dead_letter", 1, "expired: not delivered within 7d")
        assert one.error_message == "the endpoint answered 503"
        assert (other.status, other.attempts) == ("dead_letter", 0)
        assert other.reason == "expired: not delivered within 7d: never attempted"
        assert [each.reason for each in await relay.webhooks.list()] == ["expired: never attempted", "expired"]
        assert (await relay.app.history(never)).deeds[-1].reason == "not delivered within 7d: never attempted"


async def test_h30_the_window_may_begin_with_the_first_attempt(lab: Lab) -> None:
    async with receiving(lab, then=503) as receiver, opened(lab, receiver) as relay:
        await add(relay, receiver, window="first_attempt")
        (hook,) = await put(relay, "A")
        lab.clock.advance("8d")
        assert await relay.maintain() == Maintained()
        async with running(lab, relay):
            await lab.until(lambda: len(receiver.got) == 1)
        lab.clock.advance("7d")
        assert await relay.maintain() == Maintained()
        lab.clock.advance("10s")
        assert await relay.maintain() == Maintained(dead_lettered=1)
        await relay.webhooks.replay(hook, reason="mended")
        lab.clock.advance("30d")
        assert await relay.maintain() == Maintained(), "it was not attempted since"
        async with running(lab, relay):
            await next_attempt(lab, receiver, hook)
            lab.clock.advance("6d")
            await next_attempt(lab, receiver, hook)
        lab.clock.advance("23h")
        assert await relay.maintain() == Maintained()
        lab.clock.advance("2h")
        assert await relay.maintain() == Maintained(dead_lettered=1)
