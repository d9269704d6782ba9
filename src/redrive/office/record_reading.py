"""From a record back to a letter as a store takes it in, and what of it no store could take, field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from redrive.core import durations
from redrive.core.item import Attempt, Dedupe, Failure, History, Item, Letter, Revision, Terms
from redrive.core.routes import check_route
from redrive.core.states import State
from redrive.engine.asks import headers_of, key_of
from redrive.engine.client import check_id
from redrive.engine.registry import check_kind, check_queue_name
from redrive.errors import ConfigError
from redrive.office.records import AttemptRecord, FailureRecord, Record, RevisionRecord, instant, payload_of
from redrive.stores.checks import check_name, check_schema, check_trace
from redrive.stores.imports import check_sealed

_WORDS = ("id", "queue", "reason", "cause", "error")
_NAMES: dict[str, Callable[[object], str]] = {"id": check_id, "queue": check_queue_name}
"""As `enqueue` takes them: what nobody can type would lie in the way of everybody."""
_KEYS = ("order_key", "limit_key", "dedupe_key", "cause")
_COUNTS = ("attempts", "errors", "crashes", "deliveries", "replays", "history_omitted")
_TIMES = ("died_at", "enqueued_at", "due_at", "renewed_at", "leased_at")


def history_of(record: Record) -> History:
    """The letter as a store takes it in. Raises ConfigError for the first field that cannot be used."""
    for fault in faults_of(record):
        raise fault
    died_at, enqueued_at = instant(record.died_at, "died_at"), instant(record.enqueued_at, "enqueued_at")
    item = Item(
        id=record.id,
        queue=record.queue,
        payload=payload_of(record),
        seq=0,
        state=State.DEAD,
        enqueued_at=enqueued_at,
        due_at=enqueued_at if record.due_at is None else instant(record.due_at, "due_at"),
        renewed_at=enqueued_at if record.renewed_at is None else instant(record.renewed_at, "renewed_at"),
        deliveries=record.deliveries,
        attempt=record.attempts,
        errors=record.errors,
        crashes=record.crashes,
        replays=record.replays,
        last_chance=record.last_chance,
        worker=record.worker,
        leased_at=None if record.leased_at is None else instant(record.leased_at, "leased_at"),
        ended_at=died_at,
        letter=Letter(record.reason, died_at, record.disposition, _failure(record), record.route),
        priority=record.priority,
        terms=_terms(record),
        tags=tuple(sorted(set(record.tags))),
        kind=record.kind,
        release=record.release,
        sealed=record.payload_key or "",
    )
    attempts = tuple([_attempt(each, f"history.{at}") for at, each in enumerate(record.history)])
    revisions = tuple([_revision(at, each) for at, each in enumerate(record.revisions)])
    return History(item, attempts, record.history_omitted, revisions=revisions)


def _revision(number: int, record: RevisionRecord) -> Revision:
    at = instant(record.at, f"revisions.{number}.at")
    sealed = record.payload_key or ""
    return Revision(number, payload_of(record), at, record.actor, record.reason, sealed=sealed)


def faults_of(record: Record) -> Iterator[ConfigError]:
    """What no store could take, a fault for each field."""
    for name in _WORDS:
        if not getattr(record, name).strip():
            yield ConfigError("it is empty", field=name)
        elif name in _NAMES:
            yield from _refusals(_NAMES[name], getattr(record, name))
    yield from _faults_of_terms(record)
    for name in _COUNTS:
        if not 0 <= getattr(record, name) < 2**31:
            yield ConfigError(f"{getattr(record, name)} is not a count", field=name)
    times = {name: getattr(record, name) for name in _TIMES}
    times |= {f"history.{at}.started_at": attempt.started_at for at, attempt in enumerate(record.history)}
    yield from filter(None, (_fault_of(text, name) for name, text in times.items() if text is not None))
    if record.payload_flaw:
        said = f"it is damaged ({record.payload_flaw}) and could never be handled"
        yield ConfigError(said, field="payload", hint="mend it, and leave payload_flaw out")
    try:
        payload = payload_of(record)
        if record.payload_key is not None:
            check_sealed(record.id, payload, record.payload_key)
    except ConfigError as error:
        yield error


def _faults_of_terms(record: Record) -> Iterator[ConfigError]:
    """What nobody could have enqueued, nor any policy said."""
    for name in _KEYS:
        if getattr(record, name):
            yield from _refusals(key_of, name, getattr(record, name))
    if record.route:
        yield from _refusals(check_route, record.route)
    if record.kind:
        yield from _refusals(check_kind, record.kind)
    for release in {record.release, *(each.release for each in record.history)}:
        yield from _refusals(check_name, "release", release)
    yield from _refusals(check_schema, record.schema)
    yield from _refusals(check_trace, record.trace)
    yield from _refusals(headers_of, record.headers)
    window = record.dedupe_window
    if window is not None:
        yield from _refusals(lambda: durations.parse(window, field="dedupe_window"))


def _refusals(check: Callable[..., object], *given: object) -> Iterator[ConfigError]:
    try:
        check(*given)
    except ConfigError as error:
        hint = error.hint.removesuffix(", or leave it out")  # an import makes no ids
        yield ConfigError(error.message.removeprefix(f"{error.field}: "), field=error.field, hint=hint)


def _fault_of(text: str, name: str) -> ConfigError | None:
    try:
        instant(text, name)
    except ConfigError as error:
        return error
    return None


def _terms(record: Record) -> Terms | None:
    window = None if record.dedupe_window is None else round(record.dedupe_window * 1000)
    dedupe = Dedupe(record.dedupe_key, record.dedupe_scope or "queue", window) if record.dedupe_key else None
    terms = Terms(
        record.order_key or "",
        record.limit_key or "",
        dedupe,
        record.after,
        record.on_dead or "wait",
        record.policy or "",
        record.schema,
        record.trace,
        tuple(record.headers.items()),
    )
    return None if terms == Terms() else terms


def _failure(record: FailureRecord | Record) -> Failure:
    return Failure(
        record.error,
        record.text,
        record.category,
        record.rule,
        record.cause,
        record.action,
        record.code,
        record.frames,
    )


def _attempt(record: AttemptRecord, field: str) -> Attempt:
    return Attempt(
        record.delivery,
        record.attempt,
        record.worker,
        instant(record.started_at, f"{field}.started_at"),
        max(0, round(record.ran * 1000)),
        record.ending,
        None if record.failure is None else _failure(record.failure),
        record.note,
        record.release,
        record.output,
    )
