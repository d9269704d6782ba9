"""What lies beside the queue on PostgreSQL: documents, the journal and who is alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from redrive.core import codec
from redrive.core.item import Millis
from redrive.core.verbs import Document, DocumentWrite, Entry, NewEntry, WorkerBeat, WorkerFacts
from redrive.errors import Conflict
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session

DAY: Millis = 24 * 60 * 60 * 1000

Name = tuple[str, str]


async def document(session: Session, kind: str, key: str) -> Document | None:
    rows = await session.read(session.sql("documents", "one"), (kind, key))
    return Document(*rows[0]) if rows else None


async def documents(session: Session, kind: str) -> tuple[Document, ...]:
    return tuple([Document(*row) for row in await session.read(session.sql("documents", "all"), (kind,))])


async def write_documents(
    session: Session, writes: Sequence[DocumentWrite], audit: NewEntry | None
) -> tuple[Document, ...]:
    if not writes and audit is None:
        return ()
    names = list(dict.fromkeys((write.kind, write.key) for write in writes))

    async def work(tx: Tx) -> tuple[Document, ...]:
        made = _written(writes, await _locked(session, tx, names))
        kinds, keys = _columns(names)
        versions = [made[name][0] for name in names]
        bodies = [made[name][1] for name in names]
        await tx.execute(session.sql("documents", "write"), (kinds, keys, versions, bodies))
        if 0 in versions:
            await tx.execute(session.sql("documents", "release"), (kinds, keys))
        return tuple([Document(*name, made[name][0], body) for name in names if (body := made[name][1]) is not None])

    return await session.write(work, audit)


async def _locked(session: Session, tx: Tx, names: list[Name]) -> dict[Name, tuple[int, bool]]:
    """Of each its last version and whether it exists."""
    # Always in the same order, so that two who write the same do not wait for each other.
    kinds, keys = _columns(sorted(names))
    await tx.execute(session.sql("documents", "claim"), (kinds, keys))
    rows = await tx.execute(session.sql("documents", "current"), (kinds, keys))
    return {(kind, key): (version, exists) for kind, key, version, exists in rows}


def _columns(names: list[Name]) -> tuple[list[str], list[str]]:
    return [kind for kind, _ in names], [key for _, key in names]


def _written(
    writes: Sequence[DocumentWrite], there: dict[Name, tuple[int, bool]]
) -> dict[Name, tuple[int, bytes | None]]:
    """What each is after the writes, one after the other. A deleted one keeps its version: the next goes on from it."""
    made: dict[Name, tuple[int, bytes | None]] = {}
    for write in writes:
        name = (write.kind, write.key)
        version, exists = there[name]
        _check(write, version if exists else 0)
        if write.body is not None:
            version += 1
        there[name] = (version, write.body is not None)
        made[name] = (version, write.body)
    return made


def _check(write: DocumentWrite, version: int) -> None:
    if write.expect is not None and write.expect != version:
        there = f"is at version {version}" if version else "does not exist"
        raise Conflict(
            f"document {write.kind}/{write.key} {there}, not at version {write.expect}",
            hint="read it again and repeat the change on what is there now",
        )


async def append(session: Session, entries: Sequence[NewEntry]) -> tuple[int, ...]:
    if not entries:
        return ()
    return await session.write(lambda tx: append_acts(session, tx, entries, ""))


async def append_acts(session: Session, tx: Tx, entries: Sequence[NewEntry], change: str) -> tuple[int, ...]:
    """Entries that say which `change` they audit, for the history of the items it changed."""
    await tx.execute(session.sql("journal", "lock"), (f"redrive journal {session.schema}",))
    columns = (
        [entry.topic for entry in entries],
        [entry.actor for entry in entries],
        [entry.reason for entry in entries],
        [entry.request_id for entry in entries],
        [entry.body for entry in entries],
    )
    rows = await tx.execute(session.sql("journal", "append"), (tx.now, change, *columns))
    return tuple([position for (position,) in rows])


async def journal(session: Session, topic: str, after: int, limit: int) -> tuple[Entry, ...]:
    rows = await session.read(session.sql("journal", "read"), (topic, after, max(0, limit)))
    return tuple([Entry(*row) for row in rows])


async def workers(session: Session) -> tuple[WorkerBeat, ...]:
    rows = await session.read(session.sql("workers", "workers"), (session.pinned(), DAY))
    return tuple([WorkerBeat(name, codec.decode(facts, WorkerFacts), seen, alive) for name, facts, seen, alive in rows])
