"""The one seam for logs, metrics, alerts and tests: frozen records of what happened, told to subscribers.

A subscriber cannot influence the flow: its errors are contained and told to the others as SubscriberFailed.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class Event(Struct, frozen=True):
    pass


class Enqueued(Event, frozen=True):
    queue: str
    ids: tuple[str, ...]


class WorkerStarted(Event, frozen=True):
    worker: str
    queues: tuple[str, ...]


class WorkerStopped(Event, frozen=True):
    worker: str
    released: int


class WorkerOrdered(Event, frozen=True):
    """An operator asks it to `drain` (finish what runs, then end) or to `stop` (release it, then end)."""

    worker: str
    word: str
    by: str
    reason: str


class Leased(Event, frozen=True):
    worker: str
    ids: tuple[str, ...]


class Started(Event, frozen=True):
    """A handler is about to run."""

    worker: str
    queue: str
    id: str
    delivery: int
    attempt: int


class Finished(Event, frozen=True):
    """The store accepted the end of a delivery. `state` is where the item is now."""

    worker: str
    queue: str
    id: str
    delivery: int
    ending: str
    state: str
    ran_ms: int
    reason: str = ""
    error: str = ""
    text: str = ""
    cause: str = ""
    retry_in_ms: int | None = None
    route: str = ""


class SettleRefused(Event, frozen=True):
    """A result came too late: the lease had been given to somebody else. Nothing changed."""

    worker: str
    queue: str
    id: str
    delivery: int
    reason: str


class LeaseLost(Event, frozen=True):
    """The keeper could not prolong a lease; the handler is cancelled."""

    worker: str
    queue: str
    id: str
    delivery: int


class CancelAsked(Event, frozen=True):
    """Somebody wants a running item cancelled, and its handler was told."""

    worker: str
    queue: str
    id: str
    delivery: int
    reason: str


class Cancelled(Event, frozen=True):
    """A running item ended as cancelled."""

    worker: str
    queue: str
    id: str
    delivery: int
    reason: str


class RouteFull(Event, frozen=True):
    """A route has no room: items that should be its letters stay live and come again. Once a minute for each route;
    `kept` counts those since the last time, `id` is one of them.
    """

    worker: str
    route: str
    queue: str
    id: str
    kept: int


class Swept(Event, frozen=True):
    """Retention: finished items and results that were kept long enough are gone."""

    worker: str
    pruned: int
    results: int


class Reclaimed(Event, frozen=True):
    """The reaper took over an expired lease of `lost_by`."""

    worker: str
    queue: str
    id: str
    delivery: int
    lost_by: str


class StoreFailed(Event, frozen=True):
    """A verb failed; the part that called it will try again."""

    part: str
    error: str


class StoreRecovered(Event, frozen=True):
    part: str


class Amended(Event, frozen=True):
    change: str
    actor: str
    reason: str
    request_id: str
    changed: int
    skipped: int


class GateOpened(Event, frozen=True):
    """Too much failed: work behind the gate waits, and a first probe goes out after `probe_in_ms`."""

    gate: str
    why: str
    probe_in_ms: int


class GateClosed(Event, frozen=True):
    """All flows again; it was open for `open_ms`."""

    gate: str
    why: str
    open_ms: int


class TicksMissed(Event, frozen=True):
    """Ticks of a schedule were not fired in time; by its catch-up rule `fired` of them are fired now."""

    schedule: str
    missed: int
    fired: int
    reason: str


class SubscriberFailed(Event, frozen=True):
    subscriber: str
    error: str


Subscriber = Callable[[Event], None]


class Events:
    """Subscribers are called in the loop, in the order they came; they must be quick and must not block."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def __bool__(self) -> bool:
        """False when nobody listens, so that the hot path need not build records for nobody."""
        return bool(self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Returns the function that ends the subscription."""
        self._subscribers = (*self._subscribers, subscriber)

        def cancel() -> None:
            self._subscribers = tuple(other for other in self._subscribers if other is not subscriber)

        return cancel

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 - a subscriber cannot influence the flow
                self._contain(subscriber, event, error)

    def _contain(self, subscriber: Subscriber, event: Event, error: Exception) -> None:
        if isinstance(event, SubscriberFailed):
            return
        name = getattr(subscriber, "__qualname__", repr(subscriber))
        self.emit(SubscriberFailed(name, f"{type(error).__name__}: {error}"))
