"""What a mailbox promises: rows M-23 to M-30 and M-45, on every store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redrive.mailboxes import (
    InvalidParameterError,
    MailboxFullError,
    Message,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
)
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Openers


def test_m23_a_second_acknowledgement_is_refused(kind: str, mailboxes: Openers) -> None:
    requests = mailboxes(kind)("requests")
    requests.send({"n": 1})
    [message] = requests.receive()
    assert message.body == {"n": 1}
    assert message.delivery_count == 1
    message.acknowledge()
    assert message.is_finalized
    with pytest.raises(ReceiptHandleExpiredError, match="acknowledged or given back before"):
        message.acknowledge()
    assert requests.approximate_count() == 0
    assert requests.receive() == []


def test_m23_of_two_threads_one_acknowledges(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests")
    for _ in range(20):
        requests.send("work")
        [message] = requests.receive()

        def acknowledged(_number: int, message: Message[Any, Any] = message) -> bool:
            try:
                message.acknowledge()
            except ReceiptHandleExpiredError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(acknowledged, range(4))) == 1


def test_m24_after_the_visibility_timeout_it_is_somebody_elses(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes(kind)("requests")
    requests.send("work")
    [lost] = requests.receive(visibility_timeout=30)
    assert requests.receive() == []
    clock.advance("31s")
    for refused in (lost.acknowledge, lost.nack, lambda: lost.extend_visibility(30), lambda: lost.reply("late")):
        with pytest.raises(ReceiptHandleExpiredError, match="visibility timeout has passed"):
            refused()
    [again] = requests.receive(visibility_timeout=30)
    assert (again.id, again.delivery_count) == (lost.id, 2)
    assert again.receipt_handle != lost.receipt_handle
    assert again.first_received_at == lost.first_received_at
    with pytest.raises(ReceiptHandleExpiredError):
        lost.acknowledge()
    again.acknowledge()


def test_m25_given_back_it_is_visible_at_once_or_later(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes(kind)("requests")
    requests.send("work")
    requests.receive()[0].nack()
    [second] = requests.receive()
    second.nack(visibility_timeout=60)
    with pytest.raises(ReceiptHandleExpiredError):
        second.nack()
    clock.advance(59_999)
    assert requests.receive() == []
    clock.advance(1)
    assert requests.receive()[0].delivery_count == 3


def test_m26_extended_at_29_of_30_it_stays_until_329(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes(kind)("requests")
    requests.send("work")
    [message] = requests.receive(visibility_timeout=30)
    clock.advance("29s")
    message.extend_visibility(300)
    clock.advance("299s")
    assert requests.receive() == []
    message.extend_visibility(0.5)  # never shorter
    clock.advance(999)
    assert requests.receive() == []
    clock.advance(1)
    assert requests.receive()[0].delivery_count == 2


def test_m27_replies_are_many_until_it_is_finalised(kind: str, mailboxes: Openers) -> None:
    opened = mailboxes(kind)
    requests, answers = opened("requests"), opened("answers")
    requests.send("why", reply_to=answers)
    [message] = requests.receive()
    assert message.reply_to is answers
    for n in range(3):
        message.reply({"n": n})
    message.acknowledge()
    with pytest.raises(MessageFinalizedError, match="too late to answer"):
        message.reply({"n": 3})
    assert [answer.body["n"] for answer in answers.receive(max_messages=10)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"visibility_timeout": -1}, "visibility_timeout"),
        ({"visibility_timeout": 43_201}, "visibility_timeout"),
        ({"visibility_timeout": float("nan")}, "visibility_timeout"),
        ({"visibility_timeout": "30"}, "visibility_timeout"),
        ({"wait_time_seconds": -1}, "wait_time_seconds"),
        ({"wait_time_seconds": float("inf")}, "wait_time_seconds"),
        ({"max_messages": 1.5}, "max_messages"),
    ],
)
def test_m28_out_of_range_is_said_so(mailboxes: Openers, asked: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        mailboxes("memory")("requests").receive(**asked)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


def test_m28_so_is_it_for_a_message_in_hand(kind: str, mailboxes: Openers) -> None:
    requests = mailboxes(kind)("requests")
    requests.send("work")
    [message] = requests.receive(visibility_timeout=43_200)
    for wrong in (message.nack, message.extend_visibility):
        for seconds in (-1, 43_201):
            with pytest.raises(InvalidParameterError, match="use 0 to 43,200 seconds"):
                wrong(seconds)
    message.acknowledge()


@pytest.mark.parametrize(("asked", "given"), [(-3, 1), (0, 1), (1, 1), (10, 10), (50, 10)])
def test_m29_how_many_is_between_1_and_10(kind: str, mailboxes: Openers, asked: int, given: int) -> None:
    requests = mailboxes(kind)("requests")
    for n in range(12):
        requests.send(n)
    assert len(requests.receive(max_messages=asked)) == given


def test_m30_capacity_counts_what_is_in_hand(kind: str, mailboxes: Openers) -> None:
    requests = mailboxes(kind)("requests", max_size=2)
    requests.send(1)
    requests.send(2)
    [first] = requests.receive()
    with pytest.raises(MailboxFullError, match="holds 2 of at most 2"):
        requests.send(3)
    assert requests.approximate_count() == 2
    first.acknowledge()
    requests.send(3)


def test_m30_opened_for_less_than_it_holds_it_is_full_until_it_is_worked_off(kind: str, mailboxes: Openers) -> None:
    opened = mailboxes(kind)
    unbounded, bounded = opened("requests"), opened("requests", max_size=1)
    for n in range(3):
        unbounded.send(n)
    with pytest.raises(MailboxFullError, match="holds more than 1"):
        bounded.send(3)
    for message in bounded.receive(10):
        message.acknowledge()
    bounded.send(3)
    with pytest.raises(MailboxFullError, match="holds 1 of at most 1"):
        bounded.send(4)


def test_m45_what_is_there_is_not_kept_waiting_for_more(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    """The clock stands still: whoever waited for a second message would wait for ever."""
    requests = mailboxes(kind)("requests")
    requests.send("only")
    [message] = requests.receive(max_messages=10, wait_time_seconds=20)
    assert message.body == "only"


def test_many_are_sent_and_acknowledged_in_one_write_each(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes(kind)("requests", max_size=4)
    keys = requests.send_many(range(3), attributes={"tenant": "a"}, priority="high")
    assert len(set(keys)) == 3
    with pytest.raises(MailboxFullError):
        requests.send_many(range(2))
    assert requests.approximate_count() == 3, "all or none"
    assert requests.send_many([]) == []
    got = requests.receive(max_messages=3)
    assert [(message.id, message.body, message.attributes["tenant"]) for message in got] == [
        (key, number, "a") for number, key in enumerate(keys)
    ]
    got[0].acknowledge()
    assert requests.acknowledge_many([*got, got[1]]) == (keys[0],)
    assert all(message.is_finalized for message in got)
    assert requests.approximate_count() == 0
    requests.send("late")
    late = requests.receive(visibility_timeout=30)
    clock.advance("31s")
    assert requests.acknowledge_many(late) == (late[0].id,)
    assert [message.id for message in requests.receive()] == [late[0].id]


class Recorded:
    """A lock that records when it is taken."""

    def __init__(self, name: str, taken: list[str]) -> None:
        self._name = name
        self._taken = taken

    def __enter__(self) -> None:
        self._taken.append(self._name)

    def __exit__(self, *_: object) -> None:
        pass


def test_threads_that_acknowledge_the_same_messages_lock_them_in_the_same_order(mailboxes: Openers) -> None:
    """Else two threads, each with the first lock of the other's second, would wait for ever."""
    requests = mailboxes("memory")("requests")
    requests.send_many(range(3))
    got = requests.receive(max_messages=3)
    taken: list[str] = []
    for message in got:
        vars(message)["ending"] = Recorded(message.receipt_handle, taken)
    first, second, third = sorted(got, key=lambda message: message.receipt_handle)
    assert requests.acknowledge_many([second, third, first]) == ()
    assert taken == [message.receipt_handle for message in (first, second, third)]
    assert requests.acknowledge_many([third, first]) == (third.id, first.id)


def test_many_of_what_cannot_be_together_are_refused(mailboxes: Openers) -> None:
    requests, dead = mailboxes("memory")("requests"), mailboxes("memory")("dead", dead_letters=True)
    with pytest.raises(InvalidParameterError, match="bodies: dead letters are sent one by one"):
        dead.send_many([1])
    dead.send(1)
    requests.send(2)
    [letter], [message] = dead.receive(), requests.receive()
    with pytest.raises(InvalidParameterError, match=r"messages: .* is not of this mailbox"):
        requests.acknowledge_many([message, letter])
    assert dead.acknowledge_many([letter]) == ()
    assert dead.approximate_count() == 0
