"""Each kind of ending has a budget of its own: errors and crashes can kill, deploys and rate limits cannot."""

from __future__ import annotations

import pytest

from redrive import Item, Policy, Retry, constant, exponential, never, rate_limited, retry_on
from redrive.core.item import Ending
from redrive.core.states import State
from redrive.events import Finished
from tests.support.lab import Lab, Seen


class TooManyRequests(Exception):
    code = 429

    def __init__(self, retry_after: int | None = None) -> None:
        super().__init__("slow down")
        self.retry_after = retry_after


async def test_gap11_deploys_and_rate_limits_leave_the_errors_alone(lab: Lab) -> None:
    """Twenty interrupts, twenty rate limits and two errors: alive at error two of three. A third error is the last."""
    app = await lab.app()
    script: list[BaseException | None] = [*[TooManyRequests()] * 20, *[ValueError("no")] * 2]
    begun: list[int] = []

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_attempts=3))
    async def handle(item: Item) -> None:
        begun.append(item.deliveries)
        if len(begun) <= 20:
            await lab.clock.sleep(3_600_000)
        error = script.pop(0) if script else None
        if error is not None:
            raise error

    item_id = str(await app.enqueue("q"))
    for number in range(1, 21):
        async with lab.working(app):  # a deploy: the worker starts, and is stopped while it handles the item
            await lab.until(lambda number=number: len(begun) == number)  # type: ignore[misc]
    async with lab.working(app):
        await lab.until(lambda: not script)
        await lab.quiet()
        item = await lab.item(item_id)
        assert (item.state, item.errors, item.crashes, item.attempt) == (State.READY, 2, 0, 2)
        script.append(ValueError("the third"))
        await lab.until(lambda: not script)
        await lab.quiet()
    found = await lab.history(item_id)
    endings = [attempt.ending for attempt in found.attempts]
    assert endings == [*[Ending.RELEASED] * 20, *[Ending.LIMITED] * 20, *[Ending.FAILED] * 3]
    assert found.item.letter is not None
    assert (found.item.letter.reason, found.item.deliveries) == ("max_attempts", 43)


async def test_gap11_crashes_have_a_limit_of_their_own_whoever_crashed(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_attempts=3, max_crashes=3), lease="10s", concurrency=1)
    async def handle(item: Item) -> None:
        raise AssertionError("only ghosts get it")

    seen = Seen(app)
    item_id = str(await app.enqueue("q"))
    for number in range(1, 4):
        assert await lab.ghost("q", worker=f"ghost-{number}", ttl="10s")
        async with lab.working(app):
            await lab.until(lambda number=number: len(seen.of(Finished)) == number)  # type: ignore[misc]
        lab.clock.advance(2_000)
    found = await lab.history(item_id)
    assert found.item.letter is not None
    assert (found.item.letter.reason, found.item.crashes, found.item.errors) == ("max_crashes", 3, 0)
    assert [attempt.worker for attempt in found.attempts] == ["ghost-1", "ghost-2", "ghost-3"]


async def test_a_rate_limit_keeps_its_evidence_and_obeys_the_hint(lab: Lab) -> None:
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q", policy=Policy(backoff=never(), max_attempts=1))
    async def handle(item: Item) -> None:
        runs.append(lab.clock.now())
        if len(runs) == 1:
            raise TooManyRequests(retry_after=90)

    seen = Seen(app)
    item_id = await app.enqueue("q")
    await lab.drain(app)
    found = await lab.history(item_id)
    assert (found.item.state, found.item.attempt, found.item.errors) == (State.DONE, 1, 0)
    assert 90_000 <= runs[1] - runs[0] < 91_000
    first = found.attempts[0]
    assert first.ending is Ending.LIMITED
    assert first.failure is not None
    assert (first.failure.code, first.failure.category, first.failure.rule) == (
        "429",
        "rate_limit",
        "default:rate_limit",
    )
    assert (first.failure.frames[-1].function, first.failure.text) == ("handle", "slow down")
    limited = seen.of(Finished)[0]
    assert (limited.ending, limited.state, limited.retry_in_ms) == ("limited", "ready", 90_000)


async def test_without_a_hint_the_wait_grows_with_each_rate_limit(memory_lab: Lab) -> None:
    lab = memory_lab
    app = await lab.app()
    limits = [TooManyRequests() for _ in range(12)]

    @app.handler("q", policy=Policy(backoff=exponential("1s", factor=2)))
    async def handle() -> None:
        if limits:
            raise limits.pop()

    seen = Seen(app)
    await app.enqueue("q")
    await lab.drain(app)
    waits = [event.retry_in_ms for event in seen.of(Finished) if event.ending == "limited"]
    assert waits == [1000 * 2 ** min(step, 9) for step in range(12)]


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
async def test_a_rule_makes_a_rate_limit_of_what_the_other_side_calls_it(memory_lab: Lab, sync: bool) -> None:
    app = await memory_lab.app()
    errors = [ConnectionError("quota of today is used up") for _ in range(5)]

    def fail() -> None:
        if errors:
            raise errors.pop()

    async def fail_in_loop() -> None:
        fail()

    rules = [rate_limited("quota", backoff=constant("1m"))]
    app.handler("q", policy=Policy(backoff=never(), rules=rules))(fail if sync else fail_in_loop)
    item_id = await app.enqueue("q")
    begun = memory_lab.clock.now()
    await memory_lab.drain(app)
    assert (await memory_lab.item(item_id)).state is State.DONE
    assert memory_lab.clock.now() - begun >= 5 * 60_000


async def test_a_policy_can_count_rate_limits_as_errors(memory_lab: Lab) -> None:
    app = await memory_lab.app()

    @app.handler("q", policy=Policy(backoff=constant("1s"), max_attempts=3, rules=[retry_on(429)]))
    async def handle() -> None:
        raise TooManyRequests

    item_id = await app.enqueue("q")
    await memory_lab.drain(app)
    item = await memory_lab.item(item_id)
    assert item.letter is not None
    assert (item.letter.reason, item.letter.failure.rule, item.errors) == ("max_attempts", "code:429", 3)


async def test_a_handler_that_asks_for_a_retry_is_charged_whatever_it_met(memory_lab: Lab) -> None:
    app = await memory_lab.app()

    @app.handler("q", policy=Policy(max_attempts=2))
    async def handle() -> None:
        raise Retry("again, please", after="5s") from TooManyRequests()

    item_id = await app.enqueue("q")
    await memory_lab.drain(app)
    assert (await memory_lab.item(item_id)).errors == 2
