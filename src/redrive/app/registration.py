"""Methods of an app that register handlers and declare queues, policies, routes, gates and schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import TypeVar, Unpack

from redrive.app.lifecycle import Lifecycle
from redrive.core import codec
from redrive.core.durations import Duration, positive
from redrive.core.gate import check_gate_name, gate_config
from redrive.core.item import Item
from redrive.core.policy import Policy
from redrive.core.policy_data import PolicyLike, policy_text
from redrive.core.routes import check_route
from redrive.core.schedule import make_schedule
from redrive.core.sizes import Size
from redrive.core.sizes import parse as parse_size
from redrive.engine.asks import headers_of, schema_of
from redrive.engine.registry import Function, Handler, Signature, check_kind, user_queue_name
from redrive.errors import ConfigError
from redrive.office.settings import (
    GateOptions,
    QueueOptions,
    check_capacity,
    check_known,
    check_name,
    check_share,
    queue_change,
)

F = TypeVar("F", bound=Function)

ASYNC_CONCURRENCY = 50
THREAD_CONCURRENCY = 8
LEASE = "30s"


class Registering(Lifecycle):
    def queue(self, name: str, **settings: Unpack[QueueOptions]) -> str:
        """Declare a queue, and what limits it: max_running, max_per_key, rate, capacity, order, policy, gate, keep,
        keep_results, retry_share, keep_trash, encrypt.

        Written when the app opens, where it differs from what the code declared the last time: an operator's change
        outlives a restart, and a new release's value replaces it. None takes a limit away.
        """
        queue = user_queue_name(name)
        change, parts = queue_change(settings, queue), self._parts
        check_share(queue, change, parts.registry.declared)
        for member, its in parts.declared.queues.items():
            check_share(member, its, (queue,))
        if settings:
            parts.declared.queue(queue, change)
        parts.registry.declared.add(queue)
        return queue

    def handler(
        self,
        queue: str,
        *,
        policy: Policy | None = None,
        lease: Duration | None = None,
        timeout: Duration | None = None,
        concurrency: int | None = None,
        gate: str | None = None,
        max_result: Size | None = None,
        kind: str | None = None,
    ) -> Callable[[F], F]:
        """Decorate the function that handles `queue`; async functions run in the loop, others in threads.

        With `kind` it handles the items of that kind only; a handler without one serves every kind that has none of its
        own. Without such a handler, items of other kinds stay ready. `timeout` and `policy` may differ by kind; `lease`
        (30 seconds unless given), `concurrency` and the policy's `max_crashes` are the queue's.

        A payload that is an object becomes keyword arguments; a parameter `item: Item` gets the item itself. `gate`
        names what the handler depends on: while that is down, the queue waits and nothing is charged. A result above
        `max_result` (else the app's `max_payload`) makes a letter.
        """
        name = user_queue_name(queue)
        rule: object = policy if policy is not None else Policy()
        if not isinstance(rule, Policy):
            named = f"; a policy with a name is the queue's: app.queue({name!r}, policy={rule!r})"
            hint = f"use Policy(backoff=..., max_attempts=...){named if isinstance(rule, str) else ''}"
            raise ConfigError(f"{policy!r} is not a Policy", field="policy", hint=hint)
        ttl = positive(LEASE if lease is None else lease, field="lease")
        given = frozenset({"lease"} if lease is not None else ()) | (
            {"concurrency"} if concurrency is not None else set()
        )
        of_kind = None if kind is None else check_kind(kind)
        limit = None if timeout is None else positive(timeout, field="timeout")
        if concurrency is not None and not is_count(concurrency):
            raise ConfigError(f"{concurrency!r} is not a number of slots", field="concurrency", hint="use 1 or more")
        largest = None if max_result is None else parse_size(max_result, field="max_result")
        behind = None if gate is None else queue_change({"gate": check_gate_name(gate)})

        def register(function: F) -> F:
            if not callable(function):
                raise ConfigError(f"{function!r} is not a function", field="handler", hint="decorate a function")
            is_async = _is_async(function)
            slots = concurrency or (ASYNC_CONCURRENCY if is_async else THREAD_CONCURRENCY)
            signature = Signature(function)
            handler = Handler(
                name,
                function,
                rule,
                ttl,
                limit,
                slots,
                is_async,
                signature,
                max_result=largest,
                kind=of_kind,
                given=given,
            )
            self._parts.registry.add(handler)
            if behind is not None:
                self._parts.declared.queue(name, behind)
            return function

        return register

    def outbox(self, target: str, deliver: Callable[[Item], object] | None = None, *, concurrency: int = 10) -> str:
        """Declare a target outside of the store, and give the name of its outbox queue, for `follow_up`.

        `deliver(item)` brings an item there, in the loop if it is async, else in a thread; the app's workers call it
        until it returns, about an hour long, and then make a dead letter with reason `undeliverable`. It may be called
        twice for one item: use `item.id` as the idempotency key. Without it, other processes deliver.
        """
        if not is_count(concurrency):
            raise ConfigError(f"{concurrency!r} is not a number of slots", field="concurrency", hint="use 1 or more")
        return self._parts.outbox(target, deliver, concurrency)

    def policy(self, name: str, policy: Policy) -> str:
        """Give a policy a name, by which queues and single items can ask for it. Looked up when an item fails."""
        check_name(name, "policy")
        rule: object = policy
        if not isinstance(rule, Policy):
            hint = "use Policy(backoff=..., max_attempts=...)"
            raise ConfigError(f"{policy!r} is not a Policy", field="policy", hint=hint)
        self._parts.registry.name_policy(name, policy)
        self._parts.declared.policy()
        return name

    def route(self, name: str, *, capacity: int | None = None) -> str:
        """Declare how many open letters a route has room for. What would die into a full one stays live and waits."""
        self._parts.declared.route(check_route(name), check_capacity(capacity))
        return name

    def gate(self, name: str, **options: Unpack[GateOptions]) -> str:
        """Declare how a gate judges the dependency it is named after: failure_rate, least, window, consecutive,
        interval, longest, probes, successes, retry_share, retry_floor, retry_burst, ignore.

        Queues stand behind it by `handler(..., gate=name)` or `queue(..., gate=name)`. Without this it judges as usual.
        """
        check_known(options, GateOptions.__annotations__, "a gate")
        self._parts.declared.gate(check_gate_name(name), gate_config(**options))
        return name

    def schedule(
        self,
        name: str,
        queue: str,
        payload: object = None,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        timezone: str | tzinfo | None = None,
        catch_up: str = "last",
        priority: str = "normal",
        order_key: str | None = None,
        limit_key: str | None = None,
        dedupe_key: str | None = None,
        policy: PolicyLike | None = None,
        kind: str | None = None,
        schema: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Declare a recurring item: by `cron`, in a time zone (UTC if none is given), or `every` so long.

        Each tick becomes one item, whichever worker makes it and however many there are. `catch_up` says what becomes
        of ticks that nobody was there for: the last of them runs, or skip, or all. The rest is as in `enqueue`. One
        that the code no longer declares stays until `app.schedules.remove`.
        """
        body = codec.dump_payload(payload, limit=self._parts.max_payload, queue=user_queue_name(queue))
        schedule = make_schedule(
            name,
            queue,
            body,
            cron=cron,
            every=every,
            timezone=timezone,
            catch_up=catch_up,
            priority=priority,
            order_key=order_key,
            limit_key=limit_key,
            dedupe_key=dedupe_key,
            policy=policy_text(policy) if isinstance(policy, Policy | Mapping) else policy,
            kind="" if kind is None else check_kind(kind),
            schema=schema_of(schema),
            headers=() if headers is None else headers_of(headers),
        )
        self._parts.declared.schedule(schedule)
        return name


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
