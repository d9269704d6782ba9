"""pgqueuer on PostgreSQL: the fastest one there, by far."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries

from bench.load import PAYLOAD

CHUNK = 1_000


class Pgqueuer:
    """Its acks are buffered until there is a batch of them."""

    def __init__(self, url: str, variant: int, handled: Callable[[], None]) -> None:
        self._url = url
        self._batch = variant
        self._handled = handled

    def fill(self, count: int) -> None:
        async def fill() -> None:
            connection = await asyncpg.connect(self._url)
            queries = Queries.from_asyncpg_connection(connection)
            await queries.install()
            body = json.dumps(PAYLOAD).encode()
            for done in range(0, count, CHUNK):
                size = min(CHUNK, count - done)
                await queries.enqueue(["noop"] * size, [body] * size, [0] * size)
            await connection.close()

        uvloop.run(fill())

    def work(self) -> None:
        async def work() -> None:
            queue: Any = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self._url))

            @queue.entrypoint("noop")
            async def noop(job: Any) -> None:
                json.loads(job.payload)
                self._handled()

            await queue.run(batch_size=self._batch)

        uvloop.run(work())


PEERS: dict[str, Any] = {"pgqueuer": Pgqueuer}
