"""Events become one structured line each."""

from __future__ import annotations

import logging

import pytest

from redrive import events as ev
from redrive.observe.logs import log, log_event
from tests.support.logs import ours

DEAD = ev.Finished(
    worker="w",
    queue="emails",
    id="abcdefghijkl",
    delivery=3,
    ending="failed",
    state="dead",
    ran_ms=12,
    reason="max_attempts",
    error="ValueError",
    text="line one\nERROR forged\x1b[31m",
    cause="c41f",
)


def test_a_death_is_an_error_with_all_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    log_event(DEAD)
    (record,) = ours(caplog)
    assert (record.levelno, record.name) == (logging.ERROR, "redrive")
    assert "dead letter: max_attempts, cause c41f" in record.getMessage()
    fields = record.__dict__["redrive"]
    assert (fields["event"], fields["id"], fields["reason"]) == ("Finished", "abcdefghijkl", "max_attempts")


def test_untrusted_text_cannot_forge_lines_or_speak_to_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    log_event(DEAD)
    message = ours(caplog)[0].getMessage()
    assert "\n" not in message
    assert "\x1b" not in message
    assert "line one\\nERROR forged\\x1b[31m" in message


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (ev.Finished("w", "q", "i", 1, "done", "done", 1), logging.DEBUG),
        (ev.Finished("w", "q", "i", 1, "failed", "ready", 1, retry_in_ms=5), logging.WARNING),
        (ev.Finished("w", "q", "i", 1, "released", "ready", 1, retry_in_ms=0), logging.DEBUG),
        (ev.Finished("w", "q", "i", 1, "limited", "ready", 1, retry_in_ms=5), logging.INFO),
        (ev.Finished("w", "q", "i", 1, "failed", "ready", 1, reason="route_full", retry_in_ms=5), logging.WARNING),
        (ev.RouteFull("w", "small", "q", "i", 7), logging.ERROR),
        (ev.CancelAsked("w", "q", "i", 1, "ops: stop"), logging.INFO),
        (ev.Cancelled("w", "q", "i", 1, "ops: stop"), logging.INFO),
        (ev.Swept("w", 5, 6), logging.INFO),
        (ev.StoreFailed("pump", "disk full"), logging.ERROR),
        (ev.LeaseLost("w", "q", "i", 1), logging.WARNING),
        (ev.WorkerStarted("w", ("q",)), logging.INFO),
    ],
)
def test_levels(event: ev.Event, level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "redrive")
    log_event(event)
    # Of ours only: what an earlier test left to the garbage collector may speak up at any time.
    assert [record.levelno for record in caplog.records if record.name == "redrive"] == [level]


def test_the_next_attempt_is_given_as_a_duration(caplog: pytest.LogCaptureFixture) -> None:
    log_event(ev.Finished("w", "q", "i", 1, "failed", "ready", 1, retry_in_ms=128_000))
    assert [record.getMessage().partition("; ")[2] for record in caplog.records] == ["again in 2m8s"]


def test_a_subscriber_that_raises_is_contained_and_told() -> None:
    events = ev.Events()
    seen: list[ev.Event] = []

    def broken(_: ev.Event) -> None:
        raise RuntimeError("no")

    events.subscribe(broken)
    cancel = events.subscribe(seen.append)
    events.emit(ev.StoreRecovered("pump"))
    assert isinstance(seen[0], ev.SubscriberFailed)
    assert "RuntimeError: no" in seen[0].error
    assert seen[1] == ev.StoreRecovered("pump")
    cancel()
    events.emit(ev.StoreRecovered("pump"))
    assert len(seen) == 2


def test_nobody_listens() -> None:
    events = ev.Events()
    assert not events
    cancel = events.subscribe(lambda _: None)
    assert events
    cancel()
    assert not events


def test_a_door_logs_text_and_fields_on_one_line_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    door = logging.getLogger("redrive.door")
    log(door, logging.WARNING, "Target away", url="http://me:secret@host/\nERROR forged", tries=3, why=None)
    (record,) = ours(caplog)
    assert record.getMessage().startswith("Target away url=http://")
    assert record.getMessage().endswith("\\nERROR forged tries=3")
    assert record.__dict__["redrive"]["event"] == "Target away"
    assert (record.__dict__["redrive"]["tries"], record.__dict__["redrive"]["why"]) == (3, None)
    assert "secret" not in f"{record.getMessage()} {record.__dict__['redrive']}"
    assert record.filename == "test_logs.py"


def test_a_traceback_is_part_of_the_text_and_cannot_forge_lines(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("password=hunter2\nCRITICAL forged")
    except ValueError as error:
        log(logging.getLogger("redrive.door"), logging.ERROR, "Job failed", trace=error)
    (record,) = ours(caplog)
    first, *rest = record.getMessage().splitlines()
    assert first == "Job failed"
    assert all(line.startswith("  ") for line in rest)
    assert "test_logs.py" in record.getMessage()
    assert "hunter2" not in record.getMessage()
    assert record.exc_info is None


def test_a_level_that_is_off_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Mute:
        def __str__(self) -> str:
            raise AssertionError("nothing may print it")

    log(logging.getLogger("redrive.door"), logging.DEBUG, "Seen", what=Mute())
    assert ours(caplog) == []
