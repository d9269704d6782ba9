"""What dead-letter mailboxes are for: several of a loop, kept for long enough, and replayed by many at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from redrive.errors import MailboxConnectionError
from redrive.mailboxes import DeadLetter, DLQPolicy, Replayer, StoreMailbox
from redrive.mailboxes.metrics import default_metrics
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.faults import Fault, FaultyStore
from tests.mailboxes.bench import Bench
from tests.mailboxes.conftest import Openers
from tests.mailboxes.test_replay import Boxes, Order, boxes_of
from tests.mailboxes.threads import until


class Refused(Exception):
    pass


def test_limitation_single_dlq_per_loop(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    bench = Bench(mailboxes(kind), clock)
    refused = mailboxes(kind)("refused")
    policy: DLQPolicy[Any, Any] = DLQPolicy(bench.letters, max_delivery_count=1, routes={Refused: refused})
    bench.loop = bench.another(dlq=policy)
    for error in (Refused("no"), ValueError("odd")):
        bench.adapter.error = error
        bench.send()
        bench.run()
    found = {box.name: [each.body.last_error for each in box.receive(max_messages=10)] for box in policy.mailboxes}
    assert found == {"requests-dlq": ["odd"], "refused": ["no"]}
    assert len(bench.answers()) == 2


def test_m44_letters_expire_one_by_one_though_nobody_looked(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    boxes = boxes_of(mailboxes(kind), clock)
    ids: list[str] = []
    for number in range(4):
        ids.append(boxes.die(Order(number), TimeoutError("slow")))
        clock.advance("10d")
    # Nothing ran since the last of them died. Now somebody looks again.
    boxes.dead.close()
    counted = default_metrics().counts["expired"]["requests", "builtins.TimeoutError"]
    dead = mailboxes(kind)("dead", default_ttl=timedelta(days=30).total_seconds(), body_type=DeadLetter[Order])
    found = dead.receive(max_messages=10)
    assert [each.id for each in found] == ids[2:], "the others are not given to anybody any more"
    until(lambda: dead.approximate_count() == 2)
    assert dead.expire() == 0, "it was done by itself"
    assert default_metrics().counts["expired"]["requests", "builtins.TimeoutError"] == counted + 2
    found[0].nack()
    clock.advance("10d")
    assert (dead.expire(), dead.approximate_count()) == (1, 1), "and by hand"
    place = dead.shared
    (deed,) = place.call(place.store.get, ids[0]).deeds
    assert (deed.change, deed.actor, deed.reason) == ("discard", "retention", "kept in dead for 30d")


@pytest.mark.parametrize("how", [{}, {"priority": "high"}, {"dedupe": False}], ids=["itself", "new", "any"])
def test_many_who_replay_at_once_replay_each_letter_once(
    kind: str, mailboxes: Openers, clock: FakeClock, how: dict[str, Any]
) -> None:
    boxes = boxes_of(mailboxes(kind), clock)
    for number in range(12):
        boxes.die(Order(number))
    with ThreadPoolExecutor(6) as threads:
        done = list(threads.map(lambda _: Replayer(boxes.dead).matching(**how), range(6)))
    assert sum(len(each.replayed) for each in done) == 12
    assert (boxes.requests.approximate_count(), boxes.dead.approximate_count()) == (12, 0)
    found = [*boxes.requests.receive(max_messages=10), *boxes.requests.receive(max_messages=10)]
    assert sorted(message.body.number for message in found) == list(range(12))


def test_many_who_receive_at_once_have_each_letter_alone(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    boxes = boxes_of(mailboxes(kind), clock)
    ids = [boxes.die(Order(number)) for number in range(24)]

    def work_off(_: int) -> list[str]:
        got: list[str] = []
        while batch := boxes.dead.receive(max_messages=3):
            for message in batch:
                message.acknowledge()
                got.append(message.id)
        return got

    with ThreadPoolExecutor(6) as threads:
        found = [each for got in threads.map(work_off, range(6)) for each in got]
    assert sorted(found) == sorted(ids)
    assert boxes.dead.approximate_count() == 0


VERBS = ("write_documents", "amend", "lease_letters", "settle_letters")


@pytest.fixture
def faulty(clock: FakeClock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def unsteady(faulty: FaultyStore, mailboxes: Openers, clock: FakeClock) -> Any:
    """On a store that fails when it is told to."""
    opened: list[StoreMailbox[Any, Any]] = []

    def opener(name: str, **options: Any) -> StoreMailbox[Any, Any]:
        opened.append(StoreMailbox(name, faulty, clock=clock, **options))
        return opened[-1]

    yield boxes_of(opener, clock)
    for each in opened:
        each.close()


@pytest.mark.parametrize("fault", [Fault.UNKNOWN, Fault.UNKNOWN_UNDONE, Fault.DUPLICATE], ids=lambda fault: fault.name)
@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_outcome_neither_loses_nor_doubles(
    unsteady: Boxes, faulty: FaultyStore, verb: str, fault: Fault
) -> None:
    unsteady.die(Order(1))
    faulty.next(verb, fault)
    how: dict[str, Any] = {} if verb == "amend" else {"priority": "high"}
    done = Replayer(unsteady.dead).matching(**how)
    assert (len(done.replayed), done.duplicates, done.skipped, done.kept) == (1, (), (), ())
    assert faulty.calls_of(verb), "a test that passes no fault proves nothing"
    assert (unsteady.requests.approximate_count(), unsteady.dead.approximate_count()) == (1, 0)


@pytest.mark.parametrize("verb", VERBS)
def test_a_store_that_is_away_keeps_its_letters(unsteady: Boxes, faulty: FaultyStore, verb: str) -> None:
    unsteady.die(Order(1))
    how: dict[str, Any] = {} if verb == "amend" else {"priority": "high"}
    faulty.fail(verb, times=1)
    with pytest.raises(MailboxConnectionError):
        Replayer(unsteady.dead).matching(**how)
    assert (unsteady.requests.approximate_count(), unsteady.dead.approximate_count()) == (0, 1)
    unsteady.clock.advance("60s")
    assert len(Replayer(unsteady.dead).matching(**how).replayed) == 1
