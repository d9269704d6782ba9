"""Messages that nobody should send, errors that nobody should raise, resolvers that fail: each is one message's own
trouble. The loop goes on, and nothing is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from redrive.core.item import NewItem
from redrive.errors import MailboxError, MailboxResolutionError
from redrive.mailboxes import (
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    MailboxResolver,
    MainLoopRequest,
    SerializationError,
    StoreMailbox,
)
from redrive.testing import FakeClock
from tests.mailboxes.bench import Adapter, Ask, Bench, Loop, Told
from tests.mailboxes.conftest import Openers, item_of


def envelope(**fields: object) -> bytes:
    return json.dumps({"redrive.mailbox": 1, "body": {"request": {"text": "why"}}, **fields}).encode()


READABLE = {
    "a name that cannot be": envelope(reply_to="bad name/\n"),
    "a very long name": envelope(reply_to="x" * 5000),
    "a store that nobody knows": envelope(reply_to="replies", reply_at="nowhere"),
    "an object of another process": envelope(reply_to="replies", reply_at="here-4711"),
    "fields of a letter": envelope(born={"x": 1}),
    "more fields than we know": envelope(later="x"),
}
UNREADABLE = {
    "nothing": b"",
    "no text": b"\xff\x00\xfe",
    "null": b"null",
    "deep": b'{"redrive.mailbox":1,"body":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "half of it": envelope()[:-9],
    "half a character": b'{"redrive.mailbox":1,"body":{"request":{"text":"\\ud800"}}}',
    "another type": envelope(type="shop.Order"),
    "attributes that are none": envelope(attributes={"a": 1}),
    "a lineage that is none": envelope(lineage={"original": 1}),
    "a time that is none": envelope(ttl="soon"),
    "a later form": envelope(**{"redrive.mailbox": 2}),
}


def put(mailbox: StoreMailbox[Any, Any], payloads: dict[str, bytes]) -> list[str]:
    place = mailbox.shared
    items = [NewItem(f"m{number}", mailbox.name, payload) for number, payload in enumerate(payloads.values())]
    place.call(place.store.put, items)
    return [item.id for item in items]


def letters_in(mailbox: StoreMailbox[Any, Any]) -> dict[str, DeadLetter[Any]]:
    found: dict[str, DeadLetter[Any]] = {}
    while got := mailbox.receive(max_messages=10):
        found |= {message.id: message.body for message in got}
    return found


def test_what_nobody_should_send_holds_nothing_up(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock, max_delivery_count=1)
    bench.adapter.error = None
    keys = put(bench.requests, READABLE | UNREADABLE)
    bench.send("last")
    bench.run(rounds=len(keys) + 1)
    assert [answer.output for answer in bench.answers()] == [Told("last!")]
    assert bench.requests.approximate_count() == 0
    fine, odd = keys[: len(READABLE)], keys[len(READABLE) :]
    assert {key: item_of(bench.requests, key).state for key in fine} == dict.fromkeys(fine, "done")
    letters = letters_in(bench.letters)
    assert list(letters) == odd
    assert {letter.last_error_type for letter in letters.values()} == {"redrive.errors.SerializationError"}
    assert [item_of(bench.requests, key).payload for key in odd] == list(UNREADABLE.values())


@pytest.mark.parametrize("name", READABLE)
def test_it_can_be_given_up_all_the_same(mailboxes: Openers, clock: FakeClock, name: str) -> None:
    bench = Bench(mailboxes("memory"), clock, max_delivery_count=1)
    put(bench.requests, {name: READABLE[name]})
    bench.run()
    assert bench.counts == (0, 1)
    [letter] = letters_in(bench.letters).values()
    assert letter.last_error_type == "builtins.ValueError"


@pytest.mark.parametrize("name", READABLE | UNREADABLE)
def test_whoever_receives_it_by_hand_can_end_it(mailboxes: Openers, name: str) -> None:
    requests = mailboxes("memory")("requests", body_type=MainLoopRequest[Ask])
    payload = (READABLE | UNREADABLE)[name]
    put(requests, {name: payload})
    [message] = requests.receive()
    assert message.raw == payload
    if name in READABLE:
        assert message.body.request == Ask("why")
    else:
        with pytest.raises(SerializationError):
            assert message.body
    assert message.reply_to is None or message.reply_to_name
    if message.reply_to is None:
        with pytest.raises(MailboxError):
            message.reply("why")
    message.acknowledge()
    assert requests.approximate_count() == 0


def test_a_reply_to_a_name_that_cannot_be_is_refused_by_name(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests")
    put(requests, {"": READABLE["a name that cannot be"]})
    [message] = requests.receive()
    assert message.reply_to_name == "bad name/\n"
    with pytest.raises(MailboxResolutionError) as caught:
        message.reply("why")
    assert caught.value.identifier == "bad name/\n"


def test_a_consumer_sees_all_of_them(mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes("memory"), clock, max_delivery_count=1)
    keys = put(bench.requests, READABLE | UNREADABLE)
    bench.run(rounds=len(keys))
    seen: list[str] = []
    consumer = DLQConsumer(mailbox=bench.letters, handler=lambda letter: seen.append(letter.message_id))
    consumer.run(max_iterations=len(keys), wait_time_seconds=0)
    assert sorted(seen) == sorted(keys)
    assert bench.counts == (0, 0)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Hinting(Exception):
    def __init__(self, retry_after: object) -> None:
        super().__init__("later")
        self.retry_after = retry_after


def circular() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


ERRORS: dict[str, Callable[[], Exception]] = {
    "no words": Unspeakable,
    "half a character": lambda: ValueError("x\udc80y"),
    "a zero": lambda: ValueError("x\x00y"),
    "megabytes": lambda: ValueError("x" * 2_000_000),
    "circular": circular,
    "a group": lambda: ExceptionGroup("many", [ValueError("a"), TypeError("b")]),
    "stop iteration": StopIteration,
    "no memory": MemoryError,
    "hint is no number": lambda: Hinting(float("nan")),
    "hint is text": lambda: Hinting("soon"),
    "hint is endless": lambda: Hinting(float("inf")),
    "hint is past": lambda: Hinting(-1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_nobody_should_raise_is_an_error_like_others(mailboxes: Openers, clock: FakeClock, name: str) -> None:
    bench = Bench(mailboxes("memory"), clock, max_delivery_count=2)
    bench.adapter.error = ERRORS[name]()
    bench.send()
    bench.run()
    assert bench.counts == (1, 0)
    clock.advance("12h")
    bench.run()
    assert bench.counts == (0, 1)
    [answer] = bench.answers()
    assert str(answer.error).startswith("Dead-lettered after 2 attempts")


@pytest.mark.parametrize(
    "output", [object(), "\udc80", "x" * 20_000_000], ids=["object", "half a character", "megabytes"]
)
def test_an_output_that_cannot_be_sent_is_a_failure(mailboxes: Openers, clock: FakeClock, output: Any) -> None:
    class Odd(Adapter):
        def evaluate(self, prompt: Ask) -> Told:
            return Told(output)

    bench = Bench(mailboxes("memory"), clock)
    loop = Loop(adapter=Odd(), requests=bench.requests, dlq=DLQPolicy(bench.letters, max_delivery_count=1))
    bench.send()
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert bench.counts == (0, 1)
    [answer] = bench.answers()
    assert str(answer.error).startswith("Dead-lettered after 1 attempts: ")


class Raising(MailboxResolver):
    def resolve_optional(self, name: str) -> Any:
        raise KeyError(name)


def unreachable(name: str) -> Any:
    raise OSError(f"no way to {name}")


RESOLVERS: dict[str, Callable[[], MailboxResolver]] = {
    "raises": lambda: Raising({}),
    "factory raises": lambda: MailboxResolver({}, factory=unreachable),
    "no mailbox": lambda: MailboxResolver({"replies": object()}),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["done", "dead"])
@pytest.mark.parametrize("name", RESOLVERS)
def test_a_resolver_that_fails_holds_nothing_up(
    mailboxes: Openers, clock: FakeClock, name: str, error: Exception | None
) -> None:
    requests = mailboxes("memory")("requests", resolver=RESOLVERS[name]())
    letters = mailboxes("memory")("letters")
    loop = Loop(adapter=Adapter(error), requests=requests, dlq=DLQPolicy(letters, max_delivery_count=1))
    requests.send(MainLoopRequest(Ask("why")), reply_to="replies")
    loop.run(max_iterations=2, wait_time_seconds=0)
    assert (requests.approximate_count(), letters.approximate_count()) == (0, 0 if error is None else 1)
    # The answer waits until somebody can say where it belongs.
    assert requests.call(requests.shared.count, "redrive.outbox.mailbox.requests") == 1
