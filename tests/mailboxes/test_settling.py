"""The ends that loops use: each is one write, counts only for who still has the message, and may be said again."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.core.item import Ending, History
from redrive.engine import store_retry
from redrive.mailboxes import InvalidParameterError, MailboxConnectionError, SerializationError, StoreMailbox
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.mailboxes.testing import FakeMailbox
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.faults import Fault, FaultyStore
from tests.mailboxes.conftest import Openers
from tests.mailboxes.ends import dead_letter, finish, release, retry

Box = StoreMailbox[Any, Any]


def taken(mailbox: Box, **how: Any) -> StoreMessage[Any, Any]:
    [message] = mailbox.receive(**how)
    assert isinstance(message, StoreMessage)
    return message


def history(mailbox: Box, key: str) -> History:
    place = mailbox.shared
    return place.call(place.store.get, key)


def test_finished_it_is_answered_in_the_same_write(kind: str, mailboxes: Openers) -> None:
    opened = mailboxes(kind)
    requests, answers = opened("requests"), opened("answers")
    requests.send("why", reply_to=answers)
    message = taken(requests)
    assert finish(message, {"n": 1})
    assert message.is_finalized
    assert [answer.body for answer in answers.receive(10)] == [{"n": 1}]
    assert not finish(message, "twice")
    assert answers.approximate_count() == 1


def test_what_was_lost_does_not_count_and_sends_nothing(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    opened = mailboxes(kind)
    requests, answers = opened("requests"), opened("answers")
    requests.send("why", reply_to=answers)
    lost = taken(requests, visibility_timeout=30)
    clock.advance("31s")
    again = taken(requests)
    assert not finish(lost, 1)
    assert not retry(lost, 60, ValueError("late"))
    assert not release(lost)
    assert dead_letter(lost, route="requests-dlq", reason="rule", error=ValueError("late"), reply=1) == "lost"
    assert answers.approximate_count() == 0
    assert finish(again, 1)


def test_late_but_not_taken_over_it_still_counts(mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes("memory")("requests")
    requests.send("why")
    late = taken(requests, visibility_timeout=30)
    clock.advance("31s")
    assert finish(late)


def test_tried_again_it_keeps_the_evidence(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes(kind)("requests")
    key = requests.send("work")
    clock.advance("1s")
    assert retry(taken(requests), 60, ValueError("broken"))
    clock.advance("60s")
    assert release(taken(requests))
    message = taken(requests)
    assert message.delivery_count == 2  # the release did not count
    first, second = history(requests, key).attempts
    assert first.failure is not None
    assert (first.ending, first.failure.type, first.failure.text) == (Ending.FAILED, "ValueError", "broken")
    assert second.ending is Ending.RELEASED


def test_buried_it_is_a_letter_and_answered_in_the_same_write(kind: str, mailboxes: Openers) -> None:
    opened = mailboxes(kind)
    requests, answers, dead = opened("requests"), opened("answers"), opened("requests-dlq")
    key = requests.send("work", reply_to=answers)
    message = taken(requests)
    reply = "sorry"
    assert dead_letter(message, route="requests-dlq", reason="max_attempts", error=KeyError("x"), reply=reply) == "dead"
    assert (requests.approximate_count(), dead.approximate_count(), answers.approximate_count()) == (0, 1, 1)
    letter = history(requests, key).item.letter
    assert letter is not None
    assert (letter.route, letter.reason, letter.failure.type) == ("requests-dlq", "max_attempts", "KeyError")


def test_where_there_is_no_room_it_stays_and_nothing_is_sent(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    opened = mailboxes(kind)
    requests, answers, dead = opened("requests"), opened("answers"), opened("dead", max_size=1)
    dead.receive()
    for n in range(2):
        requests.send(n, reply_to=answers)

    def died() -> str:
        message = taken(requests)
        reply = "sorry"
        return dead_letter(message, route="dead", reason="rule", error=ValueError("no"), reply=reply, retry_delay=30)

    assert [died(), died()] == ["dead", "full"]
    assert (requests.approximate_count(), dead.approximate_count(), answers.approximate_count()) == (1, 1, 1)
    clock.advance("29s")
    assert requests.receive() == []
    clock.advance("1s")
    assert taken(requests).delivery_count == 2


def test_buried_without_having_run_it_shows_what_ran(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests")
    key = requests.send("work")
    taken(requests).nack()
    assert dead_letter(taken(requests), route="", reason="max_crashes", error=ValueError("x"), counted=False) == "dead"
    assert history(requests, key).item.attempt == 1


@pytest.mark.parametrize("fault", [Fault.UNKNOWN, Fault.UNKNOWN_UNDONE])
def test_an_end_that_nobody_can_tell_of_happens_once(
    fault: Fault, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_retry, "UNKNOWN_PAUSES", (0, 0, 0))
    faulty = FaultyStore(MemoryStore(clock=clock))
    with StoreMailbox[Any, Any]("requests", faulty, clock=clock) as requests:
        answers: Box = StoreMailbox("answers", faulty, clock=clock)
        with answers:
            requests.send("work", reply_to=answers)
            message = taken(requests)
            faulty.next("settle", fault)
            assert dead_letter(message, route="dead", reason="rule", error=ValueError(), reply=1) == "dead"
            assert answers.approximate_count() == 1


def test_away_it_says_so_and_may_be_said_again() -> None:
    with FakeMailbox[Any, Any](clock=FakeClock()) as requests:
        requests.send("work")
        message = taken(requests)
        requests.set_connection_error("away")
        for end in (
            lambda: finish(message),
            lambda: retry(message, 1, ValueError()),
            lambda: release(message),
            lambda: dead_letter(message, route="", reason="rule", error=ValueError()),
        ):
            with pytest.raises(MailboxConnectionError):
                end()
        assert not message.is_finalized
        requests.set_connection_error(None)
        assert finish(message)


def test_what_cannot_be_answered_ends_nothing(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests")
    requests.send("work", reply_to="answers")
    message = taken(requests)
    with pytest.raises(SerializationError):
        finish(message, object())
    with pytest.raises(InvalidParameterError):
        retry(message, -1, ValueError())
    assert not message.is_finalized
    message.acknowledge()
