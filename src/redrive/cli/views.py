"""Letters as JSON objects. Names are those of the filter language; times are UTC, durations seconds.

Secrets are covered: whoever wants everything takes `letters payload --raw` or `letters export`.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from msgspec import structs

from redrive.cli.covered import covered_text
from redrive.cli.output import iso, seconds
from redrive.core import codec
from redrive.core.item import Attempt, Failure, History, Instant, Item, Revision
from redrive.core.redact import redact, redact_text
from redrive.errors import PayloadError
from redrive.office.relations import relations
from redrive.office.scene import state_of

DEEPEST = 600


def letter_object(item: Item) -> dict[str, Any]:
    letter = item.letter
    failure = letter.failure if letter else None
    return {
        "id": item.id,
        "queue": item.queue,
        "state": str(item.state),
        "disposition": str(letter.disposition) if letter else None,
        "reason": letter.reason if letter else None,
        "route": letter.route if letter else None,
        "died_at": iso(letter.died_at) if letter else None,
        "enqueued_at": iso(item.enqueued_at),
        "priority": str(item.priority),
        "tags": list(item.tags),
        "kind": item.kind or None,
        "release": item.release or None,
        "attempts": item.attempt,
        "errors": item.errors,
        "crashes": item.crashes,
        "deliveries": item.deliveries,
        "replays": item.replays,
        "cause": failure.cause if failure else None,
        "error": failure.type if failure else None,
        "text": redact_text(failure.text) if failure else None,
        "category": failure.category if failure else None,
        "rule": failure.rule if failure else None,
    }


def item_object(item: Item, now: Instant) -> dict[str, Any]:
    """Any item, in one line of a list; `state` as people say it."""
    return {
        **letter_object(item),
        "state": state_of(item, now),
        "due_at": iso(item.due_at),
        "worker": item.worker,
        "lease_until": iso(item.lease_until),
        "ended_at": iso(item.ended_at),
        "hold": item.hold or None,
    }


def history_object(history: History) -> dict[str, Any]:
    item = history.item
    return {
        **letter_object(item),
        "due_at": iso(item.due_at),
        "renewed_at": iso(item.renewed_at),
        "ended_at": iso(item.ended_at),
        "worker": item.worker,
        "lease_until": iso(item.lease_until),
        **_relations_object(history),
        "schema": item.schema,
        "trace": item.trace or None,
        "headers": redact(item.headers),
        "failure": _failure_object(item.letter.failure) if item.letter else None,
        "history": [attempt_object(attempt) for attempt in history.attempts],
        "history_omitted": history.omitted,
        "deeds": [
            {
                "at": iso(deed.at),
                "change": deed.change,
                "actor": deed.actor,
                "reason": redact_text(deed.reason),
                "request_id": deed.request_id,
            }
            for deed in history.deeds
        ],
        **_payload_object(item.payload),
        "payload_flaw": item.flaw or None,
        "revision": item.revision,
        "revisions": [revision_object(revision) for revision in history.revisions],
    }


def revision_object(revision: Revision) -> dict[str, Any]:
    return {
        "number": revision.number,
        "edited_at": iso(revision.at),
        "edited_by": revision.actor,
        "edited_for": redact_text(revision.reason),
        **_payload_object(revision.payload),
        "payload_flaw": revision.flaw or None,
    }


def _relations_object(history: History) -> dict[str, Any]:
    known = relations(history)
    return {**structs.asdict(known), "dedupe_window": seconds(known.dedupe_window)}


def attempt_object(attempt: Attempt) -> dict[str, Any]:
    return {
        "delivery": attempt.delivery,
        "attempt": attempt.number,
        "worker": attempt.worker,
        "started_at": iso(attempt.started_at),
        "ran": seconds(attempt.ran),
        "ending": str(attempt.ending),
        "note": redact_text(attempt.note),
        "release": attempt.release or None,
        "failure": _failure_object(attempt.failure) if attempt.failure else None,
        **_output_object(attempt.output),
    }


def _output_object(output: bytes) -> dict[str, Any]:
    if not output:
        return {"output": None, "output_encoding": None, "output_bytes": 0}
    try:
        text, encoding = covered_text(output), "text"
    except UnicodeDecodeError:
        text, encoding = _as_bytes(output)
    return {"output": text, "output_encoding": encoding, "output_bytes": len(output)}


def _failure_object(failure: Failure) -> dict[str, Any]:
    return {
        "error": failure.type,
        "text": redact_text(failure.text),
        "category": failure.category,
        "rule": failure.rule,
        "action": failure.action,
        "code": failure.code,
        "cause": failure.cause,
        "frames": [{"file": frame.file, "line": frame.line, "function": frame.function} for frame in failure.frames],
    }


def _payload_object(payload: bytes) -> dict[str, Any]:
    try:
        value = codec.load_payload(payload)
        if not _is_deep(value):
            return {"payload": redact(value), "payload_encoding": "json", "payload_bytes": len(payload)}
    except PayloadError:
        pass
    text, encoding = _as_bytes(payload)
    return {"payload": text, "payload_encoding": encoding, "payload_bytes": len(payload)}


def _as_bytes(data: bytes) -> tuple[str, str]:
    """Base64, or text with what had to be covered; and which of the two."""
    shown = data.decode("utf-8", "backslashreplace")
    covered = redact_text(shown)
    return (covered, "text") if covered != shown else (b64encode(data).decode("ascii"), "base64")


def _is_deep(value: object) -> bool:
    """Nested so deeply that it can be read and not be written: Python's writer of JSON ends at its recursion limit."""
    level = [value]
    for _ in range(DEEPEST):
        below = [part for part in level if isinstance(part, list)]
        below += [list(part.values()) for part in level if isinstance(part, dict)]
        level = [child for part in below for child in part]
        if not level:
            return False
    return True
