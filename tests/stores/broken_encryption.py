"""Planted bugs of encryption."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from msgspec import structs

from redrive.core import sizes
from redrive.core.acts import Act
from redrive.core.decide import Charge, ToDone, ToReady
from redrive.core.item import History, Instant, Item, NewItem
from redrive.core.select import Selection
from redrive.core.verbs import LeaseRequest, PutResult, Settled, Settlement
from redrive.errors import EncryptionKeyMissing
from redrive.stores import bodies, damage
from redrive.stores.bodies import Bodies, Editable, Judged, Usable
from redrive.stores.clock import Clock
from redrive.stores.keyring import NONCE_SIZE, Keyring, Purpose, key_missing
from redrive.stores.packing import is_sealed
from redrive.stores.reencrypting import Rewrite
from tests.stores.broken import Bent
from tests.stores.broken_servers import Bug
from tests.stores.planting import Patch, Plant


class ResultsInClear(Bent):
    """Payloads are encrypted, and what handlers make of them is not."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements, then)
        for one in settlements:
            item = self.peek(one.id)
            if item is not None and isinstance(one.decision, ToDone):
                self.force(structs.replace(item, result=one.decision.result))
        return settled


class FollowUpsInClear(Bent):
    """What comes by another way than `put` is not encrypted."""

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        settled = await super().settle(settlements, then)
        for new in [new for one in settlements for new in one.follow_ups]:
            if (item := self.peek(new.id)) is not None:
                self.force(structs.replace(item, payload=new.payload))
        return settled


class GoesByWhatItKnew(Bent):
    """A queue that another process has encrypted meanwhile gets what it always got."""

    async def put(self, items: Sequence[NewItem], within: object | None = None, **_how: Any) -> PutResult:
        try:
            async with self._verb() as now:
                return self._putting.put(items, now)
        except EncryptionKeyMissing as refused:
            lane = self._table.lanes[refused.queue]
            before, lane.own = lane.own, structs.replace(lane.own, encrypt=False)
            try:
                async with self._verb() as now:
                    return self._putting.put(items, now)
            finally:
                lane.own = before


def _without_revisions(history: History) -> tuple[Item, ...]:
    return (history.item,)


def takes_revisions_in_clear(module: ModuleType) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "payloads_of", _without_revisions)

    return patch


class TakesRevisionsInClear(Bent):
    """What was there before an edit comes in clear, and is kept so."""

    async def _take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        lanes = [self._table.lanes[one.item.queue] for one in histories if is_sealed(one.item.payload)]
        before = [lane.own for lane in lanes]
        for lane in lanes:
            lane.own = structs.replace(lane.own, encrypt=False)
        try:
            return await super()._take_in(histories, by)
        finally:
            for lane, own in zip(lanes, before, strict=True):
                lane.own = own


class LeavesResultsUnderTheOldKey(Bent):
    """An operator drops the old key, and results are gone."""

    async def rewrite_bodies(self, rewrites: Sequence[Rewrite], by: Act | None) -> int:
        await super().rewrite_bodies([one for one in rewrites if one.purpose == "payload"], by)
        return len(rewrites)


class ReencryptsOverAnEdit(Bent):
    """What was read is written back under the new key, whatever is there by then."""

    async def rewrite_bodies(self, rewrites: Sequence[Rewrite], by: Act | None) -> int:
        for one in rewrites:
            if one.revision is None and one.purpose == "payload" and (item := self.peek(one.id)) is not None:
                self.force(structs.replace(item, payload=one.old))
        return await super().rewrite_bodies(rewrites, by)


class _Bent(Keyring):
    def __init__(self, ring: Keyring) -> None:
        self._ciphers = ring._ciphers  # noqa: SLF001 - bent
        self.current = ring.current


class _SameNonce(_Bent):
    def _nonce(self) -> bytes:
        return bytes(NONCE_SIZE)


class _BoundToNothing(_Bent):
    def _bound_to(self, header: bytes, item_id: str, purpose: Purpose) -> bytes:
        return b""


class UsesANonceTwice(Bent):
    """Two bodies under one key and nonce give away what differs between them, and the key of the checks."""

    def use_keys(self, keyring: Keyring | None) -> None:
        super().use_keys(None if keyring is None else _SameNonce(keyring))


class BindsNoBodyToItsItem(Bent):
    """Whoever can write to the database gives one item the payload of another."""

    def use_keys(self, keyring: Keyring | None) -> None:
        super().use_keys(None if keyring is None else _BoundToNothing(keyring))


def _letter(item: Item, key: str, now: Instant, **_: bool) -> Settlement:
    return damage.laid_aside(item, key_missing(key), now)


def takes_what_it_cannot_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(damage, "given_back", _letter)


def takes_a_missing_key_for_damage(patch: pytest.MonkeyPatch) -> None:
    right = damage.given_back

    def bent(item: Item, key: str, now: Instant, *, pause: bool) -> Settlement:
        return (_letter if pause else right)(item, key, now, pause=pause)

    patch.setattr(damage, "given_back", bent)


def gives_back_at_once(patch: pytest.MonkeyPatch) -> None:
    right = damage.given_back
    patch.setattr(damage, "given_back", lambda item, key, now, **_: right(item, key, now, pause=False))


def edits_what_it_cannot_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bodies, "_check_editable", _AnyItem._check_editable)  # noqa: SLF001 - bent


def edits_without_any_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bodies, "_check_editable", _WithoutAnyKey._check_editable)  # noqa: SLF001 - bent


async def _no_record(_store: object, _ring: Keyring) -> None:
    """Any key will do."""


def encrypts_with_any_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bodies, "record_key", _no_record)


class _AnyKey(Bodies):
    async def record_key(self, store: object) -> None:
        """Any key will do."""


class EncryptsWithAnyKey(Bent):
    """A process with a mistyped key encrypts what the right one cannot read."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bodies = _AnyKey(sizes.MAX)


class _NeverGivesBack(Bodies):
    """Makes a letter of all that it cannot read."""

    async def usable(self, judged: Sequence[Judged], now: Instant = 0, *, lapsed: bool = False) -> Usable:
        usable = await super().usable(judged, now, lapsed=lapsed)
        items = {item.id: item for item, _ in judged}
        return Usable(usable.items, tuple([_letter(items[one.id], "k1", now) for one in usable.ends]), usable.locked)


class MakesLettersWithoutKeys(Bent):
    """A process that was started without its keys empties the queue into the letters."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bodies = _NeverGivesBack(sizes.MAX)


class _TakesAMissingKeyForDamage(_NeverGivesBack):
    async def usable(self, judged: Sequence[Judged], now: Instant = 0, *, lapsed: bool = False) -> Usable:
        kind = Bodies if self.keyring is None else _NeverGivesBack
        return await kind.usable(self, judged, now, lapsed=lapsed)


class TakesAMissingKeyForDamage(Bent):
    """A process that was started without the old key empties the queue into the letters."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bodies = _TakesAMissingKeyForDamage(sizes.MAX)


class _GivesBackAtOnce(Bodies):
    async def usable(self, judged: Sequence[Judged], now: Instant = 0, *, lapsed: bool = False) -> Usable:
        usable = await super().usable(judged, now, lapsed=lapsed)
        at_once = ToReady(0, Charge.NOTHING)
        return usable._replace(ends=tuple([structs.replace(one, decision=at_once) for one in usable.ends]))


class GivesBackAtOnce(Bent):
    """A process without the old key leases the same items again and again."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bodies = _GivesBackAtOnce(sizes.MAX)


class _AnyItem(Bodies):
    async def _check_editable(self, store: object, selection: object) -> None:
        """Any may be edited."""


class EditsWhatItCannotRead(Bent):
    """A process without the old key replaces a payload that it could not show."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bodies = _AnyItem(sizes.MAX)


class _WithoutAnyKey(Bodies):
    async def _check_editable(self, store: Editable, selection: Selection) -> None:
        if self.keyring is not None:
            await _RIGHT(self, store, selection)


_RIGHT = Bodies._check_editable  # noqa: SLF001 - bent


class EditsWithoutAnyKey(Bent):
    """In a queue that is not encrypted any more, a process without keys replaces what is encrypted."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._bodies = _WithoutAnyKey(sizes.MAX)


ENCRYPTION: dict[str, Bug] = {
    "ReencryptsOverAnEdit": Bug(
        "an edit is lost, since a rotation had read the payload before it",
        ("test_reencrypt_leaves_what_was_edited_since_it_was_read",),
    ),
    "LeavesResultsUnderTheOldKey": Bug(
        "an operator drops the old key, and results are gone",
        ("test_reencrypt_replaces_old_keys_and_what_was_in_clear",),
    ),
    "TakesBodiesInClear": Bug(
        "a process that does not know yet that the queue is encrypted stores payloads in clear",
        (
            "test_encrypted_queues_take_nothing_from_a_process_without_keys",
            "test_encryption_is_in_force_for_every_process_with_the_next_write",
        ),
    ),
    "TakesResultsInClear": Bug(
        "a process that does not know yet that the queue is encrypted stores results in clear",
        ("test_encrypted_queues_take_nothing_from_a_process_without_keys",),
    ),
    "TakesRevisionsInClear": Bug(
        "what was there before an edit comes in clear, and is kept so",
        ("test_encrypted_revisions_are_taken_in_as_they_are",),
    ),
    "EncryptsWithAnyKey": Bug(
        "a process with a mistyped key encrypts what the right one cannot read",
        ("test_encrypted_with_another_key_under_a_known_id_is_refused",),
    ),
    "MakesLettersWithoutKeys": Bug(
        "a process that was started without its keys empties the queue into the letters",
        ("test_encrypted_items_stay_ready_in_a_process_without_any_keys",),
    ),
    "TakesAMissingKeyForDamage": Bug(
        "a process that was started without the old key empties the queue into the letters",
        ("test_encrypted_items_whose_key_is_missing_go_back_and_wait_for_it",),
    ),
    "GivesBackAtOnce": Bug(
        "a process without the old key leases the same items again and again",
        ("test_encrypted_items_whose_key_is_missing_go_back_and_wait_for_it",),
    ),
    "EditsWhatItCannotRead": Bug(
        "a process without the old key replaces a payload that it could not show",
        ("test_encrypted_payloads_are_edited_only_by_a_process_that_can_read_them",),
    ),
    "EditsWithoutAnyKey": Bug(
        "in a queue that is not encrypted any more, a process without keys replaces what is encrypted",
        ("test_encrypted_payloads_are_edited_only_by_a_process_that_can_read_them",),
    ),
}
SHARED: dict[str, Plant] = {
    "EncryptsWithAnyKey": Plant(patches=(encrypts_with_any_key,)),
    "MakesLettersWithoutKeys": Plant(patches=(takes_what_it_cannot_read,)),
    "TakesAMissingKeyForDamage": Plant(patches=(takes_a_missing_key_for_damage,)),
    "GivesBackAtOnce": Plant(patches=(gives_back_at_once,)),
    "EditsWhatItCannotRead": Plant(patches=(edits_what_it_cannot_read,)),
    "EditsWithoutAnyKey": Plant(patches=(edits_without_any_key,)),
}
"""What servers and SQLite have in common: bugs in the Python that all of them run."""
