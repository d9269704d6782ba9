"""Re-encryption of a whole store after a key rotation, and the check that a process has the key of an item."""

from __future__ import annotations

from collections import Counter

from redrive.core.acts import Act
from redrive.core.item import Item
from redrive.core.verbs import KeyTally, Reencrypted
from redrive.errors import EncryptionKeyMissing
from redrive.office.schedules import reencrypt_schedules
from redrive.stores.base import Store


def check_key(store: Store, item: Item) -> None:
    """Raises EncryptionKeyMissing if this process lacks the key of the item's payload."""
    if item.sealed and item.sealed not in store.info().keys:
        raise EncryptionKeyMissing(item.queue, item.sealed)


async def reencrypt_all(store: Store, queue: str | None, by: Act, *, dry_run: bool) -> Reencrypted:
    """Re-encrypts all items and schedule payloads; returns the sums of all pages. New items have the current key."""
    rewritten = running = unreadable = 0
    keys: Counter[str] = Counter()
    cursor: str | None = None
    while True:
        page = await store.reencrypt(cursor=cursor, queue=queue, dry_run=dry_run, by=by)
        rewritten += page.rewritten
        running += page.running
        unreadable += page.unreadable
        for one in page.keys:
            keys[one.key] += one.bodies
        cursor = page.next
        if cursor is None:
            again, bad, of_schedules = await reencrypt_schedules(store, queue, by, dry_run=dry_run)
            rewritten, unreadable, keys = rewritten + again, unreadable + bad, keys + of_schedules
            kept = tuple([KeyTally(key, count) for key, count in sorted(keys.items())])
            return Reencrypted(rewritten, running, unreadable, kept)
