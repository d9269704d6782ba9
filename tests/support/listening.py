"""A server in the loop of a test, of which nothing is left when it ends.

A connection that the loop's end finds open is left to the collector of garbage, which tells of it in another test.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HOST = "127.0.0.1"
TURNS = 5
"""Of the loop, after which whatever was accepted has begun to talk."""


@asynccontextmanager
async def listening(talk: Talk, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of somebody who talks so with each who comes."""
    talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):  # whoever called has gone
            await talk(reader, writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks[asyncio.create_task(begin(reader, writer))] = writer

    server = await asyncio.start_server(accept, HOST, 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        # First nobody is accepted any more, and then it closes: on one that is half accepted it would lose hold.
        for one in server.sockets:
            asyncio.get_running_loop().remove_reader(one.fileno())
        for _ in range(TURNS):
            await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop
        server.close()
        for task in talks:
            task.cancel()
        ended = await asyncio.gather(*talks, return_exceptions=True)
        for writer in talks.values():
            with suppress(AttributeError):  # closed behind bytes that had to wait: it has no loop
                writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
    for error in ended:
        if isinstance(error, Exception):
            raise error
