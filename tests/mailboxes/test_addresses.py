"""Where answers go: names, mailboxes on this store and on others, objects of users' own, and what nobody can find."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from redrive.mailboxes import (
    InMemoryMailbox,
    InvalidParameterError,
    MailboxResolutionError,
    MailboxResolver,
    ReplyNotAvailableError,
    StoreMailbox,
    open_mailbox,
)
from redrive.mailboxes.testing import CollectingMailbox
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Openers


def test_a_name_is_resolved_on_the_store_of_the_message(kind: str, mailboxes: Openers) -> None:
    opened = mailboxes(kind)
    requests = opened("requests")
    requests.send("why", reply_to="answers")
    [message] = requests.receive()
    assert message.reply_to is not None
    assert (message.reply_to.name, message.reply_to_name) == ("answers", "answers")
    message.reply("because")
    message.acknowledge()
    assert [answer.body for answer in opened("answers").receive()] == ["because"]


def test_without_an_address_nobody_waits(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests")
    requests.send("why")
    [message] = requests.receive()
    assert (message.reply_to, message.reply_to_name) == (None, None)
    with pytest.raises(ReplyNotAvailableError, match="names no mailbox for answers"):
        message.reply("because")


def test_with_a_resolver_only_it_knows(mailboxes: Openers) -> None:
    opened = mailboxes("memory")
    answers = opened("answers")
    resolver = MailboxResolver({"there": answers})
    requests = opened("requests", resolver=resolver)
    requests.send(1, reply_to="there")
    requests.send(2, reply_to="nowhere")
    known, unknown = requests.receive(10)
    assert known.reply_to is answers
    assert (unknown.reply_to, unknown.reply_to_name) == (None, "nowhere")
    with pytest.raises(MailboxResolutionError, match="'nowhere'") as caught:
        unknown.reply("lost")
    assert caught.value.identifier == "nowhere"
    unknown.acknowledge()


def test_the_registry_is_asked_before_the_factory_and_the_factory_once() -> None:
    made: list[str] = []
    one: CollectingMailbox[Any, Any] = CollectingMailbox("one")

    def factory(name: str) -> CollectingMailbox[Any, Any] | None:
        made.append(name)
        if name == "broken":
            raise OSError("no route")
        return None if name == "unknown" else CollectingMailbox(name)

    resolver = MailboxResolver({"one": one}, factory)
    assert resolver.resolve("one") is one
    assert resolver.resolve("two") is resolver.resolve("two")
    assert made == ["two"]
    assert resolver.resolve_optional("unknown") is None
    with pytest.raises(MailboxResolutionError, match="the factory raised OSError: no route"):
        resolver.resolve("broken")
    with pytest.raises(MailboxResolutionError, match="the registry has: one"):
        MailboxResolver({"one": one}).resolve("two")
    resolver.register(one, "unknown")
    assert resolver.resolve("unknown") is one


def test_answers_go_to_another_store_that_is_open_here(mailboxes: Openers) -> None:
    requests, answers = mailboxes("memory")("requests"), mailboxes("sqlite")("answers")
    requests.send("why", reply_to=answers)
    requests.send("again", reply_to=answers)
    first, second = requests.receive(10)
    first.reply("because")
    assert [answer.body for answer in answers.receive()] == ["because"]
    answers.close()
    assert (second.reply_to, second.reply_to_name) == (None, "answers")
    with pytest.raises(MailboxResolutionError):
        second.reply("too late")


def test_a_mailbox_of_ones_own_gets_its_answers_while_it_is_there(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests")
    answers: CollectingMailbox[str, Any] = CollectingMailbox("answers")
    requests.send("why", reply_to=answers)
    requests.send("again", reply_to=answers)
    first, second = requests.receive(10)
    first.reply("because")
    assert answers.sent == ["because"]
    del answers
    gc.collect()
    assert second.reply_to is None


def test_one_name_on_two_stores_is_two_mailboxes(mailboxes: Openers) -> None:
    here, there = mailboxes("memory")("box"), mailboxes("sqlite")("box")
    here.send("why", reply_to=there)
    here.receive()[0].reply("because")
    assert (here.approximate_count(), there.approximate_count()) == (1, 1)


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"reply_to": 3}, "reply_to"),
        ({"reply_to": "two words"}, "reply_to"),
        ({"attributes": {"n": 1}}, "attributes"),
        ({"attributes": "text"}, "attributes"),
        ({"attributes": {"half": "\ud800"}}, "attributes"),
        ({"priority": "urgent"}, "priority"),
        ({"delay": -1}, "delay"),
        ({"ttl": "1h"}, "ttl"),
        ({"message_id": ""}, "message_id"),
    ],
)
def test_what_cannot_be_sent_is_said_by_its_name(mailboxes: Openers, how: dict[str, Any], field: str) -> None:
    requests = mailboxes("memory")("requests")
    with pytest.raises(InvalidParameterError) as caught:
        requests.send("work", **how)
    assert caught.value.field == field
    assert requests.approximate_count() == 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "two words"}, "name"),
        ({"max_size": 0}, "max_size"),
        ({"default_ttl": -1}, "default_ttl"),
        ({"on_expire": "burn"}, "on_expire"),
    ],
)
def test_what_cannot_be_opened_is_said_by_its_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        StoreMailbox(**{"name": "requests", "store": "memory:", **options})
    assert caught.value.field == field


def test_mailboxes_in_memory_share_a_store_while_one_is_there() -> None:
    clock = FakeClock()
    first = InMemoryMailbox[int, int]("requests", clock=clock)
    second = InMemoryMailbox[int, int]("requests", clock=clock)
    first.send(1)
    first.close()
    assert second.approximate_count() == 1
    del second  # not closed, and forgotten: the next one begins anew
    gc.collect()
    with InMemoryMailbox[int, int]("requests", clock=clock) as third:
        assert third.approximate_count() == 0
    with open_mailbox("requests", "memory:", clock=FakeClock()) as other, open_mailbox("requests", "memory:") as real:
        other.send(1)
        assert real.approximate_count() == 0
