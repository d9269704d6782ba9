"""Whatever a handler raises becomes evidence and a decision, never a stuck item or a dead worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest

from redrive import Cancel, Dead, Item, Policy, Redrive, Retry, Snooze, constant, dead_on, never, never_dead, retry_on
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.errors import ItemFailed
from redrive.events import Finished
from redrive.testing.clock import START
from tests.support.lab import Lab, Seen

ONCE = Policy(backoff=never())
"""The first error is final, so that one run shows everything."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even its name")


class Weird(Exception):
    """Every attribute that evidence is taken from raises."""

    @property
    def code(self) -> int:
        raise RuntimeError("no code")

    @property
    def response(self) -> object:
        raise RuntimeError("no response")

    @property
    def retry_after(self) -> object:
        raise RuntimeError("no hint")


class LongCode(Exception):
    code = 10**5000


class Surrogate(Exception):
    def __str__(self) -> str:
        return "half a character: \ud800 and a nul: \0"


def _chained() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


HOSTILE: dict[str, Callable[[], BaseException]] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "unprintable": Unprintable,
    "weird": Weird,
    "long code": LongCode,
    "surrogate": Surrogate,
    "group": lambda: ExceptionGroup("many", [ValueError("one"), TypeError("two")]),
    "long text": lambda: ValueError("x" * 1_000_000),
    "a chain of itself": _chained,
    "a type called at run time": lambda: type("Ünïcode\n", (Exception,), {})("made up"),
}


def raising(app: Redrive, make: Callable[[], BaseException], *, policy: Policy, sync: bool) -> list[int]:
    runs: list[int] = []

    async def in_loop() -> None:
        runs.append(1)
        raise make()

    def in_thread() -> None:
        runs.append(1)
        raise make()

    app.handler("q", policy=policy)(in_thread if sync else in_loop)
    return runs


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_exception_is_evidence_like_any_other(lab: Lab, name: str, sync: bool) -> None:
    app = await lab.app()
    raising(app, HOSTILE[name], policy=ONCE, sync=sync)

    @app.handler("fine")
    async def fine() -> None:
        pass

    item_id, neighbour = await app.enqueue("q"), await app.enqueue("fine")
    await lab.drain(app, limit="10m")
    found = await lab.history(item_id)
    assert found.item.state is State.DEAD
    assert found.item.letter is not None
    assert found.item.letter.failure.type
    assert len(found.item.letter.failure.text) < 10_000
    assert [attempt.ending for attempt in found.attempts] == [Ending.FAILED]
    assert (await lab.item(neighbour)).state is State.DONE


async def test_the_letter_says_what_was_raised_and_where(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=ONCE)
    async def load() -> None:
        try:
            raise KeyError("user 42")
        except KeyError as error:
            raise ValueError("no such user") from error

    item_id = await app.enqueue("q")
    await lab.drain(app)
    letter = (await lab.item(item_id)).letter
    assert letter is not None
    failure = letter.failure
    assert failure.type == "ValueError"
    assert failure.text.startswith("no such user\ncaused by KeyError: 'user 42'")
    assert failure.frames[-1].function == "load"
    assert failure.frames[-1].file == __file__
    assert failure.category
    assert failure.rule


async def test_one_error_object_raised_again_and_again_does_not_gather_frames(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    error = ValueError("the same object")

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_attempts=6))
    async def fail() -> None:
        raise error

    item_id = await app.enqueue("q")
    await memory_lab.drain(app)
    found = await memory_lab.history(item_id)
    lengths = {len(attempt.failure.frames) for attempt in found.attempts if attempt.failure is not None}
    assert len(found.attempts) == 6
    assert len(lengths) == 1


@pytest.mark.parametrize("how", ["raise", "return"])
async def test_dead_makes_a_letter_at_once(lab: Lab, how: str) -> None:
    app = await lab.app()

    @app.handler("q")
    async def give_up() -> object:
        if how == "return":
            return Dead("useless")
        raise Dead("useless")

    item_id = await app.enqueue("q")
    await lab.drain(app)
    found = await lab.history(item_id)
    assert found.item.letter is not None
    assert found.item.letter.reason == "handler"
    assert "useless" in found.item.letter.failure.text
    assert [attempt.ending for attempt in found.attempts] == [Ending.DEAD]
    assert (found.item.errors, found.item.attempt) == (1, 1)


@pytest.mark.parametrize("how", ["raise", "return"])
async def test_retry_waits_as_long_as_it_says_and_counts(lab: Lab, how: str) -> None:
    app = await lab.app()
    times: list[int] = []

    @app.handler("q")
    async def later() -> object:
        times.append(lab.clock.now())
        if len(times) > 1:
            return "done"
        if how == "return":
            return Retry("not yet", after="20s")
        raise Retry("not yet", after="20s")

    item_id = await app.enqueue("q")
    await lab.drain(app)
    item = await lab.item(item_id)
    assert item.state is State.DONE
    assert (item.errors, item.attempt, item.deliveries) == (1, 2, 2)
    assert times[1] - times[0] >= 20_000


@pytest.mark.parametrize("how", ["raise", "return"])
async def test_snooze_comes_back_later_and_is_not_charged(lab: Lab, how: str) -> None:
    app = await lab.app()
    times: list[int] = []

    @app.handler("q", policy=Policy(backoff=never(), max_attempts=1))
    async def later(item: Item) -> object:
        times.append(lab.clock.now())
        assert item.attempt == 1
        if len(times) > 3:
            return "done"
        if how == "return":
            return Snooze("10s", note="closed")
        raise Snooze("10s", note="closed")

    item_id = await app.enqueue("q")
    await lab.drain(app)
    found = await lab.history(item_id)
    assert found.item.state is State.DONE
    assert (found.item.errors, found.item.attempt, found.item.deliveries) == (0, 1, 4)
    assert [attempt.ending for attempt in found.attempts] == [*[Ending.SNOOZED] * 3, Ending.DONE]
    assert found.attempts[0].note == "closed"
    assert all(after - before >= 10_000 for before, after in pairwise(times))


@pytest.mark.parametrize("how", ["raise", "return", "thread"])
async def test_cancel_ends_what_nobody_wants_any_more(lab: Lab, how: str) -> None:
    app = await lab.app()

    async def cancelled() -> object:
        if how == "return":
            return Cancel("the order was withdrawn")
        raise Cancel("the order was withdrawn")

    def in_thread() -> None:
        raise Cancel("the order was withdrawn")

    app.handler("q", policy=Policy(constant("1s"), max_attempts=5))(in_thread if how == "thread" else cancelled)
    item_id = await app.enqueue("q")
    await lab.drain(app)
    found = await lab.history(item_id)
    assert (found.item.state, found.item.letter) == (State.CANCELLED, None)
    assert [(one.ending, one.note, one.failure) for one in found.attempts] == [
        (Ending.CANCELLED, "the order was withdrawn", None)
    ]
    with pytest.raises(ItemFailed, match="was cancelled: the order was withdrawn"):
        await app.wait(item_id)


async def test_retry_from_an_error_keeps_the_error_as_the_evidence(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=ONCE)
    async def fail() -> None:
        try:
            raise ConnectionError("refused")
        except ConnectionError as error:
            raise Dead("gone") from error

    item_id = await app.enqueue("q")
    await lab.drain(app)
    letter = (await lab.item(item_id)).letter
    assert letter is not None
    assert letter.failure.type == "ConnectionError"


class Busy(Exception):
    def __init__(self, retry_after: object) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


class Refused(Exception):
    class _Response:
        def __init__(self, value: object) -> None:
            self.headers = {"Retry-After": value}
            self.status_code = 503

    def __init__(self, value: object) -> None:
        super().__init__("refused")
        self.response = self._Response(value)


async def test_the_status_of_the_answer_that_an_error_carries_is_part_of_its_cause(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=ONCE)
    async def handle(status: int) -> None:
        error = Refused("1")
        error.response.status_code = status
        raise error

    ids = await app.enqueue_many("q", [404, 404, 503, 500])
    await lab.drain(app)
    letters = [(await lab.item(item_id)).letter for item_id in ids]
    causes = [letter.failure.cause for letter in letters if letter is not None]
    assert len(causes) == 4
    assert causes[0] == causes[1]
    assert len(set(causes)) == 3


NOW = datetime.fromtimestamp(START / 1000, UTC)
POLICY_DELAY = 2_000
"""What junk is worth, and what is past: a server whose clock is behind must not burn all attempts at once."""

HINTS: list[tuple[object, int]] = [
    (30, 30_000),
    ("30", 30_000),
    (1.5, 1_500),
    (timedelta(minutes=2), 120_000),
    (format_datetime(NOW + timedelta(minutes=5), usegmt=True), 300_000),
    (format_datetime(NOW - timedelta(days=3), usegmt=True), POLICY_DELAY),
    (0, POLICY_DELAY),
    (-5, POLICY_DELAY),
    (10**9, 86_400_000),
    (10**400, POLICY_DELAY),
    ("1e999", 86_400_000),
    (float("inf"), 86_400_000),
    (timedelta.max, 86_400_000),
    (format_datetime(NOW + timedelta(days=3650), usegmt=True), 86_400_000),
    ("soon", POLICY_DELAY),
    ("", POLICY_DELAY),
    (float("nan"), POLICY_DELAY),
    (True, POLICY_DELAY),
    (None, POLICY_DELAY),
    (object(), POLICY_DELAY),
    (b"30", 30_000),
    ("Mon, 01 Jan 2026 00:00:00 +999999999999999999999", POLICY_DELAY),
    ("Mon, 99 Foo 2026 99:00:00 GMT", POLICY_DELAY),
    ("9" * 5000, 86_400_000),
]


@pytest.mark.parametrize("kind", [Busy, Refused])
@pytest.mark.parametrize(("hint", "delay"), HINTS, ids=[f"{n}" for n in range(len(HINTS))])
async def test_a_hint_is_obeyed_within_reason(
    memory_lab: Lab, kind: Callable[[object], Exception], hint: object, delay: int
) -> None:
    lab = memory_lab
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=constant("2s")))
    async def busy() -> None:
        raise kind(hint)

    seen = Seen(app)
    await app.enqueue("q")
    async with lab.working(app):
        await lab.quiet()
    assert [event.retry_in_ms for event in seen.of(Finished)][:1] == [delay]


async def test_dead_on_and_never_dead_decide_against_the_counters(lab: Lab) -> None:
    app = await lab.app()
    rules = [
        dead_on(ValueError),
        never_dead(ConnectionError, ceiling=6),
        retry_on(TimeoutError, backoff=constant("5s")),
    ]

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_attempts=3, rules=rules))
    async def fail(kind: str) -> None:
        raise {"dead": ValueError, "keep": ConnectionError, "retry": TimeoutError}[kind]("no")

    ids = {kind: await app.enqueue("q", {"kind": kind}) for kind in ("dead", "keep", "retry")}
    await lab.drain(app)
    letters = {kind: (await lab.item(item_id)) for kind, item_id in ids.items()}
    reasons = {kind: (item.letter.reason, item.errors) for kind, item in letters.items() if item.letter is not None}
    assert reasons == {"dead": ("rule", 1), "keep": ("ceiling", 6), "retry": ("max_attempts", 3)}


async def test_a_backoff_function_that_raises_does_not_lose_the_item(lab: Lab) -> None:
    app = await lab.app()

    def broken(failures: int) -> str:
        raise ZeroDivisionError

    @app.handler("q", policy=Policy(backoff=broken, max_attempts=3))
    async def fail() -> None:
        raise ValueError("no")

    item_id = await app.enqueue("q")
    await lab.drain(app)
    item = await lab.item(item_id)
    assert (item.state, item.errors) == (State.DEAD, 3)


async def test_a_group_of_one_is_that_one(lab: Lab) -> None:
    """What a TaskGroup makes of a child's error must not hide it, nor mix its cause with others'."""
    app = await lab.app()

    async def child() -> None:
        raise PermissionError("the card was refused")

    @app.handler("q", policy=Policy(backoff=constant("1s"), rules=[dead_on(PermissionError)]))
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    item_id = await app.enqueue("q")
    await lab.drain(app)
    letter = (await lab.item(item_id)).letter
    assert letter is not None
    assert (letter.reason, letter.failure.type) == ("rule", "PermissionError")
    assert letter.failure.text.startswith("the card was refused")
    assert letter.failure.frames[-1].function == "child"


async def test_a_group_of_several_names_them_all(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=never()))
    async def grouped() -> None:
        raise ExceptionGroup("both", [ValueError("one"), OSError("two")])

    item_id = await app.enqueue("q")
    await lab.drain(app)
    letter = (await lab.item(item_id)).letter
    assert letter is not None
    assert letter.failure.text == "both: ValueError: one; OSError: two"
