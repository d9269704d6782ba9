"""What operators ask of one worker: a document under its name, which the worker reads with every beat.

Nobody is ever ordered to start. A worker that ends takes its order away; one that died cannot, so whoever gives the
next order tidies up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from msgspec import Struct

from redrive.core import codec
from redrive.core.item import Instant
from redrive.core.verbs import DocumentWrite, NewEntry, WorkerBeat
from redrive.errors import StoreCorrupt
from redrive.stores.base import Store

KIND = "order"

Word = Literal["drain", "stop"]
WORDS: tuple[Word, ...] = get_args(Word)


class Order(Struct, frozen=True):
    """`drain`: take nothing new, finish what runs, end. `stop`: release what runs, end."""

    word: Word
    by: str
    reason: str
    at: Instant


async def give(store: Store, workers: Iterable[str], order: Order, audit: NewEntry | None = None) -> None:
    """To all or none of them. A later order replaces one that was not obeyed yet."""
    body = codec.encode(order)
    writes = [DocumentWrite(KIND, worker, body) for worker in workers]
    await store.write_documents([*await _left_behind(store), *writes], audit)


async def read(store: Store, worker: str) -> Order | None:
    document = await store.document(KIND, worker)
    if document is None:
        return None
    try:
        return codec.decode(document.body, Order)
    except StoreCorrupt:
        # Of a newer release, say. A worker goes on working rather than guess.
        return None


async def forget(store: Store, worker: str) -> None:
    await store.write_documents([DocumentWrite(KIND, worker, None)])


def can_hear(beat: WorkerBeat) -> bool:
    return beat.alive


async def _left_behind(store: Store) -> list[DocumentWrite]:
    """Orders of workers that will not read them any more."""
    listening = {beat.worker for beat in await store.workers() if can_hear(beat)}
    kept = await store.documents(KIND)
    return [DocumentWrite(KIND, document.key, None) for document in kept if document.key not in listening]
