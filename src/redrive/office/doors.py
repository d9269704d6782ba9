"""Which front door a queue belongs to: whoever tells that nobody serves it can then also tell what to start."""

from __future__ import annotations

from shlex import quote
from typing import Literal

from redrive.core.verbs import DocumentWrite
from redrive.stores.base import Store

Door = Literal["receipts", "mailboxes"]

KIND = "door"


async def mark(store: Store, queue: str, door: Door) -> None:
    """May be said again by everybody who opens it: only the first one writes."""
    said = door.encode()
    known = await store.document(KIND, queue)
    if known is None or known.body != said:
        await store.write_documents([DocumentWrite(KIND, queue, said)])


async def doors(store: Store) -> dict[str, str]:
    """By queue. Those of plain handlers are not among them."""
    return {document.key: document.body.decode(errors="replace") for document in await store.documents(KIND)}


def start(door: str, queue: str) -> str:
    """What serves such a queue."""
    match door:
        case "receipts":
            return f"redrive receipts send --waiting --queue {quote(queue)}"
        case "mailboxes":
            return f"start the process that receives from the mailbox {queue}"
        case _:
            return f"redrive worker run MODULE:APP --queues {quote(queue)}"
