"""Dead letters are worked off; what fails stays a dead letter."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive.core.states import State
from redrive.errors import InvalidParameterError, MailboxConnectionError
from redrive.mailboxes import (
    KEEP,
    DeadLetter,
    DLQConsumer,
    LoopGroup,
    Mailbox,
    MailboxMetrics,
    MailboxResolver,
    Message,
    logs,
    replay_handler,
    replay_with_dedup,
    safe,
)
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Openers, item_of
from tests.mailboxes.foreign import Around
from tests.mailboxes.threads import SOON, until
from tests.support.logs import ours

Letters = Mailbox[DeadLetter[Any], Any]


def letter(clock: FakeClock, number: int = 1, error_type: str = "builtins.ValueError") -> DeadLetter[Any]:
    now = datetime.fromtimestamp(clock.now() / 1000, UTC)
    return DeadLetter(
        message_id=f"m{number}",
        body={"number": number},
        source_mailbox="requests",
        delivery_count=5,
        last_error="boom",
        last_error_type=error_type,
        dead_lettered_at=now,
        first_received_at=now,
    )


def consumer(mailbox: Letters, handler: Callable[[DeadLetter[Any]], object], **options: Any) -> DLQConsumer[Any]:
    return DLQConsumer(mailbox=mailbox, handler=handler, **{"metrics": MailboxMetrics(), **options})


@contextmanager
def running(one: DLQConsumer[Any], **options: Any) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=one.run, kwargs=options)
    thread.start()
    try:
        yield thread
    finally:
        one.shutdown(timeout=SOON)
        thread.join(SOON)
        assert not thread.is_alive()


# --- M-16 ---


def test_m16_a_handled_letter_is_acknowledged(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    dlq, metrics = mailboxes(kind)("requests-dlq"), MailboxMetrics()
    dlq.send(letter(clock))
    got: list[DeadLetter[Any]] = []
    consumer(dlq, got.append, metrics=metrics).run(max_iterations=2, wait_time_seconds=0)
    assert [(each.message_id, each.body) for each in got] == [("m1", {"number": 1})]
    assert dlq.approximate_count() == 0
    assert metrics.counts["processed"] == {("requests", "builtins.ValueError"): 1}


def test_m16_one_that_fails_is_logged_and_comes_again_in_an_hour_as_the_same_letter(
    kind: str, mailboxes: Openers, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    dlq, metrics = mailboxes(kind)("requests-dlq"), MailboxMetrics()
    dlq.send(letter(clock))
    seen: list[str] = []

    def fails(dead: DeadLetter[Any]) -> None:
        seen.append(dead.message_id)
        raise RuntimeError("no pager")

    failing = consumer(dlq, fails, metrics=metrics)
    failing.run(max_iterations=2, wait_time_seconds=0)
    assert seen == ["m1"]
    record = next(record for record in ours(caplog) if record.levelno == logging.ERROR)
    assert record.getMessage().startswith("DLQ handler failed message_id=")
    assert record.__dict__["redrive"]["error"] == "no pager"
    assert dlq.approximate_count() == 1
    clock.advance("3599s")
    failing.run(max_iterations=1, wait_time_seconds=0)
    assert seen == ["m1"]
    clock.advance("1s")
    failing.run(max_iterations=1, wait_time_seconds=0)
    assert seen == ["m1", "m1"]
    assert dlq.approximate_count() == 1
    assert metrics.total("processed") == metrics.total("sent") == 0


def test_m16_a_letter_that_its_handler_wants_kept_stays_without_an_error(
    mailboxes: Openers, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    dlq, metrics = mailboxes("memory")("requests-dlq"), MailboxMetrics()
    dlq.send(letter(clock))
    consumer(dlq, lambda _: KEEP, metrics=metrics).run(max_iterations=2, wait_time_seconds=0)
    assert dlq.approximate_count() == 1
    assert metrics.total("processed") == 0
    assert not ours(caplog)


def test_an_async_handler_is_run_to_its_end(mailboxes: Openers, clock: FakeClock) -> None:
    dlq = mailboxes("memory")("requests-dlq")
    for number in (1, 2):
        dlq.send(letter(clock, number))
    got: list[str] = []

    async def handler(dead: DeadLetter[Any]) -> None:
        if dead.message_id == "m2":
            raise RuntimeError("no")
        got.append(dead.message_id)

    consumer(dlq, handler).run(max_iterations=2, wait_time_seconds=0)
    assert got == ["m1"]
    assert dlq.approximate_count() == 1


def test_m22_age_and_duration_are_measured_on_the_clock_of_the_mailbox(mailboxes: Openers, clock: FakeClock) -> None:
    dlq, metrics = mailboxes("memory")("requests-dlq"), MailboxMetrics()
    dlq.send(letter(clock))
    clock.advance("90s")
    consumer(dlq, lambda _: clock.advance("2s"), metrics=metrics).run(max_iterations=1, wait_time_seconds=0)
    labels = ("requests", "builtins.ValueError")
    assert (metrics.ages[labels].count, metrics.ages[labels].sum) == (1, 90)
    assert (metrics.durations[labels].count, metrics.durations[labels].sum) == (1, 2000)
    assert metrics.depths() == {"requests-dlq": 0}


@logs.with_action("alert")
def page_somebody(_: DeadLetter[Any]) -> None:
    pass


def shrug(_: DeadLetter[Any]) -> None:
    pass


def test_the_action_of_a_handler_is_what_it_declares(mailboxes: Openers) -> None:
    """An attribute `action`; those of redrive have it, and any other handler handles."""
    source = mailboxes("memory")("requests")
    again = functools.partial(replay_handler, source=source, reply_resolver=MailboxResolver())
    handlers = {
        "replay": (again, safe(again), safe(again, discard=True), functools.partial(replay_with_dedup, source=source)),
        "alert": (page_somebody, safe(page_somebody, discard=True)),
        "discard": (safe(shrug, discard=True),),
        "handle": (shrug, safe(shrug), lambda _: None, functools.partial(shrug)),
    }
    assert {action: {logs.action_of(each) for each in those} for action, those in handlers.items()} == {
        action: {action} for action in handlers
    }


def test_what_is_about_to_be_done_is_logged(
    mailboxes: Openers, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redrive.mailboxes")
    dlq = mailboxes("memory")("requests-dlq")
    dlq.send(letter(clock))
    consumer(dlq, page_somebody).run(max_iterations=1, wait_time_seconds=0)
    fields = next(record.__dict__["redrive"] for record in ours(caplog))
    assert fields == {
        "event": "Processing dead letter",
        "message_id": "m1",
        "request_id": None,
        "age_seconds": 0.0,
        "action": "alert",
    }


def test_a_letter_whose_lease_was_lost_meanwhile_is_not_counted(mailboxes: Openers, clock: FakeClock) -> None:
    dlq, metrics = mailboxes("memory")("requests-dlq"), MailboxMetrics()
    dlq.send(letter(clock))
    slow = consumer(dlq, lambda _: clock.advance("301s"), metrics=metrics)
    slow.run(max_iterations=1, wait_time_seconds=0)
    assert metrics.total("processed") == 0
    assert dlq.approximate_count() == 1


# --- M-17 ---


def test_m17_it_beats_in_each_iteration_and_does_as_many_as_it_is_told(mailboxes: Openers, clock: FakeClock) -> None:
    one = consumer(mailboxes("memory")("requests-dlq"), lambda _: None)
    beats: list[bool] = []
    one.heartbeat.add_callback(lambda: beats.append(one.running))
    one.run(max_iterations=3, wait_time_seconds=0)
    assert beats == [True] * 3
    assert not one.running
    one.run(max_iterations=0)
    assert len(beats) == 3


def test_m17_it_stops_when_told_though_it_waits_for_letters(kind: str, mailboxes: Openers) -> None:
    one = consumer(mailboxes(kind)("requests-dlq"), lambda _: None)
    with running(one, wait_time_seconds=600) as thread:
        until(lambda: one.running)
        assert one.shutdown(timeout=SOON)
        assert not one.running
        thread.join(SOON)


def test_m17_it_ends_when_its_mailbox_is_closed(mailboxes: Openers) -> None:
    dlq = mailboxes("memory")("requests-dlq")
    one = consumer(dlq, lambda _: None)
    with running(one, wait_time_seconds=600) as thread:
        until(lambda: one.running)
        dlq.close()
        thread.join(SOON)
        assert not thread.is_alive()


def test_m17_it_runs_in_a_group(mailboxes: Openers, clock: FakeClock) -> None:
    dlq = mailboxes("memory")("requests-dlq")
    dlq.send(letter(clock))
    handled = threading.Event()
    one = consumer(dlq, lambda _: handled.set())
    group = LoopGroup([one], health_port=0)
    thread = threading.Thread(target=group.run, kwargs={"install_signals": False})
    thread.start()
    assert handled.wait(SOON)
    until(lambda: dlq.approximate_count() == 0)
    report = group.health()
    assert (report["status"], [each["name"] for each in report["dlq"]]) == ("healthy", ["requests-dlq"])
    assert group.shutdown(timeout=SOON)
    thread.join(SOON)


def test_m17_a_visibility_of_zero_is_not_taken_for_none_at_all(mailboxes: Openers) -> None:
    asked: list[float] = []

    class Asked(Around):
        def receive(
            self, max_messages: int = 1, visibility_timeout: float = 30, wait_time_seconds: float = 0
        ) -> Sequence[Message[Any, Any]]:
            asked.append(visibility_timeout)
            return []

    one = consumer(Asked(mailboxes("memory")("requests-dlq")), lambda _: None, visibility_timeout=7)
    one.run(max_iterations=1, wait_time_seconds=0)
    one.run(max_iterations=1, wait_time_seconds=0, visibility_timeout=1)
    with pytest.raises(InvalidParameterError, match="visibility_timeout"):
        one.run(max_iterations=1, wait_time_seconds=0, visibility_timeout=0)
    assert asked == [7, 1]


def test_m17_a_store_that_is_down_is_asked_again_with_pauses(mailboxes: Openers, clock: FakeClock) -> None:
    errors: list[Exception] = [MailboxConnectionError("down") for _ in range(6)]
    at: list[float] = []

    class Down(Around):
        def receive(
            self, max_messages: int = 1, visibility_timeout: float = 30, wait_time_seconds: float = 0
        ) -> Sequence[Message[Any, Any]]:
            at.append(clock.monotonic() / 1000)
            if errors:
                raise errors.pop(0)
            return super().receive(max_messages, visibility_timeout, 0)

    dlq = mailboxes("memory")("requests-dlq")
    dlq.send(letter(clock))
    handled: list[str] = []
    one = consumer(Down(dlq), lambda dead: handled.append(dead.message_id))
    with running(one, max_iterations=7, wait_time_seconds=0) as thread:
        for pause in (1, 2, 4, 8, 16, 30):
            millis = pause * 1000
            until(functools.partial(_sleeps_for, clock, millis))
            clock.advance(millis)
        thread.join(SOON)
    assert at == [0, 1, 3, 7, 15, 31, 61]
    assert handled == ["m1"]


def test_as_a_context_it_stops_at_the_end(mailboxes: Openers) -> None:
    with consumer(mailboxes("memory")("requests-dlq"), lambda _: None) as one:
        thread = threading.Thread(target=one.run, kwargs={"wait_time_seconds": 600})
        thread.start()
        until(lambda: one.running)
    assert not one.running
    thread.join(SOON)


# --- M-32 ---


def test_m32_at_a_shutdown_the_current_letter_ends_and_the_rest_are_visible_at_once(
    kind: str, mailboxes: Openers, clock: FakeClock
) -> None:
    dlq = mailboxes(kind)("requests-dlq")
    for number in range(3):
        dlq.send(letter(clock, number))
    begun, release, handled = threading.Event(), threading.Event(), []

    def slow(dead: DeadLetter[Any]) -> None:
        begun.set()
        assert release.wait(SOON)
        handled.append(dead.message_id)

    one = consumer(dlq, slow, max_messages=10)
    with running(one, wait_time_seconds=0):
        assert begun.wait(SOON)
        assert not one.shutdown(timeout=0)
        assert dlq.receive(max_messages=10) == []
        release.set()
        assert one.shutdown(timeout=SOON)
    assert len(handled) == 1
    rest = dlq.receive(max_messages=10)
    assert {message.body.message_id for message in rest} == {"m0", "m1", "m2"} - set(handled)


def test_m32_a_thread_that_is_ended_in_a_handler_leaves_nothing_invisible(mailboxes: Openers, clock: FakeClock) -> None:
    dlq = mailboxes("memory")("requests-dlq")
    for number in range(2):
        dlq.send(letter(clock, number))

    def ends(_: DeadLetter[Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consumer(dlq, ends, max_messages=10).run(wait_time_seconds=0)
    assert len(dlq.receive(max_messages=10)) == 2


# --- the lease ---


def test_m39_a_letter_in_hand_is_kept_while_its_handler_takes_its_time(
    kind: str, mailboxes: Openers, clock: FakeClock
) -> None:
    dlq = mailboxes(kind)("requests-dlq")
    dlq.send(letter(clock))
    begun, release = threading.Event(), threading.Event()

    def slow(_: DeadLetter[Any]) -> None:
        begun.set()
        assert release.wait(SOON)

    one = consumer(dlq, slow, visibility_timeout=300)
    with running(one, max_iterations=1, wait_time_seconds=0) as thread:
        assert begun.wait(SOON)
        for _ in range(8):
            # Time passes when the extender has seen to what was due, and sleeps again.
            until(lambda: clock.next_in == 60_000)
            clock.advance("60s")
        until(lambda: clock.next_in == 60_000)
        assert dlq.receive() == []
        release.set()
        thread.join(SOON)
    assert dlq.approximate_count() == 0


# --- safe ---


def fails(_: DeadLetter[Any]) -> None:
    raise RuntimeError("no pager")


def test_a_safe_handler_never_raises_and_keeps_what_it_failed_on(
    mailboxes: Openers, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    dlq, metrics = mailboxes("memory")("requests-dlq"), MailboxMetrics()
    dlq.send(letter(clock))
    guarded = safe(fails, metrics=metrics)
    assert guarded(letter(clock)) is KEEP
    consumer(dlq, guarded, metrics=metrics).run(max_iterations=1, wait_time_seconds=0)
    assert dlq.approximate_count() == 1
    assert metrics.total("discarded") == metrics.total("processed") == 0
    assert "Failed to process dead letter, keeping it" in caplog.text


def test_a_safe_handler_discards_only_if_told_and_counts_it(
    mailboxes: Openers, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    dlq, metrics = mailboxes("memory")("requests-dlq"), MailboxMetrics()
    dlq.send(letter(clock))
    guarded = safe(fails, discard=True, metrics=metrics)
    consumer(dlq, guarded, metrics=metrics).run(max_iterations=1, wait_time_seconds=0)
    assert dlq.approximate_count() == 0
    assert metrics.counts["discarded"] == {("requests", "builtins.ValueError"): 1}
    assert "Failed to process dead letter, discarding" in caplog.text


def test_a_safe_handler_that_succeeds_changes_nothing(clock: FakeClock) -> None:
    got: list[str] = []
    guarded = safe(lambda dead: got.append(dead.message_id))
    assert guarded(letter(clock)) is None
    assert got == ["m1"]


def test_a_time_without_a_zone_is_taken_as_utc(clock: FakeClock) -> None:
    from redrive.mailboxes.letters.consumer import _age

    aware = letter(clock)
    naive = replace(aware, dead_lettered_at=aware.dead_lettered_at.replace(tzinfo=None) - timedelta(seconds=5))
    assert _age(naive, clock.now()) == 5


def _sleeps_for(clock: FakeClock, millis: int) -> bool:
    return clock.next_in == millis


def test_a_consumer_does_not_change_what_is_sent_to_its_mailbox(mailboxes: Openers) -> None:
    """On a mailbox of requests, say, by mistake: what is sent later is a message all the same."""
    requests = mailboxes("memory")("requests")
    consumer(requests, print)
    assert item_of(requests, requests.send({"number": 1})).state is State.READY
