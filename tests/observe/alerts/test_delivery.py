"""How alerts are told: once, in spite of crashes and failures, and never at the cost of work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from redrive import Redrive
from redrive.core.item import NewItem
from redrive.core.schedule import zone
from redrive.core.select import Match
from redrive.core.states import State
from redrive.errors import ConfigError, Conflict
from redrive.observe.alerts import Message, command, custom, letters, new_cause, pagerduty, slack, webhook
from redrive.observe.alerts.book import queue_of
from redrive.observe.alerts.model import GONE, HELD_LIMIT
from redrive.testing import sandbox
from redrive.testing.faults import FaultyStore, SimulatedCrash
from tests.observe.alerts import ops
from tests.observe.alerts.ops import Ops, dying, rule
from tests.support.lab import Lab
from tests.support.receivers import http_receiver

QUEUE = queue_of("ops")
BERLIN = "Europe/Berlin"
zone(BERLIN)  # reads a file, which a test's loop may not
FIRING = "FIRING warning rule: queue emails has more than 0 open letters: 1"
STILL = "STILL " + FIRING
RESOLVED = "RESOLVED warning rule: queue emails has more than 0 open letters: 1"


async def test_h17_a_notification_that_fails_is_retried_later_and_succeeds_once(lab: Lab) -> None:
    app = await lab.app()
    async with http_receiver() as there:
        app.alerts.channel("ops", webhook(there.url))
        rule(app, letters(0))
        dying(app)
        worked: list[int] = []

        @app.handler("orders")
        async def order(number: int) -> None:
            worked.append(number)

        for status in (500, 503, 404):
            there.answer(status)
        await app.enqueue("emails", "no such user")
        async with lab.working(app):
            for number in range(20):
                await app.enqueue("orders", number)
                await lab.pass_time("5s")
            await lab.until(lambda: bool(there.accepted), limit="1h")
            await lab.pass_time("5m")
        assert worked == list(range(20))
        assert (len(there.requests), len(there.accepted)) == (4, 1)
        assert len({request.headers["idempotency-key"] for request in there.requests}) == 1
    row = (await lab.store.tally()).row("emails")
    assert (row.open, row.ready, row.leased) == (1, 0, 0)
    assert (await lab.store.tally()).row(QUEUE).open == 0


async def test_h17_a_channel_that_is_away_for_good_leaves_letters_and_touches_nothing_else(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    there = Ops(app)
    there.broken = True
    rule(app, letters(0), repeat=None)
    dying(app)
    await ops.letters(lab, app, "no such user")
    await app.alerts.evaluate()
    app.alerts.every("10h")
    async with lab.working(app):
        await lab.pass_time("3h")
        (item,) = (await lab.store.find(Match("queue", "=", QUEUE))).items
        assert item.letter is not None
        assert item.letter.reason == "undeliverable"
        there.broken = False
        await app.letters.replay(item.id, reason="it is back")
        await lab.until(lambda: bool(there.messages), limit="1d")
    assert there.lines == [FIRING]


POINTS = [(verb, point) for verb, points in (("write_documents", 4), ("put", 2)) for point in range(1, points + 1)]


async def test_h17_a_message_that_is_refused_for_good_holds_up_no_other(lab: Lab) -> None:
    app = await lab.app()
    async with http_receiver() as there:
        app.alerts.channel("ops", slack(f"{there.url}/x"))
        rule(app, letters(0), repeat="1h")
        dying(app)
        await ops.letters(lab, app, "password=hunter2")
        there.answer(400, "invalid_payload")
        for _ in range(2):
            await app.alerts.evaluate()
            await lab.drain(app)
            lab.clock.advance("1h")
        assert [request.json["text"] for request in there.accepted] == [STILL]
    (letter,) = (await app.find(f"queue:{QUEUE} state:dead")).items
    assert letter.letter is not None
    assert letter.letter.failure.text == "slack answered 400 invalid_payload"


@pytest.mark.parametrize(("verb", "point"), POINTS, ids=str)
async def test_h17_a_crash_anywhere_in_a_round_loses_and_doubles_nothing(lab: Lab, verb: str, point: int) -> None:
    """Before and after: the write of all documents, the put of the messages, the removal of what was put."""
    app = await lab.app()
    there = Ops(app)
    rule(app, letters(0))
    dying(app)
    await ops.letters(lab, app, "no such user")
    dying_store = FaultyStore(lab.shared, counted=(verb,))
    other = Redrive(dying_store, clock=lab.clock, log=False)
    Ops(other)
    rule(other, letters(0))
    await other.open()
    dying_store.crash_at(dying_store.points + point)
    with pytest.raises(SimulatedCrash):
        await other.alerts.evaluate()
    assert await there.told(lab) == [FIRING]
    assert await there.told(lab) == []
    assert (await lab.store.tally()).row(QUEUE).done == 1
    left = [each.key.partition(".")[0] for each in await lab.store.documents("alert")]
    assert sorted(left) == ["rules", "state"]


@pytest.mark.parametrize("verb", ["write_documents", "put"])
async def test_two_that_judge_at_once_tell_once(lab: Lab, verb: str) -> None:
    """The slower one, overtaken before its write, is refused; overtaken after it, it puts what is there already."""
    first, (second, slow) = await lab.app(), await lab.faulty()
    there = [Ops(app) for app in (first, second)]
    for app in (first, second):
        rule(app, letters(0))
        dying(app)
    await ops.letters(lab, first, "x")
    held = slow.hold(verb)
    judging = asyncio.create_task(second.alerts.evaluate())
    await held.reached.wait()
    await first.alerts.evaluate()
    await lab.drain(first)
    held.release()
    (outcome,) = await asyncio.gather(judging, return_exceptions=True)
    assert isinstance(outcome, Conflict) is (verb == "write_documents")
    await lab.drain(second)
    assert [line for each in there for line in each.lines] == [FIRING]


async def test_of_the_workers_with_the_same_rules_one_judges_and_another_follows_it(lab: Lab) -> None:
    first, faulty = await lab.faulty()
    second, spare = await lab.faulty()
    there = [Ops(app) for app in (first, second)]
    for app in (first, second):
        rule(app, letters(0))
        dying(app)
    async with lab.working(second):
        async with lab.working(first):
            await lab.pass_time("2m")
            judges = [
                bool([c for c in store.calls_of("documents") if c.args == ("alert",)]) for store in (faulty, spare)
            ]
            assert sorted(judges) == [False, True]
        await first.enqueue("emails", "x")
        await lab.pass_time("1m")
    assert [line for each in there for line in each.lines] == [FIRING]


async def test_without_rules_nothing_is_asked_of_the_store(memory_lab: Lab) -> None:
    app, faulty = await memory_lab.faulty()
    Ops(app)
    dying(app)
    async with memory_lab.working(app):
        await memory_lab.pass_time("2m")
    assert [call for call in faulty.calls_of("documents") if call.args == ("alert",)] == []
    assert [call for call in faulty.calls_of("elect") if str(call.args[0]).startswith("alerts")] == []


async def test_a_sandbox_alerts_nobody() -> None:
    app = Redrive("memory:", log=False)
    there = Ops(app)
    rule(app, letters(0))
    dying(app)
    with sandbox(app) as clock:
        await app.enqueue("emails", "x")
        running = asyncio.create_task(app.run())
        await clock.tick("5m")
        await app.stop(grace=0)
        await running
        assert await app.alerts.list() == ()
    assert there.messages == []


# -- when it is told -------------------------------------------------------------------------------------------------


async def test_it_is_told_again_only_after_a_while_and_told_when_it_is_over(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, letters(0), repeat="4h")
    dying(app)
    await ops.letters(lab, app, "x")
    async with lab.working(app):
        await lab.pass_time("1m")
        assert there.lines == [FIRING]
    for hours, lines in ((3, []), (1, [STILL]), (3, []), (1, [STILL])):
        lab.clock.advance(hours * 3_600_000)
        assert await there.told(lab) == lines
    await app.letters.discard("queue:emails", reason="x")
    async with lab.working(app):
        await lab.pass_time("1m")
        assert [line.partition(" (")[0] for line in there.lines] == [RESOLVED]
    lab.clock.advance("1d")
    assert await there.told(lab) == []


async def test_it_must_hold_for_as_long_as_the_rule_says(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    holds = [True]
    app.alerts.rule("rule", custom(lambda: holds[0]), to="ops", for_="5m", repeat=None)
    assert await there.told(lab) == []
    (view,) = await app.alerts.list()
    assert (view.state, view.firing[0].pending) == ("pending", True)
    lab.clock.advance("4m")
    holds[0] = False
    assert await there.told(lab) == []
    holds[0] = True
    for _ in range(2):
        lab.clock.advance("3m")
        assert await there.told(lab) == []
    lab.clock.advance("3m")
    assert await there.told(lab) == ["FIRING warning rule: it holds"]
    (view,) = await app.alerts.list()
    assert (view.state, view.firing[0].told_at) == ("firing", lab.clock.now())
    lab.clock.advance("1d")
    assert await there.told(lab) == []


async def test_alerts_of_one_round_are_one_message_with_at_most_twenty_lines(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    app.alerts.rule("many", custom(lambda: {f"{number:02}": "x" for number in range(25)}), to="ops")
    assert len(await there.told(lab)) == 21
    (message,) = await told_as(lab, app, there)
    assert (len(message.notices), message.more) == (20, 5)
    assert message.text().endswith("and 5 more")


async def told_as(lab: Lab, app: Redrive, there: Ops) -> list[Message]:
    """The messages of the next repeat."""
    lab.clock.advance("4h")
    await app.alerts.evaluate()
    await lab.drain(app)
    messages, there.messages = there.messages, []
    return messages


async def test_channels_with_incidents_get_a_message_for_each_alert_in_its_own_order(lab: Lab) -> None:
    app = await lab.app()
    async with http_receiver() as there:
        app.alerts.channel("ops", pagerduty("R0UT1NGK3Y", there.url))
        subjects = {"a": "x", "b": "x"}
        app.alerts.rule("rule", custom(lambda: subjects), to="ops")
        there.answer(500)
        await app.alerts.evaluate()
        subjects.pop("a")
        await app.alerts.evaluate()
        async with lab.working(app):
            await lab.until(lambda: len(there.accepted) == 3)
        events = [(each.json["dedup_key"], each.json["event_action"]) for each in there.accepted]
    items = (await lab.store.find(Match("queue", "=", QUEUE))).items
    assert (len(items), {item.state for item in items}) == (3, {State.DONE})
    (ended,) = [key for key, action in events if action == "resolve"]
    assert [action for key, action in events if key == ended] == ["trigger", "resolve"]


async def test_secrets_in_errors_are_not_told(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, new_cause())
    dying(app)
    await ops.letters(lab, app, "postgres://bob:hunter2@db\nis away")
    (line,) = await there.told(lab)
    assert "ValueError: postgres://bob:[redacted]@db\\nis away" in line


async def test_what_is_held_is_bounded(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    there = Ops(app, digest="1h")
    app.alerts.rule("many", custom(lambda: dict.fromkeys(map(str, range(HELD_LIMIT + 7)), "x")), to="ops")
    assert await there.told(memory_lab) == []
    memory_lab.clock.advance("1h")
    await app.alerts.evaluate()
    await memory_lab.drain(app)
    (message,) = there.messages
    assert (len(message.notices), message.more) == (20, HELD_LIMIT + 7 - 20)


async def test_incidents_are_resolved_however_much_is_held(memory_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.observe.alerts.model.HELD_LIMIT", 3)
    lab = memory_lab
    app = await lab.app()
    subjects: dict[str, str] = {}
    async with http_receiver() as there:
        app.alerts.channel("ops", pagerduty("R0UT1NGK3Y", there.url), digest="1h")
        app.alerts.rule("rule", custom(lambda: dict(subjects)), to="ops")
        for found, wait in (("a", "1h"), ("a", "1s"), ("", "1s"), ("bcdef", "1h"), ("bcdef", "1s")):
            subjects = dict.fromkeys(found, "x")
            await app.alerts.evaluate()
            lab.clock.advance(wait)
        async with lab.working(app):
            await lab.until(lambda: len(there.accepted) == 4)
    told = []
    for request in there.accepted:
        details = request.json.get("payload", {}).get("custom_details", {})
        told.append((request.json["event_action"], details.get("subject"), details.get("left_out")))
    assert sorted(told, key=str) == [
        ("resolve", None, None),
        ("trigger", "a", None),
        ("trigger", "e", "3 more alerts"),
        ("trigger", "f", "3 more alerts"),
    ]


async def test_a_digest_waits_for_more(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app, digest="10m")
    subjects = {"a": "one"}
    app.alerts.rule("rule", custom(lambda: dict(subjects)), to="ops")
    assert await there.told(lab) == []
    lab.clock.advance("9m")
    subjects["b"] = "two"
    assert await there.told(lab) == []
    lab.clock.advance("1m")
    await app.alerts.evaluate()
    await lab.drain(app)
    (message,) = there.messages
    assert [notice.text for notice in message.notices] == ["a: one", "b: two"]
    there.messages.clear()
    assert await there.told(lab) == []


async def test_quiet_hours_hold_all_but_critical_alerts_until_they_end(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app, quiet="22:00-07:00", timezone=BERLIN)
    subjects: dict[str, dict[str, str]] = {"calm": {}, "loud": {}}
    app.alerts.rule("calm", custom(lambda: dict(subjects["calm"])), to="ops", repeat=None)
    app.alerts.rule("loud", custom(lambda: dict(subjects["loud"])), to="ops", repeat=None, severity="critical")
    lab.clock.advance("20h59m")  # 21:59 in Berlin, in winter
    subjects["calm"]["a"] = "before"
    assert await there.told(lab) == ["FIRING warning calm: a: before"]
    lab.clock.advance("1m")
    subjects["calm"]["b"], subjects["loud"]["c"] = "at night", "fire"
    assert await there.told(lab) == ["FIRING critical loud: c: fire"]
    del subjects["calm"]["a"]
    lab.clock.advance("8h59m")
    assert await there.told(lab) == []
    lab.clock.advance("1m")
    assert await there.told(lab) == ["FIRING warning calm: b: at night", "RESOLVED warning calm: a: before (after 9h)"]


@pytest.mark.parametrize(
    ("quiet", "timezone", "now", "until"),
    [
        ("22:00-07:00", "UTC", "2026-01-01T21:59:59Z", None),
        ("22:00-07:00", "UTC", "2026-01-01T22:00:00Z", "2026-01-02T07:00:00Z"),
        ("22:00-07:00", "UTC", "2026-01-02T06:59:59Z", "2026-01-02T07:00:00Z"),
        ("22:00-07:00", "UTC", "2026-01-02T07:00:00Z", None),
        ("12:00-13:30", "UTC", "2026-01-02T13:29:00Z", "2026-01-02T13:30:00Z"),
        ("12:00-13:30", "UTC", "2026-01-02T13:30:00Z", None),
        # The clocks of Berlin are put forward at 2:00 of this night.
        ("22:00-07:00", BERLIN, "2026-03-28T21:00:00Z", "2026-03-29T05:00:00Z"),
    ],
)
def test_the_end_of_quiet_hours(quiet: str, timezone: str, now: str, until: str | None) -> None:
    from redrive.observe.alerts.options import channel_of
    from redrive.office.records import instant

    channel, at = channel_of(slack("https://example.com/x"), quiet, timezone), instant(now, "now")
    assert channel.quiet_until(at) == (at if until is None else instant(until, "until"))


# -- silences --------------------------------------------------------------------------------------------------------


async def test_a_silence_tells_nothing_until_it_ends_and_is_on_the_record(lab: Lab) -> None:
    app = await lab.app()
    there = Ops(app)
    rule(app, letters(0), repeat="1h")
    for queue in ("emails", "invoices"):
        dying(app, queue)
    silence = await app.alerts.silence("rule", "2h", queue="emails", reason="known")
    for queue in ("emails", "invoices"):
        await ops.letters(lab, app, "x", queue=queue)
    assert await there.told(lab) == [FIRING.replace("emails", "invoices")]
    (view,) = await app.alerts.list()
    assert (view.state, len(view.firing), view.silenced_until) == ("firing", 2, None)
    assert await app.alerts.silences() == (silence,)
    await app.letters.discard("queue:invoices", reason="x")
    assert [line.partition(" (")[0] for line in await there.told(lab)] == [RESOLVED.replace("emails", "invoices")]
    lab.clock.advance("2h")
    assert await there.told(lab) == [FIRING]
    assert await app.alerts.silences() == ()
    # It was told before: that it is over is told in spite of a silence.
    every = await app.alerts.silence("*", "1d", reason="moving")
    (view,) = await app.alerts.list()
    assert (view.state, view.silenced_until) == ("silenced", every.until)
    lab.clock.advance("2h")
    assert await there.told(lab) == []
    await app.letters.discard("queue:emails", reason="x")
    assert [line.partition(" (")[0] for line in await there.told(lab)] == [RESOLVED]
    assert await app.alerts.unsilence(every.id[:8], reason="moved") == every
    entries = [(each.actor, each.reason) for each in await app.letters.audit() if b"silence" in each.body]
    assert entries == [("lab", "known"), ("lab", "moving"), ("lab", "moved")]


async def test_alerts_of_a_rule_that_no_process_has_any_more_are_over(lab: Lab) -> None:
    old, new = await lab.app(), await lab.app()
    Ops(old)
    there = Ops(new)
    rule(old, letters(0))
    dying(old)
    new.alerts.rule("other", custom(lambda: None), to="ops")
    await ops.letters(lab, old, "x")
    await old.alerts.evaluate()
    await lab.drain(old)
    assert await there.told(lab) == []
    assert [(view.name, view.state) for view in await new.alerts.list()] == [("other", "ok"), ("rule", "firing")]
    lab.clock.advance(GONE)
    assert [view.state for view in await new.alerts.list()] == ["unknown", "unknown"]
    assert [line.partition(" (")[0] for line in await there.told(lab)] == [RESOLVED]
    assert [(view.name, view.state) for view in await new.alerts.list()] == [("other", "ok")]


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "field", "says"),
    [
        (lambda a: a.channel("a b", slack("https://x.example")), "channel", "is not a name"),
        (lambda a: a.channel("x" * 120, slack("https://x.example")), "queue", "is not a queue name"),
        (lambda a: a.channel("ops", slack("https://y.example")), "channel", "already declared with other options"),
        (lambda a: a.channel("x", slack("ftp://x")), "url", "not an http or https URL"),
        (lambda a: a.channel("x", slack("https://u:p@x.example/")), "url", "contains a user or a password"),
        (lambda a: a.channel("x", pagerduty("a b")), "routing_key", "contain blanks"),
        (lambda a: a.channel("x", slack("https://x.example"), quiet="22-7"), "quiet", "as in 22:00-07:00"),
        (lambda a: a.channel("x", slack("https://x.example"), timezone="Mars/X"), "timezone", "not a time zone"),
        (lambda a: a.channel("x", slack("https://x.example"), digest="-1m"), "digest", "sign"),
        (lambda a: a.channel("x", command(["page"], timeout="61s")), "timeout", "must be at most 1m, got '61s'"),
        (lambda a: a.rule("r", letters(-1), to="ops"), "more_than", "from 0 to 9,999"),
        (lambda a: a.rule("r", "letters", to="ops"), "when", "is not a condition"),
        (lambda a: a.rule("r", letters(1), to=[]), "to", "it is empty"),
        (lambda a: a.rule("r", letters(1), to="ops", queues=7), "queues", "is not a list of texts"),
        (lambda a: a.rule("r", letters(1), to="ops", queues="a b"), "queues", "is not a queue name"),
        (lambda a: a.rule("r", letters(1), to="ops", severity="loud"), "severity", "use one of info, warning"),
        (lambda a: a.rule("r", letters(1), to="ops", repeat=0), "repeat", "greater than 0"),
        (lambda a: a.rule("rule", letters(9), to="ops"), "rule", "already declared with other options"),
        (lambda a: a.every(0), "interval", "greater than 0"),
    ],
)
def test_bad_input_is_told_by_name(make: Any, field: str, says: str) -> None:
    app = Redrive("memory:", log=False)
    app.alerts.channel("ops", slack("https://x.example"))
    app.alerts.rule("rule", letters(1), to="ops")
    with pytest.raises(ConfigError, match=says) as raised:
        make(app.alerts)
    assert raised.value.field == field


async def test_a_rule_to_a_channel_that_is_not_there_is_refused_when_the_app_opens() -> None:
    app = Redrive("memory:", log=False)
    app.alerts.channel("ops", slack("https://x.example"))
    app.alerts.rule("rule", letters(1), to=["ops", "opps"])
    with pytest.raises(
        ConfigError, match=r"rule 'rule' sends to 'opps', which is not a channel \(did you mean 'ops'\?\)"
    ):
        await app.open()


async def test_an_item_that_is_no_message_dies_alone(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    there = Ops(app)
    rule(app, custom(lambda: "x"))
    await app.alerts.evaluate()
    await memory_lab.store.put([NewItem("bad", QUEUE, b"no message")])
    async with memory_lab.working(app):
        await memory_lab.pass_time("1m")
    assert there.lines == ["FIRING warning rule: x"]
    assert (await memory_lab.item("bad")).letter is not None
