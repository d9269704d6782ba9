"""Receiving: waiting and being woken, order, delays, messages too old, and many threads at once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redrive.blocking.loops.stop import Stop
from redrive.core.states import State
from redrive.errors import CalledFromLoop
from redrive.mailboxes import (
    InMemoryMailbox,
    InvalidParameterError,
    MailboxClosedError,
    MailboxFullError,
    ReceiptHandleExpiredError,
    Replayer,
    StoreMailbox,
)
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Openers, item_of


def waiting(mailbox: StoreMailbox[Any, Any], **how: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that waits in `receive`, and what it got."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(mailbox.receive(wait_time_seconds=20, **how)))
    thread.start()
    return thread, got


def in_the_loop(mailbox: StoreMailbox[Any, Any], condition: Callable[[], bool]) -> None:
    """Until the loop has come to it: nobody says when a thread of ours has begun to wait."""

    async def look() -> None:
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.001)  # noqa: TID251 - a real thread comes to its wait when it does

    mailbox.shared.call(look)


def asleep(mailbox: StoreMailbox[Any, Any], clock: FakeClock) -> None:
    in_the_loop(mailbox, lambda: clock.sleepers > 0)


def test_whoever_waits_is_woken_by_a_message(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    """Time stands still: it is the message that wakes, not the end of the wait."""
    requests = mailboxes(kind)("requests")
    assert requests.receive() == []
    thread, got = waiting(requests)
    asleep(requests, clock)
    requests.send("come")
    thread.join(20)
    [[message]] = got
    assert message.body == "come"


@pytest.mark.parametrize("how", ["close", "stop"])
def test_whoever_waits_is_woken_by_the_end(mailboxes: Openers, clock: FakeClock, how: str) -> None:
    requests = mailboxes("memory")("requests")
    stop = Stop()
    thread, got = waiting(requests, stop=stop)
    asleep(requests, clock)
    requests.close() if how == "close" else stop.set()
    thread.join(20)
    assert got == [[]]
    assert requests.receive(wait_time_seconds=20, stop=stop) == []


def test_a_wait_ends_when_its_time_is_over(mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes("memory")("requests")
    thread, got = waiting(requests)
    for _ in range(20):
        asleep(requests, clock)
        assert got == []
        clock.advance("1s")
    thread.join(20)
    assert got == [[]]


def test_time_that_passes_by_itself_passes_while_one_waits() -> None:
    clock = FakeClock(autoadvance=True)
    with InMemoryMailbox[str, str]("requests", clock=clock) as requests:
        start = clock.now()
        assert requests.receive(wait_time_seconds=20) == []
        assert clock.now() - start == 20_000
        requests.send("work", delay=5)
        [message] = requests.receive(wait_time_seconds=20)
        assert clock.now() - start == 25_000
        message.acknowledge()


def test_what_a_lost_receiver_had_comes_to_whoever_waits(mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes("memory")("requests")
    requests.send("work")
    requests.receive(visibility_timeout=3)
    thread, got = waiting(requests)
    while not got:
        # With a message in hand it sleeps no more, and may take its time to say so.
        in_the_loop(requests, lambda: bool(got) or clock.sleepers > 0)
        clock.advance("1s")
        thread.join(0.05)
    [[message]] = got
    assert message.delivery_count == 2


def test_seen_with_no_visibility_timeout_it_is_visible_at_once(kind: str, mailboxes: Openers) -> None:
    requests = mailboxes(kind)("requests")
    requests.send("work")
    [seen] = requests.receive(visibility_timeout=0)
    assert seen.body == "work"
    with pytest.raises(ReceiptHandleExpiredError):
        seen.acknowledge()
    [again] = requests.receive()
    assert again.delivery_count == 2
    again.acknowledge()


def test_the_urgent_come_first_and_the_delayed_when_they_are_due(mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes("memory")("requests")
    requests.send("normal")
    requests.send("later", delay=60)
    requests.send("high", priority="high")
    assert [message.body for message in requests.receive(10)] == ["high", "normal"]
    clock.advance("60s")
    [late] = [message for message in requests.receive(10) if message.delivery_count == 1]
    assert late.body == "later"


def test_sent_again_under_its_id_it_is_one_message(kind: str, mailboxes: Openers) -> None:
    opened = mailboxes(kind)
    requests = opened("requests")
    assert requests.send({"n": 1}, message_id="order-1") == "order-1"
    assert requests.send({"n": 1}, message_id="order-1") == "order-1"
    [message] = requests.receive(10)
    message.acknowledge()
    assert requests.send({"n": 1}, message_id="order-1") == "order-1"
    assert requests.receive() == []
    with pytest.raises(InvalidParameterError, match="is a message of 'requests'"):
        opened("others").send({"n": 1}, message_id="order-1")


def test_a_message_says_all_that_was_said_with_it(mailboxes: Openers, clock: FakeClock) -> None:
    requests = mailboxes("memory")("requests")
    key = requests.send("work", attributes={"tenant": "a", "naïve": "ü"})
    clock.advance("5s")
    [message] = requests.receive()
    assert (message.id, message.attributes) == (key, {"tenant": "a", "naïve": "ü"})
    assert (message.first_received_at - message.enqueued_at).total_seconds() == 5
    assert message.enqueued_at.timestamp() * 1000 == clock.now() - 5_000
    assert message.age.total_seconds() == 5
    with pytest.raises(TypeError):
        message.attributes["tenant"] = "b"  # type: ignore[index]


@pytest.mark.parametrize("on_expire", ["letter", "cancel"])
def test_too_old_it_is_not_given_and_not_lost(kind: str, mailboxes: Openers, clock: FakeClock, on_expire: str) -> None:
    requests = mailboxes(kind)("requests", default_ttl=60, on_expire=on_expire)
    in_time = requests.send("in time", priority="high")
    old = requests.send("old")
    longer = requests.send("longer", ttl=600)
    shorter = requests.send("shorter", ttl=10)
    clock.advance("59s")
    [message] = requests.receive()
    assert message.id == in_time
    clock.advance("1s")
    assert [message.id for message in requests.receive(10)] == [longer]
    message.nack()
    assert [message.id for message in requests.receive(10)] == [in_time]  # received before, it is not too old any more
    ends = {key: item_of(requests, key) for key in (old, shorter)}
    if on_expire == "cancel":
        assert {item.state for item in ends.values()} == {State.CANCELLED}
    else:
        assert {item.letter and (item.letter.reason, item.letter.route) for item in ends.values()} == {("expired", "")}
    assert requests.approximate_count() == 2


def test_a_time_of_nothing_is_no_limit(mailboxes: Openers, clock: FakeClock) -> None:
    requests, others = mailboxes("memory")("requests", default_ttl=60), mailboxes("memory")("others", default_ttl=0)
    requests.send("for ever", ttl=0)
    others.send("for ever")
    clock.advance("1000d")
    assert [each.body for mailbox in (requests, others) for each in mailbox.receive()] == ["for ever", "for ever"]


def test_purged_it_is_empty(kind: str, mailboxes: Openers) -> None:
    requests = mailboxes(kind)("requests")
    for n in range(3):
        requests.send(n)
    requests.send("later", delay=60)
    [held] = requests.receive()
    assert requests.purge() == 3
    assert requests.approximate_count() == 1
    held.nack()  # what was purged while somebody had it does not come back
    assert (requests.approximate_count(), requests.receive()) == (0, [])


def test_closed_it_takes_nothing_and_gives_nothing(mailboxes: Openers) -> None:
    opened = mailboxes("memory")
    requests, other = opened("requests"), opened("other")
    requests.send("work")
    requests.send("more")
    message, another = requests.receive(10)
    requests.close()
    requests.close()
    assert requests.closed
    assert requests.receive() == []
    for refused in (lambda: requests.send(1), requests.purge, requests.approximate_count):
        with pytest.raises(MailboxClosedError, match="is closed"):
            refused()
    message.acknowledge()  # the store is open while another mailbox is
    other.close()
    with pytest.raises(MailboxClosedError):
        another.nack()


@pytest.mark.slow
def test_many_threads_share_a_mailbox(kind: str, mailboxes: Openers) -> None:
    """Every message is had by exactly one of them, and acknowledged once."""
    requests = mailboxes(kind)("requests", keep=None)
    workers, each = 8, 15

    def work(number: int) -> list[Any]:
        had = []
        for n in range(each):
            requests.send([number, n])
            for message in requests.receive(max_messages=3):
                message.acknowledge()
                had.append(tuple(message.body))
        return had

    with ThreadPoolExecutor(workers) as pool:
        had = Counter(body for bodies in pool.map(work, range(workers)) for body in bodies)
    while messages := requests.receive(10):
        for message in messages:
            message.acknowledge()
            had[tuple(message.body)] += 1
    assert had == Counter((number, n) for number in range(workers) for n in range(each))
    assert requests.approximate_count() == 0


def test_a_full_mailbox_takes_none_of_the_threads_too_many(mailboxes: Openers) -> None:
    requests = mailboxes("sqlite")("requests", max_size=5)

    def send(n: int) -> bool:
        try:
            requests.send(n)
        except MailboxFullError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(send, range(16))) == 5
    assert requests.approximate_count() == 5


async def test_in_an_event_loop_it_says_what_to_do_instead(mailboxes: Openers) -> None:
    requests = InMemoryMailbox[int, int]("requests")
    with pytest.raises(CalledFromLoop, match=r"^send would block .*asyncio\.to_thread\(….send, …\)"):
        requests.send(1)
    await asyncio.to_thread(requests.send, 1)
    with pytest.raises(CalledFromLoop, match=r"^receive would block"):
        requests.receive()
    [message] = await asyncio.to_thread(requests.receive)
    with pytest.raises(CalledFromLoop, match=r"^acknowledge would block"):
        message.acknowledge()
    with pytest.raises(CalledFromLoop, match=r"^matching would block"):
        Replayer[Any](requests).matching()  # type: ignore[arg-type]
    await asyncio.to_thread(message.acknowledge)
    with pytest.raises(CalledFromLoop, match=r"^close would block"):
        requests.close()
    assert not requests.closed, "not halfway"
    await asyncio.to_thread(requests.close)
