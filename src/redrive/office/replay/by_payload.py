"""Replay of letters of any queue by their payload: once per dedupe key, and transformed."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from redrive.core import codec
from redrive.core.acts import (
    Act,
    Replay,
    Skipped,
)
from redrive.core.item import History, Item, NewItem, Priority, Terms
from redrive.core.meters import Rate
from redrive.core.payloads import ABSENT, Reading
from redrive.core.quantity import shown
from redrive.engine.caller import Caller, is_async
from redrive.engine.forks import parent_only
from redrive.errors import ConfigError, PayloadUndecodable, StoreError
from redrive.office.in_place_job import why_not
from redrive.office.replay import DedupeBy, Replayed, Transform, claims
from redrive.office.replay.resend import Candidate, LetterReplay, Plan, Steps
from redrive.stores.base import Store
from redrive.stores.clock import Clock

MADE = re.compile(r"[a-z2-7]{24}-r([0-9]+)")
"""Lineage: the id of an item that replaced a letter ends in the number of replays that led to it."""


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
    pace: Rate | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    max_payload: int = 1024 * 1024,
) -> Replayed:
    """Replay letters in the order of their ids: the first of each key goes, and at most `limit`.

    A new item, for a transformation or another priority, takes delay, queue and force of `change`.
    Raises ConfigError that names the field.
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
    replay.dedupe_by, replay.transform, replay.priority = dedupe_by, transform, priority
    replay.max_payload = max_payload
    caller = Caller(threads=1)
    try:
        await _drive(replay.replay_ids(list(dict.fromkeys(ids)), limit, pace), caller)
    finally:
        caller.close()
    if replay.dedupe and not dry_run:
        with suppress(StoreError):  # the letters are replayed all the same
            await claims.sweep(store, clock.now())
    already = set(replay.already)
    changed = [(plan.letter.id, key) for plan, key in replay.done if plan.letter.id not in already]
    return Replayed(
        tuple([letter for letter, _ in changed]),
        tuple(replay.already),
        tuple(replay.skipped),
        tuple([key for _, key in changed]),
        tuple([Skipped(plan.letter.id, why) for plan, why in replay.duplicates]),
        tuple(replay.kept),
    )


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


class _NothingReturnedError(ConfigError):
    pass


class _ByPayload(LetterReplay):
    failed = "its payload could not be used"
    caught_in_plan = BaseException  # in this thread only a user function raises SystemExit or KeyboardInterrupt
    fatal_in_plan = (_NothingReturnedError,)
    lineage_in_audit = True

    dedupe_by: DedupeBy | None = None
    transform: Transform | None = None
    priority: Priority | None = None
    max_payload = 0

    def refused(self, item: Item) -> str | None:
        return why_not(item, self.clock.now(), early=True)

    def replays_of(self, item: Item) -> int:
        made = MADE.fullmatch(item.id)
        return item.replays + (int(made[1]) if made else 0)

    def plan(self, history: History) -> Plan | str | None:
        item, change = history.item, self.change
        queue = change.queue or item.queue
        if item.flaw:
            return f"it is damaged: {item.flaw}"
        with parent_only():
            key = self._key(item)
            if key is ABSENT:
                return f"its payload has no {self.dedupe_by} to deduplicate by"
            letter = Candidate(history, None if key is None else _canonical(key), self.replays_of(item))
            if self.transform is None and self.priority is None:
                return Plan(letter, queue, queue)
            terms = item.terms or Terms()
            if (terms.order_key or terms.dedupe or terms.after) and not change.force:
                # A new item cannot have the place of the letter among others.
                return "it has an order key, a dedupe key or dependencies; with force its new item has none of them"
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
        """ABSENT: nothing is at the path. A function may give None, for no key."""
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
            raise _NothingReturnedError(f"the function returned None for {item.id}", field="transform", hint=hint)
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


def check_functions(dedupe_by: object, transform: object, change: Replay) -> None:
    """Raises ConfigError."""
    for field, given in (("dedupe_by", dedupe_by), ("transform", transform)):
        if field == "dedupe_by" and isinstance(given, str):
            if not all(given.split(".")):
                hint = "use names with dots between them, such as order.id"
                raise ConfigError(f"{given!r} is not a path into a payload", field=field, hint=hint)
        elif given is not None and (not callable(given) or is_async(given)):
            hint = "use a plain function of the payload, def f(payload): …"
            raise ConfigError(f"{shown(given)} is not a plain function", field=field, hint=hint)
    if transform is not None and change.budget == "once":
        hint = "leave out one of the two: a new item has the whole budget of its queue"
        raise ConfigError("'once' cannot be used with transform", field="budget", hint=hint)
