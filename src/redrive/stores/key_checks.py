"""Check values of encryption keys: for each key id a document that only this key decrypts.

It is written before a key first encrypts anything, so that a different key under the same id is refused at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from redrive.core.verbs import Document, DocumentWrite
from redrive.errors import ConfigError, Conflict, StoreError
from redrive.stores.keyring import Keyring
from redrive.stores.packing import SEALED, Packed

KIND = "encryption-key"
_KNOWN = b"redrive"


class Documents(Protocol):
    async def documents(self, kind: str) -> tuple[Document, ...]: ...

    async def write_documents(self, writes: Sequence[DocumentWrite]) -> tuple[Document, ...]: ...


async def check_keys(store: Documents, ring: Keyring | None) -> frozenset[str]:
    """The ids with a check value. Raises ConfigError for a key that differs from the one that was used by its id."""
    if ring is None:
        return frozenset()
    known = {document.key: document.body for document in await store.documents(KIND)}
    for key_id in ring.ids:
        if key_id in known and not _fits(ring, key_id, known[key_id]):
            raise ConfigError(
                f"key {key_id!r} is not the key that this store knows under that id; nothing was written",
                field="encryption",
                hint="give all processes the same key under it, and a new key an id of its own",
            )
    return frozenset(known)


async def record_key(store: Documents, ring: Keyring) -> None:
    """Write the check value of the current key before it encrypts anything. Raises ConfigError as `check_keys` does."""
    while ring.current not in await check_keys(store, ring):
        made = bytes(ring.seal(_KNOWN, ring.current, "check"))
        try:
            await store.write_documents([DocumentWrite(KIND, ring.current, made, 0)])
        except Conflict:
            continue  # another process was first, perhaps with a different key
        return


def _fits(ring: Keyring, key_id: str, body: bytes) -> bool:
    try:
        return ring.open(Packed(body, SEALED), key_id, "check") == _KNOWN
    except StoreError:
        return False
