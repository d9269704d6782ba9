"""`reencrypt` for every engine: reads stored bodies, encrypts them with the current key, replaces unchanged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from redrive.core.acts import Act
from redrive.core.item import History, Item
from redrive.core.select import EVERYTHING, Ids, Match, Selection
from redrive.core.states import State
from redrive.core.verbs import KeyTally, Page, Reencrypted, Tally
from redrive.errors import ConfigError, NotFound, StoreError
from redrive.stores.aside import aside
from redrive.stores.audit import AuditRecord
from redrive.stores.bodies import Bodies, as_stored
from redrive.stores.checks import check_act
from redrive.stores.key_checks import Documents
from redrive.stores.keyring import Keyring, Purpose
from redrive.stores.packing import Packed, is_sealed, key_id_of


class Rewrite(NamedTuple):
    """A body that replaces `old` if that is unchanged. `revision`: the number of an earlier payload, before an edit."""

    id: str
    purpose: Purpose
    old: bytes
    new: Packed
    revision: int | None = None


class Rewritable(Documents, Protocol):
    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page: ...

    async def get(self, item_id: str) -> History: ...

    async def tally(self) -> Tally: ...

    async def rewrite_bodies(self, rewrites: Sequence[Rewrite], by: Act | None) -> int:
        """Replace, in one write with the audit entry, the bodies that are unchanged. Returns how many they were."""


class _PageScan:
    """Counts and rewrites of one page of items."""

    def __init__(self, bodies: Bodies, encrypted: frozenset[str]) -> None:
        self._bodies = bodies
        self._encrypted = encrypted
        self.keys: Counter[str] = Counter()
        self.rewrites: list[Rewrite] = []
        self.running = self.unreadable = 0

    def add(self, histories: Sequence[History], ring: Keyring | None) -> None:
        for history in histories:
            item = history.item
            for body, purpose, revision in _bodies_of(history):
                key = key_id_of(body) if is_sealed(body) else ""
                if key or item.queue in self._encrypted:
                    self.keys[key] += 1
                    if ring is not None and key != ring.current:
                        self._rewrite(item, body, purpose, revision, ring)

    def _rewrite(self, item: Item, body: bytes, purpose: Purpose, revision: int | None, ring: Keyring) -> None:
        if item.state is State.LEASED:
            self.running += 1
            return
        try:
            # A compressed body stays compressed.
            inside = ring.open(body, item.id, purpose) if isinstance(body, Packed) and is_sealed(body) else body
        except StoreError:
            self.unreadable += 1
            return
        self.rewrites.append(Rewrite(item.id, purpose, body, ring.seal(inside, item.id, purpose), revision))


def _bodies_of(history: History) -> Iterator[tuple[bytes, Purpose, int | None]]:
    """The bodies of an item with purpose and revision, without damaged ones."""
    item = history.item
    if not item.flaw:
        yield item.payload, "payload", None
    if item.result is not None:
        yield item.result, "result", None
    for one in history.revisions:
        if not one.flaw:
            yield one.payload, "payload", one.number


def record_of(ids: Iterable[str]) -> AuditRecord:
    """The audit record of a rewrite, with the ids of the items."""
    return AuditRecord("reencrypt", Ids(()), tuple(dict.fromkeys(ids)))


async def _histories(store: Rewritable, items: Sequence[Item]) -> list[History]:
    """Histories of the items; an edited one is read with its earlier payloads."""
    found: list[History] = []
    for item in items:
        with suppress(NotFound):
            found.append(await as_stored(store.get(item.id), "raw") if item.revision else History(item))
    return found


async def reencrypt(
    store: Rewritable,
    bodies: Bodies,
    limit: int,
    cursor: str | None,
    queue: str | None,
    *,
    dry_run: bool,
    by: Act | None,
) -> Reencrypted:
    if by is not None:
        check_act(by)
    ring = None if dry_run else bodies.keyring
    if ring is None and not dry_run:
        hint = "give this process the keys: Redrive(..., encryption=Keyring(...)) or REDRIVE_ENCRYPTION_KEYS"
        raise ConfigError("there are no keys to encrypt with", field="encryption", hint=hint)
    if ring is not None:
        await bodies.record_key(store)
    encrypted = frozenset([row.queue for row in (await store.tally()).queues if row.settings.encrypt])
    selection = EVERYTHING if queue is None else Match("queue", "=", queue)
    page = await as_stored(store.find(selection, limit, cursor, oldest=True), "raw")
    scan = _PageScan(bodies, encrypted)
    histories = await _histories(store, page.items)
    await aside(lambda: scan.add(histories, ring))
    done = await store.rewrite_bodies(scan.rewrites, by) if scan.rewrites else 0
    if ring is not None and done == len(scan.rewrites):
        for one in scan.rewrites:
            scan.keys[key_id_of(one.old) if is_sealed(one.old) else ""] -= 1
            scan.keys[ring.current] += 1
    keys = tuple([KeyTally(key, count) for key, count in sorted(scan.keys.items()) if count])
    return Reencrypted(done, scan.running, scan.unreadable, keys, page.next)
