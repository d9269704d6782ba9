"""However soon a test is over after somebody called: no connection is left to the collector."""

import asyncio
import gc
import socket
import warnings

import pytest

from tests.support.listening import HOST, TURNS, listening


async def call(turns: int) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(hang) as port:
        with socket.create_connection((HOST, port)):
            for _ in range(turns):
                await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop


@pytest.mark.parametrize("turns", range(TURNS + 2))
def test_nothing_is_left(turns: int) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(call(turns))
        gc.collect()
    assert [str(one.message) for one in told] == []


async def call_one_who_fails() -> None:
    called = asyncio.Event()

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        raise ValueError("on the way")

    async with listening(fail) as port:
        with socket.create_connection((HOST, port)):
            await called.wait()


async def test_what_goes_wrong_in_a_talk_is_told() -> None:
    with pytest.raises(ValueError, match="on the way"):
        await call_one_who_fails()
