"""Replay: M-18, M-19, M-20, M-43, and what the text lists as limitations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from uuid import UUID, uuid4

import pytest

from redrive.core import codec
from redrive.core.states import State
from redrive.errors import InvalidParameterError
from redrive.mailboxes import (
    DeadLetter,
    MailboxResolver,
    Message,
    Replayer,
    ReplayRule,
    StoreMailbox,
    replay,
    replay_handler,
    replay_with_dedup,
    selective_replay,
)
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.mailboxes.letters.resending import LetterToReplay, MailboxReplay
from redrive.mailboxes.metrics import MailboxMetrics
from redrive.mailboxes.testing import CollectingMailbox
from redrive.office.replay import claims
from redrive.office.replay.resend import Plan
from redrive.stores.audit import AuditRecord
from redrive.testing import FakeClock
from redrive.testing.faults import SimulatedCrash
from tests.mailboxes.conftest import Opener, Openers
from tests.mailboxes.ends import dead_letter
from tests.mailboxes.foreign import Around


@dataclass(frozen=True)
class Order:
    number: int
    request_id: UUID = field(default_factory=uuid4)


@dataclass
class Boxes:
    requests: StoreMailbox[Any, Any]
    dead: StoreMailbox[Any, Any]
    answers: StoreMailbox[Any, Any]
    clock: FakeClock

    def die(self, body: object, error: Exception | None = None, **how: Any) -> str:
        sent = self.requests.send(body, **how)
        (message,) = self.requests.receive()
        assert isinstance(message, StoreMessage)
        assert dead_letter(message, route="dead", reason="test", error=error or ValueError("no")) == "dead"
        self.clock.advance(1)
        return sent

    def one(self) -> Message[Any, Any]:
        (message,) = self.requests.receive(max_messages=10)
        return message


def boxes_of(opener: Opener, clock: FakeClock) -> Boxes:
    dead = opener("dead", body_type=DeadLetter[Order])
    return Boxes(opener("requests", body_type=Order), dead, opener("answers"), clock)


@pytest.fixture
def boxes(kind: str, mailboxes: Openers, clock: FakeClock) -> Boxes:
    return boxes_of(mailboxes(kind), clock)


@pytest.fixture
def in_memory(mailboxes: Openers, clock: FakeClock) -> Boxes:
    return boxes_of(mailboxes("memory"), clock)


async def journal(mailbox: StoreMailbox[Any, Any]) -> list[tuple[str, str, str, tuple[str, ...]]]:
    entries = await mailbox.shared.store.journal("audit", 0, 100)
    told = [(entry, codec.decode(entry.body, AuditRecord)) for entry in entries]
    return [(record.change, entry.actor, entry.reason, record.changed) for entry, record in told]


def audit_of(mailbox: StoreMailbox[Any, Any]) -> list[tuple[str, str, str, tuple[str, ...]]]:
    return mailbox.shared.call(journal, mailbox)


def times_of(mailbox: StoreMailbox[Any, Any], change: str) -> list[int]:
    entries = mailbox.shared.call(mailbox.shared.store.journal, "audit", 0, 100)
    return [entry.at for entry in entries if codec.decode(entry.body, AuditRecord).change == change]


@pytest.mark.parametrize("by", ["id", "message"])
def test_m18_one_goes_back_unchanged_with_its_reply_address(boxes: Boxes, by: str) -> None:
    body = Order(1)
    died = boxes.die(body, reply_to=boxes.answers, attributes={"who": "ann"}, priority="high")
    (held,) = boxes.dead.receive() if by == "message" else [died]
    done = Replayer(boxes.dead).one(held)
    assert (len(done.replayed), done.duplicates, done.skipped, done.kept) == (1, (), (), ())
    assert boxes.dead.approximate_count() == 0
    again = boxes.one()
    assert (again.id,) == done.replayed
    assert (again.body, dict(again.attributes), again.delivery_count) == (body, {"who": "ann"}, 1)
    again.reply({"done": True})
    assert [reply.body for reply in boxes.answers.receive()] == [{"done": True}]
    if isinstance(held, StoreMessage):
        assert held.is_finalized


def test_m19_exactly_those_that_match_go_and_the_others_are_untouched(boxes: Boxes) -> None:
    slow = [boxes.die(Order(number), TimeoutError("slow")) for number in range(12)]
    others = [boxes.die(Order(100 + number), KeyError("missing")) for number in range(12)]
    metrics = MailboxMetrics()
    replayer = Replayer(boxes.dead, metrics=metrics)
    done = replayer.matching(lambda letter: "TimeoutError" in letter.last_error_type, reason="the server is back")
    assert done.replayed == tuple(slow), "the longest dead first"
    assert metrics.counts["replayed"] == {("requests", "builtins.TimeoutError"): 12}
    assert (boxes.requests.approximate_count(), boxes.dead.approximate_count()) == (12, 12)
    found = boxes.dead.receive(max_messages=10)
    assert [letter.id for letter in found] == others[:10]
    assert {letter.delivery_count for letter in found} == {1}


def test_m19_a_filter_says_it_too_and_a_limit_holds(boxes: Boxes) -> None:
    slow = [boxes.die(Order(number), TimeoutError("slow")) for number in range(3)]
    boxes.die(Order(9), KeyError("missing"))
    assert Replayer(boxes.dead).matching("error:TimeoutError", limit=2).replayed == tuple(slow[:2])
    assert boxes.dead.approximate_count() == 2
    assert len(Replayer(boxes.dead).matching().replayed) == 2


@pytest.mark.parametrize("to", [None, "elsewhere"])
def test_m20_a_request_is_replayed_once_whoever_does_it(boxes: Boxes, to: str | None) -> None:
    request = uuid4()
    first, second = boxes.die(Order(1, request)), boxes.die(Order(2, request))
    done = Replayer(boxes.dead).matching(to=to)
    assert len(done.replayed) == 1
    assert [each.id for each in done.duplicates] == [second]
    assert first in done.duplicates[0].reason
    later = Replayer(boxes.dead).one(second, to=to, priority="high")
    assert (later.replayed, [each.id for each in later.duplicates]) == ((), [second]), "also changed, also later"
    assert boxes.dead.approximate_count() == 1
    assert len(Replayer(boxes.dead).one(second, to=to, dedupe=False).replayed) == 1


def test_m20_a_request_that_died_again_may_be_replayed_again(in_memory: Boxes) -> None:
    boxes = in_memory
    boxes.die(Order(1))
    for number in range(1, 4):
        how: dict[str, Any] = {"priority": "high"} if number % 2 else {}
        assert len(Replayer(boxes.dead).matching(**how).replayed) == 1
        message = boxes.one()
        assert isinstance(message, StoreMessage)
        assert message.lineage is not None
        assert message.lineage.replays == number
        assert dead_letter(message, route="dead", reason="test", error=ValueError("no")) == "dead"


@pytest.mark.parametrize("how", [{}, {"priority": "high"}, {"to": "away"}])
def test_m20_a_letter_that_could_not_go_does_not_keep_others_of_its_request(
    in_memory: Boxes, mailboxes: Openers, how: dict[str, Any]
) -> None:
    """It was in somebody's hand, who gave it up since. What went is replayed once all the same."""
    boxes, request = in_memory, uuid4()
    first, second, third = (boxes.die(Order(number, request)) for number in range(3))
    how = {"to": mailboxes("sqlite")("away", body_type=Order)} if "to" in how else how
    (held,) = boxes.dead.receive()
    assert held.id == first
    done = Replayer(boxes.dead).matching(**how)
    assert (done.replayed, [each.id for each in done.skipped]) == ((), [first])
    assert [each.id for each in done.duplicates] == [second, third], "it was the first, and might have gone"
    held.acknowledge()
    done = Replayer(boxes.dead).matching(**how)
    assert (len(done.replayed), [each.id for each in done.duplicates]) == (1, [third])
    assert [each.id for each in Replayer(boxes.dead).matching(**how).duplicates] == [third]


def test_m20_a_letter_that_could_not_go_leaves_the_claim_of_another(
    in_memory: Boxes, mailboxes: Openers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without dedupe both are sent to another store, and one of them has the claim."""
    boxes, request = in_memory, uuid4()
    first, second = (boxes.die(Order(number, request)) for number in range(2))
    away, send = mailboxes("sqlite")("away", body_type=Order), MailboxReplay.send

    def only_first(self: MailboxReplay, plan: Plan) -> tuple[str, str]:
        if plan.letter.id == second:
            raise LookupError("no")
        return send(self, plan)

    with monkeypatch.context() as patched:
        patched.setattr(MailboxReplay, "send", only_first)
        done = Replayer(boxes.dead).matching(to=away, dedupe=False)
    assert (len(done.replayed), [each.id for each in done.kept]) == (1, [second])
    shared = boxes.dead.shared
    claim = LetterToReplay(shared.call(shared.store.get, second), boxes.dead).claim_on(away.name)
    assert claim is not None
    assert shared.call(claims.claimed, shared.store, claim) == first


def test_m43_lineage_and_audit_tell_where_a_message_comes_from(boxes: Boxes) -> None:
    died = boxes.die(Order(1))
    replayer = Replayer(boxes.dead)
    first_at = boxes.clock.now()
    assert replayer.one(died, reason="fixed", actor="ann").replayed == (died,)
    itself = boxes.one()
    assert isinstance(itself, StoreMessage)
    assert itself.lineage is not None
    assert (itself.lineage.original, itself.lineage.letter, itself.lineage.replays) == (died, died, 1)
    assert dead_letter(itself, route="dead", reason="test", error=ValueError("no")) == "dead"
    boxes.clock.advance("1h")
    second_at = boxes.clock.now()
    (new,) = replayer.one(died, reason="fixed better", actor="bob", priority="high").replayed
    another = boxes.one()
    assert another.lineage is not None
    assert (another.id, another.lineage.original, another.lineage.letter) == (new, died, died)
    assert another.lineage.replays == 2
    replays = [told for told in audit_of(boxes.dead) if told[0] == "replay"]
    assert replays == [("replay", "ann", "fixed", (died,)), ("replay", "bob", "fixed better", (died,))]
    assert times_of(boxes.dead, "replay") == [first_at, second_at]
    history = boxes.dead.shared.call(boxes.dead.shared.store.get, died)
    assert history.item.state is State.DONE
    assert history.attempts[-1].note == f"replayed to requests as {new} by bob: fixed better"


def test_a_letter_that_is_over_is_in_the_audit_in_the_same_write(
    kind: str, mailboxes: Openers, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no crash can come in between: nothing is appended by itself."""
    boxes = boxes_of(mailboxes(kind), clock)
    sent, kept, seen = [boxes.die(Order(number)) for number in range(3)]
    store, written = boxes.dead.shared.store, len(audit_of(boxes.dead))
    monkeypatch.setattr(store, "append", None)
    Replayer(boxes.dead).one(sent, reason="fixed", actor="ann", priority="high")
    held = {message.id: message for message in boxes.dead.receive(2)}
    held[kept].nack()
    held[seen].acknowledge()
    monkeypatch.undo()
    worker = boxes.dead.shared.worker
    assert audit_of(boxes.dead)[written:] == [
        ("replay", "ann", "fixed", (sent,)),
        ("acknowledge", worker, "acknowledged in dead", (seen,)),
    ]


def test_limitation_no_message_transformation(boxes: Boxes) -> None:
    died = boxes.die(Order(1), reply_to=boxes.answers)
    done = Replayer(boxes.dead).one(died, transform=lambda letter: Order(letter.body.number + 10))
    again = boxes.one()
    assert (again.body.number, (again.id,), again.reply_to_name) == (11, done.replayed, "answers")
    assert boxes.dead.approximate_count() == 0


def test_limitation_no_priority(boxes: Boxes) -> None:
    """A replay may overtake what waits, and urgent letters are received before older ones."""
    died = boxes.die(Order(1))
    boxes.requests.send(Order(2))
    Replayer(boxes.dead).one(died, priority="high")
    assert [message.body.number for message in boxes.requests.receive(max_messages=10)] == [1, 2]
    boxes.die(Order(3))
    boxes.die(Order(4), priority="high")
    assert [message.body.body.number for message in boxes.dead.receive(max_messages=10)] == [4, 3]


def test_to_another_mailbox_of_the_store(boxes: Boxes, mailboxes: Openers, kind: str) -> None:
    other = mailboxes(kind)("other", body_type=Order)
    ids = [boxes.die(Order(1), reply_to=boxes.answers), boxes.die(Order(2))]
    assert Replayer(boxes.dead).matching(to=other).replayed == tuple(ids)
    found = other.receive(max_messages=10)
    assert [message.body.number for message in found] == [1, 2]
    found[0].reply("here")
    assert boxes.answers.approximate_count() == 1


def test_a_predicate_or_transformation_that_raises_loses_nothing(in_memory: Boxes) -> None:
    boxes = in_memory
    ids = [boxes.die(Order(number)) for number in range(3)]

    def odd(letter: DeadLetter[Order]) -> object:
        if letter.body.number == 1:
            raise LookupError("cannot say")
        return letter.body.number == 2

    done = Replayer(boxes.dead).matching(odd)
    assert done.replayed == (ids[2],)
    assert [(each.id, each.reason) for each in done.kept] == [
        (ids[1], "it could not be judged: builtins.LookupError: cannot say")
    ]
    done = Replayer(boxes.dead).matching(transform=lambda letter: {letter: letter})
    assert [each.id for each in done.kept] == ids[:2]
    assert boxes.dead.approximate_count() == 2
    assert {message.delivery_count for message in boxes.dead.receive(max_messages=10)} == {1}, "nobody had them"


def test_letters_are_not_replayed_to_where_letters_lie(in_memory: Boxes, mailboxes: Openers) -> None:
    boxes, other = in_memory, mailboxes("memory")("other-dlq", dead_letters=True)
    boxes.die(Order(1))
    for target in (boxes.dead, other):
        with pytest.raises(InvalidParameterError, match="is a mailbox of dead letters"):
            Replayer(boxes.dead).matching(to=target)
    assert "is a mailbox of dead letters" in Replayer(boxes.dead).matching(to="dead").kept[0].reason
    assert boxes.dead.approximate_count() == 1


def test_what_a_mailbox_does_not_expect_is_not_sent_to_it(in_memory: Boxes) -> None:
    boxes = in_memory
    died = boxes.die(Order(1))
    (kept,) = Replayer(boxes.dead).one(died, transform=lambda letter: letter.request_id and FakeClock()).kept
    assert "the body is a" in kept.reason
    assert len(Replayer(boxes.dead).one(died).replayed) == 1


@pytest.mark.parametrize("how", [{"priority": "low"}, {"to": "away"}])
def test_what_a_dead_replayer_had_goes_when_its_lease_is_over(
    in_memory: Boxes, mailboxes: Openers, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    """Until then nobody knows that it is dead, and the reason says how long that is."""
    boxes, died = in_memory, in_memory.die(Order(1))
    how = {"to": mailboxes("sqlite")("away", body_type=Order)} if "to" in how else how

    async def killed(*_: object) -> NoReturn:
        raise SimulatedCrash

    with monkeypatch.context() as patched:
        patched.setattr("redrive.office.replay.resend.LetterReplay._settle", killed)
        with pytest.raises(SimulatedCrash):
            Replayer(boxes.dead).matching(**how)
    clock.advance("20.5s")
    (skipped,) = Replayer(boxes.dead).matching(**how).skipped
    assert skipped.id == died
    assert " for another 40s; repeat this" in skipped.reason
    clock.advance("40s")
    assert len(Replayer(boxes.dead).matching(**how).replayed) == 1


def test_what_somebody_holds_is_left_to_him(in_memory: Boxes) -> None:
    boxes = in_memory
    died = boxes.die(Order(1))
    (held,) = boxes.dead.receive()
    assert [each.id for each in Replayer(boxes.dead).matching().skipped] == [died]
    assert [each.id for each in Replayer(boxes.dead).matching(priority="low").skipped] == [died]
    assert len(replay(held).replayed) == 1
    assert [each.reason for each in Replayer(boxes.dead).one(died).skipped] == ["it is done, not a dead letter"]
    assert [each.reason for each in Replayer(boxes.dead).one("nobody").skipped] == ["no such message"]


def test_letters_that_did_not_come_through_a_mailbox_stay_as_they_are(in_memory: Boxes, mailboxes: Openers) -> None:
    """Somebody enqueued plain data, for a worker that expects nothing else."""
    from redrive.core.item import NewItem

    boxes, place = in_memory, in_memory.requests.shared
    place.call(place.store.put, [NewItem("plain", "bare", b'{"n": 1}'), NewItem("odd", "bare", b"\xff\x00")])
    bare = mailboxes("memory")("bare")
    for message in bare.receive(max_messages=2):
        assert isinstance(message, StoreMessage)
        assert dead_letter(message, route="dead", reason="test", error=ValueError("no")) == "dead"
    assert len(Replayer(boxes.dead).matching(priority="high").replayed) == 2
    assert [message.raw for message in bare.receive(max_messages=2)] == [b'{"n": 1}', b"\xff\x00"]


def test_the_functions_of_the_text(in_memory: Boxes) -> None:
    boxes = in_memory
    resolver = MailboxResolver({"answers": boxes.answers})
    timeouts = [boxes.die(Order(number), TimeoutError("slow"), reply_to=boxes.answers) for number in range(12)]
    boxes.die(Order(99), KeyError("no"))
    count = selective_replay(
        dlq=boxes.dead,
        source=boxes.requests,
        predicate=lambda letter: "TimeoutError" in letter.last_error_type,
        reply_resolver=resolver,
    )
    assert (count, boxes.dead.approximate_count(), boxes.requests.purge()) == (len(timeouts), 1, 12)
    (message,) = boxes.dead.receive()
    for _ in range(2):
        replay_handler(message.body, source=boxes.requests, reply_resolver=resolver)
    again = boxes.one()
    assert again.body == message.body.body
    assert again.lineage is not None
    assert again.lineage.letter == message.id, "and to do it twice adds nothing"
    seen: set[UUID] = set()
    assert replay_with_dedup(message.body, boxes.requests, seen)
    assert not replay_with_dedup(message.body, boxes.requests, seen)
    assert not replay_with_dedup(message.body, boxes.requests), "known to the store, too"
    assert seen == {message.body.request_id}


def test_the_functions_of_the_text_with_mailboxes_of_somebody_else(in_memory: Boxes) -> None:
    boxes = in_memory
    for number in range(12):
        boxes.die(Order(number), TimeoutError("slow") if number % 2 else KeyError("no"))
    dlq, source = Around(boxes.dead), Around(boxes.requests)
    resolver = MailboxResolver()
    slow = selective_replay(
        dlq, source, predicate=lambda one: "Timeout" in one.last_error_type, reply_resolver=resolver
    )
    assert (slow, dlq.approximate_count(), source.approximate_count()) == (6, 6, 6)

    def broken(letter: DeadLetter[Order]) -> bool:
        raise LookupError(letter.message_id)

    with pytest.raises(LookupError):
        selective_replay(dlq, source, predicate=broken, reply_resolver=resolver)
    letters = dlq.receive(max_messages=10)
    assert len(letters) == 6, "all were given back at once"
    seen: set[UUID] = set()
    assert [replay_with_dedup(letters[0].body, source, seen) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"where": 5}, "where"),
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
        ({"to": 5}, "to"),
        ({"transform": 5}, "transform"),
        ({"priority": "urgent"}, "priority"),
        ({"reason": " "}, "reason"),
        ({"actor": ""}, "actor"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_letter(in_memory: Boxes, wrong: dict[str, Any], field: str) -> None:
    in_memory.die(Order(1))
    with pytest.raises(InvalidParameterError, match=f"^{field}: ") as caught:
        Replayer(in_memory.dead).matching(**wrong)
    assert caught.value.field == field
    assert in_memory.dead.approximate_count() == 1
    if field in ("where", "to", "transform"):
        with pytest.raises(InvalidParameterError, match=f"^{field}: "):
            ReplayRule(**wrong)


def test_to_and_from_mailboxes_of_somebody_else(in_memory: Boxes) -> None:
    boxes = in_memory
    elsewhere: CollectingMailbox[Any, Any] = CollectingMailbox("elsewhere")
    boxes.die(Order(1))
    assert len(Replayer(boxes.dead, source=elsewhere).matching().replayed) == 1
    boxes.die(Order(2))
    assert len(Replayer(boxes.dead).matching(to=elsewhere, transform=lambda letter: letter.body.number).replayed) == 1
    boxes.die(Order(3))
    (held,) = boxes.dead.receive()
    assert len(Replayer(boxes.dead).one(held, to=elsewhere).replayed) == 1
    assert held.is_finalized
    assert [getattr(sent, "number", sent) for sent in elsewhere.sent] == [1, 2, 3]
    assert boxes.dead.approximate_count() == 0
    boxes.die(Order(4))
    elsewhere.close()
    (kept,) = Replayer(boxes.dead).matching(to=elsewhere).kept
    assert "MailboxClosedError" in kept.reason
    (held,) = boxes.dead.receive()
    assert not held.is_finalized, "it is free at once"
    held.acknowledge()
    with pytest.raises(InvalidParameterError, match="dead_letters"):
        Replayer(elsewhere)
    with pytest.raises(InvalidParameterError, match="does not name its mailbox"):
        replay("some-id")
    (waiting,) = _sent(boxes)
    with pytest.raises(InvalidParameterError, match="no letter of dead"):
        Replayer(boxes.dead).one(waiting)


def _sent(boxes: Boxes) -> Sequence[Message[Any, Any]]:
    boxes.requests.send(Order(5))
    return boxes.requests.receive()


@pytest.mark.parametrize("how", [{"transform": lambda letter: letter.body}, {"priority": "high"}, {"to": "away"}, {}])
def test_what_a_consumer_put_off_is_replayed_all_the_same(
    in_memory: Boxes, mailboxes: Openers, how: dict[str, Any]
) -> None:
    """It is nobody's; what somebody has stays with him."""
    boxes = in_memory
    off, held = boxes.die(Order(1)), boxes.die(Order(2))
    for letter in boxes.dead.receive(max_messages=2):
        if letter.id == off:
            letter.nack(3600)
    if "to" in how:
        how = {"to": mailboxes("sqlite")("away", body_type=Order)}
    done = Replayer(boxes.dead).matching(**how)
    assert (len(done.replayed), [each.id for each in done.skipped]) == (1, [held])


def test_what_could_not_be_sent_is_put_off_as_it_was(in_memory: Boxes) -> None:
    boxes = in_memory
    boxes.die(Order(1))
    boxes.dead.receive()[0].nack(3600)
    boxes.clock.advance("10m")
    done = Replayer(boxes.dead, source=_Broken("away")).matching()
    assert (done.replayed, len(done.kept)) == ((), 1)
    boxes.clock.advance("2999s")
    assert boxes.dead.receive() == []
    boxes.clock.advance("1s")
    assert len(boxes.dead.receive()) == 1


class _Broken(CollectingMailbox[Any, Any]):
    def send(self, *_: Any, **__: Any) -> str:
        raise LookupError("nobody is there")
