"""Methods of an app that enqueue items, read them, wait for them and run a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from redrive.app.lifecycle import Lifecycle
from redrive.app.registration import is_count
from redrive.core.durations import Duration, parse
from redrive.core.families import is_family
from redrive.core.filters import parse as parse_filter
from redrive.core.item import History, Item
from redrive.core.policy_data import PolicyLike
from redrive.core.states import State
from redrive.core.verbs import Page
from redrive.engine.asks import Asks
from redrive.engine.ids import ItemId, new_id
from redrive.engine.registry import is_outbox, unknown_outbox
from redrive.errors import ConfigError, Conflict
from redrive.office.encryption import check_key
from redrive.office.scene import Explanation, look

_NOT_WAITING = {
    State.LEASED: ("it runs already", "wait for it to end"),
    State.DONE: ("it is done", "enqueue a new item"),
    State.CANCELLED: ("it was cancelled", "enqueue a new item"),
    State.DEAD: ("it is a dead letter", "replay it, or work on it in place with app.letters.work"),
}


class Working(Lifecycle):
    async def enqueue(
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
        parts = await self._parts.catch_up()
        asks = Asks(
            delay=delay,
            at=at,
            priority=priority,
            order_key=order_key,
            limit_key=limit_key,
            dedupe_key=dedupe_key,
            dedupe_window=dedupe_window,
            dedupe_scope=dedupe_scope,
            after=after,
            on_dead=on_dead,
            policy=policy,
            kind=kind,
            schema=schema,
            trace=trace,
            headers=headers,
        )
        return await parts.client.enqueue(queue, payload, asks, id, within)

    async def enqueue_many(
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
        parts = await self._parts.catch_up()
        asks = Asks(
            delay=delay,
            at=at,
            priority=priority,
            order_key=order_key,
            limit_key=limit_key,
            dedupe_key=dedupe_key,
            dedupe_window=dedupe_window,
            dedupe_scope=dedupe_scope,
            after=after,
            on_dead=on_dead,
            policy=policy,
            kind=kind,
            schema=schema,
            trace=trace,
            headers=headers,
        )
        return await parts.client.enqueue_many(queue, payloads, asks, within)

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
        from redrive.engine.runner import current

        run = current.get(None)
        if run is None:
            raise ConfigError("not inside a handler", field="follow_up", hint="use enqueue outside of handlers")
        if is_outbox(queue) and is_outbox(run.item.queue):
            hint = "enqueue to a queue of your own instead"
            raise ConfigError("an outbox item cannot cause another outbox item", field="queue", hint=hint)
        parts = self._parts
        if not parts.registry.knows(queue):
            if is_outbox(queue):
                raise unknown_outbox(queue)
            if is_family(queue):
                hint = f"name one member, such as {queue[:-1]}acme"
                raise ConfigError(f"{queue!r} is a pattern, not a queue", field="queue", hint=hint)
            hint = f"register a handler for it, or declare it with app.queue({queue!r})"
            raise ConfigError(f"{queue!r} is not declared here", field="queue", hint=hint)
        asks = Asks(
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
        item = parts.client.new_item(new_id(), queue, payload, asks)
        run.follow_ups += (item,)
        return ItemId(item.id)

    async def get(self, item_id: str) -> Item:
        """The item as it is now. Raises NotFound."""
        return (await self._parts.check_open().client.get(item_id)).item

    async def history(self, item_id: str) -> History:
        """The item with every attempt and every operator's act, and what it waits for. Raises NotFound."""
        return await self._parts.check_open().client.get(item_id)

    async def find(self, filter: str = "", *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of items in any state, last enqueued first (letters, when it says `state:dead`, last died first)."""
        return await self._parts.check_open().store.find(parse_filter(filter), limit, cursor)

    async def explain(self, item_id: str) -> Explanation:
        """Why the item is where it is, what happens next and when, and who decided. Raises NotFound."""
        from redrive.office.explain import explain

        parts = self._parts.check_open()
        return explain(await look(parts.store, str(item_id), parts.registry.policy_of))

    async def wait(self, item_id: str, *, timeout: Duration | None = None) -> Any:
        """The handler's result. Raises ItemFailed if the item is dead or cancelled, WaitTimeout if it takes longer."""
        return await self._parts.check_open().client.wait(item_id, timeout)

    async def run(
        self,
        *,
        until_idle: bool = False,
        queues: Iterable[str] | None = None,
        grace: Duration = "30s",
        concurrency: int | None = None,
    ) -> None:
        """A worker, here, until `stop` is called. `until_idle`: until nothing is leased or will become due by itself.

        When stopped it takes nothing new, lets handlers finish within `grace` and releases the rest, uncharged.
        `concurrency` bounds what runs at once over all queues; each handler's own holds too.
        """
        parts = await self._parts.catch_up()
        if concurrency is not None and not is_count(concurrency):
            raise ConfigError(f"{concurrency!r} is not a number of slots", field="concurrency", hint="use 1 or more")
        handlers = parts.registry.choose(queues)
        await parts.work(parts.store, handlers, until_idle=until_idle, grace=grace, most=concurrency)

    async def run_item(self, item_id: str, *, grace: Duration = "30s") -> Item:
        """Run one waiting item here and now, due or not, also of a paused queue and beyond its limits.

        Its handler runs and its end is settled as in any worker. Gives the item as it is afterwards: done, waiting for
        another attempt, or dead. Raises NotFound, EncryptionKeyMissing if this process lacks the key of its payload,
        and Conflict if it runs, has ended or is held by other items.
        """
        parts = await self._parts.catch_up()
        item = (await parts.client.get(item_id)).item
        _check_waits(item)
        check_key(parts.store, item)
        handler = {item.queue: parts.registry.choose((item.queue,))[item.queue]}
        if not handler[item.queue].takes(item.kind):
            hint = "register a handler for it, or one without a kind"
            raise ConfigError(f"no handler of {item.queue!r} here is for kind {item.kind!r}", field="kind", hint=hint)
        if not await parts.work(parts.store, handler, until_idle=False, grace=grace, item=item.id):
            _check_waits((await parts.client.get(item_id)).item)
            hint = "look at it with explain, and repeat the call"
            raise Conflict(f"item {item.id} was changed at the same time; it was not run", hint=hint)
        return (await parts.client.get(item_id)).item

    async def stop(self, *, grace: Duration | None = None) -> None:
        """Stop the workers of this app and wait for them; `grace` shortens the one given to `run`.

        In a handler it asks them to stop and does not wait: they wait for the handler.
        """
        from redrive.engine.runner import current

        limit = None if grace is None else parse(grace, field="grace")
        if current.get(None) is None:
            await self._parts.stop_workers(limit)
        else:
            for stop in self._parts.stops:
                stop.asked.set()


def _check_waits(item: Item) -> None:
    """Raises Conflict unless the item is ready and has no hold."""
    if item.state in _NOT_WAITING:
        reason, hint = _NOT_WAITING[item.state]
        raise Conflict(f"item {item.id} cannot be run: {reason}", hint=hint)
    if item.hold:
        hint = "app.explain names what it waits for"
        raise Conflict(f"item {item.id} cannot be run: it has the hold {item.hold!r}", hint=hint)
