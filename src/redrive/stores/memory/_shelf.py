"""What lies beside the queue: documents, the journal, who is alive and who leads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from redrive.core.item import Instant, Millis
from redrive.core.verbs import Document, DocumentWrite, Entry, NewEntry, WorkerBeat, WorkerFacts
from redrive.errors import Conflict

DAY: Millis = 24 * 60 * 60 * 1000


class Documents:
    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], Document] = {}
        self._versions: dict[tuple[str, str], int] = {}

    def get(self, kind: str, key: str) -> Document | None:
        return self._documents.get((kind, key))

    def all(self, kind: str) -> tuple[Document, ...]:
        return tuple(self._documents[name] for name in sorted(self._documents) if name[0] == kind)

    def write(self, writes: Iterable[DocumentWrite]) -> tuple[Document, ...]:
        """On a copy first: a conflict in the last write must leave no trace of the first."""
        versions: dict[tuple[str, str], int] = {}
        after: dict[tuple[str, str], Document | None] = {}
        for write in writes:
            name = (write.kind, write.key)
            current = after[name] if name in after else self._documents.get(name)
            _check(write, current)
            if write.body is None:
                after[name] = None
            else:
                # Counted on from a deleted document, so that a version seen before the deletion never fits again.
                versions[name] = versions.get(name, self._versions.get(name, 0)) + 1
                after[name] = Document(write.kind, write.key, versions[name], write.body)
        self._versions.update(versions)
        for name, document in after.items():
            if document is None:
                self._documents.pop(name, None)
            else:
                self._documents[name] = document
        return tuple(document for document in after.values() if document is not None)


def _check(write: DocumentWrite, current: Document | None) -> None:
    version = 0 if current is None else current.version
    if write.expect is not None and write.expect != version:
        there = f"is at version {version}" if version else "does not exist"
        raise Conflict(
            f"document {write.kind}/{write.key} {there}, not at version {write.expect}",
            hint="read it again and repeat the change on what is there now",
        )


class Journal:
    def __init__(self) -> None:
        self._last = 0
        self._topics: dict[str, list[Entry]] = {}

    def append(self, new: NewEntry, now: Instant) -> int:
        self._last += 1
        entry = Entry(self._last, now, new.topic, new.body, new.actor, new.reason, new.request_id)
        self._topics.setdefault(new.topic, []).append(entry)
        return self._last

    def read(self, topic: str, after: int, limit: int) -> tuple[Entry, ...]:
        entries = self._topics.get(topic, [])
        start = bisect_right(entries, after, key=lambda entry: entry.position)
        return tuple(entries[start : start + max(0, limit)])


class Presence:
    def __init__(self) -> None:
        self._beats: dict[str, tuple[WorkerFacts, Instant, Instant]] = {}
        self._leaders: dict[str, tuple[str, Instant]] = {}

    def beat(self, worker: str, facts: WorkerFacts, ttl: Millis, now: Instant) -> None:
        self._beats[worker] = (facts, now, now + facts.lasts(ttl))

    def workers(self, now: Instant) -> tuple[WorkerBeat, ...]:
        self._beats = {worker: beat for worker, beat in self._beats.items() if beat[1] > now - DAY}
        beats = [
            WorkerBeat(worker, facts, seen_at, alive=until > now)
            for worker, (facts, seen_at, until) in self._beats.items()
        ]
        return tuple(sorted(beats, key=lambda beat: (not beat.alive, beat.worker)))

    def elect(self, name: str, owner: str, ttl: Millis, now: Instant) -> bool:
        leader, until = self._leaders.get(name, (owner, now))
        if leader != owner and until > now:
            return False
        self._leaders[name] = (owner, now + ttl)
        return True
