"""What the test kit does with the parts of an app: find them, let its worker run, bind it to another store."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from redrive import blocking
from redrive.app import Redrive
from redrive.app.internals import clock_of, parts_of, replace_parts
from redrive.blocking._facade import behind
from redrive.engine.registry import Handler
from redrive.errors import ConfigError
from redrive.stores.base import Store
from redrive.stores.clock import Clock
from redrive.testing.clock import FakeClock

AnyApp = Redrive | blocking.Redrive
T = TypeVar("T")


def plain(app: AnyApp) -> Redrive:
    """The async app, which is behind a blocking one."""
    if isinstance(app, blocking.Redrive):
        return behind(app)
    return _checked(app)


def awaited(app: object) -> Redrive:
    """The app of a test that awaits; a blocking one is easily passed by mistake."""
    if isinstance(app, blocking.Redrive):
        hint = "import the same names from redrive.testing.blocking; they need no await"
        raise ConfigError("it is an app of redrive.blocking", field="app", hint=hint)
    return _checked(app)


def _checked(app: object) -> Redrive:
    if not isinstance(app, Redrive):
        raise ConfigError(f"{app!r} is not an app", field="app", hint="pass the Redrive itself")
    return app


def fake_clock_of(app: Redrive) -> FakeClock:
    clock = clock_of(app)
    if not isinstance(clock, FakeClock):
        hint = "make it with Redrive(..., clock=FakeClock()), or use it inside `with sandbox(app):`"
        raise ConfigError("the app has the system's clock, and tests should not wait for it", field="clock", hint=hint)
    return clock


async def work(app: Redrive, store: Store, handlers: Mapping[str, Handler]) -> None:
    """A worker of the app, until it is cancelled. The app is open meanwhile, as for every handler that uses it."""
    parts = parts_of(app)
    was, parts.state = parts.state, "open"
    try:
        await parts.work(store, handlers, until_idle=False, grace=0)
    finally:
        if was != "open":
            parts.state = was


@contextmanager
def bound(app: Redrive, store: Store, clock: Clock) -> Iterator[None]:
    """The app open on another store. Afterwards it is as it was, with the handlers and subscribers it had."""
    was, listening = parts_of(app), vars(app.events).copy()
    parts = was.bound_to(store, clock)
    replace_parts(app, parts)
    try:
        _at_once(store.open())
        _at_once(parts.declared.write(store, parts.registry))
        parts.state = "open"
        yield
    finally:
        replace_parts(app, was)
        vars(app.events).update(listening)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Without a loop, so that it can be done in a fixture of any test: a store in memory has nothing to wait for."""
    try:
        while coroutine.send(None) is None:
            pass
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    hint = "use MemoryStore(clock), or FaultyStore around it; for a database, open an app of its own in the test"
    raise ConfigError("a sandbox needs a store in memory", field="store", hint=hint)
