"""What becomes of requests: rows M-07 to M-14, M-34, M-35 and M-38, on every store where the store matters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from redrive.errors import MailboxError
from redrive.events import Event, Finished, Leased
from redrive.mailboxes import (
    DeadLetter,
    DLQPolicy,
    InvalidParameterError,
    Mailbox,
    MailboxResolver,
    MainLoopConfig,
    MainLoopRequest,
    RateLimitError,
    RunContext,
    StoreMailbox,
    ValidationError,
)
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.testing import FakeClock
from tests.mailboxes.bench import Adapter, Ask, Bench, Loop, Told, letters_of, lose, replay
from tests.mailboxes.conftest import Openers
from tests.mailboxes.ends import release


def test_a_request_is_answered_and_gone(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock)
    bench.adapter.error = None
    sent = bench.send("why", run_context=RunContext(trace_id="t-1"))
    bench.run()
    [answer] = bench.answers()
    assert (answer.request_id, answer.output, answer.error, answer.success) == (
        sent.request_id,
        Told("why!"),
        None,
        True,
    )
    assert answer.run_context is not None
    assert (answer.run_context.trace_id, answer.run_context.attempt) == ("t-1", 1)
    assert answer.session_id == answer.run_context.session_id
    assert answer.completed_at == datetime.fromtimestamp(clock.now() / 1000, UTC)
    assert bench.adapter.asked == [Ask("why")], "typed by the loop's own generics"
    assert bench.counts == (0, 0)


@pytest.mark.parametrize(("count", "delay"), [(1, 60), (2, 120), (14, 840), (15, 900), (20, 900)])
def test_m07_below_the_threshold_it_comes_back_later_and_nobody_is_told(
    kind: str, mailboxes: Openers, clock: FakeClock, count: int, delay: int
) -> None:
    bench = Bench(mailboxes(kind), clock, max_delivery_count=21)
    bench.send()
    for _ in range(count - 1):
        bench.requests.receive()[0].nack()
    bench.run()
    assert bench.counts == (1, 0)
    assert bench.replies.approximate_count() == 0
    clock.advance(delay * 1000 - 1)
    assert bench.requests.receive() == []
    clock.advance(1)
    assert bench.requests.receive()[0].delivery_count == count + 1


def test_m08_the_fifth_failure_is_the_last(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock)
    sent = bench.send()
    began, tried = clock.now(), []
    for wait in (0, 60, 120, 180, 240):
        clock.advance(max(0, wait * 1000 - 1))
        bench.run()
        clock.advance(min(wait, 1))
        assert bench.counts == (1, 0)
        bench.run()
        tried.append((clock.now() - began) // 1000)
    assert tried == [0, 60, 180, 360, 600]
    assert len(bench.adapter.asked) == 5
    assert bench.counts == (0, 1)
    [answer] = bench.answers()
    assert answer.error == "Dead-lettered after 5 attempts: no such city"
    assert (answer.request_id, answer.success) == (sent.request_id, False)
    assert bench.metrics.counts["sent"] == {("requests", "builtins.ValueError"): 1}
    clock.advance("1h")
    bench.run()
    assert (len(bench.adapter.asked), bench.counts, bench.answers()) == (5, (0, 1), [])


def test_m09_a_dead_letter_says_all(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock, max_delivery_count=2)
    start = datetime.fromtimestamp(clock.now() / 1000, UTC)
    sent = bench.send(run_context=RunContext(trace_id="t-1"))
    clock.advance("10s")
    bench.adapter.error = ValidationError("first")
    bench.run()
    clock.advance("60s")
    bench.adapter.error = ValidationError("second")
    bench.adapter.error.__cause__ = KeyError("deep down")
    bench.run()
    [message] = bench.letters.receive()
    letter = message.body
    assert isinstance(letter, DeadLetter)
    assert (letter.message_id, letter.body) == (message.id, sent)
    assert (letter.source_mailbox, letter.delivery_count) == ("requests", 2)
    assert (letter.last_error, letter.last_error_type) == ("second", "redrive.mailboxes.errors.ValidationError")
    assert letter.dead_lettered_at == start + timedelta(seconds=70)
    assert letter.first_received_at == start + timedelta(seconds=10)
    assert letter.first_enqueued_at == start
    times = (letter.dead_lettered_at, letter.first_received_at, letter.first_enqueued_at)
    assert [at.tzinfo for at in times] == [UTC, UTC, UTC]
    assert (letter.request_id, letter.reply_to, letter.trace_id) == (sent.request_id, "replies", "t-1")
    assert [(one.number, one.error, one.ending) for one in letter.attempts] == [
        (1, "first", "failed"),
        (2, "second", "dead"),
    ]


def test_m11_without_a_reply_address(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock, max_delivery_count=1)
    bench.requests.send(MainLoopRequest(Ask("why")), attributes={"trace_id": "t-9"})
    bench.run()
    assert bench.counts == (0, 1)
    assert bench.replies.approximate_count() == 0
    letter = bench.letters.receive()[0].body
    assert (letter.reply_to, letter.trace_id) == (None, "t-9")


class Broken(Mailbox[Any, Any]):
    """Takes nothing."""

    name = "broken"
    closed = False

    def send(self, body: Any, reply_to: object = None) -> str:
        raise MailboxError("the wire is cut")

    def receive(self, max_messages: int = 1, visibility_timeout: float = 30, wait_time_seconds: float = 0) -> list[Any]:
        return []

    def purge(self) -> int:
        return 0

    def approximate_count(self) -> int:
        return 0

    def close(self) -> None: ...


def test_m12_a_broken_reply_mailbox_holds_nothing_up(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock, max_delivery_count=1)
    broken = Broken()
    bench.requests.resolver = MailboxResolver({"broken": broken, "replies": bench.replies})
    bench.requests.send(MainLoopRequest(Ask("why")), reply_to=broken)
    bench.run()
    assert bench.counts == (0, 1)
    bench.adapter.error = None
    bench.requests.send(MainLoopRequest(Ask("when")), reply_to=broken)
    bench.send("where")
    bench.run(2)
    assert bench.counts == (0, 1)
    assert [answer.output for answer in bench.answers()] == [Told("where!")]
    assert bench.letters.receive()[0].body.reply_to == "broken"


def test_m13_without_a_policy_the_first_failure_is_the_last(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock)
    bench.loop = bench.another()
    bench.send()
    bench.run()
    [answer] = bench.answers()
    assert answer.error == "no such city"
    assert bench.counts == (0, 0)
    clock.advance("1h")
    bench.run()
    assert len(bench.adapter.asked) == 1
    [letter] = letters_of(bench)
    assert (letter.reason, letter.route, letter.failure.text) == ("no_retry", "", "no such city"), "nothing is lost"


def test_m14_an_included_error_is_a_letter_at_once(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock, include_errors=frozenset({ValueError}))
    bench.send()
    bench.run()
    assert bench.counts == (0, 1)
    [message] = bench.letters.receive()
    assert message.body.delivery_count == 1
    assert [answer.error for answer in bench.answers()] == ["Dead-lettered after 1 attempts: no such city"]
    assert [letter.reason for letter in letters_of(bench)] == ["rule"]


def test_m34_what_loses_its_worker_each_time_is_not_tried_again(
    kind: str, mailboxes: Openers, clock: FakeClock
) -> None:
    bench = Bench(mailboxes(kind), clock, max_delivery_count=3)
    bench.adapter.error = None
    bench.send("deadly")
    for _ in range(3):
        lose(bench.requests, clock)
    bench.send("harmless")
    bench.run(2)
    assert bench.adapter.asked == [Ask("harmless")], "the other one did not run"
    [message] = bench.letters.receive()
    letter = message.body
    assert (letter.last_error_type, letter.delivery_count) == ("redrive.LeaseExpired", 3)
    assert letter.last_error.startswith("lease expired on each of 3 deliveries")
    errors = [answer.error for answer in bench.answers() if answer.error is not None]
    assert [error.partition(": lease")[0] for error in errors] == ["Dead-lettered after 3 attempts"]


def test_m34_whoever_may_be_deadly_is_in_hand_alone(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock)
    place = bench.requests.shared
    in_hand: dict[str, int] = {}

    class Watching(Adapter):
        def evaluate(self, prompt: Ask) -> Told:
            (row,) = (row for row in place.call(place.store.tally).queues if row.queue == "requests")
            in_hand[prompt.text] = row.leased
            return super().evaluate(prompt)

    bench.adapter = Watching()
    bench.loop = bench.another(dlq=DLQPolicy(bench.letters), config=MainLoopConfig(max_messages=10))
    for text in ("deadly", "innocent", "bystander"):
        bench.send(text)
    assert len(bench.requests.receive(10, visibility_timeout=1)) == 3
    clock.advance("1s")
    bench.send("fresh")
    bench.run(3)
    assert (in_hand.pop("fresh"), set(in_hand.values())) == (4, {1}), "others were given back before"
    assert sorted(ask.text for ask in bench.adapter.asked) == ["bystander", "deadly", "fresh", "innocent"]


def test_errors_and_lost_workers_count_together(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    """Four errors and one lost delivery are five: the sixth is not run. What was released does not count."""
    bench = Bench(mailboxes(kind), clock, max_delivery_count=5)
    bench.send()
    for number in range(4):
        bench.run()
        clock.advance("15m")
        if number == 0:
            [message] = bench.requests.receive()
            assert isinstance(message, StoreMessage)
            release(message)
    lose(bench.requests, clock)
    bench.run()
    assert len(bench.adapter.asked) == 4
    [letter] = letters_of(bench)
    assert letter.reason == "max_crashes"
    assert letter.failure.text.startswith("lease expired on 1 of 5 deliveries, the others failed")
    [answer] = bench.answers()
    assert answer.error is not None
    assert answer.error.startswith("Dead-lettered after 5 attempts")


def test_m34_excluded_errors_are_not_taken_for_lost_deliveries(mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes("memory"), clock, max_delivery_count=2, exclude_errors=frozenset({ValueError}))
    bench.send()
    for _ in range(5):
        bench.run()
        clock.advance("15m")
    lose(bench.requests, clock)
    bench.adapter.error = None
    bench.run()
    assert [answer.output for answer in bench.answers()] == [Told("why!")]


def test_m35_what_cannot_be_decoded_is_a_letter_with_its_bytes(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock)
    bench.adapter.error = None
    key = "6f1e6a5e-0000-4000-8000-000000000000"
    bench.requests.bind(MainLoopRequest[Ask])
    other: StoreMailbox[Any, Any] = mailboxes(kind)("requests")
    other.send({"request": 7, "request_id": key}, reply_to=bench.replies)
    bench.send("next")
    bench.loop = bench.another(dlq=DLQPolicy(bench.letters), config=MainLoopConfig(max_messages=10))
    bench.run()
    assert bench.adapter.asked == [Ask("next")], "the loop goes on, with the rest of the batch"
    assert bench.counts == (0, 1)
    wrong = {answer.request_id: answer for answer in bench.answers()}[UUID(key)]
    assert wrong.error is not None
    assert wrong.error.startswith("Dead-lettered after 1 attempts: ")
    [message] = bench.letters.receive()
    assert message.body.last_error_type == "redrive.errors.SerializationError"
    assert message.body.body == b'{"request":7,"request_id":"%s"}' % key.encode(), "the body, byte for byte"
    assert (message.body.message_id, message.body.delivery_count) == (message.id, 1)
    assert [letter.reason for letter in letters_of(bench)] == ["payload"]


def test_m38_a_full_dead_letter_mailbox_keeps_it_in_the_source(
    kind: str, mailboxes: Openers, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(mailboxes(kind), clock, max_delivery_count=1)
    full = mailboxes(kind)("small-dlq", max_size=1)
    bench.loop = bench.another(dlq=DLQPolicy(full, max_delivery_count=1))
    bench.send("one")
    bench.send("two")
    bench.run(2)
    assert (bench.requests.approximate_count(), full.approximate_count()) == (1, 1)
    assert len(bench.answers()) == 1, "nobody is told that the second is over"
    [alarm] = [record for record in caplog.records if record.levelname == "CRITICAL"]
    assert (alarm.redrive["mailbox"], alarm.redrive["retry_in_seconds"]) == ("small-dlq", 60)  # type: ignore[attr-defined]
    assert bench.metrics.total("refused") == 1
    full.receive()[0].acknowledge()
    clock.advance(59_999)
    bench.run()
    assert (bench.requests.approximate_count(), full.approximate_count()) == (1, 0), "the backoff is the store's"
    clock.advance(1)
    bench.run()
    assert (bench.requests.approximate_count(), full.approximate_count()) == (0, 1)
    assert [answer.error for answer in bench.answers()] == ["Dead-lettered after 2 attempts: no such city"]


def test_m42_an_excluded_error_is_a_letter_once_it_is_too_old(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock, exclude_errors=frozenset({ValueError}), max_age="1h", max_delivery_count=1)
    bench.send()
    bench.run()
    clock.advance("59m")
    bench.run()
    assert bench.counts == (1, 0)
    clock.advance("15m")
    bench.run()
    assert bench.counts == (0, 1)
    assert [letter.reason for letter in letters_of(bench)] == ["max_age"]
    [message] = bench.letters.receive(visibility_timeout=0)
    replay(bench, message.id)
    bench.run()
    assert bench.counts == (1, 0), "a replay begins anew"


def test_a_provider_that_says_how_long_is_believed(mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes("memory"), clock)
    bench.adapter.error = RateLimitError(retry_after=7)
    bench.send()
    bench.run()
    clock.advance("6999ms")
    bench.run()
    assert len(bench.adapter.asked) == 1
    clock.advance(1)
    bench.run()
    assert len(bench.adapter.asked) == 2


def test_what_is_sent_to_its_dead_letter_mailbox_is_a_letter(mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes("memory"), clock)
    notes = mailboxes("memory")("notes", body_type=dict)
    bench.another(dlq=DLQPolicy(bench.letters, routes={ValueError: notes}))
    notes.send({"lost": "and found"})
    assert [letter.route for letter in letters_of(bench)] == ["notes"]


def test_errors_go_to_the_mailboxes_of_their_kind(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock)
    notes = mailboxes(kind)("notes")
    bench.loop = bench.another(dlq=DLQPolicy(bench.letters, 1, routes={ValidationError: notes}))
    for error in (ValidationError("bad"), ValueError("worse")):
        bench.adapter.error = error
        bench.send(str(error))
        bench.run()
    assert [message.body.body.request for message in notes.receive(10)] == [Ask("bad")]
    assert [message.body.body.request for message in bench.letters.receive(10)] == [Ask("worse")]


def test_its_own_mailbox_is_no_dead_letter_mailbox(mailboxes: Openers) -> None:
    opened = mailboxes("memory")
    requests, same = opened("requests"), opened("requests")
    with pytest.raises(InvalidParameterError, match="would come back as requests"):
        Loop(adapter=Adapter(), requests=requests, dlq=DLQPolicy(same))


def test_a_dead_letter_that_fails_again_stays_and_backs_off(
    kind: str, mailboxes: Openers, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop whose requests are dead letters: nothing moves, so nothing is counted as moved, and it does not spin."""
    bench = Bench(mailboxes(kind), clock, max_delivery_count=1)
    bench.send()
    bench.run()
    assert bench.counts == (0, 1)
    again = Loop(adapter=bench.adapter, requests=bench.letters, metrics=bench.metrics, dlq=None)
    asked = len(bench.adapter.asked)
    again.run(max_iterations=3, wait_time_seconds=0)
    assert len(bench.adapter.asked) == asked + 1
    assert bench.counts == (0, 1)
    clock.advance("60s")
    again.run(max_iterations=3, wait_time_seconds=0)
    assert len(bench.adapter.asked) == asked + 2
    told = [record.redrive for record in caplog.records if hasattr(record, "redrive")]
    assert [each["event"] for each in told].count("Dead letter failed again") == 2
    assert [each["event"] for each in told].count("Message dead-lettered") == 1
    assert sum(bench.metrics.counts["sent"].values()) == 1


def test_subscribers_hear_how_messages_end(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    """By the events of the engine: its logs, metrics and alerts know nothing of mailboxes."""
    bench = Bench(mailboxes(kind), clock, max_delivery_count=2)
    heard: list[Event] = []
    bench.requests.events.subscribe(heard.append)
    bench.send()
    bench.run()
    clock.advance("60s")
    bench.run()
    bench.adapter.error = None
    bench.send()
    bench.run()
    ends = [event for event in heard if isinstance(event, Finished) and event.queue == "requests"]
    assert [(event.ending, event.state, event.reason, event.route) for event in ends] == [
        ("failed", "ready", "", ""),
        ("dead", "dead", "max_attempts", "requests-dlq"),
        ("done", "done", "", ""),
    ]
    assert ends[0].retry_in_ms == 60_000
    assert ends[1].error == "ValueError"
    assert sum(len(event.ids) for event in heard if isinstance(event, Leased)) == 3
