"""What lies beside the queue on Redis: documents, the journal, who is alive and who leads."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core import codec
from redrive.core.item import Millis
from redrive.core.verbs import Document, DocumentWrite, Entry, NewEntry, WorkerBeat, WorkerFacts
from redrive.errors import Conflict
from redrive.stores.redis.rows import STAMP
from redrive.stores.redis.search import as_bytes
from redrive.stores.redis.session import Session

DAY: Millis = 24 * 60 * 60 * 1000
_LENGTH = 8
"""Digits of the length of what stands before the body of an entry."""


async def beat(session: Session, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
    if not await session.run("beat", [worker, codec.encode(facts), facts.lasts(ttl), DAY]):
        session.emptied()


async def workers(session: Session) -> tuple[WorkerBeat, ...]:
    now, *fields = await session.read("workers", [])
    beats = []
    for name, kept in zip(fields[0::2], fields[1::2], strict=True):
        seen_at, until = int(kept[:STAMP]), int(kept[STAMP : 2 * STAMP])
        if seen_at > now - DAY:
            facts = codec.decode(kept[2 * STAMP :], WorkerFacts)
            beats.append(WorkerBeat(name.decode(), facts, seen_at, alive=until > now))
    return tuple(sorted(beats, key=lambda one: (not one.alive, one.worker)))


async def elect(session: Session, name: str, owner: str, ttl: Millis) -> bool:
    return bool(await session.run("elect", [name, owner, ttl]))


async def document(session: Session, kind: str, key: str) -> Document | None:
    found = _documents(kind, await session.read("document", [as_bytes(kind), as_bytes(key)]))
    return found[0] if found else None


async def documents(session: Session, kind: str) -> tuple[Document, ...]:
    found = _documents(kind, await session.read("document", [as_bytes(kind)]))
    return tuple(sorted(found, key=lambda one: one.key))


def _documents(kind: str, fields: Sequence[bytes | None]) -> list[Document]:
    made = []
    for key, kept in zip(fields[0::2], fields[1::2], strict=True):
        if key is not None and kept is not None and kept.startswith(b"1"):
            made.append(Document(kind, key.decode(), int(kept[1 : STAMP + 1]), kept[STAMP + 1 :]))
    return made


async def write_documents(
    session: Session, writes: Sequence[DocumentWrite], audit: NewEntry | None
) -> tuple[Document, ...]:
    if not writes and audit is None:
        return ()
    args: list[bytes | str | int] = []
    for write in writes:
        expect = "" if write.expect is None else write.expect
        args += [write.kind, write.key, expect, int(write.body is not None), write.body or b""]
    versions = await session.run("documents", args + args_of(audit))
    if versions and isinstance(versions[0], list):
        number, version = versions[0]
        raise _conflict(writes[number], version)
    # Of several writes to one document the last tells what it is now; it stands where the first was.
    after: dict[tuple[str, str], Document | None] = {}
    for write, version in zip(writes, versions, strict=True):
        there = None if write.body is None else Document(write.kind, write.key, version, write.body)
        after[write.kind, write.key] = there
    return tuple([one for one in after.values() if one is not None])


def _conflict(write: DocumentWrite, version: int) -> Conflict:
    there = f"is at version {version}" if version else "does not exist"
    return Conflict(
        f"document {write.kind}/{write.key} {there}, not at version {write.expect}",
        hint="read it again and repeat the change on what is there now",
    )


async def append(session: Session, entries: Sequence[NewEntry]) -> tuple[int, ...]:
    if not entries:
        return ()
    return tuple(await session.run("append", [part for entry in entries for part in args_of(entry)]))


def args_of(entry: NewEntry | None) -> list[bytes | str | int]:
    return [] if entry is None else [entry.topic, meta_of(entry), entry.body]


def meta_of(entry: NewEntry) -> bytes:
    return codec.encode((entry.actor, entry.reason, entry.request_id))


async def journal(session: Session, topic: str, after: int, limit: int) -> tuple[Entry, ...]:
    kept = await session.read("journal", [as_bytes(topic), after, max(0, limit)])
    return tuple([_entry(topic, one) for one in kept])


def _entry(topic: str, kept: bytes) -> Entry:
    position, at, length = int(kept[:STAMP]), int(kept[STAMP : 2 * STAMP]), int(kept[2 * STAMP : 2 * STAMP + _LENGTH])
    begin = 2 * STAMP + _LENGTH
    actor, reason, request_id = codec.decode(kept[begin : begin + length], tuple[str, str, str])
    return Entry(position, at, topic, kept[begin + length :], actor, reason, request_id)
