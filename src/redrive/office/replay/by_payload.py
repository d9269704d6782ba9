"""Replay of letters of any queue by their payload: deduplication by a key, and transformation."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from redrive.core import codec
from redrive.core.acts import (
    Act,
    Amended,
    Refusal,
    Replay,
    Skipped,
    unreadable,
)
from redrive.core.item import History, Item, NewItem, Priority, Terms
from redrive.core.payloads import ABSENT, Reading
from redrive.engine.caller import Caller
from redrive.engine.forks import parent_only
from redrive.engine.replays import BackgroundReplay, ByPayload
from redrive.errors import ConfigError, PayloadUndecodable, StoreError
from redrive.office.in_place_job import why_not
from redrive.office.replay import DedupeBy, Replayed, Transform, claims
from redrive.office.replay.functions import check_functions, loaded
from redrive.office.replay.resend import Candidate, LetterReplay, Plan, Steps
from redrive.stores.base import Store
from redrive.stores.clock import Clock

MADE = re.compile(r"[a-z2-7]{24}-r([0-9]+)")
"""Ids of items that replaced a letter: they end in the number of replays that led to them."""

MAX_PAYLOAD = 1024 * 1024
TIED = Refusal("it has an order key, a dedupe key or dependencies; with force its new item has none of them", "bound")


async def replay_by_payload(
    store: Store,
    ids: Sequence[str],
    act: Act,
    change: Replay,
    *,
    clock: Clock,
    dedupe_by: DedupeBy | None = None,
    transform: Transform | None = None,
    priority: Priority | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    max_payload: int = MAX_PAYLOAD,
) -> Replayed:
    """Replay letters in the order of their ids: the first of each key is sent, and at most `limit`.

    A new item, for a transformation or another priority, takes delay, queue and force of `change`.
    Raises ConfigError with the field.
    """
    check_functions(dedupe_by, transform, change)
    replay = _ByPayload(
        store,
        clock,
        f"{platform.node() or 'host'}-{os.getpid()}",
        act,
        dedupe=dedupe_by is not None,
        change=change,
        dry_run=dry_run,
    )
    replay.dedupe_by, replay.priority = dedupe_by, priority
    replay.max_payload = max_payload
    caller = Caller(threads=1)
    try:
        replay.transform = await loaded(transform, "transform", caller) if isinstance(transform, str) else transform
        await _drive(replay.replay_ids(list(dict.fromkeys(ids)), limit), caller)
    finally:
        caller.close()
    if replay.dedupe and not dry_run and not change.reserved:
        with suppress(StoreError):  # the letters are replayed all the same
            await claims.sweep(store, clock.now())
    already = set(replay.already)
    changed = [(plan.letter.id, key) for plan, key in replay.done if plan.letter.id not in already]
    return Replayed(
        tuple([letter for letter, _ in changed]),
        tuple(replay.already),
        tuple(replay.skipped),
        tuple([key for _, key in changed]),
        tuple([Skipped(plan.letter.id, why, "duplicate") for plan, why in replay.duplicates]),
        tuple(replay.kept),
    )


async def send_window(
    store: Store,
    replay: BackgroundReplay,
    ids: Sequence[str],
    act: Act,
    *,
    clock: Clock,
    max_payload: int = MAX_PAYLOAD,
) -> Amended:
    """For a leader of replays (engine.replays.SendWindow): `skipped` has all letters that were not sent."""
    how = replay.by_payload or ByPayload()
    dedupe_by: DedupeBy | None = how.dedupe_by or None
    if how.dedupe_function:
        caller = Caller(threads=1)
        try:
            dedupe_by = await loaded(how.dedupe_function, "dedupe_by", caller)
        finally:
            caller.close()
    done = await replay_by_payload(
        store,
        ids,
        act,
        msgspec.structs.replace(replay.change, reserved=replay.id),
        clock=clock,
        dedupe_by=dedupe_by,
        transform=how.transform or None,
        max_payload=max_payload,
    )
    return Amended(done.changed, done.already, (*done.skipped, *done.duplicates, *done.kept))


async def _drive(steps: Steps, caller: Caller) -> None:
    """User functions run in a thread: neither their time nor their blocking calls stop the event loop."""
    answer = None
    while True:
        step, error = await caller.in_thread(partial(steps.send, answer))
        if isinstance(error, StopIteration):
            return
        if error is not None:
            raise error
        function, args = step
        answer = await function(*args)


class _StopError(ConfigError):
    """Ends the whole replay; other errors only keep their letter."""


class _ByPayload(LetterReplay):
    failed = "its payload could not be used"
    caught_in_plan = BaseException  # in this thread only a user function raises SystemExit or KeyboardInterrupt
    fatal_in_plan = (_StopError,)
    lineage_in_audit = True

    dedupe_by: DedupeBy | None = None
    transform: Callable[[Any], object] | None = None
    priority: Priority | None = None
    max_payload = 0

    def refused(self, item: Item) -> Refusal | None:
        return why_not(item, self.clock.now(), early=True, reserved=self.change.reserved)

    def replays_of(self, item: Item) -> int:
        made = MADE.fullmatch(item.id)
        return item.replays + (int(made[1]) if made else 0)

    def plan(self, history: History) -> Plan | Refusal | None:
        item, change = history.item, self.change
        queue = change.queue or item.queue
        if item.sealed and self.change.reserved:
            raise _StopError(f"letter {item.id}: {item.flaw}")
        if item.flaw:
            return unreadable(item.flaw, item.sealed)
        with parent_only():
            key = self._key(item)
            if key is ABSENT:
                return Refusal(f"its payload has no {self.dedupe_by} to deduplicate by", "no_key")
            letter = Candidate(history, None if key is None else _canonical(key), self.replays_of(item))
            if self.transform is None and self.priority is None:
                return Plan(letter, queue, queue)
            terms = item.terms or Terms()
            if (terms.order_key or terms.dedupe or terms.after) and not change.force:
                # A new item cannot take the letter's order key, dedupe key or dependencies.
                return TIED
            payload = self._transformed(item, queue)
        digest = base64.b32encode(bytes.fromhex(letter.own_id(queue))[:15]).decode().lower()
        new_id, priority = f"{digest}-r{letter.replays + 1}", self.priority or item.priority
        free = msgspec.structs.replace(terms, order_key="", dedupe=None, after=(), on_dead="wait", revision=0)
        new = NewItem(
            new_id,
            queue,
            payload,
            change.delay,
            priority=priority,
            terms=None if free == Terms() else free,
            kind=item.kind,
            release=item.release,
        )
        return Plan(letter, queue, queue, new)

    def _key(self, item: Item) -> object:
        """The dedupe key. ABSENT: the path does not exist. None: no key, from a function."""
        if self.dedupe_by is None:
            return None
        if callable(self.dedupe_by):
            return self.dedupe_by(_payload(item))
        found = Reading(item).at(tuple(self.dedupe_by.split(".")))
        return ABSENT if found is None else found

    def _transformed(self, item: Item, queue: str) -> bytes:
        if self.transform is None:
            return item.payload
        payload = self.transform(_payload(item))
        if payload is None:
            hint = "return the new payload; raise an error to keep a letter as it is"
            raise _StopError(f"the function returned None for {item.id}", field="transform", hint=hint)
        return codec.dump_payload(payload, limit=self.max_payload, queue=queue)


def _canonical(value: object) -> str:
    """JSON text that is the same for equal JSON values: 1 and 1.0 are equal; 1, "1" and true are not."""
    if not isinstance(value, str):
        value = _with_plain_numbers(msgspec.to_builtins(value, str_keys=True, order="sorted"))
    return json.dumps(value, sort_keys=True)


def _with_plain_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_plain_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_plain_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _payload(item: Item) -> Any:
    try:
        return codec.load_payload(item.payload)
    except PayloadUndecodable:
        return item.payload
