"""Apps for tests that are about what a user sees, in memory and on a durable store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from redrive import Policy, Redrive, never
from tests.support.stores import StoreUrl


class Work:
    """An app with one queue whose handler fails as long as `broken` says so."""

    def __init__(self, app: Redrive) -> None:
        self.app = app
        self.broken: Exception | None = ValueError("user 42 has no address")
        self.handled: list[str] = []

        @app.handler("emails", policy=Policy(backoff=never()))
        async def send(to: str) -> str:
            self.handled.append(to)
            if self.broken is not None:
                raise self.broken
            return f"sent to {to}"

    async def run(self) -> None:
        await self.app.run(until_idle=True)

    async def letters(self, count: int) -> list[str]:
        """Let so many items die; their ids, first-died first."""
        ids = [str(each) for each in await self.app.enqueue_many("emails", [{"to": f"u{n}"} for n in range(count)])]
        await self.run()
        return ids


@pytest.fixture(params=["memory", "sqlite"])
async def work(request: pytest.FixtureRequest, store_url: StoreUrl) -> AsyncIterator[Work]:
    app = Redrive(store_url(request.param), actor="tester")
    made = Work(app)
    async with app:
        yield made
