"""`Redrive` and `Letters` without `await`: each method is one call into the loop of the async app behind it.

What the caller passes to be iterated is iterated here, in the caller's thread: it may be a query or a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from redrive import app as asynchronous
from redrive.app import MAX_PAYLOAD, F
from redrive.blocking._bridge import App, Bridge
from redrive.core.durations import Duration
from redrive.core.item import History, Item
from redrive.core.policy import Policy
from redrive.core.sizes import Size
from redrive.core.verbs import (
    Amended,
    Backup,
    CauseTally,
    Checkup,
    Entry,
    Page,
    StoreInfo,
    Tally,
    Tombstone,
    WorkerBeat,
)
from redrive.engine.ids import ItemId
from redrive.events import Events
from redrive.office import letters as office
from redrive.office.letters import Which
from redrive.stores.base import Store
from redrive.stores.clock import Clock
from redrive.stores.joining import unwrapped


class Redrive:
    """A durable work queue on one store, for programs without an event loop.

    `store` is a URL (`memory:`, `sqlite:///file`) or a store object. `traceback=False` keeps frames out of evidence.
    All threads of a process may share it, and a forked child may go on with it.
    """

    def __init__(
        self,
        store: str | Store = "sqlite:///redrive.db",
        *,
        max_payload: Size = MAX_PAYLOAD,
        traceback: bool = True,
        log: bool = True,
        actor: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._app = App(store, max_payload=max_payload, traceback=traceback, log=log, actor=actor, clock=clock)
        self._bridge = Bridge(self._app)
        self.events: Events = self._app.events

    # -- life ----------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        self._bridge.call(self._app.open)
        return self

    def close(self) -> None:
        """Stops workers that still run, then lets go of the store. May be called twice."""
        self._bridge.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- declaring -----------------------------------------------------------------------------------------------

    def queue(self, name: str) -> str:
        """Declare a queue that is handled elsewhere, so that this process may enqueue to it."""
        return self._app.queue(name)

    def handler(
        self,
        queue: str,
        *,
        policy: Policy | None = None,
        lease: Duration = "30s",
        timeout: Duration | None = None,
        concurrency: int | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that handles `queue`; async functions run in the loop, others in threads.

        A payload that is an object becomes keyword arguments; a parameter `item: Item` gets the item itself.
        """
        return self._app.handler(queue, policy=policy, lease=lease, timeout=timeout, concurrency=concurrency)

    # -- work ----------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        queue: str,
        payload: object = None,
        *,
        delay: Duration | None = None,
        id: str | None = None,
        within: object | None = None,
    ) -> ItemId:
        """Durable when it returns. With your own `id` a repeat adds nothing and says so in `.duplicate`.

        `within` your own PostgreSQL connection: the item is there when your transaction commits, or never.
        """
        return self._bridge.call(self._app.enqueue, queue, payload, delay=delay, id=id, within=unwrapped(within))

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[object],
        *,
        delay: Duration | None = None,
        within: object | None = None,
    ) -> list[ItemId]:
        """All or none, in one write; `within` as in `enqueue`."""
        return self._bridge.call(self._app.enqueue_many, queue, list(payloads), delay=delay, within=unwrapped(within))

    def follow_up(self, queue: str, payload: object = None, *, delay: Duration | None = None) -> ItemId:
        """Inside a handler: enqueue this in the very write that makes the current item done, or not at all."""
        return self._app.follow_up(queue, payload, delay=delay)

    def get(self, item_id: str) -> Item:
        """The item as it is now. Raises NotFound."""
        return self._bridge.call(self._app.get, item_id)

    def history(self, item_id: str) -> History:
        """The item with every attempt and every operator's act. Raises NotFound."""
        return self._bridge.call(self._app.history, item_id)

    def wait(self, item_id: str, *, timeout: Duration | None = None) -> Any:
        """The handler's result. Raises ItemFailed if the item is dead or cancelled, WaitTimeout if it takes longer."""
        return self._bridge.call(self._app.wait, item_id, timeout=timeout)

    def run(self, *, until_idle: bool = False, queues: Iterable[str] | None = None, grace: Duration = "30s") -> None:
        """A worker, here, until `stop` is called. `until_idle`: until nothing is leased or will become due by itself.

        When stopped it takes nothing new, lets handlers finish within `grace` and releases the rest, uncharged.
        Ctrl-C stops it so, and a second one at once; then KeyboardInterrupt is raised. In the main thread SIGTERM does
        the same and raises SystemExit, unless the program handles it itself.
        """
        self._bridge.run(until_idle=until_idle, queues=None if queues is None else list(queues), grace=grace)

    def stop(self, *, grace: Duration | None = None) -> None:
        """Stop the workers of this app and wait for them; `grace` shortens the one given to `run`.

        In a handler it asks them to stop and does not wait: they wait for the handler.
        """
        self._bridge.call(self._app.stop, grace=grace)

    # -- looking and steering ------------------------------------------------------------------------------------

    @property
    def letters(self) -> Letters:
        """The dead letter office."""
        return Letters(self._bridge, self._app.letters)

    def info(self) -> StoreInfo:
        return self._app.info()

    def tally(self) -> Tally:
        return self._bridge.call(self._app.tally)

    def causes(self, queue: str | None = None, *, limit: int = 100) -> tuple[CauseTally, ...]:
        """Open letters grouped by cause, most first."""
        return self._bridge.call(self._app.causes, queue, limit=limit)

    def workers(self) -> tuple[WorkerBeat, ...]:
        return self._bridge.call(self._app.workers)

    def report_death(self, pid: int, *, why: str) -> tuple[str, ...]:
        """For whoever supervises workers on this host: how the process died, for the evidence of what it held.

        Gives the names of its workers; none if the process had no worker, or they stopped in good order.
        """
        return self._bridge.call(self._app.report_death, pid, why=why)

    def pause(self, queue: str, *, reason: str) -> None:
        """No worker leases from the queue until `resume`; what runs goes on."""
        self._bridge.call(self._app.pause, queue, reason=reason)

    def resume(self, queue: str) -> None:
        self._bridge.call(self._app.resume, queue)

    def cancel(self, ids: str | Iterable[str], *, reason: str) -> Amended:
        """Cancel items that are ready (waiting, scheduled or between retries)."""
        return self._bridge.call(self._app.cancel, ids if isinstance(ids, str) else list(ids), reason=reason)

    def prune(self, filter: str, *, reason: str, limit: int = 1000) -> tuple[Tombstone, ...]:
        """Remove resolved items for good (done, cancelled, letters in the trash); each leaves a tombstone."""
        return self._bridge.call(self._app.prune, filter, reason=reason, limit=limit)

    def check(self, *, quick: bool = False) -> Checkup:
        """Whether the store is whole and agrees with itself. Changes nothing; `quick` leaves payloads unread."""
        return self._bridge.call(self._app.check, quick=quick)

    def backup(self, path: str | os.PathLike[str], *, force: bool = False) -> Backup:
        """Copy the whole store, as it is now, into a new file, while work goes on. `force` replaces a file."""
        return self._bridge.call(self._app.backup, path, force=force)


class Letters:
    """`which` is a page, an item, ids or a filter text; a text is frozen to the ids it matches before any move."""

    def __init__(self, bridge: Bridge, letters: office.Letters) -> None:
        self._bridge = bridge
        self._letters = letters

    def find(self, filter: str = "", *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of letters, last-died first: open ones unless the filter names a disposition."""
        return self._bridge.call(self._letters.find, filter, limit=limit, cursor=cursor)

    def get(self, item_id: str) -> History:
        """The letter with every attempt and act, by id or unique prefix."""
        return self._bridge.call(self._letters.get, item_id)

    def resolve(self, item_id: str) -> str:
        """The full id of an id, or of a prefix of at least four characters that fits one letter (or else one item)."""
        return self._bridge.call(self._letters.resolve, item_id)

    def replay(
        self,
        which: Which,
        *,
        reason: str,
        budget: str = "fresh",
        delay: Duration = 0,
        actor: str | None = None,
        request_id: str | None = None,
    ) -> Amended:
        """Send letters again, same id, history kept. `fresh`: all counters anew. `once`: one attempt, then dead."""
        return self._bridge.call(
            self._letters.replay,
            _in_hand(which),
            reason=reason,
            budget=budget,
            delay=delay,
            actor=actor,
            request_id=request_id,
        )

    def archive(self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None) -> Amended:
        """Put letters away: kept, out of the open list, replayable."""
        return self._bridge.call(
            self._letters.archive, _in_hand(which), reason=reason, actor=actor, request_id=request_id
        )

    def discard(self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None) -> Amended:
        """To the trash, from where `restore` brings them back until they are pruned."""
        return self._bridge.call(
            self._letters.discard, _in_hand(which), reason=reason, actor=actor, request_id=request_id
        )

    def restore(self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None) -> Amended:
        """Out of the archive or the trash: open again."""
        return self._bridge.call(
            self._letters.restore, _in_hand(which), reason=reason, actor=actor, request_id=request_id
        )

    def audit(self, *, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """What was done by whom and why, in order; go on with `after=` the last position."""
        return self._bridge.call(self._letters.audit, after=after, limit=limit)


def behind(app: Redrive) -> asynchronous.Redrive:
    """The async app that does the work, for those who have a loop of their own to run it in."""
    return app._app  # noqa: SLF001 - of this module


def _in_hand(which: Which) -> Which:
    return which if isinstance(which, str | Page | Item | History) else list(which)
