"""Encryption of schedule payloads for encrypted queues; the ciphertext is bound to the name of the schedule."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from redrive.core.schedule import Schedule
from redrive.errors import EncryptionKeyMissing, StoreError
from redrive.stores.base import Store
from redrive.stores.key_checks import record_key
from redrive.stores.keyring import Keyring
from redrive.stores.packing import SEALED, Packed


async def encrypted_queues(store: Store, queues: Iterable[str]) -> frozenset[str]:
    """The encrypted ones of these queues. Raises EncryptionKeyMissing if there is one and no key to encrypt with."""
    found = [queue for queue in sorted(set(queues)) if (await store.settings(queue)).encrypt]
    ring = store.keyring()
    if found and ring is None:
        raise EncryptionKeyMissing(found[0])
    if found and ring is not None:
        await record_key(store, ring)
    return frozenset(found)


def sealed(schedule: Schedule, ring: Keyring) -> Schedule:
    body = ring.seal(schedule.payload, schedule.name, "schedule")
    return replace(schedule, payload=bytes(body), sealed=ring.current)


def opened(schedule: Schedule, ring: Keyring | None) -> Schedule:
    """Raises EncryptionKeyMissing without keys, and DecryptionFailed without this key."""
    if not schedule.sealed:
        return schedule
    if ring is None:
        raise EncryptionKeyMissing(schedule.queue)
    payload = ring.open(Packed(schedule.payload, SEALED), schedule.name, "schedule")
    return replace(schedule, payload=payload, sealed="")


def shown(schedule: Schedule, ring: Keyring | None) -> Schedule:
    """The schedule decrypted if possible, else as it is stored: then `sealed` names the key."""
    try:
        return opened(schedule, ring)
    except (EncryptionKeyMissing, StoreError):
        return schedule
