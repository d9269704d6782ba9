"""When rules fire, and when they are over: each condition over a store."""

from __future__ import annotations

import asyncio

import pytest

from redrive import Dead, Item, Policy, Redrive, never
from redrive.core.item import NewItem
from redrive.errors import StoreUnavailable
from redrive.observe.alerts import (
    Message,
    callback,
    custom,
    disabled,
    finding,
    letters,
    new_cause,
    no_worker,
    oldest_letter,
    store_down,
    success_rate,
    utilisation,
)
from redrive.observe.alerts.conditions import CONDITIONS, JUDGES
from redrive.stores import base
from redrive.testing.faults import FaultyStore
from tests.observe.alerts import ops
from tests.observe.alerts.ops import Ops, dying, rule
from tests.support.lab import Lab
from tests.webhooks.kit import Receiver, opened


def test_every_condition_has_a_judge() -> None:
    assert CONDITIONS.keys() - {"store_down"} == JUDGES.keys()


async def test_a_new_cause_fires_once_and_is_over_with_its_last_letter(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, new_cause(within="1h"))
    dying(app)
    (old,) = await ops.letters(lab, app, "as ever")
    lab.clock.advance("2h")
    assert await there.told(lab) == []
    one, two = await ops.letters(lab, app, "card declined", "card declined")
    (line,) = await there.told(lab)
    assert line.startswith("FIRING warning rule: cause ")
    assert line.endswith(": ValueError: card declined (2 letters in emails)")
    await app.letters.discard([one], reason="x")
    assert await there.told(lab) == []
    await app.letters.discard([two, old], reason="x")
    (line,) = await there.told(lab)
    assert line.startswith("RESOLVED warning rule: cause ")


async def test_a_new_cause_is_found_and_over_among_more_causes_than_one_read_gives(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which gives those with the most letters."""
    monkeypatch.setattr("redrive.observe.alerts.conditions.PAGE_LIMIT", 1)
    app = await lab.app()
    there = Ops(app)
    rule(app, new_cause(within="1h"))
    for queue in ("emails", "invoices"):
        dying(app, queue)
    old = await ops.letters(lab, app, "as ever", "as ever", "as ever")
    lab.clock.advance("2h")
    (new,) = await ops.letters(lab, app, "card declined")
    (line,) = await there.told(lab)
    assert line.endswith(": ValueError: card declined (1 letter in emails)")
    # One that has older letters in a queue which the read does not give is not new.
    await ops.letters(lab, app, *["as ever"] * 4, queue="invoices")
    assert await there.told(lab) == []
    # It is not among the last letters either, and then it is over.
    monkeypatch.setattr("redrive.observe.alerts.conditions.LOOKS", 1)
    assert await there.told(lab) == []
    await app.letters.discard([new, old[0]], reason="x")
    (line,) = await there.told(lab)
    assert (line.split(" ")[0], "card declined" in line) == ("RESOLVED", True)


async def test_the_oldest_open_letter_is_watched_by_queue(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, oldest_letter("1h"))
    for queue in ("emails", "invoices"):
        dying(app, queue)
    (first,) = await ops.letters(lab, app, "a")
    await ops.letters(lab, app, "b", queue="invoices")
    await app.letters.archive("queue:invoices", reason="seen")
    lab.clock.advance("61m")
    await ops.letters(lab, app, "c")
    assert await there.told(lab) == ["FIRING warning rule: queue emails: the oldest open letter died 1h1m ago"]
    await app.letters.discard([first], reason="x")
    # Where there are more causes than one read gives, the letters themselves are asked.
    monkeypatch.setattr("redrive.observe.alerts.conditions.PAGE_LIMIT", 1)
    (line,) = await there.told(lab)
    assert line.startswith("RESOLVED")
    lab.clock.advance("61m")
    assert len(await there.told(lab)) == 1


async def test_letters_are_counted_in_all_or_within_a_time(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    app.alerts.rule("all", letters(2), to="ops")
    app.alerts.rule("new", letters(1, within="10m"), to="ops")
    dying(app)
    await ops.letters(lab, app, "a", "b")
    assert await there.told(lab) == ["FIRING warning new: queue emails has more than 1 open letters of the last 10m"]
    lab.clock.advance("11m")
    await ops.letters(lab, app, "c")
    told = await there.told(lab)
    assert sorted(told) == [
        "FIRING warning all: queue emails has more than 2 open letters: 3",
        "RESOLVED warning new: queue emails has more than 1 open letters of the last 10m (after 11m)",
    ]


async def test_the_success_rate_is_that_of_all_processes_and_survives_them(lab: Lab) -> None:
    apps = [await lab.app(), await lab.app()]
    there = [Ops(app) for app in apps]
    for app in apps:
        rule(app, success_rate(below=0.5, within="10m", least=6))

        @app.handler("emails", policy=Policy(never()))
        async def handle(well: bool) -> None:
            if not well:
                raise ValueError("no")

    async def work(app: Redrive, *wells: bool) -> None:
        async with lab.working(app):
            await app.enqueue_many("emails", wells)
            await lab.pass_time("16s")

    await work(apps[0], True, True, False)
    assert [each.lines for each in there] == [[], []]
    await work(apps[1], False, False, False)
    async with lab.working(apps[1]):
        await lab.pass_time("46s")
    told = [line for each in there for line in each.lines]
    assert told == ["FIRING warning rule: queue emails: 2 of 6 attempts succeeded in 10m"]
    async with lab.working(apps[0]):
        await lab.pass_time("12m")
    assert [line.split(" ")[0] for each in there for line in each.lines] == ["RESOLVED"]
    assert not [each for each in await lab.store.documents("alert") if each.key.startswith("counts.")]


async def test_workers_of_one_app_count_an_attempt_once_and_by_the_family(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    there = Ops(app)
    rule(app, success_rate(below=0.5, least=6))
    app.queue("webhook:*")
    dying(app, "webhook:*")
    running = [asyncio.create_task(app.run()) for _ in range(3)]
    for member in "abcde":
        await app.enqueue(f"webhook:{member}", "x")
    await lab.pass_time("1m")
    assert there.lines == []
    await app.enqueue("webhook:f", "x")
    await lab.pass_time("1m")
    assert there.lines == ["FIRING warning rule: queue webhook:*: 0 of 6 attempts succeeded in 15m"]
    await lab.drive(app.stop(grace=0))
    await lab.drive(asyncio.gather(*running))


async def test_utilisation_is_what_waits_or_runs_of_the_capacity(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, utilisation(above=0.5))
    app.queue("emails", capacity=4)
    app.queue("other")
    ids = [await app.enqueue("emails", number, delay="1d") for number in range(2)]
    await app.alerts.evaluate()
    ids.append(await app.enqueue("emails", 3, delay="1d"))
    await app.alerts.evaluate()
    await app.cancel(ids[0], reason="x")
    await app.alerts.evaluate()
    await lab.drain(app)
    assert there.lines == [
        "FIRING warning rule: queue emails is at 3 of 4",
        "RESOLVED warning rule: queue emails was at 3 of 4 (after 0ms)",
    ]


async def test_a_paused_queue_or_an_open_breaker_is_told_after_a_time(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, disabled(longer_than="10m"))
    app.gate("smtp")
    app.queue("emails", gate="smtp")
    app.queue("slow", gate="smtp")
    await app.pause("slow", reason="provider is down")
    assert await there.told(lab) == []
    await app.open_gate("smtp", reason="they asked")
    lab.clock.advance("11m")
    # How long the breaker is open is known to the second; a pause counts from when it was first seen.
    assert sorted(await there.told(lab)) == [
        "FIRING warning rule: gate smtp is open: they asked",
        "FIRING warning rule: queue slow is paused by lab: provider is down",
    ]
    await app.resume("slow")
    await app.close_gate("smtp", reason="back")
    assert [line.split(" ")[0] for line in await there.told(lab)] == ["RESOLVED", "RESOLVED"]


async def test_an_endpoint_that_is_disabled_is_told_until_it_is_enabled(lab: Lab) -> None:
    async with opened(lab, Receiver(lab.clock)) as relay:
        there = Ops(relay.app)
        relay.app.alerts.rule("any", disabled(longer_than="10m"), to="ops")
        relay.app.alerts.rule("webhooks", disabled(longer_than="10m"), to="ops", queues="webhook:*")
        for name in ("shop", "other"):
            await relay.endpoints.create("https://example.com/in", id=name)
        await relay.endpoints.disable("shop", reason="it answered 410")
        assert await there.told(lab) == []
        lab.clock.advance("11m")
        text = "queue webhook:shop is disabled: it answered 410"
        assert sorted(await there.told(lab)) == [f"FIRING warning {name}: {text}" for name in ("any", "webhooks")]
        await relay.endpoints.enable("shop")
        over = text.replace(" is ", " was ")
        told = sorted(line.partition(" (")[0] for line in await there.told(lab))
        assert told == [f"RESOLVED warning {name}: {over}" for name in ("any", "webhooks")]


async def test_the_breaker_of_a_family_is_told_once_and_that_of_a_member_by_its_name(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, disabled(longer_than="1ms"))
    for gate in ("smtp", "webhook:a"):
        app.gate(gate)
    app.queue("mail:*", gate="smtp")
    app.queue("webhook:*", gate="*")
    for queue in ("mail:a", "mail:b", "webhook:a"):
        await app.enqueue(queue, "x", delay="1d")
    for gate in ("smtp", "webhook:a"):
        await app.open_gate(gate, reason="x")
    await app.pause("mail:*", reason="y")
    await there.told(lab)
    lab.clock.advance("1s")
    await app.alerts.evaluate()
    await lab.drain(app)
    assert {notice.subject: notice.queues for message in there.messages for notice in message.notices} == {
        "gate smtp": ("mail:*",),
        "gate webhook:a": ("webhook:a",),
        "mail:*": ("mail:*",),
    }


async def test_work_without_a_worker_is_told(lab: Lab) -> None:
    app, other = await lab.app(), await lab.app()
    there = Ops(app)
    rule(app, no_worker())
    other.queue("emails")
    await other.enqueue("emails")
    assert await there.told(lab) == []
    lab.clock.advance("61s")
    (line,) = await there.told(lab)
    assert line.startswith("FIRING warning rule: queue emails has 1 to do and no live worker; redrive worker run")
    other.handler("emails")(lambda: None)
    await lab.drain(other)
    assert [line.split(" ")[0] for line in await there.told(lab)] == ["RESOLVED"]


async def test_findings_of_health_are_conditions_those_of_the_outbox_too(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, finding(["outbox_unserved", "queue_full"]), queues="mail")
    app.outbox("mail")
    await lab.store.put([NewItem("x", "redrive.outbox.mail", b"1"), NewItem("y", "redrive.outbox.sms", b"1")])
    (line,) = await there.told(lab)
    assert line.startswith("FIRING warning rule: outbox mail has 1 to deliver, and no live process delivers to it; ")


async def test_a_function_gives_texts_and_one_that_fails_changes_nothing(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    answers: list[object] = [None, "the disk is hot", StoreUnavailable("not ours"), {"sda": "hot", "sdb": "cold"}, ""]

    async def check() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    app.alerts.rule("disk", custom(check), to="ops", severity="critical")
    app.alerts.rule("plain", custom(lambda: True), to="ops")
    assert await there.told(lab) == ["FIRING warning plain: it holds"]
    assert await there.told(lab) == ["FIRING critical disk: the disk is hot"]
    assert await there.told(lab) == []
    assert await there.told(lab) == [
        "FIRING critical disk: sda: hot",
        "FIRING critical disk: sdb: cold",
        "RESOLVED critical disk: the disk is hot (after 0ms)",
    ]
    assert len(await there.told(lab)) == 2


async def test_outbox_queues_cause_no_alerts(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    for number, when in enumerate((new_cause(), letters(0), oldest_letter("1ms"), disabled("1ms"))):
        app.alerts.rule(f"rule-{number}", when, to="ops")

    def refuse(item: Item) -> None:
        raise Dead("no such address")

    app.outbox("mail", refuse)
    await lab.store.put([NewItem("x", "redrive.outbox.mail", b"1")])
    await lab.drain(app)
    assert (await lab.item("x")).letter is not None
    await app.open_gate("outbox.mail", reason="x")
    lab.clock.advance("1h")
    assert await there.told(lab) == []


async def test_a_family_is_one_subject_or_each_of_its_members(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    app.alerts.rule("family", letters(1), to="ops", queues="webhook:*")
    app.alerts.rule("members", letters(1), to="ops", queues="webhook:*", members=True)
    app.alerts.rule("one", oldest_letter("1ms"), to="ops", queues="webhook:b")
    app.queue("webhook:*")
    dying(app, "webhook:*")
    dying(app)
    await ops.letters(lab, app, "x", "y", "z")
    await ops.letters(lab, app, "x", queue="webhook:b")
    await ops.letters(lab, app, "x", queue="webhook:a")
    lab.clock.advance("1s")
    assert sorted(await there.told(lab)) == [
        "FIRING warning family: queue webhook:* has more than 1 open letters: 2",
        "FIRING warning one: queue webhook:b: the oldest open letter died 1s ago",
    ]
    await ops.letters(lab, app, "x", queue="webhook:a")
    assert await there.told(lab) == ["FIRING warning members: queue webhook:a has more than 1 open letters: 2"]


def break_store(faulty: FaultyStore) -> None:
    for verb in vars(base.Store):
        if not verb.startswith("_") and verb not in ("info", "use_keys", "open", "close"):
            faulty.fail(verb)


async def test_a_store_that_is_down_is_told_once_whatever_other_channels_and_workers_there_are(memory_lab: Lab) -> None:
    lab = memory_lab
    app, faulty = await lab.faulty()
    there, calls = Ops(app), list[str]()

    async def hangs(_: Message) -> None:
        calls.append("hangs")
        await asyncio.Event().wait()

    async def fails(_: Message) -> None:
        calls.append("fails")
        raise ConnectionError("no answer")

    for function in (hangs, fails):
        app.alerts.channel(function.__name__, callback(function))
    rule(app, store_down(longer_than="1m"), to=["hangs", "fails", "ops"])
    dying(app)
    running = [asyncio.create_task(app.run()) for _ in range(3)]
    await lab.pass_time("1s")
    break_store(faulty)
    await lab.pass_time("2m")
    assert len(there.lines) == 1
    await lab.pass_time("1h")
    assert (calls.count("hangs"), 5 < calls.count("fails") < 20) == (1, True)
    faulty.heal()
    await lab.pass_time("1m")
    assert [line.split(" ")[0] for line in there.lines] == ["RESOLVED"]
    await lab.drive(app.stop(grace=0))
    await lab.drive(asyncio.gather(*running))


async def test_a_store_that_is_down_is_told_directly(memory_lab: Lab) -> None:
    lab = memory_lab
    app, faulty = await lab.faulty()
    there = Ops(app)
    there.broken = True
    rule(app, store_down(longer_than="1m"), repeat="1h")
    dying(app)
    async with lab.working(app):
        break_store(faulty)
        await lab.pass_time("50s")
        assert there.lines == []
        there.broken = False
        await lab.pass_time("30s")
        (line,) = there.lines
        assert line.startswith("FIRING critical rule: ")
        assert "cannot reach its store" in line
        await lab.pass_time("1h")
        assert [line.split(" ")[0] for line in there.lines] == ["STILL"]
        faulty.heal()
        await lab.pass_time("1m")
        assert [line.split(" ")[0] for line in there.lines] == ["RESOLVED"]
