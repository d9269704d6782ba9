"""`lease` on SQLite: in the order of core.lanes, suspects alone, within all limits, one answer to one nonce."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from msgspec.structs import replace

from redrive.core import codec, lanes
from redrive.core.families import VISITS, family_of, is_family, portion
from redrive.core.item import Item
from redrive.core.lanes import Rank
from redrive.core.verbs import LeaseRequest, Leases, QueueSettings, Want
from redrive.errors import StoreError
from redrive.stores import damage
from redrive.stores.bodies import Judged
from redrive.stores.packing import fault
from redrive.stores.sqlite import families, limits, opening, slots
from redrive.stores.sqlite.limits import Room
from redrive.stores.sqlite.memo import BoundMemo
from redrive.stores.sqlite.rows import BODY, CRC, DUE, PACKING, SEQ, TIES, Row, judged_item, leased_item
from redrive.stores.sqlite.settle import settle
from redrive.stores.sqlite.tied import BINDING, leased, numbers
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "lease")
_GET = load("sqlite", "get")
_STATE, _DELIVERIES = 4, 8
"""Places in get.by_seq."""

MOST_ASIDE = 1_000
"""So many are set aside in one call: it ends, however many of one limit key wait."""

_PLAIN: Rank = ("", 0)
_TURN = itemgetter(DUE, SEQ)
_Waiting = tuple[int, int, str | None]
"""(due, seq, limit key) of a due item."""


class _Lane(NamedTuple):
    """One want of an unpaused queue, with the kinds and levels among its ready items on both sides of its line."""

    want: Want
    plain: tuple[Rank, ...]
    suspect: tuple[Rank, ...]
    settings: QueueSettings | None
    running: int

    @property
    def is_untried(self) -> bool:
        """Of all that may be given nothing was tried before or has a priority: the time alone decides."""
        return all(level == 0 for _, level in self.plain)

    def room(self, tx: Tx) -> Room:
        limit, name = self.want.limit, family_of(self.want.queue)
        if name:
            limit = max(0, families.room(tx, name, tx.family(name), limit))
        if self.settings is None:
            return Room(limit)
        return limits.room(tx, self.want.queue, self.settings, limit, self.running)


def lease(tx: Tx, memo: BoundMemo, request: LeaseRequest) -> Leases:
    if memo.knows_nothing_was_given(request):
        return Leases()
    row = tx.execute(_SQL["last_nonce"], (request.worker, request.lane, request.nonce)).fetchone()
    if row is not None:
        return Leases(_given_before(tx, memo, codec.decode(row[0], list[int])))
    leases = Leases() if _holds_a_suspect(tx, request.worker) else _Giving(tx, memo, request).give()
    if leases.items:
        given = [number for item in leases.items for number in (item.seq, item.deliveries)]
        tx.execute(_SQL["keep_nonce"], (request.worker, request.lane, request.nonce, tx.now, codec.encode(given)))
        memo.gave(request)
    else:
        memo.gave_nothing(request)
    return leases


def _given_before(tx: Tx, memo: BoundMemo, given: list[int]) -> tuple[Item, ...]:
    """As far as still held: the same delivery, and nobody took it over."""
    rows = [tx.execute(_GET["by_seq"], (seq,)).fetchone() for seq in given[::2]]
    held = [
        judged_item(row)
        for row, delivery in zip(rows, given[1::2], strict=True)
        if row is not None and row[_STATE] == "leased" and row[_DELIVERIES] == delivery
    ]
    return usable(tx, memo, held)


def _holds_a_suspect(tx: Tx, worker: str) -> bool:
    """Not even a worker's own mistake may put a neighbour beside a suspect."""
    return tx.execute(_SQL["holds_alone"], (worker,)).fetchone() is not None


class _Giving:
    """One request that gives something new."""

    def __init__(self, tx: Tx, memo: BoundMemo, request: LeaseRequest) -> None:
        self._tx = tx
        self._memo = memo
        self._request = request
        self._aside = 0
        self._is_full = False
        self._more = False

    def give(self) -> Leases:
        tx, request = self._tx, self._request
        if request.item:
            return self._one(request.item)
        found = [(want, self._lanes(want)) for want in request.wants]
        suspect = self._first_suspect([lane for _, some in found for lane in some])
        if suspect is not None and request.holding <= 0:
            row, lane = suspect
            self._spend(lane, firsts=0, retries=1)
            given = self._hand_over([row], lane.want, alone=True)
            if tx.family(family_of(lane.want.queue)) is not None:
                families.look_at_again(tx, lane.want.queue)
            return Leases(tuple(given))
        items: list[Item] = []
        for want, some in found:
            if is_family(want.queue):
                items += self._family(want, some)
            else:
                for lane in some:
                    items += self._plain(lane)
        return Leases(tuple(items), suspects_due=suspect is not None, more=self._more)

    def _one(self, item_id: str) -> Leases:
        """The item that was asked for by its id."""
        tx, (want,) = self._tx, self._request.wants
        row = tx.execute(_SQL["one"], (item_id, want.queue)).fetchone()
        if row is None:
            return Leases()
        due, seq, key, level, kept = row
        alone = lanes.crashes_of(level) >= want.max_crashes - 1
        if alone and self._request.holding > 0:
            return Leases(suspects_due=True)
        lane = _Lane(want, (), (), families.settings_of(tx, want.queue, kept), 0)
        if not self._within_keys(lane, [(due, seq, key)]):
            return Leases()
        retry = alone or lanes.is_retry(level)
        self._spend(lane, int(not retry), int(retry))
        return Leases(tuple(self._hand_over(self._rows([(due, seq, key)]), want, alone=alone)))

    # --- families ---

    def _lanes(self, want: Want) -> list[_Lane]:
        """Of a queue one or none; of a family those of the members whose turn it is."""
        if not is_family(want.queue):
            lane = _lane(self._tx, want)
            return [] if lane is None else [lane]
        found: list[_Lane] = []
        members = families.turns(self._tx, want.queue, want.limit)
        self._is_full |= len(members) >= VISITS
        for queue in members:
            lane = _lane(self._tx, replace(want, queue=queue))
            if lane is None:
                self._look_again(queue)
            else:
                found.append(lane)
        return found

    def _look_again(self, queue: str) -> bool:
        """Whether a member that was looked at has more to give now."""
        has_more = families.look_at_again(self._tx, queue)
        self._more |= self._is_full and not has_more
        return has_more

    def _family(self, want: Want, members: list[_Lane]) -> list[Item]:
        """An equal portion for each member whose turn it is; what is left for those that have more."""
        limit = families.room(self._tx, want.queue, self._tx.family(want.queue), want.limit)
        items: list[Item] = []
        retries = 0
        while members and len(items) < limit:
            share = portion(limit - len(items), len(members))
            have_more: list[_Lane] = []
            for lane in members:
                left = limit - len(items)
                if left <= 0:
                    break
                asked = replace(
                    lane.want,
                    limit=min(share, left),
                    retries=None if want.retries is None else max(0, want.retries - retries),
                    turn=want.turn + len(items),
                )
                given = self._plain(lane._replace(want=asked))
                items += given
                retries += sum([lanes.is_retry(lanes.level_of(item)) for item in given])
                if self._look_again(lane.want.queue) and given:
                    have_more.append(lane)
            members = have_more
        return items

    def _spend(self, lane: _Lane, firsts: int, retries: int) -> None:
        if lane.settings is not None:
            limits.spend(self._tx, lane.want.queue, lane.settings, firsts, retries)

    # --- suspects ---

    def _first_suspect(self, found: list[_Lane]) -> tuple[Row, _Lane] | None:
        for lane in found:
            if not lane.suspect:
                continue
            room = lane.room(self._tx)
            while room.limit and room.retries and self._aside < MOST_ASIDE:
                due = [row for rank in lane.suspect for row in due_of(self._tx, lane.want.queue, rank, 1)]
                if not due:
                    break
                if first := self._within_keys(lane, [min(due)]):
                    return self._rows(first)[0], lane
        return None

    # --- the others ---

    def _plain(self, lane: _Lane) -> list[Item]:
        if not lane.plain:
            return []
        want, room = lane.want, lane.room(self._tx)
        if lane.is_untried and (lane.settings is None or lane.settings.max_per_key is None):
            rows = lanes.merged(
                lane.plain, room.limit, lambda rank, most: self._whole_rows(want.queue, rank, most), _TURN
            )
            self._spend(lane, len(rows), 0)
            return self._hand_over(rows, want, alone=False)
        items: list[Item] = []
        given = retries = 0
        while given < room.limit:
            picked = self._choose(lane, room, given, retries)
            kept = self._within_keys(lane, [row for _, row in picked])
            items += self._hand_over(self._rows(kept), want, alone=False)
            given += len(kept)
            left = set(kept)
            retries += sum([lanes.is_retry(level) for level, row in picked if row in left])
            # Where some were set aside, others are chosen in their stead.
            if len(kept) == len(picked) or self._aside >= MOST_ASIDE:
                break
        self._spend(lane, given - retries, retries)
        return items

    def _whole_rows(self, queue: str, rank: Rank, most: int) -> list[Row]:
        """The first due of a kind and level, with all that is given."""
        return self._tx.execute(_SQL["pick"], (queue, *rank, self._tx.now, most)).fetchall()

    def _choose(self, lane: _Lane, room: Room, given: int, retries: int) -> list[tuple[int, _Waiting]]:
        """With their levels, in the order in which they are to be given."""
        want, limit = lane.want, room.limit - given
        due = {
            n: lanes.merged(alike, limit, lambda rank, most: due_of(self._tx, want.queue, rank, most))
            for n, alike in lanes.by_level(lane.plain).items()
        }
        if due.keys() == {0}:
            return [(0, row) for row in due[0]]
        slots_left = None if want.retries is None else max(0, want.retries - retries)
        waiting = {n: [row[:2] for row in rows] for n, rows in due.items()}
        levels = lanes.choose(
            waiting,
            limit,
            retries=slots_left,
            most_retries=room.retries - retries,
            turn=want.turn + given,
            share=want.share,
        )
        rows = {n: iter(found) for n, found in due.items()}
        return [(n, next(rows[n])) for n in levels]

    def _within_keys(self, lane: _Lane, rows: list[_Waiting]) -> list[_Waiting]:
        """Those whose limit key has room. The others are set aside: until one of the key ends, nobody looks at them."""
        most = None if lane.settings is None else lane.settings.max_per_key
        if most is None or not any(key for _, _, key in rows):
            return rows
        queue = lane.want.queue
        running = slots.running(self._tx, queue, [key for _, _, key in rows if key])
        kept: list[_Waiting] = []
        full: list[tuple[str, int]] = []
        for row in rows:
            _, seq, key = row
            if key:
                if running.get(key, 0) >= most:
                    full.append((key, seq))
                    continue
                running[key] = running.get(key, 0) + 1
            kept.append(row)
        slots.set_aside(self._tx, queue, full)
        self._aside += len(full)
        return kept

    # --- handing over ---

    def _rows(self, chosen: list[_Waiting]) -> list[Row]:
        return self._tx.execute(_SQL["chosen"], (numbers([row[1] for row in chosen]),)).fetchall() if chosen else []

    def _hand_over(self, rows: list[Row], want: Want, *, alone: bool) -> list[Item]:
        """Counted before it is given: a crash between here and the handler is already in the books."""
        if not rows:
            return []
        tx, worker = self._tx, self._request.worker
        now, until = tx.now, tx.now + want.ttl
        tx.execute(_SQL["mark"], (worker, now, until, alone, numbers([row[SEQ] for row in rows])))
        tx.moved(want.queue, "ready", "leased", len(rows))
        bound = [leased(row) for row in rows if row[TIES] & BINDING]
        if bound:
            self._memo.bind(bound)
            slots.enter(tx, [item.slot for item in bound if item.limit_key])
        items: list[Item] = []
        for row in rows:
            item = leased_item(tx, row, worker, until, alone)
            body, crc, packing = row[BODY], row[CRC], row[PACKING]
            # Nearly all are small and sound; whatever else there is to say, `fault` says.
            if packing == 0 and type(body) is bytes and zlib.crc32(body) == crc:
                items.append(item)
            else:
                items += usable(tx, self._memo, [(item, fault(body, crc, packing))])
        return items


def _lane(tx: Tx, want: Want) -> _Lane | None:
    if want.limit <= 0:
        return None
    row = tx.execute(_SQL["queue"], (want.queue, want.queue)).fetchone()
    if row is None or row[0]:
        return None
    _, mixed, kept, running = row
    settings = families.settings_of(tx, want.queue, kept)
    line = want.max_crashes - 1
    found = [_PLAIN] if want.kinds is None or "" in want.kinds else []
    if mixed:
        found = opening.ranks(tx, want.queue, want.kinds)
    plain = tuple([rank for rank in found if lanes.crashes_of(rank[1]) < line])
    suspect = tuple([rank for rank in found if lanes.crashes_of(rank[1]) >= line])
    return _Lane(want, plain, suspect, settings, running)


def due_of(tx: Tx, queue: str, rank: Rank, limit: int) -> list[_Waiting]:
    """The first due of a kind and level."""
    return tx.execute(_SQL["waiting"], (queue, *rank, tx.now, limit)).fetchall()


def usable(tx: Tx, memo: BoundMemo, judged: Iterable[Judged]) -> tuple[Item, ...]:
    """Those of the leased items whose payload may be used; the others are laid aside."""
    items: list[Item] = []
    for item, wrong in judged:
        if wrong is None:
            items.append(item)
        else:
            lay_aside(tx, memo, item, wrong)
    return tuple(items)


def lay_aside(tx: Tx, memo: BoundMemo, item: Item, wrong: StoreError) -> None:
    settle(tx, memo, [damage.laid_aside(item, wrong, tx.now)])
