"""Stores for the command line in which items wait for each other, die in order, or run for somebody who is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from redrive import Policy, Redrive, never
from redrive.core.verbs import LeaseRequest, Want
from redrive.stores.url import store_from_url
from tests.support.cli import made_in, store_in

T = TypeVar("T")


def with_app(folder: Path, ask: Callable[[Redrive], Awaitable[T]]) -> T:
    """As a program of its own, whose actor is `tester`."""

    async def asked() -> T:
        async with Redrive(made_in(folder), log=False, actor="tester") as app:
            return await ask(app)

    return asyncio.run(asked())


def line_in(folder: Path, count: int, *, order: str = "block") -> list[str]:
    """Items of one order key in the queue `orders`; the first of them is dead."""

    async def make(app: Redrive) -> list[str]:
        app.queue("orders", order=order)

        @app.handler("orders", policy=Policy(never()))
        async def handle(number: int) -> None:
            if number == 0:
                raise ValueError("out of stock")

        ids = await app.enqueue_many("orders", range(count), order_key="cust-9", delay="0s")
        await app.run(until_idle=True)
        return [str(each) for each in ids]

    return with_app(folder, make)


def lease_in(folder: Path, queue: str, *, count: int = 1) -> list[str]:
    """Leases of a worker that is never heard of again, for an hour."""

    async def lease() -> list[str]:
        store = await store_from_url(store_in(folder)).open()
        try:
            want = Want(queue, count, 3_600_000, max_crashes=3)
            return [item.id for item in (await store.lease(LeaseRequest("ghost", (want,), "nonce"))).items]
        finally:
            await store.close()

    return asyncio.run(lease())
