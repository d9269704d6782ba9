"""The plainest store over a link, with good and bad manners: it shows that the claims are really checked."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from typing import Any, get_type_hints

from redrive.core import codec
from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing._relay import Answer, P, Relay
from tests.support.links.link import LOOPBACK
from tests.support.listening import listening


class Manners(StrEnum):
    GOOD = "good"
    SURE = "sure"  # says that nothing was written when it cannot know
    PATIENT = "patient"  # waits long beyond its deadline
    RAW = "raw"  # lets the errors of its driver out
    HASTY = "hasty"  # says that it has happened as soon as it is sent


class WireStore(Relay):
    """A connection for each call. Only verbs that answer nothing can be hasty."""

    def __init__(self, port: int, deadline: float, manners: Manners) -> None:
        super().__init__(MemoryStore())
        self._port = port
        self._deadline = deadline
        self._manners = manners

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        sent = False
        patience = self._deadline + (1.5 if self._manners is Manners.PATIENT else 0.0)
        try:
            async with asyncio.timeout(patience):
                reader, writer = await asyncio.open_connection(LOOPBACK, self._port)
                try:
                    sent = True
                    await _send(writer, verb.__name__.encode(), codec.encode([args, kwargs]))
                    answer: Answer = await self._answer(reader, verb.__name__)
                finally:
                    writer.close()
        except (OSError, EOFError) as error:
            if self._manners is Manners.RAW:
                raise
            if sent and self._manners is not Manners.SURE:
                raise OutcomeUnknown("cut off") from error
            raise StoreUnavailable("cut off") from error
        return answer

    async def _answer(self, reader: asyncio.StreamReader, verb: str) -> Any:
        kind = get_type_hints(getattr(Store, verb))["return"]
        if self._manners is Manners.HASTY and kind is type(None):
            return None
        return codec.decode(await _receive(reader), kind)


@asynccontextmanager
async def wire_server(store: Store) -> AsyncIterator[int]:
    """Serves a store at a port."""
    async with listening(partial(_talk, store)) as port:
        yield port


async def _talk(store: Store, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        verb = getattr(store, (await _receive(reader)).decode())
        given = codec.decode(await _receive(reader), list[Any])
        bound = _bound(verb, *given)
        await _send(writer, codec.encode(await verb(*bound.args, **bound.kwargs)))
    except (OSError, EOFError):
        pass  # the caller has gone; the next one comes
    finally:
        writer.close()


def _bound(verb: Any, args: list[Any], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    hints = get_type_hints(verb)
    bound = inspect.signature(verb).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        bound.arguments[name] = codec.decode(codec.encode(value), hints[name])
    return bound


async def _send(writer: asyncio.StreamWriter, *parts: bytes) -> None:
    writer.write(b"".join(len(part).to_bytes(4) + part for part in parts))
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
