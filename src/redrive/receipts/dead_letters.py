"""The dead letter queue of receipts: a view of the letters of one queue, with the names that the original had."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from msgspec import Raw, Struct
from msgspec.structs import replace

from redrive.app import Redrive
from redrive.core import codec
from redrive.core.classify import fingerprint, type_name
from redrive.core.filters import render
from redrive.core.item import Attempt, Failure, Instant, Item
from redrive.core.quantity import shown
from redrive.core.redact import redact_text
from redrive.core.select import Ids, Match
from redrive.core.states import Disposition
from redrive.core.verbs import DocumentWrite, PutResult
from redrive.engine.evidence import text_of
from redrive.engine.registry import check_queue_name
from redrive.errors import ConfigError, Conflict, PayloadUndecodable, ReceiptError
from redrive.office.records import Record
from redrive.receipts import receipts_json
from redrive.receipts._inside import Inside
from redrive.receipts._logs import say
from redrive.receipts._tried import last_tries
from redrive.receipts.model import Envelope, Receipt, check_sendable, content_id, item_id, order_key
from redrive.receipts.receipts_json import Contents, Entry, Fault
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.clock import Clock

KIND = "receipts-file"
IMPORTED = "import"
STORED = "stored"
UNSAID = "it was not said why"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeadReceipt(Struct, frozen=True):
    """`attempts` tries were made, the last one failed with `error`, and so it became a letter.

    `last_error`: what a recovery was told since, at `tried_at`; "" and None if none has tried it, or could not reach
    the target.
    """

    id: str
    receipt: Receipt
    failed_at: datetime
    attempts: int
    error: str
    tenant_id: str | None = None
    last_error: str = ""
    tried_at: datetime | None = None

    @property
    def entry(self) -> Entry:
        """As it stands in a receipts.json."""
        return Entry(self.receipt, self.failed_at, self.attempts, self.tenant_id)


class Imported(Struct, frozen=True):
    """What became of a file: `added` are letters now, `already` were here before (or the like of them in the file).

    `aside`: where a damaged file was copied to; its `faults` say which entries could not be taken in.
    """

    added: tuple[str, ...] = ()
    already: int = 0
    faults: tuple[Fault, ...] = ()
    aside: Path | None = None


class TakenIn(Struct, frozen=True):
    """`present` were here already."""

    added: tuple[str, ...] = ()
    present: tuple[str, ...] = ()


class FileRead(Struct, frozen=True):
    """What the store keeps of a file that was imported: the hash says whether it is still the same."""

    hash: str
    added: int
    already: int
    faults: int


class DeadLetterQueue:
    """Alone (`async with DeadLetterQueue("sqlite:///redrive.db") as queue:`), or as `client.dead_letters`.

    `storage_path` is a receipts.json, or the folder that has one: it is imported when the queue is opened, once, and
    never written.
    """

    def __init__(
        self,
        store: str | Store = "sqlite:///redrive.db",
        *,
        queue: str = "receipts",
        tenant_id: str | None = None,
        storage_path: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._queue = check_queue_name(queue)
        self._tenant = tenant_id
        self._path = None if storage_path is None else receipts_json.check_path(storage_path)
        self._app = Redrive(store, log=False, clock=clock)
        self._app.queue(self._queue, order="skip")
        self._own = True
        self._inside = Inside()

    @classmethod
    def of(
        cls,
        app: Redrive,
        *,
        queue: str,
        tenant_id: str | None = None,
        storage_path: str | os.PathLike[str] | None = None,
    ) -> Self:
        """A view for whoever opens and closes the app himself, and calls `load` if he wants it."""
        made = cls.__new__(cls)
        check_queue_name(queue)
        path = None if storage_path is None else receipts_json.check_path(storage_path)
        made._queue, made._tenant, made._path = queue, tenant_id, path  # noqa: SLF001 - it is one of ours
        made._app, made._own, made._inside = app, False, Inside()  # noqa: SLF001 - as above
        return made

    async def open(self) -> Self:
        if self._own:
            await self._app.open()
            try:
                await self.load()
            except BaseException:
                await self._app.close()
                raise
        return self

    async def close(self) -> None:
        """What is stored stays. May be called twice."""
        if self._own:
            await self._app.close()

    async def __aenter__(self) -> Self:
        await self.open()
        self._inside.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._inside.leave():
            await self.close()

    # --- the five of the original ---

    async def store(
        self, receipt: Receipt | Mapping[str, Any], attempts: int = 0, error: BaseException | str | None = None
    ) -> str:
        """Keep a receipt that could not be delivered; durable when it returns. Gives its id.

        One that is here already stays as it is, or comes back if it was removed.
        """
        now = datetime.fromtimestamp(self._app._clock.now() / 1000, UTC)  # noqa: SLF001 - receipts are of redrive
        entry = Entry(check_sendable(Receipt.of(receipt)), now, receipts_json.check_attempts(attempts))
        done = await self._take_in([self._record(entry, STORED, error)], "a receipt could not be delivered")
        if done.added:
            return done.added[0]
        (item,) = await self._items(done.present[:1]) or (None,)
        if item is not None:
            if item.letter is not None and item.letter.disposition is not Disposition.OPEN:
                await self._app.letters.restore([item.id], reason="it was stored again")
            return item.id
        said = f"receipt {done.present[0]} was here and was removed for good"
        raise Conflict(said, hint="what is left of it is in the audit")

    async def load(self) -> int:
        """Import the file of `storage_path`, unless that was done before; how many came in."""
        done = await self.load_file()
        if done is None or self._path is None:
            return 0
        say(logging.INFO, f"{self._path}: {len(done.added)} receipts imported, {done.already} were here already")
        _tell_faults(self._path, done)
        return len(done.added)

    async def load_file(self) -> Imported | None:
        """As `load`, and what became of it in full; None if there is nothing new."""
        if self._path is None:
            return None
        path = await receipts_json.place(self._path)
        contents = await receipts_json.read(path)
        if contents is None or await self._was_read(path, contents):
            return None
        return await self.import_(path, contents, reason=f"found at {path}")

    async def size(self) -> int:
        """How many wait for recovery."""
        rows = (await self._app.tally()).queues
        return next((row.open for row in rows if row.queue == self._queue), 0)

    async def get_all(self) -> list[DeadReceipt]:
        """Those that wait for recovery, first failed first."""
        return await self._all(last_errors=True)

    async def _all(self, *, last_errors: bool = False) -> list[DeadReceipt]:
        found: list[DeadReceipt | None] = []
        cursor = None
        while True:
            page = await self._app.letters.find(letters_of(self._queue), limit=PAGE_LIMIT, cursor=cursor)
            tries = await last_tries(self._app, page) if last_errors else {}
            found += [dead_receipt(item, tries.get(item.id)) for item in page]
            cursor = page.next
            if cursor is None:
                break
        strange = found.count(None)
        if strange:
            say(logging.WARNING, f"{strange} letters of queue {self._queue} are no receipts; see redrive letters list")
        return [each for each in reversed(found) if each is not None]

    async def remove(self, key: str, *, reason: str = "removed") -> bool:
        """Into the trash: by id, or by lease id if only one has it (else Conflict). False if there is none."""
        given: object = key
        if not isinstance(given, str) or not given:
            raise ConfigError(
                f"{shown(key)} is none", field="key", hint="use the id of a dead receipt, or its lease id"
            )
        ids = [item.id for item in await self._items([key]) if item.letter is not None]
        ids = ids or [each.id for each in await self._all() if each.receipt.lease_id == key]
        if len(ids) > 1:
            raise Conflict(f"lease {key!r} has {len(ids)} receipts: {', '.join(ids)}", hint="remove one by its id")
        return bool(ids and (await self._app.letters.discard(ids, reason=reason)).changed)

    # --- files ---

    async def import_(self, path: Path | None, contents: Contents, *, reason: str, dry_run: bool = False) -> Imported:
        """What can be read of a file. Ids are made of what the receipts say, so that a second time adds nothing.

        `path` None: it came from elsewhere, and there is no file to remember or to keep aside.
        """
        why = f"imported from {receipts_json.NAME if path is None else path.name}; {UNSAID}"
        records: dict[str, Record] = {}
        for entry in contents.entries:
            record = self._record(entry, IMPORTED, why)
            there = records.get(record.id)
            if there is not None and not _repeats(record, bytes(there.payload)):
                record = self._renamed(record)
            records.setdefault(record.id, record)
        done = await self._take_in(list(records.values()), reason, dry_run=dry_run)
        already = len(contents.entries) - len(done.added)
        if dry_run or path is None:
            return Imported(done.added, already, contents.faults)
        aside = await receipts_json.set_aside(path, contents.hash) if contents.faults else None
        note = FileRead(contents.hash, len(done.added), already, len(contents.faults))
        await self._app._store.write_documents([DocumentWrite(KIND, str(path), codec.encode(note))])  # noqa: SLF001
        return Imported(done.added, already, contents.faults, aside)

    async def _was_read(self, path: Path, contents: Contents) -> bool:
        known = await self._app._store.document(KIND, str(path))  # noqa: SLF001 - see above
        return known is not None and codec.decode(known.body, FileRead).hash == contents.hash

    # --- letters ---

    def _record(self, entry: Entry, reason: str, error: BaseException | str | None) -> Record:
        kind, text = _words(error)
        receipt, failed_at = entry.receipt, entry.failed_at
        tenant = self._tenant if entry.tenant_id is None else entry.tenant_id
        written_at = receipt.timestamp if EPOCH <= receipt.timestamp < failed_at else failed_at
        return Record(
            id=item_id(self._queue, tenant, receipt),
            queue=self._queue,
            died_at=receipts_json.iso(failed_at),
            enqueued_at=receipts_json.iso(written_at),
            reason=reason,
            cause=fingerprint(kind, text, ()),
            error=kind,
            text=text,
            payload=Raw(codec.encode(Envelope(receipt=receipt.to_dict(), tenant_id=tenant))),
            attempts=entry.attempts,
            errors=entry.attempts,
            order_key=order_key(tenant, receipt.lease_id),
        )

    def _renamed(self, record: Record) -> Record:
        """A second end of one lease that says something else: the first one has the name."""
        envelope = Envelope.decode(bytes(record.payload))
        return replace(record, id=content_id(self._queue, envelope.tenant_id, envelope.open()))

    async def _take_in(self, records: Sequence[Record], reason: str, *, dry_run: bool = False) -> TakenIn:
        done = await self._app.letters.import_(records, reason=reason, dry_run=dry_run)
        there = {item.id: item.payload for item in await self._items(done.already)}
        by_id = {record.id: record for record in records}
        other = {one for one, payload in there.items() if not _repeats(by_id[one], payload)}
        renamed = [self._renamed(by_id[one]) for one in done.already if one in other]
        more = await self._app.letters.import_(renamed, reason=reason, dry_run=dry_run) if renamed else PutResult()
        present = tuple([one for one in done.already if one not in other])
        return TakenIn((*done.added, *more.added), (*present, *more.already))

    async def _items(self, ids: Sequence[str]) -> list[Item]:
        """Those of this queue that are there, in any order."""
        found: list[Item] = []
        for start in range(0, len(ids), PAGE_LIMIT):
            bite = Ids(tuple(ids[start : start + PAGE_LIMIT]))
            found += (await self._app._store.find(bite, PAGE_LIMIT)).items  # noqa: SLF001 - see above
        return [item for item in found if item.queue == self._queue]


async def entries_of(letters: DeadLetterQueue) -> list[Entry]:
    """Those that wait for recovery, as they stand in a receipts.json."""
    return [each.entry for each in await letters._all()]  # noqa: SLF001 - it is of this module


def letters_of(queue: str) -> str:
    """The filter for its open letters, whatever signs the name has."""
    return render(Match("queue", "=", queue))


def dead_receipt(item: Item, last: Attempt | None = None) -> DeadReceipt | None:
    """None for a letter that is no receipt. `last`: see `last_tries`."""
    letter = item.letter
    try:
        envelope = Envelope.decode(item.payload)
        receipt = envelope.open()
    except PayloadUndecodable:
        return None
    if letter is None:
        return None
    died = DeadReceipt(
        item.id, receipt, _moment(letter.died_at), item.attempt, _told(letter.failure), envelope.tenant_id
    )
    if last is None or last.failure is None:
        return died
    return replace(died, last_error=_told(last.failure), tried_at=_moment(last.started_at))


def _told(failure: Failure) -> str:
    return f"{failure.type}: {failure.text}" if failure.text else failure.type


def _moment(at: Instant) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)


def _repeats(record: Record, payload: bytes) -> bool:
    try:
        there = Envelope.decode(payload).open()
    except PayloadUndecodable:
        return False
    return Envelope.decode(bytes(record.payload)).open().repeats(there)


def _words(error: BaseException | str | None) -> tuple[str, str]:
    if isinstance(error, BaseException):
        return type_name(type(error)), redact_text(text_of(error))
    if error is not None and not isinstance(error, str):
        raise ConfigError(f"{shown(error)} is neither", field="error", hint="use an exception or a text")
    return type_name(ReceiptError), redact_text(error or UNSAID)


def _tell_faults(path: Path, done: Imported) -> None:
    for fault in done.faults[: receipts_json.FAULTS]:
        say(logging.WARNING, f"{path}: {fault}")
    if done.faults:
        where = "it could not be copied aside" if done.aside is None else f"a copy of it is {done.aside}"
        entries = f"{len(done.faults)} entries could not be taken in"
        say(logging.WARNING, f"{path}: {entries}; the file is left as it is, {where}")
