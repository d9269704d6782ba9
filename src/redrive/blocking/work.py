"""Methods of a blocking app that enqueue items, read them, wait for them and run a worker.

Iterables that the caller passes are iterated here, in the caller's thread: they may be a query or a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from redrive.blocking.lifecycle import Lifecycle
from redrive.core.durations import Duration
from redrive.core.item import History, Item
from redrive.core.policy_data import PolicyLike
from redrive.core.verbs import Page
from redrive.engine.ids import ItemId
from redrive.office.scene import Explanation
from redrive.stores.joining import unwrapped


class Working(Lifecycle):
    def enqueue(
        self,
        queue: str,
        payload: object = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: str = "normal",
        order_key: str | None = None,
        limit_key: str | None = None,
        dedupe_key: str | None = None,
        dedupe_window: Duration | None = None,
        dedupe_scope: str = "queue",
        after: str | Iterable[str] = (),
        on_dead: str = "wait",
        policy: PolicyLike | None = None,
        kind: str | None = None,
        schema: int = 0,
        trace: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: str | None = None,
        within: object | None = None,
    ) -> ItemId:
        """Durable when it returns. With your own `id` a repeat adds nothing and says so in `.duplicate`.

        `delay` is how long, `at` (with a time zone) when it is due. `priority` is high, normal or low. Items of one
        `order_key` run one after the other, in the order in which they were enqueued. `limit_key` is what the queue's
        limit per key counts. While another item with the same `dedupe_key` is live, nothing is added, and you get the
        other's id; with `dedupe_window` also for so long after that one was enqueued. `after` are ids that must be done
        before; when one of them is dead or cancelled the item waits, or with `on_dead="die"` dies too. `policy` is the
        name of one that `app.policy` declared, a Policy without rules, or some of its numbers ({"max_attempts": 3}):
        they stand over those of the queue and of the handler. `kind` says which handler of the queue it is for.
        `schema` (the version of the payload's schema), `trace` (a W3C traceparent) and `headers` (text by name, at most
        64 of them and 16 KiB) go with the item: a handler reads them from it.

        `within` your own PostgreSQL connection: the item is there when your transaction commits, or never.
        """
        return self._bridge.call(
            self._app.enqueue,
            queue,
            payload,
            delay=delay,
            at=at,
            priority=priority,
            order_key=order_key,
            limit_key=limit_key,
            dedupe_key=dedupe_key,
            dedupe_window=dedupe_window,
            dedupe_scope=dedupe_scope,
            after=_in_hand(after),
            on_dead=on_dead,
            policy=policy,
            kind=kind,
            schema=schema,
            trace=trace,
            headers=headers,
            id=id,
            within=unwrapped(within),
        )

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[object],
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: str = "normal",
        order_key: str | Callable[[Any], str | None] | None = None,
        limit_key: str | Callable[[Any], str | None] | None = None,
        dedupe_key: str | Callable[[Any], str | None] | None = None,
        dedupe_window: Duration | None = None,
        dedupe_scope: str = "queue",
        after: str | Iterable[str] = (),
        on_dead: str = "wait",
        policy: PolicyLike | None = None,
        kind: str | None = None,
        schema: int = 0,
        trace: str | None = None,
        headers: Mapping[str, str] | None = None,
        within: object | None = None,
    ) -> list[ItemId]:
        """All or none, in one write; all as in `enqueue`. A key may be a function that gives each payload its own."""
        return self._bridge.call(
            self._app.enqueue_many,
            queue,
            list(payloads),
            delay=delay,
            at=at,
            priority=priority,
            order_key=order_key,
            limit_key=limit_key,
            dedupe_key=dedupe_key,
            dedupe_window=dedupe_window,
            dedupe_scope=dedupe_scope,
            after=_in_hand(after),
            on_dead=on_dead,
            policy=policy,
            kind=kind,
            schema=schema,
            trace=trace,
            headers=headers,
            within=unwrapped(within),
        )

    def follow_up(
        self,
        queue: str,
        payload: object = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: str = "normal",
        order_key: str | None = None,
        limit_key: str | None = None,
        dedupe_key: str | None = None,
        dedupe_window: Duration | None = None,
        dedupe_scope: str = "queue",
        policy: PolicyLike | None = None,
        kind: str | None = None,
        schema: int = 0,
        trace: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ItemId:
        """Inside a handler: enqueue this in the very write that makes the current item done, or not at all.

        All as in `enqueue`. If its dedupe key is held by then, nothing is added.
        """
        return self._app.follow_up(
            queue,
            payload,
            delay=delay,
            at=at,
            priority=priority,
            order_key=order_key,
            limit_key=limit_key,
            dedupe_key=dedupe_key,
            dedupe_window=dedupe_window,
            dedupe_scope=dedupe_scope,
            policy=policy,
            kind=kind,
            schema=schema,
            trace=trace,
            headers=headers,
        )

    def get(self, item_id: str) -> Item:
        """The item as it is now. Raises NotFound."""
        return self._bridge.call(self._app.get, item_id)

    def history(self, item_id: str) -> History:
        """The item with every attempt and every operator's act, and what it waits for. Raises NotFound."""
        return self._bridge.call(self._app.history, item_id)

    def find(self, filter: str = "", *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of items in any state, last enqueued first (letters, when it says `state:dead`, last died first)."""
        return self._bridge.call(self._app.find, filter, limit=limit, cursor=cursor)

    def explain(self, item_id: str) -> Explanation:
        """Why the item is where it is, what happens next and when, and who decided. Raises NotFound."""
        return self._bridge.call(self._app.explain, item_id)

    def wait(self, item_id: str, *, timeout: Duration | None = None) -> Any:
        """The handler's result. Raises ItemFailed if the item is dead or cancelled, WaitTimeout if it takes longer."""
        return self._bridge.call(self._app.wait, item_id, timeout=timeout)

    def run(
        self,
        *,
        until_idle: bool = False,
        queues: Iterable[str] | None = None,
        grace: Duration = "30s",
        concurrency: int | None = None,
    ) -> None:
        """A worker, here, until `stop` is called. `until_idle`: until nothing is leased or will become due by itself.

        When stopped it takes nothing new, lets handlers finish within `grace` and releases the rest, uncharged.
        `concurrency` bounds what runs at once over all queues; each handler's own holds too. Ctrl-C stops it so, and a
        second one at once; then KeyboardInterrupt is raised. In the main thread SIGTERM does the same and raises
        SystemExit, unless the program handles it itself.
        """
        chosen = None if queues is None else list(queues)
        self._bridge.run(until_idle=until_idle, queues=chosen, grace=grace, concurrency=concurrency)

    def run_item(self, item_id: str, *, grace: Duration = "30s") -> Item:
        """Run one waiting item here and now, due or not, also of a paused queue and beyond its limits.

        Its handler runs and its end is settled as in any worker. Gives the item as it is afterwards: done, waiting for
        another attempt, or dead. Raises NotFound, EncryptionKeyMissing if this process lacks the key of its payload,
        and Conflict if it runs, has ended or is held by other items.
        """
        return self._bridge.call(self._app.run_item, item_id, grace=grace)

    def stop(self, *, grace: Duration | None = None) -> None:
        """Stop the workers of this app and wait for them; `grace` shortens the one given to `run`.

        In a handler it asks them to stop and does not wait: they wait for the handler.
        """
        self._bridge.call(self._app.stop, grace=grace)


def _in_hand(ids: str | Iterable[str]) -> str | Iterable[str]:
    return list(ids) if isinstance(ids, Iterator) else ids
