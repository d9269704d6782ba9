"""What a program hands over by mistake is refused where it is given, by the name of the parameter."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from redrive.errors import InvalidParameterError, SerializationError
from redrive.mailboxes import (
    AutoReplay,
    DLQConsumer,
    DLQPolicy,
    EvalLoop,
    LeaseExtenderConfig,
    LoopGroup,
    MailboxResolver,
    MainLoop,
    MainLoopConfig,
    ReplayRule,
    SQLiteMailbox,
    StoreMailbox,
    Watchdog,
    dlq_health,
    open_mailbox,
)
from tests.mailboxes.bench import Adapter
from tests.mailboxes.conftest import Openers

Box = StoreMailbox[Any, Any]
Wrong = Callable[[Any], object]


def loop(box: Any, **how: Any) -> MainLoop[Any, Any]:
    return MainLoop(**{"adapter": Adapter(), "requests": box, **how})


def many(box: Box) -> dict[str, Wrong]:
    """By the parameter that is wrong."""
    return {
        "store": lambda none: open_mailbox("any", none),
        "clock": lambda _: open_mailbox("any", "memory:", clock=time),  # type: ignore[arg-type]
        "path": lambda none: SQLiteMailbox("any", none),
        "requests": lambda _: loop("questions"),
        "dlq": lambda _: loop(box, dlq=box),
        "config": lambda _: loop(box, config={"jitter": 0.1}),
        "lease_extender": lambda _: loop(box, config=MainLoopConfig(lease_extender=60)),  # type: ignore[arg-type]
        "mailbox": lambda none: DLQConsumer(mailbox=none, handler=print),
        "handler": lambda none: DLQConsumer(mailbox=box, handler=none),
        "rules": lambda _: AutoReplay(box, ReplayRule()),  # type: ignore[arg-type]
        "loops": lambda _: LoopGroup(loop(box)),  # type: ignore[arg-type]
        "shutdown_timeout": lambda none: LoopGroup([loop(box)], shutdown_timeout=none),
        "dead_letters": lambda _: LoopGroup([loop(box)], dead_letters=box),  # type: ignore[arg-type]
        "dlq_threshold": lambda _: LoopGroup([loop(box)], dlq_threshold=-1),
        "threshold": lambda _: dlq_health(box, threshold=0),
        "health_port": lambda _: LoopGroup([loop(box)], health_port=99_999),
        "delay": lambda _: box.send(1, delay=-1),
        "watchdog_interval": lambda none: Watchdog({}, interval=none),
        "routes": lambda _: DLQPolicy(box, routes=[box]),  # type: ignore[arg-type]
        "registry": lambda _: MailboxResolver([box]),  # type: ignore[arg-type]
        "name": lambda none: MailboxResolver({}).resolve(none),
        "interval": lambda _: LeaseExtenderConfig(interval=10**400),
    }


@pytest.mark.parametrize("field", many(None))  # type: ignore[arg-type]
def test_what_is_of_another_kind_is_refused_by_name(mailboxes: Openers, field: str) -> None:
    box = mailboxes("memory")("box")
    with pytest.raises(InvalidParameterError, match=f"^{field}: ") as caught:
        many(box)[field](None)
    assert caught.value.field == field
    assert caught.value.hint


def test_a_delay_beyond_all_reason_is_told_as_that(mailboxes: Openers) -> None:
    with pytest.raises(
        InvalidParameterError, match=r"^delay: must be .* got 1e\+30 \(use 0 to 3,153,600,000 seconds\)"
    ):
        mailboxes("memory")("box").send(1, delay=1e30)


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", True])
def test_a_number_of_rounds_that_is_never_reached_is_refused(mailboxes: Openers, wrong: Any) -> None:
    """It would run for ever."""
    box = mailboxes("memory")("box")
    runs = (loop(box), DLQConsumer(mailbox=box, handler=print), AutoReplay(box, [ReplayRule()]))
    for each in runs:
        with pytest.raises(InvalidParameterError, match=r"^max_iterations: "):
            each.run(max_iterations=wrong, wait_time_seconds=0)


@pytest.mark.parametrize("wrong", [0, 0.9, -1, 43_201, "30", None, True])
def test_a_visibility_in_which_nothing_can_be_worked_on_is_refused(mailboxes: Openers, wrong: Any) -> None:
    """It would come again and again, while no end of it counts."""
    box = mailboxes("memory")("box")
    dead = mailboxes("memory")("dead")
    evals: EvalLoop[Any, Any, Any] = EvalLoop(loop=loop(box), evaluator=print, requests=box)  # type: ignore[arg-type]
    consumer = DLQConsumer(mailbox=dead, handler=print)
    runs: list[Wrong] = [
        lambda seconds: loop(box).run(max_iterations=1, visibility_timeout=seconds, wait_time_seconds=0),
        lambda seconds: evals.run(max_iterations=1, visibility_timeout=seconds, wait_time_seconds=0),
        lambda seconds: LoopGroup([loop(box)]).run(visibility_timeout=seconds),
        lambda seconds: DLQConsumer(mailbox=dead, handler=print, visibility_timeout=seconds),
    ]
    if wrong is not None:  # to a consumer's run it means: as the consumer has it
        runs.append(lambda seconds: consumer.run(max_iterations=1, visibility_timeout=seconds, wait_time_seconds=0))
    for run in runs:
        with pytest.raises(InvalidParameterError, match=r"^visibility_timeout: .*use 1 to 43,200 seconds") as caught:
            run(wrong)
        assert caught.value.field == "visibility_timeout"


@pytest.mark.parametrize("wrong", ["abc", b"abc", {"a": 1}, None, 5])
def test_what_is_no_list_is_not_sent_or_acknowledged_as_many(mailboxes: Openers, wrong: Any) -> None:
    """A text would be sent letter by letter, a mapping as its keys."""
    box = mailboxes("memory")("box")
    with pytest.raises(InvalidParameterError, match=r"^bodies: must be a list, got .*use send for one"):
        box.send_many(wrong)
    assert box.approximate_count() == 0
    box.send(1)
    (message,) = box.receive()
    given: list[Any] = [wrong, message]
    for each in given:
        with pytest.raises(InvalidParameterError, match=r"^messages: must be a list, got .*message\.acknowledge"):
            box.acknowledge_many(each)
    assert not message.is_finalized


def test_a_bad_body_among_many_is_named_by_its_number(mailboxes: Openers) -> None:
    box = mailboxes("memory")("box")
    with pytest.raises(SerializationError, match=r"^bodies: number 2 of 3: body is NaN"):
        box.send_many([1, float("nan"), 3])
    assert box.approximate_count() == 0


def test_dead_letters_is_a_yes_or_no() -> None:
    with pytest.raises(InvalidParameterError, match=r"^dead_letters: must be a bool, got 'x'"):
        open_mailbox("any", "memory:", dead_letters="x")  # type: ignore[arg-type]


def test_outbox_queues_are_no_mailboxes(mailboxes: Openers) -> None:
    """In the words of app.enqueue, app.handler and app.queue."""
    box = mailboxes("memory")("box")
    wrong: list[tuple[str, Wrong]] = [
        ("name", lambda name: open_mailbox(name, "memory:")),
        ("reply_to", lambda name: box.send(1, reply_to=name)),
    ]
    for field, call in wrong:
        words = (
            rf"^{field}: 'redrive\.outbox\.z' is the outbox queue of target 'z' \(register the target with app\.outbox"
        )
        with pytest.raises(InvalidParameterError, match=words) as caught:
            call("redrive.outbox.z")
        assert caught.value.field == field
    assert box.approximate_count() == 0


def test_a_purge_has_a_reason(mailboxes: Openers) -> None:
    box = mailboxes("memory")("box")
    with pytest.raises(InvalidParameterError, match=r"^reason: a reason is needed"):
        box.purge(reason=" ")
    key = box.send(1)
    assert box.purge(reason="sent by mistake") == 1
    deeds = box.call(box.shared.store.get, key).deeds
    assert [(each.actor, each.reason) for each in deeds] == [(box.shared.worker, "sent by mistake")]
