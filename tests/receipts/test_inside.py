"""A `with` inside another one ends nothing; whoever goes last closes the client."""

from __future__ import annotations

import pytest

from redrive.errors import AppClosed
from redrive.receipts import DeadLetterQueue, ReceiptClient
from redrive.testing import FakeClock
from tests.receipts.target import Target, receipt


async def test_a_client_is_closed_by_the_last() -> None:
    client = ReceiptClient(None, "memory:", transport=Target(FakeClock()), log=False)
    with pytest.raises(AppClosed, match="use it inside `async with client:`"):
        await client.send_receipt(receipt("a"))
    async with client:
        async with client:
            assert await client.send_receipt(receipt("a")) is True
        assert await client.send_receipt(receipt("b")) is True
        async with client.dead_letters:
            pass
        assert await client.dead_letters.size() == 0
    with pytest.raises(AppClosed, match="make a new ReceiptClient"):
        await client.send_receipt(receipt("c"))


async def test_to_close_it_by_name_closes_it_at_once() -> None:
    async with ReceiptClient(None, "memory:", transport=Target(FakeClock()), log=False) as client:
        async with client:
            await client.close()
        with pytest.raises(AppClosed):
            await client.send_receipt(receipt("a"))


async def test_dead_letters_alone_are_closed_by_the_last() -> None:
    async with DeadLetterQueue("memory:") as letters:
        async with letters:
            await letters.store(receipt())
        assert await letters.size() == 1
