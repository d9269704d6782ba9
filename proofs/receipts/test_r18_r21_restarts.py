"""R-18, R-21 a client is killed and started again. Its dead letters are there, and a schedule goes on where it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from redrive.receipts import ReceiptClient
from redrive.receipts.model import final_id
from tests.receipts.test_dead_letters import receipt
from tests.support.broker import Broker, status
from tests.support.rig.patience import breathe

CLIENT = """
import asyncio, json, sys
from redrive.receipts import ReceiptClient

async def main():
    url, endpoint, act, said = sys.argv[1:]
    async with ReceiptClient(endpoint, url, log=False, max_receipt_retries=3, backoff_base=2.0) as client:
        if act == "store":
            await client.dead_letters.store(json.loads(said), attempts=5, error="boom")
        else:
            await client.submit(json.loads(said))
        print("durable", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def living(url: str, broker: Broker, act: str, said: str) -> Iterator[None]:
    """A client that has done its act, and is killed at the end."""
    command = [sys.executable, "-c", CLIENT, url, broker.url, act, said]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "durable\n"
            yield
        finally:
            process.kill()


async def test_r18_what_was_stored_before_a_kill_is_there_after_the_restart(shared: str, broker: Broker) -> None:
    with living(shared, broker, "store", json.dumps(receipt("a"))):
        pass
    async with ReceiptClient(broker.url, shared, log=False, work=False) as client:
        assert client.metrics.dead_letters == 1, "at once"
        (before,) = await client.dead_letters.get_all()
        assert (before.receipt.to_dict(), before.attempts) == (receipt("a"), 5)
        await client.dead_letters.store(receipt("b"))
        assert await client.dead_letters.size() == 2
        while client.metrics.dead_letters < 2:
            await breathe()
        found = await client.dead_letters.get_all()
        assert [each.receipt.to_dict() for each in found] == [receipt("a"), receipt("b")]
        assert found[0] == before, "failed_at and attempts are as they were"


async def test_r21_a_kill_between_two_tries_goes_on_with_the_third_at_its_time(shared: str, broker: Broker) -> None:
    broker.rule(lambda _call, _earlier: status(503))
    sent = final_id("receipts", None, "a")
    async with ReceiptClient(broker.url, shared, log=False, work=False) as watching:
        with living(shared, broker, "submit", json.dumps(receipt("a"))):
            broker.wait_for(2)
            while (item := await watching.app.get(sent)).errors < 2:
                await breathe()
        assert (len(broker.calls), item.errors) == (2, 2)
    async with ReceiptClient(broker.url, shared, log=False, max_receipt_retries=3, backoff_base=2.0) as client:
        assert await client.wait(sent) is False
        assert len(broker.calls) == 3, "the two before the kill count"
        assert broker.calls[2].at >= item.due_at
        (letter,) = await client.dead_letters.get_all()
        assert (letter.id, letter.attempts, letter.receipt.to_dict()) == (sent, 3, receipt("a"))
        assert letter.failed_at.timestamp() * 1000 >= broker.calls[2].at
