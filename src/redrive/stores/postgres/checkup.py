"""`check` on PostgreSQL: the tables as we made them, and what redrive knows to be true of their rows.

Whether the pages are whole is the server's to know (data checksums, pg_amcheck). Rows are looked at in windows, each in
a picture of its own, so that no old one keeps the server from clearing away dead rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from redrive.core import codec
from redrive.core.families import family_of, is_family
from redrive.core.item import Attempt, Failure
from redrive.core.verbs import Checkup, Finding
from redrive.errors import ConfigError, StoreCorrupt, StoreError
from redrive.stores import migrate
from redrive.stores.aside import aside
from redrive.stores.findings import Findings
from redrive.stores.packing import Packed, fault, unpack
from redrive.stores.postgres.arrays import bigints
from redrive.stores.postgres.rows import Row, indexed, shown
from redrive.stores.postgres.shape import SHAPE
from redrive.stores.postgres.tx import KINDS, Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

WINDOW = 10_000
BODIES = 1_000
BYTES = 8 * 1024 * 1024
"""Bodies are read at most so many, and so many bytes, at a time."""
REPAIRABLE = frozenset({"counters", "causes", "sequence", "tags", "changes", "families"})
"""What is kept beside the rows and follows from them."""
NOT_LOOKED_AT = "members with work that leases of their family do not look at"
MISTOLD = "items that have tags and do not say so, or say so and have none"
TAG_ALONE = "tags of items that do not exist"
UNNUMBERED = "letters without a change number"
_FIRST = -(2**63)


class _Truth(NamedTuple):
    kind: str
    text: str


class _Bodies(NamedTuple):
    """`statement` names rows, and what follows the name is judged. `column` is the one that may be large."""

    truth: _Truth
    column: str
    statement: str
    fits: Callable[..., bool]


class _Table(NamedTuple):
    """`truths`: in the order in which the statement of its name tells which are broken."""

    truths: tuple[_Truth, ...]
    bodies: _Bodies | None = None


def _payload_fits(body: bytes, packing: int, crc: int) -> bool:
    return fault(body, crc, packing) is None and _unpacks(body, packing)


def _unpacks(body: bytes, packing: int) -> bool:
    if packing == 0:
        return True
    try:
        unpack(Packed(body, packing))
    except StoreError:
        return False
    return True


def _failure_fits(body: bytes, cause: str, error: str) -> bool:
    failure = _decoded(body, Failure)
    return failure is not None and (indexed(failure.cause), shown(failure.type)) == (cause, error)


def _attempt_fits(body: bytes, delivery: int) -> bool:
    """A lost delivery is settled under the number of whoever took it over, and tells its own."""
    attempt = _decoded(body, Attempt)
    return attempt is not None and attempt.delivery <= delivery


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return codec.decode(body, kind)
    except StoreError:
        return None


_TABLES: dict[str, _Table] = {
    "item": _Table(
        (
            _Truth("states", "items of which it is not kept how they go"),
            _Truth("tombstones", "items that were pruned and are there"),
        ),
        _Bodies(_Truth("payloads", "items whose payload is damaged"), "body", "payload_bodies", _payload_fits),
    ),
    "course": _Table(
        (
            _Truth("payloads", "items without a payload, or of another queue than was put"),
            _Truth("states", "items in a state that does not exist"),
            _Truth("states", "items that are leased to nobody, or not leased and yet held"),
            _Truth("states", "items that ended at no time, or have an end and go on"),
            _Truth("letters", "dead items without a letter"),
            _Truth("holds", "items that have a hold although they are not ready, or are parked without a label"),
            _Truth("holds", "items whose terms are not there, or are nobody's"),
            _Truth("dependencies", "items that wait for others without a hold, or have one for nothing"),
            _Truth("lines", "items that live and have no place under their order key"),
            _Truth("states", "items that are ready in another level than they belong to"),
            _Truth("tags", MISTOLD),
        )
    ),
    "letter": _Table(
        (
            _Truth("letters", "letters whose item is gone, not dead or in another queue"),
            _Truth("changes", UNNUMBERED),
        ),
        _Bodies(_Truth("letters", "letters whose evidence is damaged"), "failure", "letter_bodies", _failure_fits),
    ),
    "revision": _Table(
        (_Truth("revisions", "earlier payloads without an item, or more or fewer than it should have"),),
        _Bodies(
            _Truth("revisions", "items of which an earlier payload is damaged"),
            "body",
            "revision_bodies",
            _payload_fits,
        ),
    ),
    "result": _Table(
        (_Truth("results", "results without an item"),),
        _Bodies(_Truth("results", "items whose result is damaged"), "body", "result_bodies", _unpacks),
    ),
    "attempt": _Table(
        (_Truth("history", "attempts without an item"),),
        _Bodies(_Truth("history", "attempts whose evidence is damaged"), "body", "attempt_bodies", _attempt_fits),
    ),
    "recall": _Table((_Truth("letters", "letters kept for a recall whose item is gone"),)),
    "tag": _Table((_Truth("tags", TAG_ALONE),)),
    "deed": _Table((_Truth("history", "acts on items that do not exist, or without their entry"),)),
}


_BONDS: tuple[_Truth, ...] = (
    _Truth("lines", "order keys whose head is not there, or is not what keeps the others back"),
    _Truth("lines", "order keys that count another number than waits under them"),
    _Truth("lines", "items that wait under an order key and are not held"),
    _Truth("slots", "limit keys that count another number than runs"),
    _Truth("slots", "items that were set aside for a limit key and are not held, or are held and were not"),
    _Truth("dedupe", "dedupe keys that are held by an item which does not live, or not by the one that lives"),
    _Truth("dependencies", "items that wait for what is done, or wait although they have ended"),
)
"""By the numbers that check.bonds gives."""


async def check(session: Session, *, quick: bool) -> Checkup:
    return await _Check(session, quick=quick).run()


class _Check:
    def __init__(self, session: Session, *, quick: bool) -> None:
        self._session = session
        self._quick = quick
        self._found = Findings()
        self._left_out: list[str] = []
        self._items = 0

    async def run(self) -> Checkup:
        with self._telling("its schema"):
            if not await self._look_at_schema():
                return self._told()
        with self._telling("its counters"):
            rows = await self._session.read(self._session.sql("check", "counts"))
            _compare(_sorted_out(rows), self._found)
        with self._telling("its families"):
            for (name,) in await self._session.read(self._session.sql("check", "turn_misfits")):
                self._found.add("families", NOT_LOOKED_AT, name)
        with self._telling("what binds its items"):
            for number, name in await self._session.read(self._session.sql("check", "bonds")):
                self._found.add(*_BONDS[number], name)
        for name, table in _TABLES.items():
            with self._telling(f"the table {name}"):
                await self._look_at_rows(name, table.truths)
            if table.bodies is not None and not self._quick:
                with self._telling(f"what is in the table {name}"):
                    await self._look_at_bodies(name, table.bodies)
        return self._told()

    def _told(self) -> Checkup:
        return Checkup(self._items, self._found.told(), tuple(self._left_out))

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """What cannot be read is a finding, and the rest may still be readable."""
        try:
            yield
        except StoreCorrupt as error:
            self._found.add("pages", f"{what} cannot be read", error.message)

    async def _look_at_schema(self) -> bool:
        """Whether the tables are those that the truths are about."""
        schema = self._session.schema
        rows = await self._session.read(self._session.sql("check", "shape"), (schema, schema))
        there = {(kind, name): columns for kind, name, columns in rows}
        applied: dict[int, str] = {}
        if ("table", "migration") in there:
            applied = dict(await self._session.read(self._session.sql("open", "applied")))
        return self._compare_migrations(applied) and self._compare_shape(there)

    def _compare_migrations(self, applied: dict[int, str]) -> bool:
        ours = {migration.number: migration.checksum for migration in migrate.known("postgres")}
        if max(applied, default=0) > max(ours):
            self._leave_out(f"it has schema {max(applied)}, and this redrive knows schemas up to {max(ours)}")
            return False
        for number, checksum in applied.items():
            if ours.get(number) != checksum:
                self._found.add("schema", "migrations applied with other contents than this redrive has", str(number))
        if ours.keys() - applied.keys():
            self._leave_out(f"it has schema {max(applied, default=0)}; redrive db migrate brings it to {max(ours)}")
            return False
        return True

    def _compare_shape(self, there: dict[tuple[str, str], str]) -> bool:
        complete = True
        for (kind, name), columns in SHAPE.items():
            if there.get((kind, name)) != columns:
                what = f"has the columns {there[kind, name]}" if (kind, name) in there else "is missing"
                self._found.add("schema", "tables and indexes that are not as this redrive made them", f"{name} {what}")
                complete = complete and kind != "table"
        if not complete:
            self._leave_out("its tables are not those that this redrive knows")
        return complete

    def _leave_out(self, why: str) -> None:
        self._left_out.append(f"counters and rows: {why}")

    async def _look_at_rows(self, table: str, truths: tuple[_Truth, ...]) -> None:
        window = self._session.sql("check", "window").replace("{table}", table)
        statement = self._session.sql("check", table)
        last = _FIRST
        while True:
            ((end, rows),) = await self._session.read(window, (last, WINDOW))
            if end is None:
                return
            for name, *broken in await self._session.read(statement, (last, end) * (statement.count("%b") // 2)):
                for truth, is_broken in zip(truths, broken, strict=True):
                    if is_broken:
                        self._found.add(*truth, name)
            if table == "item":
                self._items += rows
            last = end

    async def _look_at_bodies(self, table: str, bodies: _Bodies) -> None:
        window = self._session.sql("check", "window_of_bodies")
        window = window.replace("{table}", table).replace("{body}", bodies.column)
        last = _FIRST
        while True:
            ((end, _),) = await self._session.read(window, (last, BODIES, BYTES))
            if end is None:
                return
            rows = await self._session.read(self._session.sql("check", bodies.statement), (last, end))
            for name in await _unfit(bodies, rows):
                self._found.add(*bodies.truth, name)
            last = end


async def _unfit(bodies: _Bodies, rows: list[Row]) -> list[str]:
    """Beside the loop: it takes a checksum of all, and unpacks what is packed."""
    return await aside(lambda: [name for name, *facts in rows if not bodies.fits(*facts)])


_Cause = tuple[str, str, str]
"""Cause, queue and route, by which open letters are counted."""


class _Counts(NamedTuple):
    """What is kept beside the rows, and what the rows say, of one picture."""

    kept: dict[str, Counter[str]]
    counted: dict[str, Counter[str]]
    kept_causes: Counter[_Cause]
    counted_causes: Counter[_Cause]
    last: int
    highest: int


def _sorted_out(rows: list[Row]) -> _Counts:
    """From the rows of check.counts."""
    kept: dict[str, Counter[str]] = {}
    counted: dict[str, Counter[str]] = {}
    kept_causes: Counter[_Cause] = Counter()
    counted_causes: Counter[_Cause] = Counter()
    numbers = {"last": 0, "highest": 0}
    for what, name, other, route, count in rows:
        match what:
            case "kept":
                kept.setdefault(name, Counter())[other] = count
            case "declared":
                kept.setdefault(name, Counter())
            case "counted":
                counted.setdefault(name, Counter())[other] = count
            case "kept causes":
                kept_causes[name, other, route] = count
            case "counted causes":
                counted_causes[name, other, route] = count
            case _:
                numbers[what] = count
    for queue, counts in tuple(counted.items()):
        if is_family(family_of(queue)) and family_of(queue) in kept:
            counted.setdefault(family_of(queue), Counter()).update(counts)
    return _Counts(kept, counted, kept_causes, counted_causes, numbers["last"], numbers["highest"])


def _by_queue(causes: Counter[_Cause]) -> Counter[tuple[str, str]]:
    summed: Counter[tuple[str, str]] = Counter()
    for (cause, queue, _), count in causes.items():
        summed[cause, queue] += count
    return summed


def _by_route(causes: Counter[_Cause]) -> Counter[str]:
    summed: Counter[str] = Counter()
    for (_, _, route), count in causes.items():
        summed[route] += count
    return summed


def _compare(counts: _Counts, found: Findings) -> None:
    found.add_counters(counts.kept, counts.counted)
    found.add_causes(_by_queue(counts.kept_causes), _by_queue(counts.counted_causes))
    has, there = _by_route(counts.kept_causes), _by_route(counts.counted_causes)
    for route in sorted(has.keys() | there.keys()):
        if has[route] != there[route]:
            told = f"{route or 'none'}: {has[route]} (there are {there[route]})"
            found.add("causes", "routes whose count differs from their open letters", told)
    if counts.last < counts.highest:
        found.add("sequence", f"the last number given is kept as {counts.last}, and an item has {counts.highest}")


def can_repair(checkup: Checkup) -> bool:
    """Nothing is written to tables that are in doubt."""
    kinds = {finding.kind for finding in checkup.findings}
    return bool(kinds & REPAIRABLE) and not kinds & {"pages", "schema"} and not checkup.left_out


async def repair(session: Session) -> tuple[Finding, ...]:
    """Make what is kept follow from the rows again, in one write, and say what was wrong. No item moves."""
    return await session.write(lambda tx: _repair(session, tx), of_all=True)


async def _repair(session: Session, tx: Tx) -> tuple[Finding, ...]:
    """Only what is missing is added, as any write does: what others add meanwhile stays right."""
    await tx.execute(session.sql("check", "lock"), (f"redrive repair {session.schema}",))
    counts = _sorted_out(await tx.execute(session.sql("check", "counts")))
    found = Findings()
    _compare(counts, found)
    for queue in counts.kept.keys() | counts.counted.keys():
        has, there = counts.kept.get(queue, Counter()), counts.counted.get(queue, Counter())
        for kind in KINDS:
            tx.count(queue, kind, there[kind] - has[kind])
            if family_of(queue) in counts.kept:
                # What is added to a member is added to its family.
                tx.count(family_of(queue), kind, has[kind] - there[kind])
    for (name,) in await tx.execute(session.sql("check", "turn_misfits")):
        found.add("families", NOT_LOOKED_AT, name)
        tx.woken.add(name)
    for key in counts.kept_causes.keys() | counts.counted_causes.keys():
        tx.count_cause(*key, counts.counted_causes[key] - counts.kept_causes[key])
    if counts.last < counts.highest:
        await tx.execute(session.sql("check", "set_last_number"), (counts.highest,))
    await _mend_tags(session, tx, found)
    for (item_id,) in await tx.execute(session.sql("check", "note_unnumbered")):
        found.add("changes", UNNUMBERED, item_id)
    return found.told()


async def _mend_tags(session: Session, tx: Tx, found: Findings) -> None:
    """The tags are what people said; an item's mark only tells that there are any."""
    mistold = await tx.execute(session.sql("check", "mistold"))
    for _, item_id in mistold:
        found.add("tags", MISTOLD, item_id)
    for (number,) in await tx.execute(session.sql("check", "forget_tags")):
        found.add("tags", TAG_ALONE, f"#{number}")
    # Judged once more, now that nobody else can tag them: they may have been since they were looked at.
    await tx.execute(session.sql("amend", "tie"), (bigints([seq for seq, _ in mistold]),))


def no_backup(session: Session, database: str) -> ConfigError:
    """A server's data is copied by the server's own means."""
    schema = session.schema.strip('"')
    return ConfigError(
        "a PostgreSQL store is not copied by redrive",
        field="store",
        hint=f"use pg_dump --schema={schema} --format=custom --file=redrive.dump {database}".rstrip(),
    )
