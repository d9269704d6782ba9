"""The numbers that Prometheus sees, and what the logs say."""

from __future__ import annotations

import ast
import logging
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Counter as Prometheus

from redrive.errors import InvalidParameterError, MailboxConnectionError, MissingExtra
from redrive.mailboxes import DeadLetter, DLQConsumer, Replayer, StoreMailbox, logs, safe
from redrive.mailboxes.metrics import MailboxMetrics, default_metrics
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from tests.mailboxes.bench import Bench
from tests.mailboxes.conftest import Openers
from tests.mailboxes.foreign import Deep
from tests.support.logs import ours


def told(*metrics: MailboxMetrics, registry: CollectorRegistry | None = None) -> list[str]:
    registry = CollectorRegistry() if registry is None else registry
    for each in metrics:
        each.register(registry)
    text = generate_latest(registry).decode()
    return sorted(line for line in text.splitlines() if not line.startswith("#") and "_created" not in line)


def test_m22_counters_move_by_source_and_error_type() -> None:
    metrics = MailboxMetrics("agents")
    metrics.sent("requests", "builtins.ValueError")
    metrics.sent("requests", "builtins.ValueError")
    metrics.sent("evals", "builtins.TimeoutError")
    metrics.replayed("requests", "builtins.ValueError")
    metrics.discarded("requests", "builtins.ValueError")
    metrics.expired("requests", "builtins.ValueError", 3)
    metrics.refused("evals", "builtins.KeyError")
    assert metrics.total("sent") == 3
    assert told(metrics) == [
        'agents_dlq_messages_discarded_total{error_type="builtins.ValueError",source="requests"} 1.0',
        'agents_dlq_messages_expired_total{error_type="builtins.ValueError",source="requests"} 3.0',
        'agents_dlq_messages_refused_total{error_type="builtins.KeyError",source="evals"} 1.0',
        'agents_dlq_messages_replayed_total{error_type="builtins.ValueError",source="requests"} 1.0',
        'agents_dlq_messages_sent_total{error_type="builtins.TimeoutError",source="evals"} 1.0',
        'agents_dlq_messages_sent_total{error_type="builtins.ValueError",source="requests"} 2.0',
    ]


def test_m22_on_every_store_by_those_who_do_it(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    """A loop gives up three, one is replayed, one processed, one discarded."""
    bench = Bench(mailboxes(kind), clock, max_delivery_count=1)
    for text in ("replayed", "processed", "discarded"):
        bench.send(text)
        bench.run()
        clock.advance("1s")
    metrics = bench.metrics
    metrics.watch(bench.letters)
    labels = 'error_type="builtins.ValueError",source="requests"'
    assert told(metrics) == [
        f"redrive_dlq_messages_sent_total{{{labels}}} 3.0",
        'redrive_dlq_queue_depth{mailbox="requests-dlq"} 3.0',
    ]
    assert len(Replayer(bench.letters, metrics=metrics).matching(limit=1).replayed) == 1

    def handle(letter: DeadLetter[Any]) -> None:
        clock.advance("2s")

    def fail(letter: DeadLetter[Any]) -> None:
        raise ValueError("cannot be helped")

    for handler in (handle, safe(fail, discard=True, metrics=metrics)):
        consumer = DLQConsumer(mailbox=bench.letters, handler=handler, metrics=metrics)
        consumer.run(max_iterations=1, wait_time_seconds=0)
    lines = told(metrics)
    for what, count in (("sent", 3), ("replayed", 1), ("discarded", 1), ("processed", 2)):
        assert f"redrive_dlq_messages_{what}_total{{{labels}}} {count}.0" in lines
    assert 'redrive_dlq_queue_depth{mailbox="requests-dlq"} 0.0' in lines
    assert f"redrive_dlq_processing_duration_ms_sum{{{labels}}} 2000.0" in lines
    assert f"redrive_dlq_message_age_seconds_sum{{{labels}}} 5.0" in lines, "2 seconds, and 3 of the last"


def test_m22_a_processed_letter_has_an_age_and_a_duration() -> None:
    metrics = MailboxMetrics()
    for seconds, millis in ((0.5, 3), (60, 12), (10_000_000, 400_000)):
        metrics.processed("requests", "builtins.ValueError", age_seconds=seconds, duration_ms=millis)
    lines = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in told(metrics)}
    labels = 'error_type="builtins.ValueError"'

    def age(bound: str) -> float:
        return lines[f'redrive_dlq_message_age_seconds_bucket{{{labels},le="{bound}",source="requests"}}']

    def took(bound: str) -> float:
        return lines[f'redrive_dlq_processing_duration_ms_bucket{{{labels},le="{bound}",source="requests"}}']

    # A bound belongs to its bucket, and each bucket has all before it.
    assert [age(bound) for bound in ("1", "10", "60", "300", "2592000", "+Inf")] == [1, 1, 2, 2, 2, 3]
    assert [took(bound) for bound in ("1", "5", "10", "25", "300000", "+Inf")] == [0, 1, 1, 2, 2, 3]
    assert lines[f'redrive_dlq_message_age_seconds_sum{{{labels},source="requests"}}'] == 10_000_060.5
    assert lines[f'redrive_dlq_processing_duration_ms_count{{{labels},source="requests"}}'] == 3
    assert lines[f'redrive_dlq_messages_processed_total{{{labels},source="requests"}}'] == 3


def test_m22_the_depth_is_that_of_the_mailbox_when_somebody_asks() -> None:
    metrics, depth = MailboxMetrics(), [4]
    metrics.watch(Deep(lambda: depth[0]))
    assert told(metrics) == ['redrive_dlq_queue_depth{mailbox="requests-dlq"} 4.0']
    depth[0] = 5
    assert told(metrics) == ['redrive_dlq_queue_depth{mailbox="requests-dlq"} 5.0']


def test_m22_a_mailbox_that_cannot_be_asked_tells_its_last_depth_and_a_closed_one_none() -> None:
    class Closes(Deep):
        closed = False

    answers: list[int | Exception] = [4, MailboxConnectionError("down")]

    def count() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    mailbox = Closes(count)
    metrics = MailboxMetrics()
    metrics.watch(mailbox)
    metrics.watch(mailbox)
    assert metrics.depths() == {"requests-dlq": 4}
    assert metrics.depths() == {"requests-dlq": 4}
    mailbox.closed = True
    assert metrics.depths() == {}


def test_those_of_one_registry_and_prefix_are_told_as_one() -> None:
    """A name can be registered once: loops with metrics of their own would else be refused, or one of them missing."""
    one, two, other = MailboxMetrics(), MailboxMetrics(), MailboxMetrics("agents")
    registry, shared = CollectorRegistry(), Deep(lambda: 4)
    for metrics in (one, two, other):
        metrics.sent("requests", "builtins.ValueError")
        metrics.watch(shared)
    two.sent("evals", "builtins.KeyError")
    two.watch(Deep(lambda: 5, "evals-dlq"))
    for seconds in (0.5, 60):
        two.processed("requests", "builtins.ValueError", age_seconds=seconds, duration_ms=1)
    one.processed("requests", "builtins.ValueError", age_seconds=60, duration_ms=1)
    lines = told(one, two, other, one, registry=registry)
    labels = 'error_type="builtins.ValueError"'
    for line in (
        f'redrive_dlq_messages_sent_total{{{labels},source="requests"}} 2.0',
        'redrive_dlq_messages_sent_total{error_type="builtins.KeyError",source="evals"} 1.0',
        'redrive_dlq_queue_depth{mailbox="evals-dlq"} 5.0',
        'redrive_dlq_queue_depth{mailbox="requests-dlq"} 4.0',
        f'redrive_dlq_message_age_seconds_bucket{{{labels},le="10",source="requests"}} 1.0',
        f'redrive_dlq_message_age_seconds_sum{{{labels},source="requests"}} 120.5',
        f'agents_dlq_messages_sent_total{{{labels},source="requests"}} 1.0',
    ):
        assert line in lines
    two.unregister(registry)
    assert f'redrive_dlq_messages_sent_total{{{labels},source="requests"}} 1.0' in told(registry=registry)
    for metrics in (one, two):
        metrics.unregister(registry)
    assert [line for line in told(registry=registry) if line.startswith("redrive")] == []


def test_mailboxes_of_one_name_on_two_stores_are_added_up(clock: FakeClock) -> None:
    one, two, registry = MailboxMetrics(), MailboxMetrics(), CollectorRegistry()
    with (
        StoreMailbox[int, None]("dlq", MemoryStore(clock), clock=clock) as here,
        StoreMailbox[int, None]("dlq", MemoryStore(clock), clock=clock) as there,
    ):
        here.send(1)
        there.send(2)
        there.send(3)
        one.watch(here)
        two.watch(here)
        assert 'redrive_dlq_queue_depth{mailbox="dlq"} 1.0' in told(one, two, registry=registry)
        two.watch(there)
        assert 'redrive_dlq_queue_depth{mailbox="dlq"} 3.0' in told(registry=registry)


def test_names_that_somebody_else_has_are_refused_by_the_prefix() -> None:
    registry = CollectorRegistry()
    Prometheus("redrive_dlq_messages_sent", "mine", registry=registry)
    with pytest.raises(InvalidParameterError, match=r"^prefix: the registry has such names"):
        MailboxMetrics().register(registry)


def test_registering_asks_nobody() -> None:
    def asked() -> int:
        raise AssertionError("nobody may ask")

    metrics = MailboxMetrics()
    metrics.watch(Deep(asked))
    metrics.register(CollectorRegistry())


def test_one_instance_of_the_process_counts_unless_another_is_given() -> None:
    assert default_metrics() is default_metrics()
    assert default_metrics().prefix == "redrive"


@pytest.mark.parametrize("prefix", ["", "1st", "a-b", "ä", None])
def test_a_prefix_that_prometheus_refuses_is_refused_at_once(prefix: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"^prefix: .* cannot begin the name of a metric"):
        MailboxMetrics(prefix)


def test_without_prometheus_client_the_counts_are_there_and_registering_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    metrics = MailboxMetrics()
    metrics.sent("requests", "builtins.ValueError")
    assert metrics.counts["sent"] == {("requests", "builtins.ValueError"): 1}
    with pytest.raises(MissingExtra, match=r"redrive\[metrics\]"):
        metrics.register()


# --- logs ---


def test_log_events_have_the_text_and_the_fields_of_the_seed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "redrive.mailboxes")
    request = UUID(int=1)
    logs.log(
        logging.WARNING,
        "Message dead-lettered",
        message_id="m",
        request_id=request,
        source_mailbox="requests",
        delivery_count=5,
        error_type="builtins.ValueError",
        error_message="boom",
    )
    logs.log(logging.INFO, "Processing dead letter", message_id="m", request_id=None, age_seconds=1.5, action="replay")
    first, second = ours(caplog)
    assert (first.levelname, first.getMessage().startswith("Message dead-lettered ")) == ("WARNING", True)
    assert first.__dict__["redrive"] == {
        "event": "Message dead-lettered",
        "message_id": "m",
        "request_id": str(request),
        "source_mailbox": "requests",
        "delivery_count": 5,
        "error_type": "builtins.ValueError",
        "error_message": "boom",
    }
    assert (second.levelname, second.getMessage()) == (
        "INFO",
        "Processing dead letter message_id=m age_seconds=1.5 action=replay",
    )
    assert second.__dict__["redrive"]["request_id"] is None


def test_logs_tell_no_secrets_and_stay_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("password=hunter2\nCRITICAL forged")
    logs.failed("DLQ handler failed", "m", error)
    (record,) = ours(caplog)
    assert "hunter2" not in record.getMessage()
    assert "hunter2" not in str(record.__dict__["redrive"])
    assert "\n" not in record.getMessage()


def test_an_error_that_cannot_be_printed_is_logged_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    logs.failed("DLQ handler failed", "m", Mute())
    (record,) = ours(caplog)
    assert record.__dict__["redrive"]["error"] == "<Mute, whose __str__ raised RuntimeError>"


SUBJECTS = {"message_id", "request_id", "mailbox", "source_mailbox", "loop", "loops", "path"}


@pytest.mark.slow
def test_every_line_says_whom_it_is_about() -> None:
    """By a field, so that whoever has many mailboxes can find out."""
    folder = Path(logs.__file__).parent
    calls = [
        (f"{path.relative_to(folder)}:{node.lineno}", {each.arg for each in node.keywords})
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "log"
    ]
    assert len(calls) > 15
    # None: whoever calls passes the fields on.
    assert [where for where, fields in calls if not fields & {None, *SUBJECTS}] == []
