"""Seals the audit: what was written since the last seal becomes part of the chain. Whoever comes first does it."""

from __future__ import annotations

from redrive.core import codec
from redrive.core.chain import HEAD, KIND, UNSEALED, Chain, Seal, key_of
from redrive.core.verbs import DocumentWrite
from redrive.errors import Conflict
from redrive.stores.audit import TOPIC
from redrive.stores.base import PAGE_LIMIT, Store

MOST = 10_000
"""Entries under one seal, so that sealing never takes long."""


async def seal(store: Store) -> Seal | None:
    """One seal over what is new, or None if nothing is or another one was quicker."""
    head = await store.document(HEAD, TOPIC)
    last = UNSEALED if head is None else codec.decode(head.body, Seal)
    chain, after = Chain(last), last.upto
    while chain.count < MOST:
        entries = await store.journal(TOPIC, after, PAGE_LIMIT)
        chain.add(entries)
        if len(entries) < PAGE_LIMIT:
            break
        after = entries[-1].position
    if not chain.count:
        return None
    made = chain.seal()
    body = codec.encode(made)
    writes = [
        DocumentWrite(KIND, key_of(made.number), body, 0),
        DocumentWrite(HEAD, TOPIC, body, 0 if head is None else head.version),
    ]
    try:
        await store.write_documents(writes)
    except Conflict:
        return None
    return made
