"""A queue behind a gate, and handlers for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from redrive import Item, Policy, Redrive, constant
from redrive.core.acts import Act
from redrive.core.gate import GateConfig, gate_config
from redrive.core.verbs import QueueChange
from redrive.office.gates import GateView, declare_gate, show_gate
from tests.support.lab import Lab

BY = Act("ann", "their maintenance", "request-1")
Handle = Callable[[], Awaitable[object]]


async def behind(lab: Lab, config: GateConfig | None = None, *queues: str) -> None:
    await declare_gate(lab.store, "smtp", config or gate_config())
    for queue in queues or ("q",):
        await lab.store.configure(queue, QueueChange(gate="smtp"))


def handle(app: Redrive, what: Handle, **options: Any) -> None:
    policy = options.pop("policy", Policy(backoff=constant("1s"), max_attempts=None))

    @app.handler("q", policy=policy, **options)
    async def handler(item: Item) -> object:
        return await what()


async def fine() -> None:
    pass


async def broken() -> None:
    raise ConnectionError("no answer")


async def view(lab: Lab) -> GateView:
    return await show_gate(lab.store, "smtp")
