"""Automatic replay: by rules, after a while, and not for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redrive.errors import BadDuration, BadFilter, InvalidParameterError, MailboxClosedError
from redrive.mailboxes import AutoReplay, DeadLetter, ReplayRule, StoreMailbox
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.faults import FaultyStore
from tests.mailboxes.conftest import Openers
from tests.mailboxes.ends import dead_letter
from tests.mailboxes.test_replay import Boxes, Order, audit_of, boxes_of
from tests.mailboxes.threads import until


class RateLimitError(Exception):
    pass


class TokensUsedUp(RateLimitError):
    pass


@pytest.fixture
def boxes(mailboxes: Openers, clock: FakeClock) -> Boxes:
    return boxes_of(mailboxes("memory"), clock)


def die_again(boxes: Boxes, error: Exception) -> None:
    message = boxes.one()
    assert isinstance(message, StoreMessage)
    assert dead_letter(message, route="dead", reason="test", error=error) == "dead"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_limitation_no_automatic_replay(store: str, mailboxes: Openers, clock: FakeClock) -> None:
    boxes = boxes_of(mailboxes(store), clock)
    timeout = boxes.die(Order(1), TimeoutError("slow"))
    boxes.die(Order(2), KeyError("missing"))
    auto = AutoReplay(boxes.dead, [ReplayRule(errors=[TimeoutError], after="10m", max_replays=2)])
    auto.run(max_iterations=1)
    assert boxes.requests.approximate_count() == 0, "not yet"
    for _ in range(2):
        clock.advance("10m")
        auto.run(max_iterations=1)
        die_again(boxes, TimeoutError("slow"))
    clock.advance("10m")
    auto.run(max_iterations=1)
    assert (boxes.requests.approximate_count(), boxes.dead.approximate_count()) == (0, 2), "it was enough"
    replays = [told for told in audit_of(boxes.dead) if told[0] == "replay"]
    assert replays == [("replay", "auto-replay", "rule 1 of automatic replay", (timeout,))] * 2


def test_the_first_rule_that_fits_decides(boxes: Boxes, clock: FakeClock) -> None:
    rules = [
        ReplayRule(errors=[RateLimitError], after="1h", priority="high", name="limits"),
        ReplayRule(where="error:KeyError", max_replays=1, after=0),
        ReplayRule(where=lambda letter: letter.body.number > 2, after="1m"),
    ]
    auto = AutoReplay(boxes.dead, rules)
    ids = [
        boxes.die(Order(number), error)
        for number, error in enumerate([TokensUsedUp("all"), KeyError("a"), ValueError("small"), ValueError("large")])
    ]
    assert auto.look().replayed == (ids[1],)
    die_again(boxes, KeyError("a"))
    clock.advance("1m")
    assert auto.look().replayed == (ids[3],)
    clock.advance("1h")
    (new,) = auto.look().replayed
    assert {message.id for message in boxes.requests.receive(max_messages=10)} == {new, ids[3]}
    assert {message.id for message in boxes.dead.receive(max_messages=10)} == {ids[1], ids[2]}


def test_what_is_decided_is_not_read_again_for_an_hour(boxes: Boxes, clock: FakeClock) -> None:
    asked = []

    def odd(letter: DeadLetter[Order]) -> bool:
        asked.append(letter.body.number)
        return letter.body.number == 2

    def broken(letter: DeadLetter[Order]) -> Any:
        raise LookupError(letter.message_id)

    auto = AutoReplay(boxes.dead, [ReplayRule(odd, after=0, transform=broken)])
    ids = [boxes.die(Order(number)) for number in range(3)]
    assert [each.id for each in auto.look().kept] == [ids[2]]
    assert auto.look().kept == ()
    assert asked == [0, 1, 2]
    clock.advance("1h")
    assert len(auto.look().kept) == 1
    assert asked == [0, 1, 2] * 2


def test_names_of_errors_will_do(boxes: Boxes) -> None:
    ids = [boxes.die(Order(1), KeyError("a")), boxes.die(Order(2), TokensUsedUp("b"))]
    named = f"{TokensUsedUp.__module__}.TokensUsedUp"
    auto = AutoReplay(boxes.dead, [ReplayRule(errors=["KeyError", named], after=0)])
    assert auto.look().replayed == tuple(ids)


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({"after": "soon"}, BadDuration, "after"),
        ({"where": "nonsense:1"}, BadFilter, "nonsense"),
        ({"max_replays": 0}, InvalidParameterError, "max_replays"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(given: dict[str, Any], error: type[Exception], field: str) -> None:
    with pytest.raises(error, match=field):
        ReplayRule(**given)


def test_without_rules_there_is_nothing_to_do(boxes: Boxes) -> None:
    with pytest.raises(InvalidParameterError, match="rules"):
        AutoReplay(boxes.dead, [])


def test_it_runs_in_a_thread_until_it_is_told_to_stop(clock: FakeClock) -> None:
    faulty = FaultyStore(MemoryStore(clock))
    with StoreMailbox[Any, Any]("dead", faulty, clock=clock) as dead, ThreadPoolExecutor(1) as threads:
        auto = AutoReplay(dead, [ReplayRule(after=0)], interval=60)
        faulty.fail("ids", times=2)
        running = threads.submit(auto.run)
        for pause in (1, 2, 60):
            until(lambda: clock.sleepers == 1)
            assert auto.running
            clock.advance(pause * 1000 - 1)
            assert clock.sleepers == 1, "a store that is away is asked again soon, and one that is there not so often"
            clock.advance(1)
        until(lambda: len(faulty.calls_of("ids")) == 4)
        assert auto.heartbeat.elapsed() == 0
        assert auto.shutdown(timeout=30)
        running.result(timeout=30)
        assert not auto.running


def test_it_ends_when_the_mailbox_is_closed(boxes: Boxes) -> None:
    auto = AutoReplay(boxes.dead, [ReplayRule(after=0)])
    boxes.dead.close()
    auto.run()
    with pytest.raises(MailboxClosedError):
        auto.look()
