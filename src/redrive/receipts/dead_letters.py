"""The dead letter queue of receipts: the open letters of one queue, with the method names of the original."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Raw, Struct
from msgspec.structs import replace

from redrive.app import Redrive
from redrive.app.internals import Store, clock_of, store_of
from redrive.app.nesting import AsyncLifecycle
from redrive.core import codec
from redrive.core.classify import fingerprint, type_name
from redrive.core.instants import moment
from redrive.core.item import Item
from redrive.core.quantity import shown
from redrive.core.redact import redact_text
from redrive.core.states import Disposition
from redrive.core.verbs import PutResult
from redrive.engine.evidence import text_of
from redrive.engine.registry import check_queue_name
from redrive.errors import ConfigError, Conflict, ReceiptError
from redrive.observe.logs import log
from redrive.office import files
from redrive.office.bites import items_of
from redrive.office.records import Record
from redrive.receipts import receipts_json
from redrive.receipts.dead_receipts import DeadReceipt, dead_receipts, logger
from redrive.receipts.model import Envelope, Receipt, check_sendable, content_id, item_id, order_key, receipt_in, unpack
from redrive.receipts.receipts_file import ReceiptsFile, is_known, remember
from redrive.receipts.receipts_json import Contents, Entry, Fault
from redrive.stores.clock import Clock

IMPORTED = "import"
STORED = "stored"
NO_ERROR = "no error was recorded"


class Imported(Struct, frozen=True):
    """The result of an import: `added` are new letters, `already` entries were in the store or twice in the file.

    `faults` are entries that could not be imported, `aside` is the copy of a file that has some.
    """

    added: tuple[str, ...] = ()
    already: int = 0
    faults: tuple[Fault, ...] = ()
    aside: Path | None = None


class DeadLetterQueue(AsyncLifecycle):
    """Alone (`async with DeadLetterQueue("sqlite:///redrive.db") as queue:`), or as `client.dead_letters`.

    `storage_path` is a receipts.json, or its folder: the file is imported when the queue is opened, and then kept equal
    to the open dead letters until the queue is closed.
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
        app = Redrive(store, log=False, clock=clock)
        app.queue(check_queue_name(queue), order="skip")
        self._bind(app, queue, tenant_id, storage_path, own=True)

    @classmethod
    def of(
        cls,
        app: Redrive,
        *,
        queue: str,
        tenant_id: str | None = None,
        storage_path: str | os.PathLike[str] | None = None,
    ) -> Self:
        """A view of an app that the caller opens and closes. `load` imports the file, which is not written."""
        made = cls.__new__(cls)
        cls._bind(made, app, check_queue_name(queue), tenant_id, storage_path, own=False)
        return made

    def _bind(
        self, app: Redrive, queue: str, tenant: str | None, path: str | os.PathLike[str] | None, *, own: bool
    ) -> None:
        super().__init__()
        self._app, self._queue, self._tenant, self._own = app, queue, tenant, own
        self._path = None if path is None else receipts_json.check_path(path)
        self._file = ReceiptsFile(app, queue, self._path, self.load) if own and self._path is not None else None

    async def open(self) -> Self:
        return await super().open() if self._own else self

    async def _open(self) -> None:
        await self._app.open()
        try:
            await self.load()
            if self._file is not None:
                await self._file.open()
        except BaseException:
            await self._app.close()
            raise

    async def close(self) -> None:
        """The dead letters stay in the store. May be called twice."""
        if self._own:
            await super().close()

    async def _end(self) -> None:
        if self._file is not None:
            await self._file.close()
        await self._app.close()

    # --- the five methods of the original ---

    async def store(
        self, receipt: Receipt | Mapping[str, Any], attempts: int = 0, error: BaseException | str | None = None
    ) -> str:
        """Store a receipt that could not be delivered; durable when it returns. Gives its id.

        One that is here already stays as it is, or comes back if it was removed.
        """
        now = moment(clock_of(self._app).now())
        entry = Entry(check_sendable(Receipt.of(receipt)), now, receipts_json.check_attempts(attempts))
        done = await self._import_records([self._record(entry, STORED, error)], "a receipt could not be delivered")
        if done.added:
            return done.added[0]
        (item,) = await self._items(done.already[:1]) or (None,)
        if item is not None:
            if item.letter is not None and item.letter.disposition is not Disposition.OPEN:
                await self._app.letters.restore([item.id], reason="it was stored again")
            return item.id
        text = f"receipt {done.already[0]} was here and was removed permanently"
        raise Conflict(text, hint="the audit log tells when and by whom")

    async def load(self) -> int:
        """Import the file of `storage_path`, unless its contents are known; how many entries were added."""
        done = await self.load_file()
        if done is None or self._path is None:
            return 0
        log(logger, logging.INFO, f"{self._path}: {len(done.added)} receipts imported, {done.already} known already")
        _log_faults(self._path, done)
        return len(done.added)

    async def load_file(self) -> Imported | None:
        """As `load`, with the whole result; None if there is nothing new."""
        if self._path is None:
            return None
        path = await receipts_json.resolve(self._path)
        contents = await receipts_json.read(path)
        if contents is None or await is_known(self._app, path, contents.hash):
            return None
        return await self.import_(path, contents, reason=f"found at {path}")

    async def size(self) -> int:
        """The number of open dead letters."""
        return (await self._app.tally(members=(self._queue,))).row(self._queue).open

    async def get_all(self) -> list[DeadReceipt]:
        """All open dead letters, first failed first."""
        return await dead_receipts(self._app, self._queue, last_errors=True)

    async def remove(self, key: str, *, reason: str = "removed") -> bool:
        """Into the trash: by id, or by lease id if only one has it (else Conflict). False if there is none."""
        given: object = key
        if not isinstance(given, str) or not given:
            text = f"must be a non-empty string, got {shown(key)}"
            raise ConfigError(text, field="key", hint="use the id of a dead receipt, or its lease id")
        ids = [item.id for item in await self._items([key]) if item.letter is not None]
        ids = ids or [each.id for each in await dead_receipts(self._app, self._queue) if each.receipt.lease_id == key]
        if len(ids) > 1:
            raise Conflict(f"lease {key!r} has {len(ids)} receipts: {', '.join(ids)}", hint="remove one by its id")
        return bool(ids and (await self._app.letters.discard(ids, reason=reason)).changed)

    # --- import ---

    async def import_(self, path: Path | None, contents: Contents, *, reason: str, dry_run: bool = False) -> Imported:
        """Import the entries of a file. Ids are made of the receipts, so that a repeat adds nothing.

        `path` None: the contents are not those of a file that could be remembered, or copied if it is damaged.
        """
        why = f"imported from {receipts_json.NAME if path is None else path.name}; {NO_ERROR}"
        records: dict[str, Record] = {}
        for entry in contents.entries:
            record = self._record(entry, IMPORTED, why)
            there = records.get(record.id)
            if there is not None and not _repeats(record, bytes(there.payload)):
                record = self._renamed(record)
            records.setdefault(record.id, record)
        done = await self._import_records(list(records.values()), reason, dry_run=dry_run)
        already = len(contents.entries) - len(done.added)
        if dry_run or path is None:
            return Imported(done.added, already, contents.faults)
        aside = await files.set_aside(path, contents.hash) if contents.faults else None
        if not contents.faults or aside is not None:
            await remember(self._app, path, contents.hash)
        return Imported(done.added, already, contents.faults, aside)

    def _record(self, entry: Entry, reason: str, error: BaseException | str | None) -> Record:
        kind, text = _error_of(error)
        receipt, failed_at = entry.receipt, entry.failed_at
        tenant = self._tenant if entry.tenant_id is None else entry.tenant_id
        written_at = receipt.timestamp if receipts_json.EPOCH <= receipt.timestamp < failed_at else failed_at
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
        """For a second final receipt of a lease that differs from the first, which has the id of the lease."""
        receipt, tenant = unpack(bytes(record.payload))
        return replace(record, id=content_id(self._queue, tenant, receipt))

    async def _import_records(self, records: Sequence[Record], reason: str, *, dry_run: bool = False) -> PutResult:
        done = await self._app.letters.import_(records, reason=reason, dry_run=dry_run)
        there = {item.id: item.payload for item in await self._items(done.already)}
        by_id = {record.id: record for record in records}
        other = {one for one, payload in there.items() if not _repeats(by_id[one], payload)}
        renamed = [self._renamed(by_id[one]) for one in done.already if one in other]
        more = await self._app.letters.import_(renamed, reason=reason, dry_run=dry_run) if renamed else PutResult()
        present = tuple([one for one in done.already if one not in other])
        return PutResult((*done.added, *more.added), (*present, *more.already))

    async def _items(self, ids: Sequence[str]) -> list[Item]:
        """Those of this queue that exist, in any order."""
        return [item for item in await items_of(store_of(self._app), ids) if item.queue == self._queue]


def _repeats(record: Record, payload: bytes) -> bool:
    there = receipt_in(payload)
    return there is not None and unpack(bytes(record.payload))[0].repeats(there)


def _error_of(error: BaseException | str | None) -> tuple[str, str]:
    if isinstance(error, BaseException):
        return type_name(type(error)), redact_text(text_of(error))
    if error is not None and not isinstance(error, str):
        raise ConfigError(f"must be an exception or a string, got {shown(error)}", field="error")
    return type_name(ReceiptError), redact_text(error or NO_ERROR)


def _log_faults(path: Path, done: Imported) -> None:
    for fault in done.faults[: receipts_json.FAULTS]:
        log(logger, logging.WARNING, f"{path}: {fault}")
    if done.faults:
        where = "it could not be copied aside" if done.aside is None else f"a copy of the file is {done.aside}"
        log(logger, logging.WARNING, f"{path}: {len(done.faults)} entries could not be imported; {where}")
