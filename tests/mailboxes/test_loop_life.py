"""A loop in bad times: a store that is away (row M-36), shutdowns, exits, lost leases, mailboxes of other makers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from redrive import cancel_requested
from redrive.blocking.loops.lease_extender import LeaseExtenderConfig
from redrive.core.acts import Act, Cancel
from redrive.core.select import EVERYTHING, Ids, Match
from redrive.core.states import State
from redrive.core.verbs import WorkerBeat
from redrive.engine import heartbeat, orders
from redrive.events import CancelAsked, Event
from redrive.mailboxes import (
    AutoReplay,
    DeadLetter,
    DLQPolicy,
    Mailbox,
    MailboxConnectionError,
    MailboxFullError,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    Message,
    ReplayRule,
    SerializationError,
    StoreMailbox,
    open_mailbox,
)
from redrive.mailboxes.testing import CollectingMailbox
from redrive.stores.clock import Clock, SystemClock
from redrive.testing import FakeClock, Fault, FaultyStore, MemoryStore
from tests.mailboxes.bench import Adapter, Ask, Bench, Loop, Told, letters_of
from tests.mailboxes.conftest import Openers
from tests.mailboxes.threads import SOON


@pytest.fixture
def faulty(clock: FakeClock) -> FaultyStore:
    return FaultyStore(MemoryStore(clock))


@pytest.fixture
def bench(faulty: FaultyStore, clock: FakeClock) -> Iterator[Bench]:
    opened: list[StoreMailbox[Any, Any]] = []

    def opener(name: str, **options: Any) -> StoreMailbox[Any, Any]:
        opened.append(open_mailbox(name, faulty, clock=clock, **options))
        return opened[-1]

    made = Bench(opener, clock, max_delivery_count=1)
    made.adapter.error = None
    yield made
    for mailbox in opened:
        mailbox.close()


def while_time_passes(clock: FakeClock, work: Callable[[], None]) -> None:
    """In a thread of its own. Time moves to the next sleeper, and stands still while there is none."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive():
        clock.advance(clock.next_in or 0)
        thread.join(0.001)


def begun(loop: Loop | AutoReplay[Any], **options: float) -> threading.Thread:
    """The loop at work in a thread."""
    beaten = threading.Event()
    loop.heartbeat.add_callback(beaten.set)
    thread = threading.Thread(target=loop.run, kwargs=options, daemon=True)
    thread.start()
    assert beaten.wait(SOON)
    return thread


def pauses(caplog: pytest.LogCaptureFixture) -> list[float]:
    said = [record.redrive for record in caplog.records if hasattr(record, "redrive")]
    return [fields["retry_in_seconds"] for fields in said if fields["event"] == "Mailbox unreachable"]


def test_m36_a_store_that_is_away_is_waited_for(
    bench: Bench, faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    began = bench.clock.now()
    bench.send()
    faulty.fail("lease", times=6)
    beats = []
    bench.loop.heartbeat.add_callback(lambda: beats.append(bench.clock.now()))
    while_time_passes(bench.clock, bench.run)
    assert pauses(caplog) == [1, 2, 4, 8, 16, 30]
    assert bench.clock.now() - began >= 60_000
    assert len(beats) > 6, "it is not taken for stuck"
    assert [answer.output for answer in bench.answers()] == [Told("why!")]
    assert any(record.getMessage().startswith("Mailbox reachable again") for record in caplog.records)
    [done] = bench.requests.shared.call(faulty.find, Match("queue", "=", "requests")).items
    assert (done.state, done.deliveries, done.attempt) == (State.DONE, 1, 1), "the outage cost no delivery"


def test_m36_work_that_was_done_is_not_done_again_because_the_store_is_away(bench: Bench, faulty: FaultyStore) -> None:
    bench.send()
    faulty.fail("settle", times=3)
    while_time_passes(bench.clock, bench.run)
    assert bench.adapter.asked == [Ask("why")]
    assert [answer.output for answer in bench.answers()] == [Told("why!")]
    assert bench.counts == (0, 0)


@pytest.mark.slow
def test_m36_a_letter_of_which_nobody_knew_is_one_letter_and_one_reply(bench: Bench, faulty: FaultyStore) -> None:
    bench.adapter.error = ValueError("boom")
    bench.send()
    faulty.next("settle", *[Fault.UNKNOWN] * 4)
    while_time_passes(bench.clock, bench.run)
    assert bench.counts == (0, 1)
    assert len(bench.answers()) == 1
    assert bench.metrics.total("sent") == 1


def test_a_shutdown_ends_the_waiting(bench: Bench) -> None:
    thread = begun(bench.loop, wait_time_seconds=600)
    assert bench.loop.running
    assert bench.loop.shutdown(timeout=SOON)
    thread.join(SOON)
    assert not bench.loop.running


def test_a_shutdown_ends_the_waiting_for_the_store(bench: Bench, faulty: FaultyStore) -> None:
    faulty.fail("lease")
    thread = begun(bench.loop)
    assert bench.loop.shutdown(timeout=SOON)
    thread.join(SOON)
    assert not bench.loop.running


def test_m32_at_a_shutdown_the_rest_of_the_batch_is_visible_at_once(
    kind: str, mailboxes: Openers, clock: FakeClock
) -> None:
    bench = Bench(mailboxes(kind), clock)

    class Stopping(Adapter):
        def evaluate(self, prompt: Ask) -> Told:
            assert not loop.shutdown(timeout=0), "it is still at work"
            return super().evaluate(prompt)

    adapter = Stopping()
    loop = Loop(adapter=adapter, requests=bench.requests, config=MainLoopConfig(max_messages=10))
    for text in ("one", "two", "three"):
        bench.send(text)
    loop.run(wait_time_seconds=0)
    assert adapter.asked == [Ask("one")]
    assert [answer.output for answer in bench.answers()] == [Told("one!")]
    left = bench.requests.receive(max_messages=10)
    assert [(message.body.request.text, message.delivery_count) for message in left] == [("two", 1), ("three", 1)]


def test_an_interrupt_gives_the_message_back_unharmed(bench: Bench) -> None:
    bench.adapter.error = KeyboardInterrupt()
    bench.send()
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert not bench.loop.running
    [message] = bench.requests.receive()
    assert message.delivery_count == 1


def test_an_exit_is_a_failure_of_the_message(bench: Bench) -> None:
    bench.adapter.error = SystemExit(3)
    bench.send()
    with pytest.raises(SystemExit):
        bench.run()
    assert bench.counts == (0, 1)
    assert bench.letters.receive()[0].body.last_error_type == "builtins.SystemExit"


def test_a_cancelled_task_is_a_failure_of_the_message(bench: Bench) -> None:
    bench.adapter.error = asyncio.CancelledError()
    bench.send()
    bench.run()
    assert bench.counts == (0, 1)


def test_what_a_newer_version_may_read_is_tried_again_if_the_policy_says_so(bench: Bench) -> None:
    policy: DLQPolicy[Any, Any] = DLQPolicy(
        bench.letters, exclude_errors=frozenset({SerializationError}), max_delivery_count=1
    )
    bench.loop = bench.another(dlq=policy)
    bench.requests.body_type = dict  # as an older sender had it
    bench.requests.send({"request": 7})
    bench.requests.body_type = MainLoopRequest[Ask]
    bench.run()
    assert bench.counts == (1, 0)


class Slow(Adapter):
    """Takes longer than its lease; meanwhile something happens."""

    def __init__(self, clock: FakeClock, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._clock = clock
        self._meanwhile = meanwhile

    def evaluate(self, prompt: Ask) -> Told:
        self._clock.advance("31s")
        self._meanwhile()
        return super().evaluate(prompt)


UNKEPT = MainLoopConfig(lease_extender=LeaseExtenderConfig(enabled=False))


def test_who_lost_the_message_neither_ends_nor_answers_it(bench: Bench) -> None:
    taken: list[Message[Any, Any]] = []
    adapter = Slow(bench.clock, lambda: taken.extend(bench.requests.receive()))
    loop = Loop(adapter=adapter, requests=bench.requests, config=UNKEPT)
    bench.send()
    loop.run(max_iterations=1, visibility_timeout=30, wait_time_seconds=0)
    assert len(taken) == 1
    assert bench.answers() == []
    taken[0].acknowledge()


def test_a_late_result_counts_while_nobody_else_has_the_message(bench: Bench) -> None:
    loop = Loop(adapter=Slow(bench.clock, lambda: None), requests=bench.requests, config=UNKEPT)
    bench.send()
    loop.run(max_iterations=1, visibility_timeout=30, wait_time_seconds=0)
    assert [answer.output for answer in bench.answers()] == [Told("why!")]
    assert bench.counts == (0, 0)


def test_a_mailbox_that_is_closed_ends_the_loop(bench: Bench) -> None:
    loop = Loop(adapter=Slow(bench.clock, bench.requests.close), requests=bench.requests)
    bench.send()
    loop.run()
    assert not loop.running
    for mailbox in (bench.letters, bench.replies):
        mailbox.close()
    bench.loop.run()


def test_a_mailbox_that_is_closed_is_not_waited_for(
    bench: Bench, faulty: FaultyStore, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(adapter=Slow(bench.clock, bench.requests.close), requests=bench.requests)
    bench.send()
    faulty.fail("settle")
    loop.run()
    assert pauses(caplog) == []


class BrokenPolicy(DLQPolicy[Any, Any]):
    def should_dead_letter(self, message: Message[Any, Any], error: Exception) -> bool:
        raise LookupError("no such rule")

    def mailbox_for(self, error: Exception | None) -> Mailbox[Any, Any]:
        raise LookupError("no such mailbox")


def test_a_policy_that_fails_is_replaced_by_its_threshold(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.adapter.error = ValueError("boom")
    bench.loop = bench.another(dlq=BrokenPolicy(bench.letters, max_delivery_count=2))
    bench.send()
    bench.run()
    assert bench.counts == (1, 0)
    bench.clock.advance("60s")
    bench.run()
    assert bench.counts == (0, 1)
    failed = [each.__dict__["redrive"] for each in caplog.records if each.getMessage().startswith("Policy failed")]
    assert [each["error"] for each in failed] == ["no such rule", "no such rule", "no such mailbox"]
    assert {each["message_id"] for each in failed} == {bench.letters.receive()[0].body.message_id}


def test_an_output_that_cannot_be_sent_is_a_failure(bench: Bench) -> None:
    class Strange(Adapter):
        def evaluate(self, prompt: Ask) -> Any:
            return object()

    loop = Loop(adapter=Strange(), requests=bench.requests, dlq=DLQPolicy(bench.letters, max_delivery_count=1))
    bench.send()
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert bench.counts == (0, 1)
    [letter] = letters_of(bench)
    assert letter.failure.type == "redrive.errors.SerializationError"
    assert len(bench.answers()) == 1


# --- a mailbox that is none of ours ---------------------------------------------------------------------------------


class Note(Message[Any, Any]):
    def __init__(self, box: Desk, body: Any, reply_to: Mailbox[Any, Any] | None) -> None:
        self._box = box
        self._body = body
        self._reply_to = reply_to
        self.ends: list[object] = []

    id = "note-1"
    receipt_handle = "note-1:1"
    delivery_count = 1
    enqueued_at = datetime(2026, 1, 1, tzinfo=UTC)

    @property
    def body(self) -> Any:
        return self._body

    @property
    def reply_to(self) -> Mailbox[Any, Any] | None:
        return self._reply_to

    @property
    def reply_to_name(self) -> str | None:
        return None if self._reply_to is None else self._reply_to.name

    @property
    def is_finalized(self) -> bool:
        return bool(self.ends)

    def acknowledge(self) -> None:
        self.ends.append("acknowledged")

    def nack(self, visibility_timeout: float = 0) -> None:
        self.ends.append(visibility_timeout)

    def extend_visibility(self, timeout: float) -> None: ...

    def reply(self, body: Any) -> str:
        assert self._reply_to is not None
        return self._reply_to.send(body)


class Desk(Mailbox[Any, Any]):
    name = "desk"
    closed = False

    def __init__(self, *, room: int = 10, clock: Clock | None = None) -> None:
        self.notes: list[Note] = []
        self.sent: list[Any] = []
        self.outages = 0
        self._room = room
        self._clock = clock or SystemClock()

    @property
    def clock(self) -> Clock:
        return self._clock

    def send(self, body: Any, reply_to: object = None) -> str:
        if self.outages:
            self.outages -= 1
            raise MailboxConnectionError("the wire is cut")
        if len(self.sent) >= self._room:
            raise MailboxFullError("no room")
        self.sent.append(body)
        return "sent"

    def receive(
        self, max_messages: int = 1, visibility_timeout: float = 30, wait_time_seconds: float = 0
    ) -> Sequence[Message[Any, Any]]:
        return [note for note in self.notes if not note.ends][:max_messages]

    def purge(self) -> int:
        return 0

    def approximate_count(self) -> int:
        return len(self.notes)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "limit", "room", "expected"),
    [
        (None, 5, 10, (["acknowledged"], 1, 0)),
        (ValueError("boom"), 5, 10, ([60], 0, 0)),
        (ValueError("boom"), 1, 10, (["acknowledged"], 1, 1)),
        (ValueError("boom"), 1, 0, ([60], 0, 0)),
    ],
)
def test_a_mailbox_of_ones_own_is_served_by_public_calls(
    error: Exception | None, limit: int, room: int, expected: tuple[list[object], int, int]
) -> None:
    desk, replies, dead = Desk(), Desk(), Desk(room=room)
    request = MainLoopRequest(Ask("why"))
    desk.notes.append(Note(desk, request, replies))
    loop = Loop(adapter=Adapter(error), requests=desk, dlq=DLQPolicy(dead, limit))
    loop.run(max_iterations=1, wait_time_seconds=0)
    ends, answers, letters = expected
    assert desk.notes[0].ends == ends
    assert [type(answer) for answer in replies.sent] == [MainLoopResult] * answers
    assert [(type(letter), letter.body) for letter in dead.sent] == [(DeadLetter, request)] * letters


def test_a_message_whose_dead_letter_mailbox_is_closed_comes_again_when_its_lease_expires() -> None:
    """Given back at once, it would come again at once, and so on."""
    desk, dead = Desk(), CollectingMailbox[Any, Any]("dead")
    desk.notes += [Note(desk, MainLoopRequest(Ask("why")), None), Note(desk, MainLoopRequest(Ask("how")), None)]
    config = MainLoopConfig(max_messages=2)
    loop = Loop(adapter=Adapter(ValueError("boom")), requests=desk, dlq=DLQPolicy(dead, 1), config=config)
    dead.close()
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert [note.ends for note in desk.notes] == [[], [0]]


def test_a_reply_mailbox_of_ones_own_that_is_away_is_waited_for(clock: FakeClock) -> None:
    desk, replies = Desk(clock=clock), Desk()
    replies.outages = 2
    desk.notes.append(Note(desk, MainLoopRequest(Ask("why")), replies))
    loop = Loop(adapter=Adapter(), requests=desk)
    while_time_passes(clock, lambda: loop.run(max_iterations=1, wait_time_seconds=0))
    assert (len(replies.sent), desk.notes[0].ends) == (1, ["acknowledged"])


def test_letters_and_replies_for_mailboxes_of_another_maker_are_sent_there(
    mailboxes: Openers, clock: FakeClock
) -> None:
    bench, dead, replies = Bench(mailboxes("memory"), clock), Desk(), Desk()
    bench.loop = bench.another(dlq=DLQPolicy(dead, max_delivery_count=1))
    sent = MainLoopRequest(Ask("why"))
    bench.requests.send(sent, reply_to=replies)
    bench.run()
    bench.adapter.error = None
    bench.requests.send(sent, reply_to=replies)
    bench.run()
    assert [(answer.request_id, answer.output) for answer in replies.sent] == [
        (sent.request_id, None),
        (sent.request_id, Told("why!")),
    ]
    assert [(letter.body, letter.delivery_count) for letter in dead.sent] == [(sent, 1)]
    assert letters_of(bench) == [], "not a second copy"


# --- an operator ------------------------------------------------------------------------------------------------------


def beat_of(mailbox: StoreMailbox[Any, Any]) -> WorkerBeat:
    """As `redrive worker list` shows it."""
    place = mailbox.shared

    async def look() -> WorkerBeat:
        await place.tasks.rest()
        (beat,) = await place.store.workers()
        return beat

    return place.call(look)


@pytest.mark.parametrize("word", ["drain", "stop"])
def test_an_operator_sees_a_loop_and_ends_it(bench: Bench, word: orders.Word) -> None:
    """It finishes the message that it works on; the other one that it holds is given back."""
    at_work, go_on = threading.Event(), threading.Event()

    class Slow(Adapter):
        def evaluate(self, prompt: Ask) -> Told:
            at_work.set()
            go_on.wait(SOON)
            return super().evaluate(prompt)

    place = bench.requests.shared
    for _ in range(2):
        bench.send()
    bench.adapter = Slow()
    thread = begun(bench.another(config=MainLoopConfig(max_messages=2)))
    assert at_work.wait(SOON)
    bench.clock.advance(heartbeat.EVERY)
    bench.requests.receive()  # any look beats
    beat = beat_of(bench.requests)
    assert (beat.alive, beat.facts.queues, beat.facts.running, beat.facts.order) == (True, ("requests",), 2, "")
    order = orders.Order(word, "ann", "new release", bench.clock.now())
    place.call(orders.give, place.store, [beat.worker], order)
    bench.clock.advance(heartbeat.EVERY)
    bench.requests.receive()
    assert beat_of(bench.requests).facts.order == word
    go_on.set()
    thread.join(SOON)
    assert not thread.is_alive()
    assert [result.success for result in bench.answers()] == [True]
    assert bench.requests.approximate_count() == 1


@pytest.mark.parametrize("word", ["drain", "stop"])
def test_an_operator_ends_automatic_replay_with_the_other_loops(bench: Bench, word: orders.Word) -> None:
    place = bench.requests.shared
    auto: AutoReplay[Any] = AutoReplay(bench.letters, [ReplayRule(after=0)])
    thread = begun(auto)
    bench.requests.receive()
    order = orders.Order(word, "ann", "new release", bench.clock.now())
    place.call(orders.give, place.store, [beat_of(bench.requests).worker], order)
    bench.clock.advance(heartbeat.EVERY)
    bench.requests.receive()
    assert beat_of(bench.requests).facts.order == word
    thread.join(SOON)
    running = auto.running
    auto.shutdown()
    assert not running


@pytest.mark.parametrize("obeys", [True, False])
def test_a_cancel_request_reaches_a_running_loop(bench: Bench, obeys: bool) -> None:
    """The work may ask `cancel_requested()`; what it raises then ends the message. One that returns is done."""
    at_work, go_on, told = threading.Event(), threading.Event(), []

    class Asks(Adapter):
        def evaluate(self, prompt: Ask) -> Told:
            at_work.set()
            go_on.wait(SOON)
            told.append(cancel_requested())
            if obeys:
                raise RuntimeError("stopped")
            return super().evaluate(prompt)

    place = bench.requests.shared
    bench.adapter = Asks()
    bench.send()
    heard: list[Event] = []
    bench.requests.events.subscribe(heard.append)
    thread = begun(bench.another(), max_iterations=1)
    assert at_work.wait(SOON)
    (item,) = place.call(place.store.find, EVERYTHING)
    place.call(place.store.amend, Ids((item.id,)), Cancel(), Act("ann", "wrong list", "r-1"))
    bench.clock.advance(heartbeat.EVERY)
    bench.replies.receive()  # any look beats
    beat_of(bench.requests)
    go_on.set()
    thread.join(SOON)
    assert told == ["ann: wrong list"]
    assert [event.reason for event in heard if isinstance(event, CancelAsked)] == told
    after = place.call(place.store.get, item.id)
    assert after.item.state is (State.CANCELLED if obeys else State.DONE)
    if obeys:
        failure = after.attempts[-1].failure
        assert failure is not None
        assert failure.text == "stopped"
        assert bench.counts == (0, 0)
