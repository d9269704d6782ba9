"""Mailboxes for the tests of users."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from redrive.mailboxes import (
    DLQPolicy,
    InMemoryMailbox,
    InvalidParameterError,
    Mailbox,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxResolver,
    MainLoopRequest,
    ReceiptHandleExpiredError,
    Replayer,
)
from redrive.mailboxes.testing import CollectingMailbox, FakeMailbox, NullMailbox
from redrive.testing import FakeClock
from tests.mailboxes.bench import Adapter, Ask, Loop
from tests.mailboxes.conftest import Openers


def test_the_null_mailbox_keeps_nothing() -> None:
    with NullMailbox[str, str]() as mailbox:
        assert mailbox.send("gone") != mailbox.send("gone", reply_to="nobody")
        assert (mailbox.receive(), mailbox.purge(), mailbox.approximate_count()) == ([], 0, 0)
        assert isinstance(mailbox, Mailbox)
    assert mailbox.closed
    with pytest.raises(MailboxClosedError):
        mailbox.send("too late")


def test_the_collecting_mailbox_remembers_what_was_sent() -> None:
    mailbox = CollectingMailbox[int, Any]("answers")
    first = mailbox.send(1)
    mailbox.send(2, reply_to="other")
    assert mailbox.sent == [1, 2]
    assert [(entry.id == first, entry.reply_to) for entry in mailbox.entries] == [(True, None), (False, "other")]
    assert (mailbox.receive(), mailbox.approximate_count(), mailbox.purge(), mailbox.sent) == ([], 2, 2, [])


def test_a_handle_of_the_fake_mailbox_expires_when_it_is_told_to() -> None:
    with FakeMailbox[str, Any](clock=FakeClock()) as mailbox:
        mailbox.send("work")
        [message] = mailbox.receive()
        mailbox.expire_handle(message.receipt_handle)
        for refused in (message.acknowledge, message.nack, lambda: message.extend_visibility(60)):
            with pytest.raises(ReceiptHandleExpiredError):
                refused()
        with pytest.raises(InvalidParameterError, match="is not leased"):
            mailbox.expire_handle(message.receipt_handle)
        [again] = mailbox.receive()
        assert again.delivery_count == 2
        again.acknowledge()
        for handle in (again.receipt_handle, "nonsense"):
            with pytest.raises(InvalidParameterError):
                mailbox.expire_handle(handle)


@pytest.mark.parametrize("error", ["away", OSError("away"), MailboxConnectionError("away")])
def test_the_fake_mailbox_is_away_until_it_is_not(error: Any) -> None:
    with FakeMailbox[str, Any](clock=FakeClock()) as mailbox:
        mailbox.send("work")
        [message] = mailbox.receive()
        mailbox.set_connection_error(error)
        for call in (
            lambda: mailbox.send("more"),
            mailbox.receive,
            mailbox.purge,
            mailbox.approximate_count,
            message.acknowledge,
            message.nack,
            lambda: message.extend_visibility(60),
        ):
            with pytest.raises(MailboxConnectionError, match="away"):
                call()
        mailbox.inject_message("more")
        mailbox.set_connection_error(None)
        message.acknowledge()
        assert mailbox.approximate_count() == 1


@pytest.mark.parametrize("place", ["same store", "another store"])
def test_replies_of_a_loop_wait_for_a_fake_mailbox_that_is_away(
    mailboxes: Openers, clock: FakeClock, place: str
) -> None:
    with FakeMailbox[Any, Any]("answers", clock=clock) as fake, ExitStack() as stack:
        resolver = MailboxResolver({"answers": fake})
        if place == "same store":
            requests: Any = stack.enter_context(InMemoryMailbox("requests", clock=clock, resolver=resolver))
        else:
            requests = mailboxes("sqlite")("requests", resolver=resolver)
        loop = Loop(adapter=Adapter(), requests=requests)
        fake.set_connection_error("away")
        requests.send(MainLoopRequest(Ask("why")), reply_to="answers")
        loop.run(max_iterations=2, wait_time_seconds=0)
        assert requests.approximate_count() == 0, "the message ends all the same"
        fake.set_connection_error(None)
        assert fake.approximate_count() == 0, "it was away"
        clock.advance("2m")
        loop.run(max_iterations=1, wait_time_seconds=0)
        assert [message.body["output"] for message in fake.receive(max_messages=10)] == [{"text": "why!"}]


def test_dead_letters_wait_for_a_fake_mailbox_that_is_away(mailboxes: Openers, clock: FakeClock) -> None:
    with FakeMailbox[Any, Any]("dead", clock=clock) as fake:
        requests = mailboxes("sqlite")("requests")
        loop = Loop(adapter=Adapter(ValueError("no")), requests=requests, dlq=DLQPolicy(fake, max_delivery_count=1))
        fake.set_connection_error("away")
        requests.send(MainLoopRequest(Ask("why")))
        loop.run(max_iterations=2, wait_time_seconds=0)
        assert mailboxes("sqlite")("dead").approximate_count() == 1, "a letter of the store where it died"
        with pytest.raises(MailboxConnectionError, match="away"):
            Replayer(fake).matching()
        fake.set_connection_error(None)
        assert fake.approximate_count() == 0
        clock.advance("1m")
        loop.run(max_iterations=1, wait_time_seconds=0)
        assert fake.approximate_count() == 1
        fake.set_connection_error("away")
        with pytest.raises(MailboxConnectionError, match="away"):
            Replayer(fake).matching()


def test_an_injected_message_was_delivered_before() -> None:
    with FakeMailbox[str, Any](clock=FakeClock()) as mailbox:
        answers = CollectingMailbox[str, Any]()
        mailbox.inject_message("poison", delivery_count=5, reply_to=answers, attributes={"a": "b"}, message_id="p-1")
        [message] = mailbox.receive()
        assert (message.id, message.delivery_count, message.attributes) == ("p-1", 5, {"a": "b"})
        assert message.reply_to is answers
        message.nack()
        assert mailbox.receive()[0].delivery_count == 6
        with pytest.raises(InvalidParameterError):
            mailbox.inject_message("poison", delivery_count=0)
