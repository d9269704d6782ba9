"""Loops beside each other, and loops whose dead letters and replies belong on other stores."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redrive.mailboxes import (
    DLQPolicy,
    MailboxResolver,
    MainLoop,
    MainLoopRequest,
    MainLoopResult,
    StoreMailbox,
    ValidationError,
    open_mailbox,
)
from redrive.testing import FakeClock, Fault, FaultyStore, MemoryStore
from tests.mailboxes.bench import Ask, Bench, Loop, Told
from tests.mailboxes.conftest import Openers

MESSAGES = 40
THREADS = 4


class Counting:
    """Every tenth request is poison. Any thread may ask it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def evaluate(self, prompt: Ask) -> Told:
        with self._lock:
            self.asked[prompt.text] += 1
        if prompt.text.endswith("0"):
            raise ValidationError(prompt.text)
        return Told(prompt.text)


def test_loops_on_one_mailbox_share_the_work(kind: str, mailboxes: Openers) -> None:
    opened = mailboxes(kind)
    requests, letters = opened("requests"), opened("requests-dlq")
    replies: StoreMailbox[MainLoopResult[Told], None] = opened("replies", body_type=MainLoopResult[Told])
    for number in range(MESSAGES):
        requests.send(MainLoopRequest(Ask(f"r{number}")), reply_to=replies)
    adapter = Counting()
    policy: DLQPolicy[Any, Any] = DLQPolicy(letters, include_errors=frozenset({ValidationError}))
    loops = [Loop(adapter=adapter, requests=requests, dlq=policy) for _ in range(THREADS)]
    options = {"max_iterations": MESSAGES, "wait_time_seconds": 0}
    threads = [threading.Thread(target=loop.run, kwargs=options) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(adapter.asked.values()) == {1}
    assert len(adapter.asked) == MESSAGES
    assert requests.approximate_count() == 0
    assert letters.approximate_count() == MESSAGES // 10
    answers = []
    while got := replies.receive(max_messages=10):
        answers += [message.body for message in got]
    assert len({answer.request_id for answer in answers}) == len(answers) == MESSAGES
    assert sum(not answer.success for answer in answers) == MESSAGES // 10


@pytest.fixture
def elsewhere(clock: FakeClock, tmp_path: Path) -> Any:
    """What opens mailboxes on another store."""
    opened: list[StoreMailbox[Any, Any]] = []

    def opener(name: str, **options: Any) -> StoreMailbox[Any, Any]:
        opened.append(open_mailbox(name, f"sqlite:///{tmp_path / 'elsewhere.db'}", clock=clock, **options))
        return opened[-1]

    yield opener
    for mailbox in opened:
        mailbox.close()


def test_letters_and_replies_for_another_store_arrive_there(
    mailboxes: Openers, clock: FakeClock, elsewhere: Any
) -> None:
    bench = Bench(mailboxes("memory"), clock)
    letters, replies = elsewhere("requests-dlq"), elsewhere("answers", body_type=MainLoopResult[Told])
    bench.loop = bench.another(dlq=DLQPolicy(letters, max_delivery_count=1))
    sent = MainLoopRequest(Ask("why"))
    bench.requests.send(sent, reply_to=replies)
    bench.run()
    [answer] = replies.receive()
    assert answer.body.error == "Dead-lettered after 1 attempts: no such city"
    [letter] = letters.receive()
    assert (letter.body.body, letter.body.last_error) == (sent, "no such city")
    assert bench.counts == (0, 0)


def test_m38_a_full_mailbox_on_another_store_keeps_it_in_the_source(
    mailboxes: Openers, clock: FakeClock, elsewhere: Any
) -> None:
    bench = Bench(mailboxes("memory"), clock)
    letters = elsewhere("requests-dlq", max_size=1)
    bench.loop = bench.another(dlq=DLQPolicy(letters, max_delivery_count=1))
    bench.send("one")
    bench.send("two")
    bench.run(2)
    assert (bench.requests.approximate_count(), letters.approximate_count()) == (1, 1)
    assert len(bench.answers()) == 1
    assert bench.metrics.total("refused") == 1
    letters.receive()[0].acknowledge()
    clock.advance("60s")
    bench.run()
    assert (bench.requests.approximate_count(), letters.approximate_count()) == (0, 1)


def test_letters_wait_while_the_other_store_is_away(mailboxes: Openers, clock: FakeClock) -> None:
    away = FaultyStore(MemoryStore(clock))
    bench = Bench(mailboxes("memory"), clock)
    with open_mailbox("requests-dlq", away, clock=clock) as letters:
        bench.loop = bench.another(dlq=DLQPolicy(letters, max_delivery_count=1))
        bench.send()
        away.fail("take_in")
        bench.run()
        assert [answer.error for answer in bench.answers()] == ["Dead-lettered after 1 attempts: no such city"]
        assert letters.approximate_count() == 0
        away.heal()
        clock.advance("1m")
        bench.run()
        assert letters.approximate_count() == 1


def test_letters_are_taken_each_minute(mailboxes: Openers, clock: FakeClock) -> None:
    away = FaultyStore(MemoryStore(clock))
    bench = Bench(mailboxes("memory"), clock)
    with open_mailbox("requests-dlq", away, clock=clock) as letters:
        bench.loop = bench.another(dlq=DLQPolicy(letters, max_delivery_count=1))
        away.next("take_in", *[Fault.UNAVAILABLE] * 3)
        bench.send()
        bench.loop.heartbeat.add_callback(lambda: clock.advance("30s"))
        bench.run(8)
        assert len(away.calls_of("take_in")) == 4
        assert letters.approximate_count() == 1


def test_replies_find_their_mailbox_by_the_resolver(mailboxes: Openers, clock: FakeClock, elsewhere: Any) -> None:
    bench = Bench(mailboxes("memory"), clock)
    answers = elsewhere("answers", body_type=MainLoopResult[Told])
    bench.adapter.error = None
    bench.requests.resolver = MailboxResolver({"the-boss": answers})
    bench.requests.send(MainLoopRequest(Ask("why")), reply_to="the-boss")
    bench.run()
    [answer] = answers.receive()
    assert answer.body.output == Told("why!")


def test_a_loop_without_generics_takes_plain_data(mailboxes: Openers) -> None:
    requests = mailboxes("memory")("requests")
    requests.send(MainLoopRequest({"text": "why"}))
    asked: list[Any] = []

    class Plain:
        def evaluate(self, prompt: Any) -> str:
            asked.append(prompt)
            return "because"

    MainLoop(adapter=Plain(), requests=requests).run(max_iterations=1, wait_time_seconds=0)
    assert asked == [{"text": "why"}]
