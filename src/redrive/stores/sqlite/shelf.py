"""What lies beside the queue on SQLite: documents, the journal, who is alive and who leads."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core import codec
from redrive.core.item import Millis
from redrive.core.verbs import Document, DocumentWrite, Entry, NewEntry, WorkerBeat, WorkerFacts
from redrive.errors import Conflict
from redrive.stores.sqlite.tx import Tx
from redrive.stores.statements import load

DAY: Millis = 24 * 60 * 60 * 1000

_DOCUMENTS = load("sqlite", "documents")
_JOURNAL = load("sqlite", "journal")
_BEAT = load("sqlite", "beat")
_ELECT = load("sqlite", "elect")


def document(tx: Tx, kind: str, key: str) -> Document | None:
    row = tx.execute(_DOCUMENTS["one"], (kind, key)).fetchone()
    return None if row is None else Document(*row)


def documents(tx: Tx, kind: str) -> tuple[Document, ...]:
    return tuple([Document(*row) for row in tx.execute(_DOCUMENTS["all"], (kind,))])


def write_documents(tx: Tx, writes: Sequence[DocumentWrite]) -> tuple[Document, ...]:
    for write in writes:
        version, exists = tx.execute(_DOCUMENTS["current"], (write.kind, write.key)).fetchone() or (0, 0)
        _check(write, version if exists else 0)
        if write.body is None:
            tx.execute(_DOCUMENTS["remove"], (write.kind, write.key))
        else:
            tx.execute(_DOCUMENTS["write"], (write.kind, write.key, version + 1, write.body))
    names = dict.fromkeys((write.kind, write.key) for write in writes)
    found = [document(tx, kind, key) for kind, key in names]
    return tuple([one for one in found if one is not None])


def _check(write: DocumentWrite, version: int) -> None:
    if write.expect is not None and write.expect != version:
        there = f"is at version {version}" if version else "does not exist"
        raise Conflict(
            f"document {write.kind}/{write.key} {there}, not at version {write.expect}",
            hint="read it again and repeat the change on what is there now",
        )


def append(tx: Tx, entries: Sequence[NewEntry]) -> tuple[int, ...]:
    return tuple([append_act(tx, entry, "") for entry in entries])


def append_act(tx: Tx, new: NewEntry, change: str) -> int:
    """An entry that says which `change` it audits, for the history of the items it changed."""
    values = (tx.now, new.topic, new.actor, new.reason, new.request_id, change, new.body)
    return tx.connection.insert(_JOURNAL["append"], values)


def journal(tx: Tx, topic: str, after: int, limit: int) -> tuple[Entry, ...]:
    return tuple([Entry(*row) for row in tx.execute(_JOURNAL["read"], (topic, after, max(0, limit)))])


def beat(tx: Tx, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
    tx.execute(_BEAT["beat"], (worker, codec.encode(facts), tx.now, tx.now + facts.lasts(ttl)))
    tx.execute(_BEAT["forget"], (tx.now - DAY,))
    tx.execute(_BEAT["forget_nonces"], (tx.now - DAY,))


def workers(tx: Tx) -> tuple[WorkerBeat, ...]:
    rows = tx.execute(_BEAT["workers"], (tx.now, tx.now - DAY, tx.now))
    return tuple(
        [WorkerBeat(name, codec.decode(facts, WorkerFacts), seen, alive != 0) for name, facts, seen, alive in rows]
    )


def elect(tx: Tx, name: str, owner: str, ttl: Millis) -> bool:
    return tx.change(_ELECT["elect"], (name, owner, tx.now + ttl, tx.now)) == 1
