"""A dead-letter mailbox: letters of its route where they lie, and dead letters that are sent to it as such."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from redrive.errors import InvalidParameterError, MailboxFullError, ReceiptHandleExpiredError
from redrive.mailboxes import DeadLetter, StoreMailbox, open_mailbox
from redrive.mailboxes.boxes.dead_letter import PastAttempt
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.testing import FakeClock, MemoryStore
from tests.mailboxes.conftest import Openers
from tests.mailboxes.ends import dead_letter, finish, retry


@dataclass(frozen=True)
class Order:
    number: int
    request_id: UUID | None = None


def only(mailbox: StoreMailbox[Any, Any]) -> StoreMessage[Any, Any]:
    (message,) = mailbox.receive()
    assert isinstance(message, StoreMessage)
    return message


def die(requests: StoreMailbox[Any, Any], dead_letters: str, error: Exception | None = None) -> str:
    """The first message that waits becomes a letter."""
    message = only(requests)
    assert dead_letter(message, route=dead_letters, reason="test", error=error or ValueError("no")) == "dead"
    return message.id


def letter(**changes: Any) -> DeadLetter[Order]:
    at = datetime(2025, 12, 24, 18, 0, 0, 123456, tzinfo=UTC)
    attempt = PastAttempt(1, "worker", at, 1.5, "failed", "builtins.ValueError", "no")
    given: DeadLetter[Order] = DeadLetter(
        message_id="m-1",
        body=Order(7),
        source_mailbox="requests",
        delivery_count=5,
        last_error="no",
        last_error_type="builtins.ValueError",
        dead_lettered_at=at + timedelta(hours=1),
        first_received_at=at + timedelta(minutes=1),
        request_id=uuid4(),
        reply_to="answers",
        trace_id="trace",
        first_enqueued_at=at,
        attempts=(attempt,),
    )
    return replace(given, **changes)


def test_letters_are_messages_of_the_mailbox_of_their_route(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    requests, dead = mailboxes(kind)("requests", body_type=Order), mailboxes(kind)("dead", body_type=DeadLetter[Order])
    sent_at = datetime.fromtimestamp(clock.now() / 1000, UTC)
    sent = requests.send(Order(1), reply_to="answers")
    clock.advance("5s")
    message = only(requests)
    assert retry(message, 60, ValueError("not yet"))
    clock.advance("60s")
    assert die(requests, "dead") == sent
    assert (requests.approximate_count(), dead.approximate_count()) == (0, 1)
    clock.advance("1s")
    (found,) = dead.receive(max_messages=10, visibility_timeout=30)
    told = found.body
    assert isinstance(told, DeadLetter)
    assert (told.message_id, told.body, told.source_mailbox, told.delivery_count) == (sent, Order(1), "requests", 2)
    assert (told.last_error, told.last_error_type) == ("no", "builtins.ValueError")
    assert (told.reply_to, told.request_id, told.trace_id) == ("answers", None, None)
    assert (told.first_enqueued_at, told.first_received_at) == (sent_at, sent_at + timedelta(seconds=5))
    assert told.dead_lettered_at == sent_at + timedelta(seconds=65)
    assert [attempt.error for attempt in told.attempts] == ["not yet", "no"]
    assert (found.delivery_count, found.enqueued_at, found.reply_to) == (1, told.dead_lettered_at, None)
    assert dead.receive() == [], "nobody else has it meanwhile"
    found.acknowledge()
    assert dead.approximate_count() == 0
    with pytest.raises(ReceiptHandleExpiredError):
        found.acknowledge()


def test_a_letter_that_is_given_back_comes_again_and_counts(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    requests, dead = mailboxes(kind)("requests"), mailboxes(kind)("dead", dead_letters=True)
    requests.send({"number": 1})
    die(requests, "dead")
    (first,) = dead.receive(visibility_timeout=30)
    first.nack(3600)
    assert dead.receive() == []
    clock.advance("3599s")
    assert dead.receive() == []
    clock.advance("1s")
    (second,) = dead.receive(visibility_timeout=30)
    clock.advance("29s")
    second.extend_visibility(300)
    clock.advance("299s")
    assert dead.receive() == []
    clock.advance("1s")
    (third,) = dead.receive(visibility_timeout=0)
    assert [each.delivery_count for each in (first, second, third)] == [1, 2, 3]
    assert third.body.attempts == first.body.attempts, "what consumers do is not what it died of"
    assert third.first_received_at == first.first_received_at == first.body.dead_lettered_at
    fourth = only(dead)
    with pytest.raises(ReceiptHandleExpiredError):
        second.acknowledge()
    assert len({each.receipt_handle for each in (first, second, third, fourth)}) == 4
    assert finish(fourth)
    assert dead.approximate_count() == 0


@pytest.mark.parametrize("ahead", ["-1h", "1h"])
def test_leases_of_letters_go_by_the_clock_of_the_store(ahead: str) -> None:
    """The clock of a receiver may be wrong."""
    server, client = FakeClock(), FakeClock()
    client.advance("2h")
    server.advance("1h" if ahead == "1h" else "3h")
    with StoreMailbox[Any, Any]("dead", MemoryStore(server), clock=client, dead_letters=True) as dead:
        dead.send({"number": 1})
        only(dead).nack(60)
        assert dead.receive() == []
        server.advance("60s")
        client.advance("60s")
        assert only(dead).delivery_count == 2


def test_the_body_of_a_letter_is_its_bytes_where_nothing_else_can_be_had(mailboxes: Openers) -> None:
    plain, dead = mailboxes("memory")("requests"), mailboxes("memory")("dead", body_type=DeadLetter[Order])
    plain.send("not an order")
    die(plain, "dead")
    (found,) = dead.receive()
    assert found.body.body == b'"not an order"'


def test_what_is_sent_to_a_dead_letter_mailbox_is_born_dead(kind: str, mailboxes: Openers) -> None:
    dead = mailboxes(kind)("dead", body_type=DeadLetter[Order])
    given = letter()
    sent = dead.send(given, attributes={"who": "ann"})
    assert dead.send(given, message_id=sent) == sent, "sent again it adds nothing"
    assert dead.approximate_count() == 1
    (found,) = dead.receive()
    assert (found.id, found.body, found.delivery_count, dict(found.attributes)) == (sent, given, 1, {"who": "ann"})
    found.nack()
    (again,) = dead.receive()
    assert (again.delivery_count, again.body) == (2, given)


def test_it_knows_where_it_came_from_and_its_times(mailboxes: Openers, clock: FakeClock) -> None:
    dead = mailboxes("memory")("dead", dead_letters=True)
    later = datetime.fromtimestamp(clock.now() / 1000 + 3600, UTC)
    given = letter(dead_lettered_at=later, attempts=(), request_id=None, body={"a": [1]})
    dead.send(given)
    found = only(dead)
    assert found.body == given, "as it was given, also if that has not come yet"
    item = found.item
    assert item.letter is not None
    assert (item.queue, item.letter.reason, item.letter.died_at, item.attempt) == ("requests", "sent", clock.now(), 5)


def test_anything_sent_where_dead_letters_are_kept_reads_back_as_one(mailboxes: Openers) -> None:
    dead = mailboxes("memory")("dead")
    dead.mark_dead_letters()
    sent = dead.send({"strange": True}, reply_to="answers")
    (found,) = dead.receive()
    told = found.body
    assert (told.message_id, told.body, told.source_mailbox, told.delivery_count) == (
        sent,
        {"strange": True},
        "dead",
        0,
    )
    assert (told.last_error, told.last_error_type) == ("sent to dead directly", "redrive.SentDirectly")
    assert told.reply_to == "answers"


def test_an_answer_to_the_letter_itself_goes_to_whoever_sent_it(mailboxes: Openers) -> None:
    dead, answers = mailboxes("memory")("dead", dead_letters=True), mailboxes("memory")("told")
    dead.send(letter(), reply_to=answers)
    (found,) = dead.receive()
    found.reply({"seen": True})
    assert [message.body for message in answers.receive()] == [{"seen": True}]
    assert found.body.reply_to == "answers"


def test_a_full_dead_letter_mailbox_refuses_what_is_sent_to_it(kind: str, mailboxes: Openers) -> None:
    dead = mailboxes(kind)("dead", dead_letters=True, max_size=1)
    dead.send(letter())
    (held,) = dead.receive()
    with pytest.raises(MailboxFullError, match="holds 1 of at most 1"):
        dead.send(letter())
    held.acknowledge()
    dead.send(letter())


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"delivery_count": -1}, "delivery_count"), ({"source_mailbox": "two words"}, "source_mailbox")],
)
def test_a_dead_letter_that_makes_no_sense_is_refused(changes: dict[str, Any], field: str) -> None:
    with open_mailbox("dead", "memory:", dead_letters=True) as dead, pytest.raises(InvalidParameterError, match=field):
        dead.send(letter(**changes))
