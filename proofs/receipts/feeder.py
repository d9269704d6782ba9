"""A process whose target refuses everything: `python -m proofs.receipts.feeder URL NAME COUNT` makes dead receipts.

It lives on until its input ends, so that a test can do something while it surely lives.
"""

from __future__ import annotations

import asyncio
import sys

from redrive.errors import ReceiptRefused
from redrive.receipts import Receipt, ReceiptClient


async def refuse(receipt: Receipt, key: str, tenant_id: str | None) -> None:
    raise ReceiptRefused("not today", code="QUOTA_EXCEEDED")


def lease(name: str, number: int) -> str:
    return f"{name}-{number}"


async def feed(url: str, name: str, count: int) -> None:
    async with ReceiptClient(None, url, transport=refuse, log=False) as client:
        said = {"task_id": "t", "worker_id": name, "status": "complete", "timestamp": "2024-01-15T10:30:00Z"}
        await asyncio.gather(
            *(client.send_receipt({"lease_id": lease(name, number), **said}) for number in range(count))
        )
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(feed(sys.argv[1], sys.argv[2], int(sys.argv[3])))
