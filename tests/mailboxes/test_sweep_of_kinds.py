"""Every public constructor and call, with what is of another kind, less than nothing, no number, or empty.

Each is refused where it is given, with the name of the parameter and what to do instead; nothing is accepted that the
first message would stumble over. What is not here is read by its truth (`restart=1`), or may be anything (a body).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf, nan
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from redrive.errors import InvalidParameterError, RedriveError
from redrive.mailboxes import (
    AutoReplay,
    Budget,
    Deadline,
    DLQConsumer,
    DLQPolicy,
    EvalLoop,
    EvalRequest,
    Experiment,
    HealthServer,
    Heartbeat,
    InMemoryMailbox,
    LeaseExtender,
    LeaseExtenderConfig,
    LoopGroup,
    MailboxMetrics,
    MailboxResolver,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    PostgresMailbox,
    RedisMailbox,
    Replayer,
    ReplayRule,
    RunContext,
    Sample,
    Score,
    ShutdownCoordinator,
    SQLiteMailbox,
    StoreMailbox,
    Watchdog,
    open_mailbox,
    replay_handler,
    replay_with_dedup,
    safe,
    selective_replay,
)
from redrive.mailboxes.testing import FakeMailbox
from redrive.testing import FakeClock
from tests.mailboxes.bench import Adapter, Ask

Wrong = tuple[object, ...]

NO_NUMBER: Wrong = ("x", "", nan, True, [], {}, b"x", ValueError, object())
"""Nor a function, but for the class."""
NO_TIME: Wrong = (*NO_NUMBER, -1, inf)
NO_KIND: Wrong = ("x", "", 5, -1, nan, True, [], b"x", object())
"""None of ours."""
NO_FUNCTION: Wrong = (*NO_KIND, {})
NO_TEXT: Wrong = (5, -1, nan, True, [], {}, b"x", object())
NO_ERRORS: Wrong = (
    "",
    "x",
    5,
    -1,
    nan,
    True,
    object(),
    ValueError,
    (each for each in [ValueError]),
    [5],
    [int],
    {None},
)

NOW = datetime.now(UTC)


class Case:
    """A call that works as it is, and by parameter what it must not take."""

    def __init__(self, call: Callable[..., object], good: Mapping[str, object], /, **wrong: Wrong) -> None:
        self.call, self.good, self.wrong = call, dict(good), wrong


def cases(box: FakeMailbox[Any, Any], dead: StoreMailbox[Any, Any]) -> dict[str, Case]:
    loop: MainLoop[Any, Any] = MainLoop(adapter=Adapter(), requests=box)
    sample = Sample("one", 1, 1)
    judge: dict[str, Any] = {"loop": loop, "evaluator": print, "requests": box}
    consumer = DLQConsumer(mailbox=dead, handler=print)
    resolver = MailboxResolver()
    one_round = {"max_iterations": 0}
    times: dict[str, Wrong] = {"visibility_timeout": (*NO_TIME, 0), "wait_time_seconds": NO_TIME}
    return {
        "open_mailbox": Case(
            open_mailbox,
            {"name": "any", "url": "memory:"},
            name=(*NO_TEXT, ""),
            clock=NO_FUNCTION,
            resolver=NO_FUNCTION,
            default_ttl=NO_TIME,
            max_size=(*NO_TIME, 0),
            keep=NO_TIME,
            on_expire=NO_KIND,
        ),
        "send": Case(
            box.send,
            {"body": 1},
            reply_to=(*NO_TEXT, ""),
            attributes=(*NO_KIND, {"a": 1}),
            priority=NO_FUNCTION,
            delay=NO_TIME,
            ttl=NO_TIME,
            message_id=(*NO_TEXT, ""),
        ),
        "receive": Case(box.receive, {}, max_messages=NO_NUMBER, **{**times, "visibility_timeout": NO_TIME}),
        "resolver": Case(MailboxResolver, {}, registry=NO_KIND, factory=NO_FUNCTION),
        "register": Case(resolver.register, {"mailbox": box}, mailbox=NO_FUNCTION, name=NO_TEXT),
        "config": Case(
            MainLoopConfig,
            {},
            deadline=NO_TIME,
            budget=NO_FUNCTION,
            resources=NO_KIND,
            lease_extender=NO_FUNCTION,
            backoff_base=NO_TIME,
            backoff_max=NO_TIME,
            jitter=(*NO_TIME, 1.1),
            max_messages=(*NO_TIME, 0, 11),
            max_expansions=NO_TIME,
            debug_bundles=NO_TEXT,
        ),
        "deadline": Case(Deadline, {"expires_at": NOW}, expires_at=(*NO_FUNCTION, datetime(2030, 1, 1))),  # noqa: DTZ001 - it lacks what is wanted
        "after": Case(Deadline.after, {"duration": 5}, since=NO_FUNCTION),
        "passed": Case(Deadline(NOW).passed, {}, now=NO_FUNCTION),
        "remaining": Case(Deadline(NOW).remaining, {}, now=NO_FUNCTION),
        "budget": Case(Budget, {}, max_total_tokens=NO_TIME, max_input_tokens=NO_TIME, deadline=NO_FUNCTION),
        "context": Case(
            RunContext,
            {},
            run_id=NO_FUNCTION,
            request_id=NO_FUNCTION,
            session_id=NO_FUNCTION,
            attempt=("x", nan, None, [], {}),
            worker_id=NO_TEXT,
            trace_id=NO_TEXT,
            span_id=NO_TEXT,
        ),
        "experiment": Case(Experiment, {"name": "any"}, name=NO_TEXT, settings=NO_KIND, description=NO_TEXT),
        "request": Case(
            MainLoopRequest,
            {"request": 1},
            budget=NO_FUNCTION,
            deadline=NO_FUNCTION,
            resources=NO_KIND,
            request_id=NO_FUNCTION,
            created_at=NO_FUNCTION,
            run_context=NO_FUNCTION,
            experiment=NO_FUNCTION,
            debug_bundle=("x", "", 5, nan, [], {}),
        ),
        "sample": Case(Sample, {"id": "one", "input": 1, "expected": 1}, id=NO_TEXT),
        "score": Case(
            Score,
            {"value": 1, "passed": True},
            value=(*NO_TIME, 1.1),
            passed=("x", "", 5, nan, [], {}),
            reason=NO_TEXT,
        ),
        "eval request": Case(
            EvalRequest,
            {"sample": sample, "experiment": Experiment("any")},
            sample=NO_FUNCTION,
            experiment=NO_FUNCTION,
            request_id=NO_FUNCTION,
            created_at=NO_FUNCTION,
            run_context=NO_FUNCTION,
        ),
        "main loop": Case(
            MainLoop,
            {"adapter": Adapter(), "requests": box},
            adapter=NO_FUNCTION,
            requests=NO_FUNCTION,
            resources=NO_KIND,
            config=NO_FUNCTION,
            dlq=NO_FUNCTION,
            metrics=NO_FUNCTION,
        ),
        "execute": Case(
            loop.execute,
            {"request": Ask("why")},
            budget=NO_FUNCTION,
            deadline=NO_FUNCTION,
            resources=NO_KIND,
            experiment=NO_FUNCTION,
        ),
        "run of a loop": Case(loop.run, one_round, **times),
        "shutdown of a loop": Case(loop.shutdown, {}, timeout=(*NO_NUMBER, inf)),
        "eval loop": Case(
            EvalLoop, judge, loop=NO_FUNCTION, evaluator=NO_FUNCTION, requests=NO_FUNCTION, metrics=NO_FUNCTION
        ),
        "policy": Case(
            DLQPolicy,
            {"mailbox": dead},
            mailbox=NO_FUNCTION,
            max_delivery_count=(*NO_TIME, 0),
            include_errors=NO_ERRORS,
            exclude_errors=NO_ERRORS,
            max_age=NO_TIME,
            routes=(*NO_KIND, {5: dead}),
        ),
        "consumer": Case(
            DLQConsumer,
            {"mailbox": dead, "handler": print},
            mailbox=NO_FUNCTION,
            handler=NO_FUNCTION,
            visibility_timeout=(*NO_TIME, 0),
            max_messages=NO_NUMBER,
            retry_after=(*NO_TIME, 43_201),
            metrics=NO_FUNCTION,
            lease_extender=NO_FUNCTION,
        ),
        "run of a consumer": Case(consumer.run, one_round, **times),
        "safe": Case(safe, {"handler": print}, handler=NO_FUNCTION, metrics=NO_FUNCTION),
        "rule": Case(
            ReplayRule,
            {},
            where=NO_TEXT,
            errors=NO_ERRORS,
            after=NO_TIME,
            max_replays=(*NO_TIME, 0),
            to=NO_TEXT,
            transform=NO_FUNCTION,
            priority=NO_FUNCTION,
            name=NO_TEXT,
        ),
        "automatic replay": Case(
            AutoReplay,
            {"mailbox": dead, "rules": [ReplayRule()]},
            mailbox=NO_FUNCTION,
            rules=(*NO_FUNCTION, [5]),
            source=NO_FUNCTION,
            resolver=NO_FUNCTION,
            metrics=NO_FUNCTION,
            interval=NO_TIME,
        ),
        "replayer": Case(
            Replayer,
            {"dead_letters": dead},
            dead_letters=NO_FUNCTION,
            source=NO_FUNCTION,
            resolver=NO_FUNCTION,
            metrics=NO_FUNCTION,
        ),
        "matching": Case(
            Replayer(dead).matching, {}, where=NO_TEXT, limit=NO_TIME, to=NO_TEXT, transform=NO_FUNCTION, actor=NO_TEXT
        ),
        "selective": Case(
            selective_replay,
            {"dlq": dead, "source": box, "predicate": bool, "reply_resolver": resolver},
            dlq=NO_FUNCTION,
            source=NO_FUNCTION,
            predicate=NO_FUNCTION,
            reply_resolver=NO_FUNCTION,
        ),
        "replay handler": Case(replay_handler, {"source": box, "reply_resolver": resolver}, dead_letter=NO_FUNCTION),
        "replay once": Case(replay_with_dedup, {"source": box}, dead_letter=NO_FUNCTION),
        "group": Case(
            LoopGroup,
            {"loops": [loop]},
            loops=(*NO_FUNCTION, [5]),
            shutdown_timeout=NO_TIME,
            health_port=(*NO_TIME, 65_536),
            watchdog_threshold=(*NO_NUMBER, -1, 0),
            watchdog_interval=(*NO_NUMBER, -1, 0),
            dead_letters=(5, -1, nan, True, object(), [5], "x"),
            dlq_threshold=(*NO_TIME, 0),
            clock=NO_FUNCTION,
            kill=NO_FUNCTION,
        ),
        "run of a group": Case(LoopGroup([loop]).run, {"install_signals": False}, **times),
        "probe": Case(HealthServer, {"readiness": dict}, readiness=NO_FUNCTION),
        "heartbeat": Case(Heartbeat, {}, clock=NO_FUNCTION),
        "callback": Case(Heartbeat().add_callback, {}, callback=NO_FUNCTION),
        "leases": Case(
            LeaseExtenderConfig,
            {},
            interval=(*NO_NUMBER, -1, 0),
            extension=(*NO_TIME, 0, 43_201),
            silence=(*NO_NUMBER, -1, 0),
        ),
        "extender": Case(LeaseExtender, {}, clock=NO_FUNCTION),
        "coordinator": Case(ShutdownCoordinator().register, {}, callback=NO_FUNCTION),
        "watchdog": Case(Watchdog, {"heartbeats": {}}, heartbeats=NO_KIND, clock=NO_FUNCTION, kill=NO_FUNCTION),
        "metrics": Case(MailboxMetrics, {}, prefix=(*NO_TEXT, "", "a b")),
        "watch": Case(MailboxMetrics("any").watch, {"mailbox": dead}, mailbox=NO_FUNCTION),
        "total": Case(MailboxMetrics("any").total, {"name": "sent"}, name=NO_FUNCTION),
        "sqlite": Case(
            SQLiteMailbox,
            {"name": "any"},
            path=(*NO_TEXT, "postgresql://u:secret@h/d", "redis://h:6379/0", "memory:"),
        ),
        "postgres": Case(
            PostgresMailbox,
            {"name": "any"},
            url=(*NO_TEXT, "sqlite:///x.db", "memory:", "redis://u:secret@h:6379/0", "SQLite:///x.db"),
        ),
        "redis": Case(
            RedisMailbox,
            {"name": "any", "url": "redis://h:6379/0"},
            url=(*NO_TEXT, "sqlite:///x.db", "memory:", "postgresql://u:secret@h/d"),
            namespace=NO_TEXT,
        ),
        "fake": Case(box.inject_message, {"body": 1}, delivery_count=("x", nan, -1, 0, [])),
    }


@contextmanager
def some() -> Iterator[dict[str, Case]]:
    """Closed at once: nothing is left behind by who only wants the names."""
    clock = FakeClock()
    dead: StoreMailbox[Any, Any]
    with FakeMailbox[Any, Any]("box", clock=clock) as box, InMemoryMailbox[Any, Any]("dead", clock=clock) as dead:
        yield cases(box, dead)


def each() -> list[tuple[str, str]]:
    with some() as found:
        return [(name, field) for name, case in found.items() for field in case.wrong]


@pytest.mark.parametrize(("name", "field"), each())
def test_what_cannot_be_meant_is_refused_where_it_is_given(
    name: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with some() as found:
        case = found[name]
        for wrong in case.wrong[field]:
            with pytest.raises(RedriveError) as caught:
                case.call(**{**case.good, field: wrong})
            error = caught.value
            assert isinstance(error, ValueError), (wrong, error)
            assert getattr(error, "field", "") == field, (wrong, error)
            assert error.hint, (wrong, error)
            assert "secret" not in str(error)
    assert not list(tmp_path.iterdir())


def test_what_is_right_is_taken() -> None:
    """So that nothing is refused for another reason than the one that is tried."""
    with some() as found:
        for name, case in found.items():
            # A group runs until it is told to stop; the others lack just what is tried.
            if name not in ("run of a group", "callback", "coordinator", "replay handler", "replay once", "postgres"):
                case.call(**case.good)


def test_a_url_of_another_store_is_told_by_the_mailbox_for_it() -> None:
    with pytest.raises(
        InvalidParameterError, match=r"^url: a PostgresMailbox cannot be at sqlite: \(use SQLiteMailbox"
    ):
        PostgresMailbox("any", "sqlite:///x.db")


def test_a_request_says_at_once_what_is_wrong_with_it() -> None:
    """And not by a dead letter, when somebody receives it."""
    wrong: Any = 5
    with pytest.raises(InvalidParameterError, match=r"^budget: must be a Budget, got 5 \(use Budget\(max_total"):
        MainLoopRequest("a", budget=wrong, request_id=uuid4())
