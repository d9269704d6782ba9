"""A crash at every step of dead-lettering, on one store and across stores; letters and replies arrive all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from redrive.core.item import Item
from redrive.core.select import And, Match
from redrive.engine.outbox import MAX_ATTEMPTS, OutboxWorker
from redrive.errors import MailboxConnectionError, MailboxFullError
from redrive.mailboxes import DeadLetter, DLQPolicy, Mailbox, MailboxResolver, MainLoopRequest, Replayer, StoreMailbox
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.mailboxes.loops.outbox import LoopOutbox, move_letter
from redrive.mailboxes.testing import CollectingMailbox
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.stores.url import store_from_url
from redrive.testing import FakeClock
from redrive.testing.faults import Fault, FaultyStore, Point, SimulatedCrash
from tests.mailboxes.bench import Adapter, Ask, Loop
from tests.mailboxes.conftest import Openers
from tests.mailboxes.ends import dead_letter, finish
from tests.support.stores import STORES, StoreUrl

pytestmark = pytest.mark.slow

STEPS = ("put", "lease", "settle", "reclaim", "lease_letters", "settle_letters", "take_in", "write_documents")
"""What changes something. Beats and retention come when they come."""

ONE = {"requests": 0, "dead": 0, "replies": 0}


def stores(*kinds: str) -> Any:
    return pytest.param(kinds, id="-".join(kinds))


Opened = Callable[..., StoreMailbox[Any, Any]]
"""Opens a mailbox by its role and its name."""
Act = Callable[[Opened], None]


@dataclass
class World:
    """Some stores, and one process after another that uses them: each may die at a step of one of them."""

    clock: FakeClock
    make: list[Callable[[], Store]]
    where: dict[str, int]
    """On which of the stores each mailbox is."""

    def process(self, act: Act, crash: tuple[int, int] | None = None) -> list[int]:
        """How many steps it made on each store. `crash`: on which one it dies, and at which step."""
        faulty = [FaultyStore(make(), counted=STEPS) for make in self.make]

        def die(point: Point) -> None:
            for each in faulty:
                each.crashed = True
            raise SimulatedCrash(str(point))

        if crash is not None:
            faulty[crash[0]].crash_at(crash[1], die)
        with ExitStack() as stack:

            def opened(role: str, name: str, **options: Any) -> StoreMailbox[Any, Any]:
                mailbox: StoreMailbox[Any, Any] = StoreMailbox(
                    name, faulty[self.where[role]], clock=self.clock, **options
                )
                return stack.enter_context(mailbox)

            with suppress(SimulatedCrash):
                act(opened)
            assert crash is None or any(each.crashed for each in faulty), "it did not come so far"
            for each in faulty:
                each.crashed = False  # what is left of it is put away: its files and connections are ours
        return [each.points for each in faulty]


@pytest.fixture
def world(store_url: StoreUrl, clock: FakeClock) -> Callable[..., World]:
    def make(*kinds: str, **where: int) -> World:
        def maker(kind: str) -> Callable[[], Store]:
            if kind == "memory":
                kept = MemoryStore(clock)
                return lambda: kept
            url = store_url(kind)
            return lambda: store_from_url(url, clock=clock)

        return World(clock, [maker(kind) for kind in kinds], where or ONE)

    return make


def dead_lettering(*names: str) -> Act:
    """Loops work off what there is, and everything dies."""

    def act(opened: Opened) -> None:
        for name in names:
            replies = opened("replies", f"replies{name}")
            requests = opened("requests", f"requests{name}", resolver=MailboxResolver({replies.name: replies}))
            dlq: DLQPolicy[Any, Any] = DLQPolicy(opened("dead", f"dead{name}"), max_delivery_count=1)
            loop = Loop(adapter=Adapter(ValueError("no")), requests=requests, dlq=dlq)
            loop.run(max_iterations=1, wait_time_seconds=0)

    return act


def sent(*names: str) -> Act:
    def act(opened: Opened) -> None:
        for name in names:
            replies = opened("replies", f"replies{name}")
            opened("requests", f"requests{name}").send(MainLoopRequest(Ask("why")), reply_to=replies)

    return act


def checked(*names: str, crossing: bool) -> Act:
    """One letter where it belongs, nothing left in the source, and one answer."""

    def act(opened: Opened) -> None:
        for name in names:
            requests = opened("requests", f"requests{name}")
            assert requests.approximate_count() == 0
            letters = [each.body for each in opened("dead", f"dead{name}").receive(max_messages=10)]
            assert [letter.source_mailbox for letter in letters] == [f"requests{name}"]
            replies = [each.body["error"] for each in opened("replies", f"replies{name}").receive(max_messages=10)]
            assert [text[:30] for text in replies] == ["Dead-lettered after 1 attempts"]
            dead = And((Match("state", "=", "dead"), Match("queue", "=", f"requests{name}")))
            here = requests.shared.call(requests.shared.store.ids, dead).ids
            assert len(here) == (0 if crossing else 1)

    return act


def die_everywhere(world: World, store: int, *, crossing: bool) -> None:
    world.process(sent("-0"))
    steps = world.process(dead_lettering("-0"))[store]
    assert steps > 1, "a test that passes no step proves nothing"
    names = [f"-{step}" for step in range(1, steps + 1)]
    world.process(sent(*names))
    for step, name in enumerate(names, 1):
        world.process(dead_lettering(name), (store, step))
    # All that the dead had in hand is free again.
    world.clock.advance("301s")
    world.process(dead_lettering(*names))
    world.process(checked("-0", *names, crossing=crossing))


@pytest.mark.parametrize("kinds", [stores(kind) for kind in STORES])
def test_m37_a_crash_at_each_step_of_dead_lettering(kinds: tuple[str, ...], world: Callable[..., World]) -> None:
    die_everywhere(world(*kinds), 0, crossing=False)


@pytest.mark.parametrize("store", [0, 1], ids=["source", "target"])
@pytest.mark.parametrize("kinds", [stores("memory", "sqlite"), stores("redis", "postgres")])
def test_limitation_no_cross_backend_dlq(kinds: tuple[str, ...], store: int, world: Callable[..., World]) -> None:
    """Requests on one store, dead letters and replies on another; and a crash at each step on either."""
    die_everywhere(world(*kinds, requests=0, dead=1, replies=1), store, crossing=True)


def replayed(*names: str, dedupe: bool = True) -> Act:
    def act(opened: Opened) -> None:
        for name in names:
            requests = opened("requests", f"requests{name}")
            dead = opened("dead", f"dead{name}", dead_letters=True)
            replies = opened("replies", f"replies{name}")
            Replayer(dead, requests, MailboxResolver({replies.name: replies})).matching(reason="mended", dedupe=dedupe)

    return act


def back_at_work(*names: str) -> Act:
    def act(opened: Opened) -> None:
        for name in names:
            assert opened("dead", f"dead{name}").approximate_count() == 0
            requests, replies = opened("requests", f"requests{name}"), opened("replies", f"replies{name}")
            (message,) = requests.receive(max_messages=10)
            assert message.lineage is not None
            message.reply("again")
            assert [each.body for each in replies.receive(max_messages=10)][-1] == "again"

    return act


@pytest.mark.parametrize("store", [0, 1], ids=["source", "dead"])
@pytest.mark.parametrize(
    ("kinds", "dedupe", "later"),
    [
        pytest.param(("memory", "sqlite"), True, True, id="memory-sqlite"),
        pytest.param(("memory", "sqlite"), False, True, id="memory-sqlite-not-at-first"),
        pytest.param(("memory", "sqlite"), True, False, id="memory-sqlite-not-later"),
        pytest.param(("redis", "postgres"), False, True, id="redis-postgres"),
    ],
)
def test_a_crash_at_each_step_of_a_replay_across_stores(
    kinds: tuple[str, ...], store: int, dedupe: bool, later: bool, world: Callable[..., World]
) -> None:
    there = world(*kinds, requests=0, dead=1, replies=1)
    there.process(sent("-0"))
    there.process(dead_lettering("-0"))
    steps = there.process(replayed("-0", dedupe=dedupe))[store]
    assert steps > 1, "a test that passes no step proves nothing"
    names = [f"-{step}" for step in range(1, steps + 1)]
    there.process(sent(*names))
    there.process(dead_lettering(*names))
    for step, name in enumerate(names, 1):
        there.process(replayed(name, dedupe=dedupe), (store, step))
    there.clock.advance("61s")
    there.process(replayed(*names, dedupe=later))
    there.process(back_at_work("-0", *names))


def move(source: StoreMailbox[Any, Any], target: Mailbox[Any, Any]) -> int:
    """Move what died in `source` for `target`, as its outbox items do; how many letters."""
    route = And((Match("route", "=", target.name), Match("queue", "=", source.name), Match("disposition", "=", "open")))
    place = source.shared
    ids = place.call(place.store.ids, And((Match("state", "=", "dead"), route))).ids
    return sum([move_letter(source, target, letter_id) for letter_id in reversed(ids)])


def forward(requests: StoreMailbox[Any, Any], *, reply_type: Any = None) -> int:
    """One look at the outbox of `requests`, as a loop does; how many items were delivered."""
    place = requests.shared
    outbox = OutboxWorker(place.store, place.events, place.clock)
    before = delivered(requests)
    outbox.register(f"mailbox.{requests.name}", LoopOutbox(requests, (), lambda: reply_type)._deliver, breaker=False)  # noqa: SLF001
    place.call(outbox.look, wait=True)
    return delivered(requests) - before


def delivered(requests: StoreMailbox[Any, Any]) -> int:
    place = requests.shared
    rows = place.call(place.store.tally).queues
    return sum(row.done for row in rows if row.queue.startswith(f"redrive.outbox.mailbox.{requests.name}"))


Counts = list[tuple[int, int]]


def elsewhere(*names: str) -> Act:
    """Whoever repeats a replay wants another mailbox now."""

    def act(opened: Opened) -> None:
        for name in names:
            dead = opened("dead", f"dead{name}", dead_letters=True)
            Replayer(dead).matching(to=opened("replies", f"elsewhere{name}"))

    return act


def counted(*names: str, into: Counts) -> Act:
    """Letters, and messages in both of the mailboxes that they were sent to."""

    def act(opened: Opened) -> None:
        for name in names:
            boxes = (opened("requests", f"requests{name}"), opened("replies", f"elsewhere{name}"))
            into.append((opened("dead", f"dead{name}").approximate_count(), sum(b.approximate_count() for b in boxes)))

    return act


@pytest.mark.parametrize("store", [0, 1], ids=["source", "dead"])
def test_a_replay_that_died_on_its_way_is_not_sent_another_way(store: int, world: Callable[..., World]) -> None:
    """It may have arrived. Where it had not set out, it goes where it is sent now."""
    there = world("memory", "sqlite", requests=0, dead=1, replies=1)
    there.process(sent("-0"))
    there.process(dead_lettering("-0"))
    steps = there.process(replayed("-0"))[store]
    assert steps > 1, "a test that passes no step proves nothing"
    names = [f"-{step}" for step in range(1, steps + 1)]
    there.process(sent(*names))
    there.process(dead_lettering(*names))
    for step, name in enumerate(names, 1):
        there.process(replayed(name), (store, step))
    there.clock.advance("61s")
    there.process(elsewhere(*names))
    first, then = Counts(), Counts()
    there.process(counted(*names, into=first))
    assert all(messages <= 1 for _, messages in first), first
    there.process(replayed(*names))
    there.process(counted(*names, into=then))
    assert then == [(0, 1)] * steps


def test_who_repeats_a_replay_another_way_is_told_the_first(mailboxes: Openers, clock: FakeClock) -> None:
    home = FaultyStore(MemoryStore(clock))
    target, other = mailboxes("sqlite")("target"), mailboxes("sqlite")("other")
    with (
        StoreMailbox[Any, Any]("dead", home, clock=clock, dead_letters=True) as dead,
        StoreMailbox[Any, Any]("requests", home, clock=clock) as requests,
    ):
        requests.send({"n": 1})
        died = bury_one(requests, "dead")
        home.fail("settle_letters")
        with pytest.raises(MailboxConnectionError):
            Replayer(dead).matching(to=target)
        home.heal()
        clock.advance("61s")
        for way in (other, requests):
            (kept,) = Replayer(dead).matching(to=way).kept
            assert kept.id == died
            assert kept.reason.startswith("its replay to target on ")
            assert kept.reason.endswith("replay it to that one, or with dedupe=False to this one as well")
        assert len(Replayer(dead).matching(to=target).replayed) == 1
        boxes = (dead, requests, other, target)
        assert [box.approximate_count() for box in boxes] == [0, 0, 0, 1]


def test_a_replay_that_cannot_set_out_may_go_another_way(mailboxes: Openers, clock: FakeClock) -> None:
    away = FaultyStore(MemoryStore(clock))
    dead, requests = mailboxes("sqlite")("dead", dead_letters=True), mailboxes("sqlite")("requests")
    with StoreMailbox[Any, Any]("target", away, clock=clock) as target:
        requests.send({"n": 1})
        bury_one(requests, "dead")
        away.fail("put")
        with pytest.raises(MailboxConnectionError):
            Replayer(dead).matching(to=target)
        assert len(Replayer(dead).matching().replayed) == 1


def test_letters_of_one_request_go_to_another_store_one_by_one_if_that_is_asked_for(
    mailboxes: Openers, clock: FakeClock
) -> None:
    """Also where a letter of the same request came before, from the same store or a third one."""
    requests = mailboxes("sqlite")("requests")
    request = {"request_id": "7d444840-9dc0-11d1-b245-5ffdce74fad2"}
    with (
        StoreMailbox[Any, Any]("dead", MemoryStore(clock), clock=clock, dead_letters=True) as one,
        StoreMailbox[Any, Any]("dead", MemoryStore(clock), clock=clock, dead_letters=True) as other,
    ):
        for dead in (one, one, other):
            requests.send(request)
            bury_one(requests, "dead")
            assert move(requests, dead) == 1
        assert len(Replayer(one, requests).matching().replayed) == 1
        for dead in (one, other):
            (found,) = Replayer(dead, requests).matching().duplicates
            assert "of the same request, was replayed to requests" in found.reason
            assert len(Replayer(dead, requests).matching(dedupe=False).replayed) == 1
            assert dead.approximate_count() == 0
    assert len({message.id for message in requests.receive(max_messages=10)}) == 3


def bury_one(requests: StoreMailbox[Any, Any], route: str) -> str:
    (message,) = requests.receive()
    assert isinstance(message, StoreMessage)
    assert dead_letter(message, route=route, reason="test", error=ValueError("no")) == "dead"
    return message.id


def test_letters_wait_at_home_while_their_store_is_away(mailboxes: Openers, clock: FakeClock) -> None:
    faulty = FaultyStore(MemoryStore(clock))
    with StoreMailbox[Any, Any]("dead", faulty, clock=clock, body_type=DeadLetter[dict[str, int]]) as dead:
        requests = mailboxes("sqlite")("requests")
        ids = []
        for number in range(3):
            requests.send({"n": number}, reply_to="answers", priority="high" if number == 1 else "normal")
            ids.append(bury_one(requests, "dead"))
            clock.advance("1s")
        faulty.fail("take_in")
        with pytest.raises(MailboxConnectionError):
            move(requests, dead)
        assert mailboxes("sqlite")("dead").approximate_count() == 3, "letters of their own store"
        faulty.heal()
        faulty.next("take_in", Fault.UNKNOWN)
        assert move(requests, dead) == 3
        assert move(requests, dead) == 0
        assert mailboxes("sqlite")("dead").approximate_count() == 0
        letters = dead.receive(max_messages=10)
        assert [each.id for each in letters] == [ids[1], ids[0], ids[2]]
        assert [each.body.body for each in letters] == [{"n": 1}, {"n": 0}, {"n": 2}]
        assert {(each.delivery_count, each.body.delivery_count, each.body.reply_to) for each in letters} == {
            (1, 1, "answers")
        }
        home = requests.shared.call(requests.shared.store.get, ids[0])
        assert home.item.state == "cancelled"
        assert home.attempts[-1].note.startswith("moved to dead on another store (")


def test_a_letter_goes_home_to_the_store_it_came_from(mailboxes: Openers, clock: FakeClock) -> None:
    """Which is known by its fingerprint, if it is open in this process; so is whoever waits for the answer."""
    dead = mailboxes("memory")("dead", dead_letters=True)
    requests, answers = mailboxes("sqlite")("requests"), mailboxes("sqlite")("answers")
    for reply_to in (answers, None):
        requests.send({"n": 1}, reply_to=reply_to)
        bury_one(requests, "dead")
    assert move(requests, dead) == 2
    done = Replayer(dead).matching()
    assert len(done.replayed) == 2
    assert dead.approximate_count() == 0
    first, _ = requests.receive(max_messages=10)
    first.reply("here")
    assert answers.approximate_count() == 1


def test_a_letter_from_a_store_that_nobody_knows_stays(mailboxes: Openers, clock: FakeClock) -> None:
    dead = mailboxes("memory")("dead", dead_letters=True)
    with StoreMailbox[Any, Any]("requests", MemoryStore(clock), clock=clock) as requests:
        requests.send({"n": 1})
        bury_one(requests, "dead")
        move(requests, dead)
    (kept,) = Replayer(dead).matching().kept
    assert "it came from another store, which is not open here: pass source= or to=" in kept.reason
    assert dead.approximate_count() == 1
    assert len(Replayer(dead).matching(to="elsewhere").replayed) == 1


def test_letters_of_another_mailbox_with_the_same_name_are_not_moved(mailboxes: Openers, clock: FakeClock) -> None:
    dead = mailboxes("memory")("dead")
    requests, others = mailboxes("sqlite")("requests"), mailboxes("sqlite")("others")
    others.send({"n": 1})
    bury_one(others, "dead")
    assert move(requests, dead) == 0
    assert mailboxes("sqlite")("dead").approximate_count() == 1


def test_a_store_that_is_known_by_two_addresses_is_one(clock: FakeClock) -> None:
    """Its letters are where they belong, and are not ended for having arrived there."""
    store = MemoryStore(clock)
    with (
        StoreMailbox[Any, Any]("requests", FaultyStore(store), clock=clock) as requests,
        StoreMailbox[Any, Any]("dead", FaultyStore(store), clock=clock) as dead,
    ):
        requests.send({"n": 1})
        died = bury_one(requests, "dead")
        assert (move(requests, dead), move(requests, dead)) == (0, 0)
        (letter,) = dead.receive()
        assert (letter.id, letter.body.body) == (died, {"n": 1})


def test_a_reply_to_a_name_that_is_known_later_arrives_on_the_same_store(mailboxes: Openers) -> None:
    resolver = MailboxResolver()
    requests = mailboxes("memory")("requests", resolver=resolver)
    requests.send(1, reply_to="answers")
    answered(requests)
    answers = mailboxes("memory")("answers")
    resolver.register(answers)
    assert forward(requests) == 1
    assert [each.body for each in answers.receive()] == ["done"]


def answered(requests: StoreMailbox[Any, Any], body: object = "done") -> None:
    """The message that waits is finished, with a reply to an address that is not here."""
    (message,) = requests.receive()
    assert isinstance(message, StoreMessage)
    message.envelope = structs.replace(message.envelope, reply_at="elsewhere")
    assert finish(message, body)


def in_outbox(requests: StoreMailbox[Any, Any]) -> Item:
    place = requests.shared
    (item,) = place.call(place.store.find, Match("queue", "=", "redrive.outbox.mailbox.requests"))
    return item


def test_a_reply_that_cannot_be_delivered_is_tried_again_and_then_a_letter(
    mailboxes: Openers, clock: FakeClock
) -> None:
    resolver = MailboxResolver()
    requests = mailboxes("memory")("requests", resolver=resolver)
    requests.send(1, reply_to="answers")
    answered(requests)
    tried = []
    for _ in range(MAX_ATTEMPTS):
        assert (forward(requests), forward(requests)) == (0, 0), "not before its time"
        tried.append((in_outbox(requests).due_at - clock.now()) // 1000)
        clock.advance("300s")
    assert tried[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    letter = in_outbox(requests).letter
    assert letter is not None
    assert (letter.reason, letter.route) == ("undeliverable", "")
    assert "MailboxResolutionError" in letter.failure.type


def test_a_reply_is_let_into_a_full_mailbox_of_its_store_and_waits_for_room_on_another(
    kind: str, mailboxes: Openers, clock: FakeClock
) -> None:
    """The work is done, and must not be done again for want of room."""
    with StoreMailbox[Any, Any]("answers", MemoryStore(clock), clock=clock, max_size=1) as elsewhere:
        here = mailboxes(kind)("answers", max_size=1)
        requests = mailboxes(kind)("requests")
        for answers in (here, elsewhere):
            answers.send("fills it")
            requests.send(1, reply_to=answers)
            (message,) = requests.receive()
            assert isinstance(message, StoreMessage)
            with pytest.raises(MailboxFullError):
                message.reply("by hand")
            assert finish(message, "done")
        assert (forward(requests), here.approximate_count(), elsewhere.approximate_count()) == (0, 2, 1)
        elsewhere.purge()
        clock.advance("1s")
        assert (forward(requests), elsewhere.approximate_count()) == (1, 1)


def test_replies_arrive_once_and_typed_at_mailboxes_of_somebody_else(mailboxes: Openers, clock: FakeClock) -> None:
    elsewhere: CollectingMailbox[Any, Any] = CollectingMailbox("answers")
    requests = mailboxes("memory")("requests", resolver=MailboxResolver({"answers": elsewhere}))
    for body in (Ask("typed"), {"plain": 1}):
        requests.send(1, reply_to="answers")
        answered(requests, body)
    assert forward(requests, reply_type=Ask) == 2
    assert forward(requests, reply_type=Ask) == 0
    assert [each.body if hasattr(each, "body") else each for each in elsewhere.sent] == [Ask("typed"), {"plain": 1}]


def test_a_broken_mailbox_of_somebody_else_blocks_nobody(mailboxes: Openers, clock: FakeClock) -> None:
    class Broken(CollectingMailbox[Any, Any]):
        def send(self, body: Any, reply_to: Any = None, **_: Any) -> str:
            raise OSError("no wire")

    fine: CollectingMailbox[Any, Any] = CollectingMailbox("fine")
    resolver = MailboxResolver({"broken": Broken("broken"), "fine": fine})
    requests = mailboxes("memory")("requests", resolver=resolver)
    for name in ("broken", "fine"):
        requests.send(1, reply_to=name)
        answered(requests)
    assert forward(requests) == 1
    assert len(fine.sent) == 1
    clock.advance("1s")
    assert forward(requests) == 0


def test_where_nobody_answers_is_not_asked_for_each_reply(mailboxes: Openers, clock: FakeClock) -> None:
    faulty = FaultyStore(MemoryStore(clock))
    with StoreMailbox[Any, Any]("answers", faulty, clock=clock) as answers:
        requests = mailboxes("memory")("requests", resolver=MailboxResolver({"answers": answers}))
        for _ in range(5):
            requests.send(1, reply_to="answers")
            answered(requests)
        faulty.fail("put")
        assert forward(requests) == 0
        assert len(faulty.calls_of("put")) == 1
        faulty.heal()
        clock.advance("1s")
        assert (forward(requests), answers.approximate_count()) == (5, 5)


def test_a_loop_delivers_in_the_background_while_it_waits_for_messages(tmp_path: Path) -> None:
    """By the real clock: under a clock of tests, a loop delivers between two messages."""
    here, there = f"sqlite:///{tmp_path}/here.db", f"sqlite:///{tmp_path}/there.db"
    with (
        StoreMailbox[Any, Any]("replies", there) as replies,
        StoreMailbox[Any, Any]("dead", there) as dead,
        StoreMailbox[Any, Any]("requests", here, resolver=MailboxResolver({"replies": replies})) as requests,
    ):
        loop = Loop(adapter=Adapter(ValueError("no")), requests=requests, dlq=DLQPolicy(dead, max_delivery_count=1))
        thread = threading.Thread(target=loop.run)
        thread.start()
        for _ in range(2):
            requests.send(MainLoopRequest(Ask("why")), reply_to="replies")
            for arrived in (replies, dead):
                (message,) = arrived.receive(wait_time_seconds=20)
                message.acknowledge()
        place = requests.shared
        serving = [queue for beat in place.call(place.store.workers) for queue in beat.facts.queues]
        assert f"redrive.outbox.mailbox.requests@{replies.reply_address()}" in serving
        assert loop.shutdown()
        thread.join()
        assert not any(beat.alive and "outbox" in str(beat.facts.queues) for beat in place.call(place.store.workers))
