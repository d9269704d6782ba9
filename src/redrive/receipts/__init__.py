"""Deliver a result for certain, or keep it for recovery: receipts that outlive the broker's bad days.

    async with ReceiptClient("https://broker.example", "sqlite:///redrive.db") as client:
        delivered = await client.send_receipt({"lease_id": ..., "task_id": ..., "worker_id": ..., "status": "complete"})

The receipt is durable before the first try. `redrive.receipts.blocking` has the same names without `await`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redrive.receipts.client import AsyncGateClient, ReceiptClient
    from redrive.receipts.dead_letters import DeadLetterQueue
    from redrive.receipts.jobs import Job
    from redrive.receipts.metrics import ReceiptMetrics
    from redrive.receipts.model import Receipt
    from redrive.receipts.poller import WorkPoller
else:
    from redrive._late import names_of

    __getattr__, __dir__ = names_of(
        __name__,
        {
            "redrive.receipts.client": ("AsyncGateClient", "ReceiptClient"),
            "redrive.receipts.dead_letters": ("DeadLetterQueue",),
            "redrive.receipts.jobs": ("Job",),
            "redrive.receipts.metrics": ("ReceiptMetrics",),
            "redrive.receipts.model": ("Receipt",),
            "redrive.receipts.poller": ("WorkPoller",),
            "redrive.receipts.blocking": (),
        },
    )


__all__ = ["AsyncGateClient", "DeadLetterQueue", "Job", "Receipt", "ReceiptClient", "ReceiptMetrics", "WorkPoller"]
