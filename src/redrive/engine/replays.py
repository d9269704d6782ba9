"""Leader of background replays: one elected process sends the letters reserved for a replay, window by window.

A letter stays a letter until its window is sent, so that pause, cancel and a new rate act on letters. The leader reads
the document of a replay before every window; after a pause, stop or restart at most one more window is sent. Windows
that depend on payloads are sent by a function that the caller passes down (office.replay.by_payload).

Every worker and every receiving process has a leader object; the store elects one while there are replays. Without
replays each makes one small read every five seconds, and writes nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.acts import (
    Act,
    Amended,
    Replay,
    Unreserve,
)
from redrive.core.families import family_of, is_family
from redrive.core.item import Instant, Millis
from redrive.core.meters import Rate
from redrive.core.select import And, Ids, Match, Or, Selection
from redrive.core.verbs import Document, DocumentWrite, NewEntry
from redrive.engine.ids import new_id
from redrive.engine.store_retry import StoreRetry
from redrive.errors import Conflict, OutcomeUnknown, StoreError, StoreUnavailable
from redrive.events import Amended as AmendedEvent
from redrive.events import Events
from redrive.stores.audit import TOPIC, AuditRecord, entry
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.clock import Clock

ACTIVE, ENDED = "replay", "replay_ended"
"""Kinds of documents. Workers look at the first kind only."""
NAME = "replays"
WINDOW: Millis = 200
"""The period whose share of the rate is sent at once."""
BY_PAYLOAD = 50
"""The most letters in a window of a replay by payload."""
IDLE: Millis = 1_000
"""The longest interval between polls of the leader."""
NONE: Millis = 5_000
"""The interval between polls while there is no replay, or another process leads."""
TERM: Millis = 5_000
RENEW: Millis = 2_000
ABANDONED: Millis = 60_000
"""After this long without a change, the start of a replay counts as cut off, and its reserved letters are sent."""
ENDED_KEPT = 100


class ByPayload(Struct, frozen=True):
    """Deduplication and transformation of letters: `dedupe_by` is a path into the payload, the others name functions of
    the payload, as module:function.
    """

    dedupe_by: str = ""
    dedupe_function: str = ""
    transform: str = ""


class BackgroundReplay(Struct, frozen=True):
    """`total` letters were reserved for it, `sent` of them are items again, and `skipped` could not be sent.

    In the state `reserving` its start is still running, and no letter is sent. `window` is the number of the next
    window, and `due` the time of the store, in microseconds, from which it may be sent. The counts include the letters
    of `counted` windows. Its audit entries come after the position `since`. `problem`: why it paused itself.
    `requests`: the request ids of the last acts on it.
    """

    id: str
    state: Literal["reserving", "running", "paused", "cancelled", "done"]
    change: Replay
    rate: Rate | None
    actor: str
    reason: str
    started_at: Instant
    total: int = 0
    sent: int = 0
    skipped: int = 0
    window: int = 0
    counted: int = 0
    due: int = 0
    since: int = 0
    by_payload: ByPayload | None = None
    problem: str = ""
    requests: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """Letters that are still reserved."""
        return 0 if self.state in {"cancelled", "done"} else max(0, self.total - self.sent - self.skipped)


SendWindow = Callable[[Store, BackgroundReplay, Sequence[str], Act], Awaitable[Amended]]
"""Sends letters of a replay by payload. An exception pauses the replay."""


def letters_of(replay: str) -> Selection:
    return And((Match("state", "=", "dead"), Match("reserved", "=", replay)))


def read(document: Document) -> BackgroundReplay:
    return codec.decode(document.body, BackgroundReplay)


def over(document: Document, replay: BackgroundReplay) -> list[DocumentWrite]:
    """The writes that end a replay."""
    return [
        DocumentWrite(ACTIVE, replay.id, None, document.version),
        DocumentWrite(ENDED, replay.id, codec.encode(replay)),
    ]


async def has_running(store: Store, queues: Sequence[str]) -> bool:
    """Whether a replay that runs has letters left for one of these queues, or is about to end."""
    ours = Or(tuple([Match("queue", "glob" if is_family(queue) else "=", queue) for queue in queues]))
    for replay in map(read, await store.documents(ACTIVE) if queues else ()):
        mine, to = letters_of(replay.id), replay.change.queue
        if replay.state != "running" or (to and not {to, family_of(to)} & {*queues}):
            continue
        if to or (await store.ids(And((mine, ours)), 1)).ids or not (await store.ids(mine, 1)).ids:
            return True
    return False


class _Record(Struct, frozen=True):
    """The fields of an audit entry that are used here."""

    change: str = ""
    changed: tuple[str, ...] = ()
    detail: dict[str, Any] | None = None


class ReplayOutcome(Struct, frozen=True):
    """`sent`: ids of the items that the letters became."""

    sent: tuple[str, ...]
    skipped: tuple[str, ...]


async def outcome_of(store: Store, replay: BackgroundReplay) -> ReplayOutcome:
    """The outcome of all windows of a replay, read from the audit since its start, however long ago."""
    sent: dict[str, None] = {}
    skipped: dict[str, None] = {}
    requests = re.compile(re.escape(replay.id) + r"\.[0-9]+(\.skipped\.[0-9]+)?")
    after, more = replay.since, True
    while more:
        entries = await store.journal(TOPIC, after, PAGE_LIMIT)
        for one in entries:
            window = requests.fullmatch(one.request_id)
            if window is not None:
                # A request id of this form may also be that of another act.
                record = codec.decode(one.body, _Record)
                if record.change == "replay" and (record.detail or {}).get("reserved") == replay.id:
                    # A transformed letter has its own entry, with the letter and its new item.
                    new = replay.by_payload is not None and replay.by_payload.transform
                    sent |= dict.fromkeys(record.changed[-1:] if new else record.changed)
                elif record.change == "unreserve" and window[1]:
                    skipped |= dict.fromkeys(record.changed)
        all_found = replay.counted == replay.window and len(sent) >= replay.sent and len(skipped) >= replay.skipped
        more = len(entries) == PAGE_LIMIT and not all_found
        after = entries[-1].position if entries else after
    return ReplayOutcome(tuple(sent), tuple([one for one in skipped if one not in sent]))


class ReplayLeader:
    def __init__(
        self, store: Store, owner: str, *, events: Events, clock: Clock, send_by_payload: SendWindow | None = None
    ) -> None:
        """Without `send_by_payload`, replays by payload are left to other processes."""
        self._store = store
        self._send_by_payload = send_by_payload
        self._owner = owner
        self._events = events
        self._clock = clock
        self._retry = StoreRetry("replays", events, clock)
        self._ahead: Millis = 0
        self._leads_until: Millis | None = None
        self._reserving: dict[tuple[str, int], Millis] = {}

    async def run(self) -> None:
        try:
            while True:
                await self._clock.sleep(await self._retry(self.turn))
        finally:
            await self.resign()

    async def turn(self) -> Millis:
        """Send what is due; returns the time until the next turn. May be repeated after any failure."""
        replays = [(one, read(one)) for one in await self._store.documents(ACTIVE)]
        await self._adopt([document for document, replay in replays if replay.state == "reserving"])
        ours = [one for one in replays if one[1].by_payload is None or self._send_by_payload is not None]
        running = [(document, replay) for document, replay in ours if replay.state == "running"]
        if not running:
            return IDLE if replays else NONE
        if not await self._leads():
            return NONE
        return min([await self._window(document, replay) for document, replay in running])

    async def _adopt(self, reserving: Sequence[Document]) -> None:
        now = self._clock.monotonic()
        self._reserving = {
            (one.key, one.version): self._reserving.get((one.key, one.version), now) for one in reserving
        }
        for one in reserving:
            if now - self._reserving[one.key, one.version] >= ABANDONED:
                body = codec.encode(replace(read(one), state="running"))
                with suppress(Conflict):
                    await self._store.write_documents([DocumentWrite(ACTIVE, one.key, body, one.version)])

    async def resign(self) -> None:
        """Lets another process be elected at once."""
        if self._leads_until is not None:
            self._leads_until = None
            with suppress(StoreError):
                await self._store.elect(NAME, self._owner, 1)

    async def _leads(self) -> bool:
        asked = self._clock.monotonic()
        if self._leads_until is None or self._leads_until - asked <= TERM - RENEW:
            leads = await self._store.elect(NAME, self._owner, TERM)
            if leads:
                # Offset of the store's clock: read once a term, not for every window.
                self._ahead = (await self._store.tally(members=False)).at - self._clock.monotonic()
            self._leads_until = asked + TERM if leads else None
        return self._leads_until is not None

    async def _window(self, document: Document, replay: BackgroundReplay) -> Millis:
        """Sends one window if it is due by the document. A late replay catches up on one window at most."""
        now = (self._clock.monotonic() + self._ahead) * 1000
        count, interval = PAGE_LIMIT if replay.by_payload is None else BY_PAYLOAD, 0
        if replay.rate is not None:
            interval = replay.rate.interval
            count = min(count, max(1, WINDOW * 1000 // interval))
        due = max(replay.due, now - WINDOW * 1000)
        # Later than one window of its rate: the rate was changed, or the store's clock was set back.
        if not replay.due or due > now + max(WINDOW * 1000, interval) + TERM * 1000:
            due = now
        wait = min(IDLE, -(-(due - now) // 1000))
        if wait > 0 and replay.left:
            return wait
        ids = (await self._store.ids(letters_of(replay.id), count, oldest=True)).ids
        if not ids:
            # Also before the next window is due: at one letter an hour, the end would come an hour late.
            await self._end(document, replay)
            return IDLE
        if wait > 0:
            return wait
        # Before the send, and with the version that was read: no leader sends another window at once after one of
        # unknown outcome, and a change by an operator or another leader since the read is a Conflict.
        begun = replace(replay, window=replay.window + 1, due=due + count * interval)
        write = DocumentWrite(ACTIVE, replay.id, codec.encode(begun), document.version)
        try:
            (document,) = await self._store.write_documents([write])
        except Conflict:
            return 1
        await self._send(document, replay, ids)
        return max(1, min(IDLE, -(-(begun.due - now) // 1000)))

    async def _send(self, document: Document, replay: BackgroundReplay, ids: tuple[str, ...]) -> None:
        request = f"{replay.id}.{replay.window}"
        act = Act(replay.actor, replay.reason, request)
        try:
            if replay.by_payload is None or self._send_by_payload is None:
                done = await self._store.amend(Ids(ids), replace(replay.change, reserved=replay.id), act)
            else:
                done = await self._send_by_payload(self._store, replay, ids, act)
        except (StoreUnavailable, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - an error of a replay must not stop the worker
            await self._pause(document, f"{self._owner} cannot send it: {type(error).__name__}: {error}")
            return
        skipped = await self._release(replay, done, request)
        self._events.emit(AmendedEvent("replay", act.actor, act.reason, request, len(done.changed), skipped))
        sent = len(done.changed) + len(done.already)
        await self._rewrite(
            document,
            lambda now: replace(now, sent=now.sent + sent, skipped=now.skipped + skipped, counted=now.counted + 1),
        )

    async def _release(self, replay: BackgroundReplay, done: Amended, request: str) -> int:
        """Release letters that cannot be sent, with the cause in their histories. Returns how many there are.

        A letter that another leader has leased stays reserved: if that leader does not send it, a later window does.
        """
        reasons: dict[str, list[str]] = defaultdict(list)
        for skipped in done.skipped:
            if skipped.code != "leased":
                reasons[skipped.reason].append(skipped.id)
        count = 0
        for number, (reason, ids) in enumerate(reasons.items()):
            act = Act(replay.actor, f"not sent: {reason}", f"{request}.skipped.{number}")
            freed = await self._store.amend(And((Ids(tuple(ids)), letters_of(replay.id))), Unreserve(), act)
            count += len(freed.changed) + len(freed.already)
        return count

    async def _pause(self, known: Document, problem: str) -> None:
        """Pause the replay. Its letters stay reserved until an operator resumes or cancels it."""
        record = AuditRecord("replay pause", Ids(()), (known.key,))
        await self._rewrite(
            known,
            lambda now: replace(now, state="paused", problem=problem) if now.state == "running" else now,
            entry(record, Act(self._owner, problem, new_id())),
        )

    async def _rewrite(
        self, known: Document, change: Callable[[BackgroundReplay], BackgroundReplay], audit: NewEntry | None = None
    ) -> None:
        """Change the document of a replay, also if it was cancelled meanwhile."""
        document: Document | None = known
        while document is not None:
            write = DocumentWrite(document.kind, document.key, codec.encode(change(read(document))), document.version)
            try:
                await self._store.write_documents([write], audit)
            except Conflict:
                document = await self._store.document(ACTIVE, known.key) or await self._store.document(ENDED, known.key)
            else:
                return

    async def _end(self, document: Document, replay: BackgroundReplay) -> None:
        """End a replay without letters left. Windows that were not counted are counted from the audit."""
        sent, skipped = replay.sent, replay.skipped
        if replay.counted != replay.window:
            found = await outcome_of(self._store, replay)
            sent, skipped = len(found.sent), len(found.skipped)
        done = replace(replay, state="done", sent=sent, skipped=skipped, total=sent + skipped, counted=replay.window)
        ended = sorted([read(one) for one in await self._store.documents(ENDED)], key=lambda one: one.started_at)
        forgotten = [DocumentWrite(ENDED, one.id, None) for one in ended[: max(0, len(ended) - ENDED_KEPT + 1)]]
        try:
            await self._store.write_documents([*forgotten, *over(document, done)])
        except Conflict:
            return  # changed by an operator: the next turn reads it again
