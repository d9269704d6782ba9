"""What the move of one item means for others: lines, dependencies, dedupe keys, places under a limit key.

Within one write everything that ends is marked first, with all that dies along; then followers among them leave their
lines, then lines whose head ended go on, then whoever was freed loses its hold. So the outcome does not depend on the
order in which things are looked at, and nothing that ends in a write is moved by it to the front first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import structs

from redrive.core.item import BLOCKERS, Instant, Item
from redrive.core.states import TERMINAL, State
from redrive.core.terms import is_parked
from redrive.core.verbs import Tombstone
from redrive.stores.memory import _moves
from redrive.stores.memory._dedupe import Keys
from redrive.stores.memory._edges import Edges
from redrive.stores.memory._lines import Kept
from redrive.stores.memory._table import Table, limit_key

LOST = frozenset({State.DEAD, State.CANCELLED})


class Bonds:
    def __init__(self, table: Table, tombstones: Mapping[str, Tombstone]) -> None:
        self.keys = Keys()
        self.edges = Edges()
        self._table = table
        self._lines = table.lines
        self._tombstones = tombstones
        self._awaited: set[str] = set()

    # --- coming in ---

    def enter(self, item: Item, now: Instant, *, back: bool = False, force: bool = False) -> Item:
        """A new or replayed item takes its place, its key, and, unless forced, waits for what is not done."""
        terms = item.terms
        if terms is None:
            self._table.save(item)
            return item
        self.keys.take(item, now)
        missing = [] if force else [one for one in terms.after if self._fate(one) is not State.DONE]
        self.edges.add(item.id, missing)
        self._awaited.update(one for one in missing if one not in self._tombstones)
        if not self._lines.is_head(item):
            self._lines.join(item, back=back)
        return self._place(item)

    def _place(self, item: Item) -> Item:
        """With the hold that it has now; a head under a gap is marked with it."""
        line = self._lines.of(item)
        gap = line.gap if line is not None and line.head == item.id else ""
        item = structs.replace(item, hold=self._hold(item), gap=gap or item.gap)
        self._table.save(item)
        return item

    def _hold(self, item: Item) -> str:
        if is_parked(item.hold):
            return item.hold
        if item.id in self.edges.missing:
            return "after"
        return "order" if self._lines.is_follower(item) else ""

    def _fate(self, item_id: str) -> State | None:
        """None: it is not there (yet)."""
        item = self._table.items.get(item_id)
        if item is not None:
            return item.state
        stone = self._tombstones.get(item_id)
        return None if stone is None else stone.state

    def known(self, item_id: str) -> bool:
        return self._fate(item_id) is not None

    def hopeless(self, item_id: str) -> bool:
        """It can never be done any more; a letter that is still there can be replayed."""
        item = self._table.items.get(item_id)
        return self._fate(item_id) in LOST if item is None else item.state is State.CANCELLED

    def entered(self, items: Iterable[Item], now: Instant) -> None:
        """Those among the new that were to die with what is dead already."""
        doomed = [
            item
            for item in items
            if item.terms is not None
            and item.terms.on_dead == "die"
            and any(self._fate(one) in LOST for one in item.terms.after)
        ]
        self._move_on(self._doom(doomed, now))

    # --- going out ---

    def ended(self, moved: Sequence[tuple[Item, Item]], now: Instant, passed: Container[str] = ()) -> None:
        """(before, after) of all that this write moved by itself, saved already. `passed`: dead, but their order keys
        go on without a gap.
        """
        bound = [pair for pair in moved if pair[1].terms is not None or pair[1].id in self.edges.waiting]
        if not bound:
            return
        over = [after for _, after in bound if after.state in TERMINAL]
        freed: list[str] = []
        for item in over:
            self.keys.release(item, now)
            self.edges.give_up(item.id)
            if item.state is State.DONE:
                freed.extend(self.edges.fulfil(item.id))
        lost = [item for item in over if item.state in LOST]
        along = self._doom([one for item in lost for one in self._dying_with(item)], now)
        self._move_on([*over, *along], passed)
        for item in over:
            if item.state is not State.DEAD:
                self.forget(item.id)
        for item_id in freed:
            self._release(item_id)
        for before, _ in bound:
            self._pass_on(before)

    def give_keys_back(self, moved: Sequence[tuple[Item, Item]], now: Instant) -> None:
        for _, item in moved:
            if item.state in TERMINAL:
                self.keys.release(item, now)

    def _dying_with(self, item: Item) -> list[Item]:
        waiting = [self._table.items[one] for one in sorted(self.edges.waiting.get(item.id, ()))]
        return [one for one in waiting if one.terms is not None and one.terms.on_dead == "die"]

    def _doom(self, doomed: list[Item], now: Instant) -> list[Item]:
        """These die, and whoever was to die with them, and so on."""
        dead: list[Item] = []
        todo = list(doomed)
        while todo:
            item = todo.pop()
            if self._table.items[item.id].state is not State.READY:
                continue
            letter = _moves.doomed(item, now)
            self.edges.give_up(item.id)
            self.keys.release(letter, now)
            self._table.save(letter)
            dead.append(letter)
            todo.extend(self._dying_with(letter))
        return dead

    def _move_on(self, over: Sequence[Item], passed: Container[str] = ()) -> None:
        for item in over:
            self._lines.leave(item)
        for item in over:
            if self._lines.is_head(item) and item.id in passed:
                self.next_head(item)
            elif self._lines.is_head(item):
                self._end_of_head(item)

    def _end_of_head(self, item: Item) -> None:
        order = self._table.lanes[item.queue].settings.order
        if item.state is not State.DEAD:
            self.next_head(item)
        elif order == "skip":
            self.next_head(item, gap=item.id)
        else:
            self._turn(item, "parked" if order == "park" else "blocked")

    def _release(self, item_id: str) -> None:
        """One that it waited for is done."""
        item = self._table.items[item_id]
        if item.state is State.READY and item_id not in self.edges.missing:
            self._place(item)

    def _pass_on(self, before: Item) -> None:
        """What ended or was given back had a place under its limit key, or had been promised the next one."""
        aside = None if before.hold or before.letter is not None else self._table.aside.get(limit_key(before))
        first = None if aside is None else aside.first()
        if first is not None:
            self.let_go(first.id)

    def let_go(self, item_id: str) -> None:
        """It was set aside because of its limit key."""
        self._table.save(structs.replace(self._table.items[item_id], hold=""))

    # --- lines by hand ---

    def _turn(self, head: Item, status: Literal["flowing", "blocked", "parked"]) -> None:
        line = self._lines.of(head)
        if line is None or line.status == status:
            return
        was, line.status = line.status, status
        if "parked" in (was, status):
            self._table.recount(line.followers.values())

    def next_head(self, head: Item, gap: str = "") -> None:
        """The line goes on without its head."""
        line = self._lines.of(head)
        if line is None:
            return
        line.gap = gap or line.gap
        self._turn(head, "flowing")
        promoted = self._lines.advance(head)
        if promoted:
            self._place(self._table.items[promoted])

    def keeps_back(self, letter: Item) -> bool:
        """Others wait behind it."""
        line = self._lines.of(letter)
        return line is not None and line.head == letter.id and bool(line.followers)

    def was_awaited(self, letter: Item) -> bool:
        """Others were put to wait for it, and may come back to do so again."""
        return letter.id in self._awaited

    def moves(self, letter: Item, queue: str) -> Item:
        """It leaves its line, if it still is the head of one, and stands behind all that there are elsewhere."""
        self.discarded(letter)
        self._lines.take_place(letter)
        moved = structs.replace(letter, queue=queue)
        self._table.save(moved)
        return moved

    def took_in(self, letter: Item) -> None:
        self._lines.take_place(letter)
        self._table.save(letter)

    def is_dead_head(self, letter: Item) -> bool:
        return self._lines.is_head(letter)

    def replayed(self, item: Item, now: Instant, *, force: bool) -> None:
        """A dead head goes on at its place, and so does what others were ever to wait for; the rest at the tail.

        Behind those who wait for it, now or when they are replayed as well, it would be waited for in a ring.
        """
        self.close_gap(item)
        if self._lines.is_head(item):
            self._turn(item, "flowing")
        self.enter(item, now, back=item.id in self._awaited, force=force)
        self._give_way(item)

    def _give_way(self, item: Item) -> None:
        """A head that waits for others lets go first who has a place before it: it may be what it waits for."""
        line = self._lines.of(item)
        head = None if line is None else self._table.items[line.head]
        if line is None or head is None or head.id not in self.edges.missing:
            return
        if self._lines.change_places(line):
            self._place(self._table.items[line.head])
            self._place(head)

    def parked(self, before: Sequence[Item]) -> None:
        """These were parked: what they were promised under their limit keys goes to others."""
        for item in before:
            self._pass_on(item)

    def unparked(self, item: Item) -> None:
        self._place(item)

    def recalled(self, pairs: Sequence[tuple[Item, Kept]], now: Instant) -> None:
        """Replayed items are the letters that they were. One that was no head passes its order key on."""
        moved = [(item, _moves.recalled(item, kept.letter)) for item, kept in pairs]
        for _, letter in moved:
            self._table.save(letter)
        passed = {item.id for item, kept in pairs if kept.role != "head" or item.queue != kept.letter.queue}
        self.ended(moved, now, passed)
        letters = [(letter, kept) for (_, letter), (_, kept) in zip(moved, pairs, strict=True)]
        for letter, kept in sorted(letters, key=lambda one: one[1].place):
            queue = kept.letter.queue
            back = letter if letter.queue == queue else self.moves(letter, queue)
            order = self._table.lanes[queue].settings.order
            status: Literal["blocked", "parked", ""] = "parked" if order == "park" else "blocked"
            self._lines.put_back(back, kept, keeps_back="" if order == "skip" else status)

    def forget(self, item_id: str) -> None:
        """It will not come back."""
        self._lines.forget(item_id)
        self._awaited.discard(item_id)

    def discarded(self, letter: Item) -> None:
        self.close_gap(letter)
        if self._lines.is_head(letter):
            self.next_head(letter)

    def letter_ends(self, letter: Item, now: Instant) -> None:
        """It is over where it lies: nobody is past it any more; if it is done, it has the key of one that ran."""
        self.close_gap(letter)
        if letter.state is State.DONE:
            self.keys.take(letter, now)

    def close_gap(self, letter: Item) -> None:
        line = self._lines.of(letter)
        if line is not None and line.gap == letter.id:
            line.gap = ""
            self._lines.tidy(letter)

    # --- looking ---

    def blocked_by(self, item: Item) -> tuple[str, ...]:
        """Longest enqueued first; what was pruned is older than anything."""
        if not item.hold:
            return ()
        blockers = set(self.edges.missing.get(item.id, ()))
        line = self._lines.of(item)
        if line is not None and self._lines.is_follower(item):
            blockers.add(line.head)
        return tuple(sorted(blockers, key=self._age)[:BLOCKERS])

    def _age(self, item_id: str) -> tuple[int, str]:
        item = self._table.items.get(item_id)
        return (0 if item is None else item.seq), item_id
