"""A process that dies between a claim and its replay: the next who comes may have the claim, and is told when."""

from __future__ import annotations

import logging
from typing import Any, NoReturn
from uuid import uuid4

import pytest

from redrive.core.acts import Act, Discard
from redrive.core.select import Ids
from redrive.mailboxes import Replayer, StoreMailbox
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.mailboxes.letters.resending import LetterToReplay
from redrive.office.replay import claims
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.faults import SimulatedCrash
from tests.mailboxes.conftest import Openers
from tests.mailboxes.ends import dead_letter
from tests.mailboxes.test_claims import neighbours, shelves
from tests.mailboxes.test_replay import Boxes, Order, boxes_of

WAYS = ("_amend", "_settle_here", "_begin")
"""What comes after the claim, for each way that a letter may go."""


async def killed(*_: object) -> NoReturn:
    raise SimulatedCrash


def how(way: str, mailboxes: Openers, kind: str) -> dict[str, Any]:
    other = "memory" if kind == "sqlite" else "sqlite"
    ways = {"_amend": {}, "_settle_here": {"priority": "high"}}
    return ways[way] if way in ways else {"to": mailboxes(other)("requests", body_type=Order)}


def orphaned(boxes: Boxes, monkeypatch: pytest.MonkeyPatch, way: str, **ask: Any) -> tuple[str, str]:
    """Two letters of one request; whoever replayed the first died as soon as he had its claim."""
    request = uuid4()
    first, second = boxes.die(Order(1, request)), boxes.die(Order(2, request))
    with monkeypatch.context() as patched:
        patched.setattr(f"redrive.office.replay.resend.LetterReplay.{way}", killed)
        with pytest.raises(SimulatedCrash):
            Replayer(boxes.dead).one(first, **ask)
    return first, second


@pytest.fixture
def boxes(kind: str, mailboxes: Openers, clock: FakeClock) -> Boxes:
    return boxes_of(mailboxes(kind), clock)


@pytest.mark.parametrize("way", WAYS)
def test_the_claim_of_a_dead_process_is_taken_over_after_an_hour(
    boxes: Boxes, kind: str, mailboxes: Openers, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    ask = how(way, mailboxes, kind)
    first, second = orphaned(boxes, monkeypatch, way, **ask)
    boxes.clock.advance("20m")
    (told,) = Replayer(boxes.dead).one(second, **ask).duplicates
    assert told.reason == (
        f"{first}, of the same request, has a replay to requests that was begun and has not ended: "
        "replay that one; or this one in 40m, or with dedupe=False"
    )
    boxes.clock.advance("40m")
    third = boxes.die(Order(3, boxes_request(boxes, second)))
    done = Replayer(boxes.dead).matching(lambda letter: letter.body.number > 1, **ask)
    assert (len(done.replayed), [each.id for each in done.duplicates]) == (1, [third])
    assert done.duplicates[0].reason.startswith(f"{second}, of the same request, was replayed to requests")
    for late in (first, third):
        (told,) = Replayer(boxes.dead).one(late, **ask).duplicates
        assert told.reason.startswith(f"{second}, of the same request, was replayed to requests")
    assert boxes.dead.approximate_count() == 2


def boxes_request(boxes: Boxes, died: str) -> Any:
    place = boxes.dead.shared
    return LetterToReplay(place.call(place.store.get, died), boxes.dead).subject.request_id


@pytest.mark.parametrize("way", WAYS)
def test_the_letter_of_a_dead_process_goes_at_once(
    boxes: Boxes, kind: str, mailboxes: Openers, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It has the claim already."""
    ask = how(way, mailboxes, kind)
    first, second = orphaned(boxes, monkeypatch, way, **ask)
    done = Replayer(boxes.dead).matching(**ask)
    assert (len(done.replayed), [each.id for each in done.duplicates]) == (1, [second])
    assert done.duplicates[0].reason.startswith(f"{first}, of the same request, was replayed to requests")


def test_days_later_it_is_taken_over_by_the_first_who_asks(boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for a claim makes it hold for longer, but not for its owner."""
    _, second = orphaned(boxes, monkeypatch, "_amend")
    boxes.clock.advance("5d")
    assert Replayer(boxes.dead).one(second).replayed == (second,)


@pytest.mark.parametrize("state", ["held", "replayed", "died again", "on its way"])
def test_a_claim_that_came_to_something_is_not_taken_over(
    mailboxes: Openers, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    boxes = boxes_of(mailboxes("memory"), clock)
    ask = how("_begin", mailboxes, "memory") if state == "on its way" else {}
    first, second = orphaned(boxes, monkeypatch, "_settle" if state == "on its way" else "_amend", **ask)
    if state == "held":
        clock.advance("61m")
        (message,) = boxes.dead.receive()
        assert message.id == first
    elif state != "on its way":
        assert Replayer(boxes.dead).one(first).replayed == (first,)
    if state == "died again":
        bury_again(boxes)
    clock.advance("10s" if state == "held" else "61m")
    (told,) = Replayer(boxes.dead).one(second, **ask).duplicates
    assert told.reason.startswith(f"{first}, of the same request, was replayed to requests")


def bury_again(boxes: Boxes) -> None:
    (message,) = boxes.requests.receive()
    assert isinstance(message, StoreMessage)
    assert dead_letter(message, route="dead", reason="test", error=ValueError("again")) == "dead"


def test_one_in_the_trash_keeps_nobody(mailboxes: Openers, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = boxes_of(mailboxes("memory"), clock)
    first, second = orphaned(boxes, monkeypatch, "_amend")
    place = boxes.dead.shared
    place.call(place.store.amend, Ids((first,)), Discard(), Act("ann", "not needed", "r-1"))
    clock.advance("61m")
    assert Replayer(boxes.dead).one(second).replayed == (second,)


async def test_of_two_who_take_it_over_one_has_it(clock: FakeClock) -> None:
    """Whoever saw it as it is not any more is told who has it."""
    store = MemoryStore(clock)
    await store.open()
    name = claims.name_of("any")
    await claims.claim(store, {name: "dead"}, 0, "call 1")
    seen = await claims.found(store, name)
    assert seen is not None
    for owner in ("ann", "bob"):
        assert await claims.take_over(store, name, seen, claims.Claim(owner, 1, owner, 1)) == "ann"
    await store.close()


def test_a_duplicate_is_logged_with_its_letter_and_where_it_was_to_go(
    mailboxes: Openers, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    boxes, request = boxes_of(mailboxes("memory"), clock), uuid4()
    _, second = boxes.die(Order(1, request)), boxes.die(Order(2, request))
    with caplog.at_level(logging.INFO, "redrive.mailboxes"):
        Replayer(boxes.dead).matching()
    (told,) = [each.__dict__["redrive"] for each in caplog.records if "duplicate" in each.getMessage()]
    assert told == {
        "event": "Skipping duplicate replay",
        "message_id": second,
        "request_id": str(request),
        "to": "requests",
    }


def test_claims_on_a_shelf_that_nobody_comes_to_are_swept(
    kind: str, mailboxes: Openers, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever replays; those that hold stay."""
    dead: StoreMailbox[Any, Any] = mailboxes(kind)("dead", dead_letters=True)
    place = dead.shared
    old, young = neighbours(2)

    async def put(name: str) -> None:
        await claims.claim(place.store, {name: "ann"}, clock.now(), "a call")

    place.call(put, old)
    clock.advance("30d")
    place.call(put, young)
    monkeypatch.setattr("random.randrange", lambda most: int(old[: claims.DIGITS], 16) % most)
    again = Replayer(dead)
    again.matching()
    assert place.call(shelves, place.store) == [2]
    clock.advance("61d")
    again.matching()
    assert place.call(shelves, place.store) == [1]
    assert place.call(claims.claimed, place.store, young) == "ann"
    clock.advance("29d")
    again.matching()
    assert place.call(shelves, place.store) == [0]
