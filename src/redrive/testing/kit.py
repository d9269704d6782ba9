"""What a test asks of an app: work until idle, and look at what was enqueued, what is done and what died.

    await drain(app)
    await assert_enqueued(app, "emails", {"to": "ada@example.com"}, delay="5m")
    (letter,) = await assert_dead(app, "emails", error=ConnectionError)

The assertions look at the store, so they see what handlers and follow-ups enqueued too. They return the items they
found, first enqueued first. `redrive.testing.blocking` has the same names for tests without a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from redrive.app import Redrive
from redrive.app.internals import parts_of
from redrive.core.durations import Duration, parse
from redrive.core.item import Item
from redrive.core.states import State
from redrive.errors import ConfigError
from redrive.testing import _expect, _inside, _report
from redrive.testing._drain import Drained, Draining
from redrive.testing._expect import ANYTHING, Error, Expectation

LIMIT = 10_000
WAITING = (State.READY, State.LEASED)


async def drain(
    app: Redrive,
    queues: Iterable[str] | None = None,
    *,
    within: Duration | None = None,
    fail_fast: bool = False,
    limit: int = LIMIT,
) -> Drained:
    """Work until nothing is left that will become due by itself, and let fake time pass for delays and retries.

    It is the worker of `app.run`. Time stands still while a handler runs or a write is under way, so threads and
    databases are no matter; the app must have a FakeClock. `within`: only what becomes due in so much time, after which
    the clock shows that time; 0 is what is due now. `fail_fast`: raise the first error of a handler, as the handler
    raised it. `limit`: so many attempts are taken for an endless loop.
    """
    app = _inside.awaited(app)
    span = None if within is None else parse(within, field="within")
    handlers = parts_of(app).registry.choose(queues)
    draining = Draining(app, handlers, _inside.fake_clock_of(app), within=span, fail_fast=fail_fast, limit=limit)
    return await draining.run()


async def assert_enqueued(
    app: Redrive,
    queue: str | None = None,
    payload: object = ANYTHING,
    *,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    delay: Duration | None = None,
    count: int | None = None,
) -> tuple[Item, ...]:
    """Such items wait: due, delayed, between retries, or just being handled. `count` None: at least one.

    `payload` is the whole payload, `containing` a part of it, at any depth. `delay` is the one it was enqueued with.
    """
    __tracebackhide__ = True
    traits = _expect.traits(payload=payload, containing=containing, id=id, delay=delay)
    return await _check("assert_enqueued", app, Expectation(WAITING, queue, traits), count)


async def assert_not_enqueued(
    app: Redrive,
    queue: str | None = None,
    payload: object = ANYTHING,
    *,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    delay: Duration | None = None,
) -> None:
    """No such item waits. The less is asked, the more is excluded: without arguments, nothing waits at all."""
    __tracebackhide__ = True
    traits = _expect.traits(payload=payload, containing=containing, id=id, delay=delay)
    await _check("assert_not_enqueued", app, Expectation(WAITING, queue, traits), 0)


async def assert_done(
    app: Redrive,
    queue: str | None = None,
    payload: object = ANYTHING,
    *,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    result: object = ANYTHING,
    count: int | None = None,
) -> tuple[Item, ...]:
    """Such items were handled, with this `result`."""
    __tracebackhide__ = True
    traits = _expect.traits(payload=payload, containing=containing, id=id, result=result)
    return await _check("assert_done", app, Expectation((State.DONE,), queue, traits), count)


async def assert_dead(
    app: Redrive,
    queue: str | None = None,
    payload: object = ANYTHING,
    *,
    containing: Mapping[str, object] | None = None,
    id: str | None = None,
    error: Error | None = None,
    reason: str | None = None,
    text: str | None = None,
    count: int | None = None,
) -> tuple[Item, ...]:
    """Such items are dead letters, wherever they lie. With `count=0`: none is.

    `error` is a class (its subclasses count, as for `except`) or a name with or without its module, `reason` why it
    died (`max_attempts`, `rule`, `handler`, …), `text` a part of the error's text.
    """
    __tracebackhide__ = True
    traits = _expect.traits(payload=payload, containing=containing, id=id, error=error, reason=reason, text=text)
    return await _check("assert_dead", app, Expectation((State.DEAD,), queue, traits), count)


async def _check(name: str, app: Redrive, expectation: Expectation, count: int | None) -> tuple[Item, ...]:
    __tracebackhide__ = True
    app = _inside.awaited(app)
    number: object = count
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 0):
        raise ConfigError(f"{count!r} is not a number of items", field="count", hint="use 0 or more, or leave it out")
    parts = parts_of(app)
    store = parts.store
    if count == 0 and expectation.queue is not None:
        # A misspelled name would make a test that never fails.
        await parts.client.check_queue(expectation.queue)
    found = tuple(item for item in await _expect.items(store, expectation.selection) if expectation.met_by(item))
    if len(found) == count or (count is None and found):
        return found
    there = await _expect.items(store)
    tally = await store.tally()
    queues = parts.registry.declared | {row.queue for row in tally.queues}
    text = _report.failed(name, expectation, count, found=found, there=there, queues=queues, now=tally.at)
    raise AssertionError(text)
