"""The one place of the kit that looks inside an app."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from redrive import blocking
from redrive.app import Redrive
from redrive.blocking._facade import behind
from redrive.engine.client import Client
from redrive.engine.registry import Handler, Registry
from redrive.errors import ConfigError
from redrive.stores.base import Store
from redrive.stores.clock import Clock
from redrive.testing.clock import FakeClock

# ruff: noqa: SLF001 - see above

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


def store_of(app: Redrive) -> Store:
    return app._store


def clock_of(app: Redrive) -> FakeClock:
    clock = app._clock
    if not isinstance(clock, FakeClock):
        hint = "make it with Redrive(..., clock=FakeClock()), or use it inside `with sandbox(app):`"
        raise ConfigError("the app has the system's clock, and tests should not wait for it", field="clock", hint=hint)
    return clock


def handlers_of(app: Redrive, queues: Iterable[str] | None) -> dict[str, Handler]:
    return app._registry.choose(queues)


def declared(app: Redrive) -> frozenset[str]:
    return frozenset(app._registry.declared)


async def check_queue(app: Redrive, queue: str) -> None:
    """A typo would make a test that never fails."""
    await app._client.check_queue(queue)


def evidence_of(app: Redrive) -> tuple[bool, int]:
    """Whether frames are kept, and the largest result."""
    return app._frames, app._max_payload


async def work(app: Redrive, store: Store, handlers: Mapping[str, Handler]) -> None:
    """A worker of the app, until it is cancelled. The app is open meanwhile, as for every handler that uses it."""
    was, app._state = app._state, "open"
    try:
        await app._work(store, handlers, until_idle=False, grace=0)
    finally:
        if was != "open":
            app._state = was


@contextmanager
def with_client(app: Redrive, change: Callable[[Client], Client]) -> Iterator[None]:
    was = app._client
    app._client = change(was)
    try:
        yield
    finally:
        app._client = was


@contextmanager
def bound(app: Redrive, store: Store, clock: Clock) -> Iterator[None]:
    """The app open on another store. Afterwards it is as it was, with the handlers and subscribers it had."""
    state, listening, registry = vars(app).copy(), vars(app.events).copy(), app._registry
    app._registry = Registry()
    app._registry.handlers.update(registry.handlers)
    app._registry.declared.update(registry.declared)
    app._registry.policies.update(registry.policies)
    app._registry.outboxes.update(registry.outboxes)
    app._declared = app._declared.copy()
    app._bind(store, clock)
    try:
        _at_once(store.open())
        _at_once(app._declared.write(store, app._registry))
        app._state = "open"
        yield
    finally:
        vars(app).clear()
        vars(app).update(state)
        vars(app.events).update(listening)


def reopenable(app: Redrive) -> None:
    app._state = "new"


def lives_in_a_loop(app: Redrive) -> bool:
    return app._home is not None


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
