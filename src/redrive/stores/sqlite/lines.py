"""Order keys on SQLite: the line of a key, its head that may run, and the followers that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from redrive.core import codec
from redrive.core.families import family_of, member_settings
from redrive.core.verbs import QueueSettings
from redrive.stores.sqlite.tied import Tied
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

_SQL = load("sqlite", "order")
_TERMS = load("sqlite", "terms")

Name = tuple[str, str]
"""(queue, order key)"""
Status = Literal["flowing", "blocked", "parked"]


@dataclass(slots=True)
class Line:
    head: int | None = None
    waiting: int = 0
    status: Status = "flowing"
    gap: str = ""


def line_of(tx: Tx, name: Name) -> Line | None:
    row = tx.execute(_SQL["line"], name).fetchone()
    return None if row is None else Line(*row)


def keep(tx: Tx, name: Name, line: Line) -> None:
    """A line that says nothing any more is forgotten."""
    if line.head is None and not line.gap:
        tx.execute(_SQL["forget"], name)
    else:
        tx.execute(_SQL["keep"], (*name, line.head, line.waiting, line.status, line.gap))


class Joining:
    """Many items that come in one after the other; all lines are read and written together."""

    def __init__(self, tx: Tx, names: Iterable[Name]) -> None:
        self._tx = tx
        self._lines: dict[Name, Line] = {name: Line() for name in names}
        self._followers: list[tuple[str, str, int, int]] = []
        if self._lines:
            rows = tx.execute(_SQL["lines"], (_json(list(self._lines)),)).fetchall()
            self._lines |= {(queue, key): Line(*facts) for queue, key, *facts in rows}

    def join(self, name: Name, seq: int, place: int) -> Line:
        """The first of a line is its head."""
        line = self._lines[name]
        if line.head is None:
            line.head = seq
        else:
            line.waiting += 1
            self._followers.append((*name, place, seq))
        return line

    def write(self) -> None:
        if self._lines:
            if self._followers:
                self._tx.executemany(_SQL["follow"], self._followers)
            rows = [(*name, line.head, line.waiting, line.status, line.gap) for name, line in self._lines.items()]
            self._tx.executemany(_SQL["keep"], rows)


def next_place(tx: Tx) -> int:
    ((place,),) = tx.execute(_SQL["next_place"]).fetchall()
    return int(place)


def move_on(tx: Tx, over: Sequence[tuple[Tied, str]]) -> None:
    """Items with an order key that ended, each with its state: first the followers leave, then the heads."""
    # What is done was leased, and so the head.
    done = [item for item, state in over if state == "done"]
    going = _lost(tx, [one for one in over if one[1] != "done"]) if len(done) < len(over) else []
    _go_on(tx, done)
    advance(tx, going)


def _lost(tx: Tx, over: Sequence[tuple[Tied, str]]) -> list[tuple[Tied, str]]:
    """The heads among these whose lines go on, each with the gap that it leaves."""
    heads: list[tuple[Tied, str]] = []
    for item, state in over:
        if tx.change(_SQL["leave"], (*item.line, item.place)):
            _one_less(tx, item.line)
        else:
            heads.append((item, state))
    going: list[tuple[Tied, str]] = []
    modes: dict[str, str] = {}
    for item, state in heads:
        mode = modes.get(item.queue) if state == "dead" else "go on"
        if mode is None:
            mode = modes[item.queue] = _mode(tx, item.queue)
        if mode in ("block", "park"):
            turn(tx, item, "parked" if mode == "park" else "blocked")
        else:
            going.append((item, item.id if mode == "skip" else ""))
    return going


def _one_less(tx: Tx, name: Name) -> None:
    line = line_of(tx, name)
    if line is not None:
        line.waiting -= 1
        keep(tx, name, line)


def _mode(tx: Tx, queue: str) -> str:
    row = tx.execute(_SQL["mode"], (queue,)).fetchone()
    own = QueueSettings() if row is None or row[0] is None else codec.decode(row[0], QueueSettings)
    family = tx.family(family_of(queue))
    if family is None or family.settings is None:
        return own.order
    return member_settings(queue, own, family.settings).order


def turn(tx: Tx, head: Tied, status: Status) -> None:
    """What its head means to those behind it. Their rows stay as they are; only what they count as changes."""
    line = line_of(tx, head.line)
    if line is not None and line.head == head.seq:
        _recount(tx, head.line, line, status)
        line.status = status
        keep(tx, head.line, line)


def _recount(tx: Tx, name: Name, line: Line, status: Status) -> None:
    before, after = line.status == "parked", status == "parked"
    if before != after:
        waiting = line.waiting - _parked(tx, name)
        tx.moved(name[0], "parked" if before else "held", "parked" if after else "held", waiting)


def _parked(tx: Tx, name: Name) -> int:
    """How many behind the head an operator parked."""
    return int(tx.execute(_SQL["parked"], name).fetchone()[0])


def _go_on(tx: Tx, done: Sequence[Tied]) -> None:
    """Heads that are done. Nearly all lines go one step or end: these with few statements, however many."""
    for queue in {item.queue for item in done}:
        lines = {item.order_key: item for item in done if item.queue == queue}
        rows = _step(tx, queue, [item.order_key or "" for item in lines.values()])
        if rows:
            gaps = [(gap, head) for _, head, gap in rows if gap]
            if gaps:
                tx.executemany(_TERMS["gap"], gaps)
            _free(tx, queue, [head for _, head, _ in rows])
            for key, _, _ in rows:
                del lines[key]
        if lines and tx.change(_SQL["end"], (queue, _json(list(lines)))) < len(lines):
            advance(tx, [(item, "") for item in lines.values()])


def _step(tx: Tx, queue: str, keys: Sequence[str]) -> list[tuple[str, int, str]]:
    """Of those lines that flow and have followers: the key, the new head, and the gap."""
    if len(keys) == 1:
        rows = tx.execute(_SQL["step_one"], (queue, *keys)).fetchall()
        if rows:
            tx.execute(_SQL["leave_first_of_one"], (queue, *keys))
    else:
        rows = tx.execute(_SQL["step"], (queue, _json(keys))).fetchall()
        if rows:
            tx.execute(_SQL["leave_first"], (queue, _json([key for key, _, _ in rows])))
    return rows


def _json(values: Sequence[object]) -> str:
    return codec.encode(values).decode()


def advance(tx: Tx, heads: Sequence[tuple[Tied, str]]) -> None:
    """Lines go on without their head, with a gap where one is named: the first follower of each is the new one."""
    for queue in {item.queue for item, _ in heads}:
        _advance(tx, queue, [one for one in heads if one[0].queue == queue])


def _advance(tx: Tx, queue: str, heads: list[tuple[Tied, str]]) -> None:
    kept: list[tuple[object, ...]] = []
    ended: list[tuple[str, str | None]] = []
    left: list[tuple[str, str | None, int]] = []
    gaps: list[tuple[str, int]] = []
    keys = _json([item.order_key for item, _ in heads])
    for index, head, waiting, status, gap, place, seq in tx.execute(_SQL["next"], (queue, keys)).fetchall():
        item, new_gap = heads[index]
        if head != item.seq:
            continue
        key, gap_now = item.order_key, new_gap or gap
        if status == "parked":
            tx.moved(queue, "parked", "held", waiting - _parked(tx, item.line))
        if seq is None and not gap_now:
            ended.append((queue, key))
            continue
        kept.append((queue, key, seq, waiting if seq is None else waiting - 1, "flowing", gap_now))
        if seq is not None:
            left.append((queue, key, place))
            if gap_now:
                gaps.append((gap_now, seq))
    for statement, values in (
        (_SQL["forget"], ended),
        (_SQL["keep"], kept),
        (_SQL["leave"], left),
        (_TERMS["gap"], gaps),
    ):
        if values:
            tx.executemany(statement, values)
    _free(tx, queue, [seq for _, _, seq, *_ in kept if seq is not None])


def _free(tx: Tx, queue: str, seqs: Sequence[object]) -> None:
    """New heads: those that waited for nothing else can run."""
    freed = tx.change(_SQL["free"], (_json(seqs),)) if seqs else 0
    if freed:
        tx.moved(queue, "held", "ready", freed)
        tx.woken.add(queue)


def give_way(tx: Tx, name: Name) -> None:
    """A head that waits for others lets go first who has a place before it: it may be what it waits for."""
    row = tx.execute(_SQL["overtaken"], name).fetchone()
    if row is None:
        return
    head, its_place, gap, seq, place = row
    tx.execute(_SQL["leave"], (*name, place))
    tx.execute(_SQL["follow"], (*name, its_place, head))
    tx.execute(_SQL["lead"], (seq, *name))
    if gap:
        tx.execute(_TERMS["gap"], (gap, seq))
    _free(tx, name[0], [seq])


def put_back(tx: Tx, letter: Tied, *, was_head: bool, was_gap: bool) -> None:
    """A recalled letter keeps the others back again if no other item has come to the front, or is the gap again."""
    line = line_of(tx, letter.line) or Line()
    if was_head and line.head is None and (mode := _mode(tx, letter.queue)) != "skip":
        line.head, line.status = letter.seq, "parked" if mode == "park" else "blocked"
        keep(tx, letter.line, line)
    elif was_gap and not line.gap:
        line.gap = letter.id
        keep(tx, letter.line, line)


def is_head(tx: Tx, item: Tied) -> bool:
    line = line_of(tx, item.line)
    return line is not None and line.head == item.seq


def close_gap(tx: Tx, letter: Tied) -> None:
    line = line_of(tx, letter.line)
    if line is not None and line.gap == letter.id:
        line.gap = ""
        keep(tx, letter.line, line)
