"""Operator API of background replays: start, list, pause, resume, cancel, set the rate, undo. All acts are audited."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from shlex import quote

from msgspec.structs import replace

from redrive.core import codec
from redrive.core.acts import (
    LEASED_SINCE,
    Act,
    Amended,
    Expire,
    Recall,
    Replay,
    Reserve,
    Skipped,
    Unreserve,
)
from redrive.core.chain import HEAD, Seal
from redrive.core.meters import Rate
from redrive.core.rates import RateText
from redrive.core.rates import format as format_rate
from redrive.core.rates import parse as parse_rate
from redrive.core.select import And, Ids, Match
from redrive.core.verbs import Document, DocumentWrite, NewEntry
from redrive.engine.replays import ACTIVE, ENDED, BackgroundReplay, ByPayload, letters_of, outcome_of, over, read
from redrive.errors import Conflict, NotFound
from redrive.office.audit import RELEASED
from redrive.office.bites import Bite, amend_in_bites, bites_of, joined
from redrive.office.gates import audit_entry
from redrive.office.said import check_reason, request_named
from redrive.stores.audit import TOPIC
from redrive.stores.base import Store
from redrive.stores.checks import check_replay_id

REQUESTS = 100
"""The most request ids of acts that the document of a replay keeps."""


async def start(
    store: Store,
    ids: Sequence[str],
    change: Replay,
    rate: Rate | None,
    act: Act,
    *,
    by_payload: ByPayload | None = None,
) -> Amended:
    """Reserve these letters for the replay with the act's request id; a worker sends them.

    May be repeated, also with more letters: the replay keeps its rate, and a paused one stays paused. Raises Conflict
    if it was cancelled, or has other options. Without letters there is no replay, and one of which every letter is
    skipped is done.
    """
    replay_id = act.request_id
    check_replay_id(replay_id, "request_id")
    if not ids:
        return Amended()
    new = BackgroundReplay(replay_id, "reserving", change, rate, act.actor, act.reason, 0, by_payload=by_payload)
    await _begin(store, new)
    done = [await _reserve(store, bite, replay_id, act) for bite in bites_of(ids, Reserve(replay_id))]
    await _change(store, replay_id, _begun)
    return Amended(
        tuple(chain.from_iterable(one.changed for one in done)),
        tuple(chain.from_iterable(one.already for one in done)),
        tuple(chain.from_iterable(one.skipped for one in done)),
    )


def _begun(replay: BackgroundReplay) -> BackgroundReplay:
    if replay.state != "reserving":
        return replay
    return replace(replay, state="running" if replay.total else "done")


async def _begin(store: Store, new: BackgroundReplay) -> None:
    document = await store.document(ACTIVE, new.id)
    ended = await store.document(ENDED, new.id) if document is None else None
    known = document or ended
    if known is None:
        head = await store.document(HEAD, TOPIC)
        since = 0 if head is None else codec.decode(head.body, Seal).upto
        replay = replace(new, started_at=(await store.tally(members=False)).at, since=since)
    else:
        replay = read(known)
        if replay.state == "cancelled":
            raise _is_over(replay)
        if (replay.change, replay.by_payload) != (new.change, new.by_payload):
            hint = "repeat it as it was, or use another request id"
            raise Conflict(f"replay {new.id} is {replay.state}, with other options", hint=hint)
        replay = replay if replay.state == "paused" else replace(replay, state="reserving")
    expect = 0 if document is None else document.version
    writes = [DocumentWrite(ACTIVE, new.id, codec.encode(replay), expect)]
    if ended is not None:
        writes.append(DocumentWrite(ENDED, new.id, None, ended.version))
    try:
        await store.write_documents(writes)
    except Conflict:
        await _begin(store, new)  # with the changes of an operator or the leader


async def _reserve(store: Store, bite: Bite, replay_id: str, act: Act) -> Amended:
    """Counts each batch in the document: without a change for a minute the start counts as cut off."""
    done = await amend_in_bites(store, [bite], act)
    try:
        await _change(store, replay_id, lambda now: replace(now, total=now.total + len(done.changed)))
    except Conflict:
        mine = And((Ids(done.changed), letters_of(replay_id)))
        # Not under the request id itself: an operator who cancels the replay may do it under that.
        await store.amend(mine, Unreserve(), Act(act.actor, "the replay is over", f"{act.request_id}{RELEASED}"))
        raise
    return done


async def _change(
    store: Store,
    replay_id: str,
    change: Callable[[BackgroundReplay], BackgroundReplay],
    audit: NewEntry | None = None,
) -> BackgroundReplay:
    while True:
        document = await _active(store, replay_id)
        changed = change(read(document))
        writes = [DocumentWrite(ACTIVE, replay_id, codec.encode(changed), document.version)]
        try:
            await store.write_documents(
                over(document, changed) if changed.state in {"cancelled", "done"} else writes, audit
            )
        except Conflict:
            continue
        return changed


async def _active(store: Store, replay_id: str) -> Document:
    document = await store.document(ACTIVE, replay_id)
    if document is None:
        ended = await store.document(ENDED, replay_id)
        if ended is None:
            raise _unknown(replay_id)
        raise _is_over(read(ended))
    return document


def _is_over(replay: BackgroundReplay) -> Conflict:
    return Conflict(f"replay {replay.id} is {replay.state}", hint="start another replay")


def _unknown(replay_id: str) -> NotFound:
    return NotFound(f"no replay {replay_id!r}", hint="list them with redrive replay list")


class Replays:
    def __init__(self, store: Store, *, actor: str) -> None:
        self._store = store
        self._actor = actor

    async def list(self) -> tuple[BackgroundReplay, ...]:
        """Active replays, then the last 100 ended ones; each latest start first."""
        active = [read(one) for one in await self._store.documents(ACTIVE)]
        ended = [read(one) for one in await self._store.documents(ENDED)]
        return (*_newest_first(active), *_newest_first(ended))

    async def get(self, id: str) -> BackgroundReplay:
        """Raises NotFound."""
        document = await self._store.document(ACTIVE, id) or await self._store.document(ENDED, id)
        if document is None:
            raise _unknown(id)
        return read(document)

    async def pause(self, id: str, *, reason: str, request_id: str | None = None) -> BackgroundReplay:
        """Stop sending its letters, except for the window of 200 ms that is already on its way."""
        return await self._act("pause", id, reason, request_id, lambda now: replace(now, state="paused"))

    async def resume(self, id: str, *, reason: str, request_id: str | None = None) -> BackgroundReplay:
        """Continue after a pause."""
        return await self._act("resume", id, reason, request_id, lambda now: replace(now, state="running", problem=""))

    async def set_rate(
        self, id: str, rate: RateText | None, *, reason: str, request_id: str | None = None
    ) -> BackgroundReplay:
        """Set another rate, such as "50/s", from the next window on; None for no limit."""
        meant = None if rate is None else parse_rate(rate)
        words = f"set-rate {'none' if meant is None else format_rate(meant)}"
        return await self._act(words, id, reason, request_id, lambda now: replace(now, rate=meant))

    async def cancel(self, id: str, *, reason: str, request_id: str | None = None) -> BackgroundReplay:
        """End it. The letters that were not sent are free for other acts."""
        return await self._cancel("cancel", id, Act(self._actor, check_reason(reason), request_named(request_id)))

    async def _cancel(self, word: str, id: str, act: Act) -> BackgroundReplay:
        replay = await self.get(id)
        if await self._store.document(ACTIVE, id) is not None:
            replay = await self._act(word, id, act.reason, act.request_id, lambda now: replace(now, state="cancelled"))
        while True:
            if not (await self._store.amend(letters_of(id), Unreserve(), act)).changed:
                return replay

    async def undo(self, id: str, *, reason: str, request_id: str | None = None) -> Amended:
        """Cancel it, and recall the items that it has sent and no worker has leased since. With `transform` the letters
        have ended: the new items that no worker has leased become letters, with the reason `expired`.
        """
        act = Act(self._actor, check_reason(reason), request_named(request_id))
        await self._cancel("undo", id, act)
        replay = await self._cancelled(id, act)
        sent = (await outcome_of(self._store, replay)).sent
        made = replay.by_payload is not None and replay.by_payload.transform
        done = await (self._expire(sent, act) if made else amend_in_bites(self._store, bites_of(sent, Recall()), act))
        if len(sent) < replay.sent:
            words = f"{replay.sent - len(sent):,} of the {replay.sent:,} items that replay {id} sent"
            hint = "the audit is incomplete: redrive audit verify; find them with replays>0, and recall them by id"
            raise NotFound(f"{words} cannot be found; recalled {len(done.changed):,}", hint=hint)
        return done

    async def _expire(self, sent: Sequence[str], act: Act) -> Amended:
        fresh = [And((ids, Match("deliveries", "=", 0))) for ids, _ in bites_of(sent, Expire())]
        done = joined([await self._store.amend(those, Expire(), act) for those in fresh])
        left = dict.fromkeys(sent).keys() - {*done.changed, *done.already, *[one.id for one in done.skipped]}
        return replace(done, skipped=(*done.skipped, *[Skipped(one, *LEASED_SINCE) for one in sorted(left)]))

    async def _cancelled(self, replay_id: str, act: Act) -> BackgroundReplay:
        """Mark a replay that was done as cancelled, so that a repeated request does not send recalled letters again."""
        while True:
            document = await self._store.document(ENDED, replay_id)
            if document is None:
                raise _unknown(replay_id)
            replay = replace(read(document), state="cancelled")
            write = DocumentWrite(ENDED, replay_id, codec.encode(replay), document.version)
            with suppress(Conflict):
                await self._store.write_documents([write], audit_entry("replay undo", replay_id, act))
                return replay

    async def _act(
        self,
        word: str,
        replay_id: str,
        reason: str,
        request_id: str | None,
        change: Callable[[BackgroundReplay], BackgroundReplay],
    ) -> BackgroundReplay:
        """Apply the change once per request; a repeated request returns the replay as it is."""
        act = Act(self._actor, check_reason(reason), request_named(request_id))
        mark, known = f"{word} {act.request_id}", await self.get(replay_id)
        if mark in known.requests:
            return known

        def allowed(now: BackgroundReplay) -> BackgroundReplay:
            if word in {"pause", "resume"} and now.state == "reserving":
                hint = f"wait, or stop it with redrive replay cancel {quote(replay_id)}"
                raise Conflict(f"replay {replay_id} is still reserving its letters", hint=hint)
            return replace(change(now), requests=(*now.requests, mark)[-REQUESTS:])

        return await _change(self._store, replay_id, allowed, audit_entry(f"replay {word}", replay_id, act))


def _newest_first(replays: builtins.list[BackgroundReplay]) -> builtins.list[BackgroundReplay]:
    return sorted(replays, key=lambda one: one.started_at, reverse=True)


__all__ = ["BackgroundReplay", "Replays", "start"]
