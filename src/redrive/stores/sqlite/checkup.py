"""`check` on SQLite: the file's own structure, and what redrive knows to be true of its rows.

Runs on a connection of its own and blocks no writer. Rows are looked at in windows, each in a state of its own, so that
no reader stands long in the way of the log. Two parts need one state for long: SQLite's check of the pages, and the
comparison of counters with the rows they count; the log grows by what is written meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from redrive.core import codec
from redrive.core.families import family_of, is_family
from redrive.core.item import Attempt, Failure
from redrive.core.verbs import Checkup, Finding
from redrive.errors import StoreError
from redrive.stores import migrate
from redrive.stores.findings import COUNTERS, Findings
from redrive.stores.packing import Packed, fault, unpack
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.binding import Binding, Connection
from redrive.stores.sqlite.connect import ENGINE, applied_to, check_ours
from redrive.stores.statements import load

WINDOW = 1000
MOST_PAGES = 1000
"""So many damaged places are counted; SQLite looks no further."""
REPAIRABLE = frozenset({"counters", "causes", "routes", "sequence", "tags", "changes", "families"})
"""What is kept beside the rows and follows from them."""
_FIRST, _LAST = -(2**63), 2**63 - 1
_SQL = load(ENGINE, "upkeep")
_OPEN = load(ENGINE, "open")


class _Truth(NamedTuple):
    """`statement` names the rows that break it; with `judge` it names all, and what follows the name is judged."""

    kind: str
    statement: str
    text: str
    judge: Callable[..., bool] | None = None


def _payload_fits(body: Any, packing: Any, crc: Any) -> bool:
    plausible = isinstance(body, bytes) and isinstance(packing, int)
    return plausible and fault(body, crc, packing) is None and _unpacks(body, packing)


def _unpacks(body: Any, packing: Any) -> bool:
    if packing == 0 or not isinstance(body, bytes):
        return isinstance(body, bytes)
    try:
        unpack(Packed(body, packing))
    except StoreError:
        return False
    return True


def _failure_fits(body: Any, cause: str, error: str) -> bool:
    failure = _decoded(body, Failure)
    return failure is not None and (failure.cause, failure.type) == (cause, error)


def _attempt_fits(body: Any, delivery: int) -> bool:
    """A lost delivery is settled under the number of whoever took it over, and tells its own."""
    attempt = _decoded(body, Attempt)
    return attempt is not None and attempt.delivery <= delivery


def _decoded(body: Any, kind: Any) -> Any:
    try:
        return codec.decode(body, kind) if isinstance(body, bytes) else None
    except StoreError:
        return None


_TAGS_MISSING = _Truth("tags", "tags_missing", "items that should have tags and have none")
_TAG_ALONE = _Truth("tags", "tag_alone", "tags of items that are not there, or do not know of them")
_UNNUMBERED = _Truth("changes", "letter_unnumbered", "letters without a change number")
_CHANGE_ALONE = _Truth("changes", "change_alone", "change numbers of items that are not there")
_TRUTHS: dict[str, tuple[_Truth, ...]] = {
    "item": (
        _Truth("states", "state_unknown", "items in a state that does not exist"),
        _Truth("states", "lease_misfits", "items that are leased to nobody, or not leased and yet held"),
        _Truth("states", "end_misfits", "items that ended at no time, or have an end and go on"),
        _Truth("letters", "dead_without_letter", "dead items without a letter"),
        _Truth("payloads", "no_payload", "items without a payload"),
        _Truth("tombstones", "pruned_but_there", "items that were pruned and are there"),
        _Truth("holds", "hold_misfits", "items with a hold for nothing, or without one although they wait"),
        _TAGS_MISSING,
        _Truth("payloads", "payload_bodies", "items whose payload is damaged", _payload_fits),
    ),
    "letter": (
        _Truth("letters", "letter_misfits", "letters whose item is gone, not dead or in another queue"),
        _UNNUMBERED,
        _Truth("letters", "letter_bodies", "letters whose evidence is damaged", _failure_fits),
    ),
    "recall": (_Truth("letters", "kept_letter_alone", "letters kept for a recall whose item is gone"),),
    "payload": (_Truth("payloads", "payload_alone", "payloads without an item"),),
    "revision": (
        _Truth(
            "revisions", "revision_misfits", "earlier payloads without an item, or more or fewer than it should have"
        ),
        _Truth("revisions", "revision_bodies", "items of which an earlier payload is damaged", _payload_fits),
    ),
    "result": (
        _Truth("results", "result_alone", "results without an item"),
        _Truth("results", "result_bodies", "items whose result is damaged", _unpacks),
    ),
    "attempt": (
        _Truth("history", "attempt_alone", "attempts without an item"),
        _Truth("history", "attempt_bodies", "attempts whose evidence is damaged", _attempt_fits),
    ),
    "terms": (
        _Truth("terms", "terms_alone", "terms without an item"),
        _Truth("lines", "line_misfits", "items that live and have no place under their order key"),
    ),
    "tag": (_TAG_ALONE,),
    "change": (_CHANGE_ALONE,),
    "deed": (_Truth("history", "deed_alone", "acts on items that do not exist, or without their entry"),),
}


_TURNS = _Truth("families", "turn_misfits", "members with work that leases of their family do not look at")
_BONDS = (
    _TURNS,
    _Truth("lines", "head_misfits", "order keys whose head is not there, or is not what keeps the others back"),
    _Truth("lines", "waiting_misfits", "order keys that count another number than waits"),
    _Truth("lines", "follower_alone", "items that wait under an order key and are not there, or not ready"),
    _Truth("slots", "slot_misfits", "limit keys that count another number than runs"),
    _Truth("slots", "aside_misfits", "items that were set aside and are not there, or not held"),
    _Truth("dependencies", "edge_misfits", "items that wait for others and are not there, or not ready"),
    _Truth("dedupe", "dedupe_misfits", "dedupe keys that are held by an item which does not live"),
)


def check(connection: Connection, binding: Binding, path: str, *, quick: bool) -> Checkup:
    """ConfigError if the file is somebody else's."""
    return _Check(connection, binding, path, quick=quick).run()


class _Check:
    def __init__(self, connection: Connection, binding: Binding, path: str, *, quick: bool) -> None:
        self._connection = connection
        self._binding = binding
        self._path = path
        self._quick = quick
        self._found = Findings()
        self._left_out: list[str] = []
        self._items = 0
        self._known_shape = False

    def run(self) -> Checkup:
        with self._telling("its schema"):
            check_ours(self._connection, self._path)
            self._known_shape = self._look_at_schema()
        with self._telling("its pages"):
            self._look_at_pages()
        if self._known_shape:
            with self._telling("its counters"):
                self._look_at_counts()
            with self._telling("what binds items"):
                for truth in _BONDS:
                    self._look_for(truth)
            for table, truths in _TRUTHS.items():
                with self._telling(f"the table {table}"):
                    self._look_at_rows(table, truths)
        return Checkup(self._items, self._found.told(), tuple(self._left_out))

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """What cannot be read is a finding, and the rest may still be readable."""
        try:
            yield
        except Exception as error:
            if not faults.is_damage(error) and not faults.is_misfit(error):
                raise
            self._found.add("pages", f"{what} cannot be read", str(error))

    def _look_at_schema(self) -> bool:
        """Whether the tables are those that the truths are about."""
        applied = applied_to(self._connection)
        ours = {migration.number: migration.checksum for migration in migrate.known(ENGINE)}
        if max(applied, default=0) > max(ours):
            self._leave_out(f"it has schema {max(applied)}, and this redrive knows schemas up to {max(ours)}")
            return False
        for number, checksum in applied.items():
            if ours.get(number) != checksum:
                self._found.add("schema", "migrations applied with other contents than this redrive has", str(number))
        if ours.keys() - applied.keys():
            self._leave_out(f"it has schema {max(applied, default=0)}; redrive db migrate brings it to {max(ours)}")
            return False
        return self._compare_shape()

    def _compare_shape(self) -> bool:
        there = _shape(self._connection)
        complete = True
        for (kind, name), columns in _wanted(self._binding).items():
            if there.get((kind, name)) != columns:
                what = "is missing" if (kind, name) not in there else f"has the columns {there[kind, name]}"
                self._found.add("schema", "tables and indexes that are not as this redrive made them", f"{name} {what}")
                complete = complete and kind != "table"
        if not complete:
            self._leave_out("its tables are not those that this redrive knows")
        return complete

    def _leave_out(self, why: str) -> None:
        self._left_out.append(f"counters and rows: {why}")

    def _look_at_pages(self) -> None:
        pragma = "quick_check" if self._quick else "integrity_check"
        for (text,) in self._connection.execute(f"pragma {pragma}({MOST_PAGES})"):
            for line in text.splitlines():
                if line != "ok" and not line.startswith("***"):
                    self._found.add("pages", "places where the file is damaged", line)

    def _look_at_counts(self) -> None:
        self._connection.execute("begin")
        try:
            _read_counts(self._connection).compare(self._found)
        finally:
            if self._connection.in_transaction:
                self._connection.execute("rollback")

    def _look_at_rows(self, table: str, truths: Iterable[_Truth]) -> None:
        last, window = _FIRST, _SQL["window"].replace("{table}", table)
        while True:
            end, rows = self._connection.execute(window, (last, WINDOW)).fetchone()
            if end is None:
                return
            if end <= last:
                # Asked for more than `last`: a damaged tree, in which one could go round for ever.
                self._found.add("pages", f"the table {table} is out of order", f"#{last}")
                return
            for truth in truths:
                self._look_for(truth, last, end)
            if table == "item":
                self._items += rows
            last = end

    def _look_for(self, truth: _Truth, *window: int) -> None:
        if truth.judge is not None and self._quick:
            return
        for name, *facts in self._connection.execute(_SQL[truth.statement], window):
            if truth.judge is None or not truth.judge(*facts):
                self._found.add(truth.kind, truth.text, str(name))


def _shape(connection: Connection) -> dict[tuple[str, str], str]:
    return {(kind, name): columns for kind, name, columns in connection.execute(_SQL["shape"])}


def _wanted(binding: Binding) -> dict[tuple[str, str], str]:
    """The tables and indexes of a database that only we have touched."""
    fresh = binding.connect(":memory:", 0)
    try:
        fresh.execute(_OPEN["create_migration"])
        for migration in migrate.known(ENGINE):
            for statement in migration.statements():
                fresh.execute(statement)
        return _shape(fresh)
    finally:
        fresh.close()


class _Counts(NamedTuple):
    """What is kept beside the rows, and what the rows say, of one state."""

    kept: dict[str, dict[str, int]]
    counted: dict[str, Counter[str]]
    kept_causes: dict[tuple[str, str], int]
    counted_causes: dict[tuple[str, str], int]
    kept_routes: dict[str, int]
    counted_routes: dict[str, int]
    last: Any
    highest: int
    last_change: Any
    highest_change: int

    def compare(self, found: Findings) -> None:
        found.add_counters(self.kept, self.counted)
        found.add_causes(self.kept_causes, self.counted_causes)
        for route in sorted(self.kept_routes.keys() | self.counted_routes.keys()):
            has, there = self.kept_routes.get(route, 0), self.counted_routes.get(route, 0)
            if has != there:
                told = f"{route}: {has} (there are {there})"
                found.add("routes", "routes whose count differs from their open letters", told)
        if not isinstance(self.last, int) or self.last < self.highest:
            found.add("sequence", f"the last number given is kept as {self.last}, and an item has {self.highest}")
        last, highest = self.last_change, self.highest_change
        if not isinstance(last, int) or last < highest:
            found.add("sequence", f"the last change number given is kept as {last}, and an item has {highest}")


def _read_counts(connection: Connection) -> _Counts:
    """Inside a transaction."""
    last, highest = connection.execute(_SQL["last_number"]).fetchone()
    kept = _kept(connection)
    return _Counts(
        kept,
        _counted(connection, {name for name in kept if is_family(name)}),
        _causes(connection, "kept_causes"),
        _causes(connection, "counted_causes"),
        dict(connection.execute(_SQL["kept_routes"]).fetchall()),
        dict(connection.execute(_SQL["counted_routes"]).fetchall()),
        last,
        highest,
        *connection.execute(_SQL["last_change"]).fetchone(),
    )


def _causes(connection: Connection, name: str) -> dict[tuple[str, str], int]:
    return {(cause, queue): count for cause, queue, count in connection.execute(_SQL[name])}


def _kept(connection: Connection) -> dict[str, dict[str, int]]:
    rows = connection.execute(_SQL["kept_counters"])
    return {queue: dict(zip(COUNTERS, counts, strict=True)) for queue, *counts in rows}


def _counted(connection: Connection, families: Container[str]) -> dict[str, Counter[str]]:
    counted: dict[str, Counter[str]] = {}
    for name in ("counted_items", "counted_held", "counted_letters"):
        for queue, counter, count in connection.execute(_SQL[name]):
            counted.setdefault(queue, Counter())[counter] += count
            if family_of(queue) in families:
                counted.setdefault(family_of(queue), Counter())[counter] += count
    return counted


def can_repair(checkup: Checkup) -> bool:
    """Nothing is written to a file whose pages or tables are in doubt."""
    kinds = {finding.kind for finding in checkup.findings}
    return bool(kinds & REPAIRABLE) and not kinds & {"pages", "schema"} and not checkup.left_out


def repair(connection: Connection) -> tuple[Finding, ...]:
    """Make what is kept follow from the rows again, in one write, and say what was wrong. No item is moved."""
    found = Findings()
    connection.execute("begin immediate")
    try:
        counts = _read_counts(connection)
        counts.compare(found)
        _write_counts(connection, counts)
        _mend_tags(connection, found)
        for (name,) in connection.execute(_SQL[_TURNS.statement]).fetchall():
            found.add(_TURNS.kind, _TURNS.text, str(name))
            connection.execute(_SQL["lower"], (name,))
        _mend_changes(connection, found)
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")
    return found.told()


def _write_counts(connection: Connection, counts: _Counts) -> None:
    for queue in counts.kept.keys() | counts.counted.keys():
        there = counts.counted.get(queue, Counter())
        connection.execute(_SQL["declare"], (queue,))
        connection.execute(_SQL["set_counters"], (*(there[name] for name in COUNTERS), queue))
    connection.execute(_SQL["forget_causes"])
    rows = [(cause, queue, count) for (cause, queue), count in counts.counted_causes.items()]
    connection.executemany(_SQL["set_cause"], rows)
    connection.execute(_SQL["forget_routes"])
    connection.executemany(_SQL["set_route"], list(counts.counted_routes.items()))
    connection.execute(_SQL["set_last_number"], (counts.highest,))
    connection.execute(_SQL["set_last_change"], (counts.highest_change,))


def _mend_tags(connection: Connection, found: Findings) -> None:
    """The tags are what people said; an item's mark only tells that there are any."""
    _tell(connection, found, _TAGS_MISSING, _TAG_ALONE)
    for statement in ("forget_tags", "mark_tagged", "unmark_untagged"):
        connection.execute(_SQL[statement])


def _mend_changes(connection: Connection, found: Findings) -> None:
    """A letter that has no number gets the next one: readers of changes come to it."""
    _tell(connection, found, _UNNUMBERED, _CHANGE_ALONE)
    connection.execute(_SQL["forget_changes"])
    connection.execute(_SQL["number_letters"])
    connection.execute(_SQL["set_last_change"], (connection.execute(_SQL["last_change"]).fetchone()[1],))


def _tell(connection: Connection, found: Findings, *truths: _Truth) -> None:
    for truth in truths:
        for (name,) in connection.execute(_SQL[truth.statement], (_FIRST, _LAST)).fetchall():
            found.add(truth.kind, truth.text, str(name))
