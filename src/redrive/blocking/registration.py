"""Methods of a blocking app that register and declare, without a call into the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Unpack

from redrive.app import F
from redrive.blocking.lifecycle import Lifecycle
from redrive.core.durations import Duration
from redrive.core.item import Item
from redrive.core.policy import Policy
from redrive.core.policy_data import PolicyLike
from redrive.core.sizes import Size
from redrive.office.settings import GateOptions, QueueOptions


class Registering(Lifecycle):
    def queue(self, name: str, **settings: Unpack[QueueOptions]) -> str:
        """Declare a queue, and what limits it: max_running, max_per_key, rate, capacity, order, policy, gate, keep,
        keep_results, retry_share, keep_trash, encrypt.

        Written when the app opens, where it differs from what the code declared the last time: an operator's change
        outlives a restart, and a new release's value replaces it. None takes a limit away.
        """
        return self._app.queue(name, **settings)

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
        return self._app.handler(
            queue,
            policy=policy,
            lease=lease,
            timeout=timeout,
            concurrency=concurrency,
            gate=gate,
            max_result=max_result,
            kind=kind,
        )

    def outbox(self, target: str, deliver: Callable[[Item], object] | None = None, *, concurrency: int = 10) -> str:
        """Declare a target outside of the store, and give the name of its outbox queue, for `follow_up`.

        `deliver(item)` brings an item there, in the loop if it is async, else in a thread; the app's workers call it
        until it returns, about an hour long, and then make a dead letter with reason `undeliverable`. It may be called
        twice for one item: use `item.id` as the idempotency key. Without it, other processes deliver.
        """
        return self._app.outbox(target, deliver, concurrency=concurrency)

    def policy(self, name: str, policy: Policy) -> str:
        """Give a policy a name, by which queues and single items can ask for it. Looked up when an item fails."""
        return self._app.policy(name, policy)

    def route(self, name: str, *, capacity: int | None = None) -> str:
        """Declare how many open letters a route has room for. What would die into a full one stays live and waits."""
        return self._app.route(name, capacity=capacity)

    def gate(self, name: str, **options: Unpack[GateOptions]) -> str:
        """Declare how a gate judges the dependency it is named after: failure_rate, least, window, consecutive,
        interval, longest, probes, successes, retry_share, retry_floor, retry_burst, ignore.

        Queues stand behind it by `handler(..., gate=name)` or `queue(..., gate=name)`. Without this it judges as usual.
        """
        return self._app.gate(name, **options)

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
        return self._app.schedule(
            name,
            queue,
            payload,
            cron=cron,
            every=every,
            timezone=timezone,
            catch_up=catch_up,
            priority=priority,
            order_key=order_key,
            limit_key=limit_key,
            dedupe_key=dedupe_key,
            policy=policy,
            kind=kind,
            schema=schema,
            headers=headers,
        )
