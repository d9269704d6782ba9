"""Settings, routes and gates on Redis: what limits a queue, and what is kept of it besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from redrive.core import codec
from redrive.core.families import family_of, member_settings
from redrive.core.item import Millis
from redrive.core.verbs import SAYABLE, Gate, GateWrite, NewEntry, QueueChange, QueueSettings, changed
from redrive.errors import Conflict, StoreUnavailable
from redrive.stores.checks import check_capacity
from redrive.stores.redis.search import as_bytes
from redrive.stores.redis.session import Session
from redrive.stores.redis.shelf import args_of
from redrive.stores.redis.texts import packed

TRIES = 20
"""Reads of settings that somebody else changed before ours were written."""


class Declared(Struct, array_like=True, frozen=True):
    """What is kept of a queue. `limits` is for scripts (lua/limits.lua), False where there are none; `rest` has all."""

    paused: bool = False
    by: str = ""
    reason: str = ""
    limits: tuple[Any, ...] | bool = False
    rest: str = ""
    keep: Millis | bool = False
    keep_results: Millis | bool = False
    keep_trash: Millis | bool = False
    encrypt: bool = False

    def settings(self) -> QueueSettings:
        return codec.decode(self.rest.encode(), QueueSettings) if self.rest else _DEFAULT


_DEFAULT = QueueSettings()
_decoder = msgspec.msgpack.Decoder(Declared)


def declared_of(kept: bytes | None) -> Declared:
    return Declared() if kept is None else _decoder.decode(kept)


async def settings(session: Session, queue: str) -> QueueSettings:
    own = declared_of(await session.read("settings", [as_bytes(queue)])).settings()
    family = await session.read("settings", [as_bytes(family_of(queue))]) if family_of(queue) else None
    return own if family is None else member_settings(queue, own, declared_of(family).settings())


async def configure(session: Session, queue: str, change: QueueChange, audit: NewEntry | None) -> QueueSettings:
    """The settings as they are now."""
    for _ in range(TRIES):
        kept = await session.read("settings", [queue])
        was = declared_of(kept)
        before = was.settings()
        after = changed(before, change, member=bool(family_of(queue)))
        begins_anew = int(after.rate != before.rate)
        frees = int(after.max_per_key != before.max_per_key)
        bound = change.capacity if isinstance(change.capacity, int) else ""
        args: list[bytes | str | int] = [queue, kept or b"", _kept(was, change, after), begins_anew, frees, bound]
        answer = await session.run("configure", args + args_of(audit))
        if isinstance(answer, list):
            check_capacity(queue, after.capacity or 0, answer[0])
        elif answer:
            return after
    raise StoreUnavailable(
        f"the settings of {queue!r} went on changing while they were read; nothing was changed", hint="repeat it"
    )


def _kept(was: Declared, change: QueueChange, after: QueueSettings) -> bytes:
    paused = (was.paused, was.by, was.reason)
    if change.paused is not None:
        paused = (True, change.by, change.reason) if change.paused else (False, "", "")
    if after == _DEFAULT:
        return packed(paused)
    keeps = [False if keep is None else keep for keep in (after.keep, after.keep_results)]
    return packed(
        (*paused, _limits(after), codec.encode(after).decode(), *keeps, _said(after, "keep_trash"), after.encrypt)
    )


def _said(after: QueueSettings, name: str) -> Any:
    """For scripts: False where it is as a new queue has it, unless a member of a family has it for itself."""
    value = getattr(after, name)
    return value if value != SAYABLE[name] or name in after.own else False


def _limits(after: QueueSettings) -> tuple[object, ...] | bool:
    """As lua/limits.lua has them."""
    order = _said(after, "order")
    if (after.max_running, after.max_per_key, after.rate, after.capacity, order, after.gate) == _NO_LIMITS:
        return False
    rate = (False, 0) if after.rate is None else (after.rate.interval, after.rate.most)
    running, per_key, capacity = after.max_running or False, after.max_per_key or False, after.capacity or False
    return (running, per_key, *rate, capacity, order, after.gate)


_NO_LIMITS = (None, None, None, None, False, _DEFAULT.gate)


async def configure_route(session: Session, route: str, capacity: int | None, audit: NewEntry | None) -> None:
    fill = await session.run("configure_route", [route, "" if capacity is None else capacity, *args_of(audit)])
    if fill is not None:
        check_capacity(route, capacity or 0, fill)


class _Numbers(Struct, array_like=True, frozen=True):
    version: int
    interval: int | bool
    burst: int
    share: int | bool
    cap: int
    floor: int
    next_at: int
    credit: int
    floor_at: int


_numbers = msgspec.msgpack.Decoder(_Numbers)


def _gate(name: str, kept: bytes, body: bytes) -> Gate:
    known = _numbers.decode(kept)
    return Gate(
        name,
        known.version,
        None if known.interval is False else int(known.interval),
        known.burst,
        None if known.share is False else int(known.share),
        known.cap,
        known.floor,
        known.next_at,
        known.credit,
        known.floor_at,
        body,
    )


async def set_gate(session: Session, write: GateWrite, audit: NewEntry | None) -> Gate:
    interval = False if write.interval is None else write.interval
    share = False if write.share is None else write.share
    asked = packed((interval, write.burst, share, write.cap, write.floor))
    args = [write.name, write.expect, asked, int(write.shut), write.body, *args_of(audit)]
    done, what = await session.run("set_gate", args)
    if not done:
        raise Conflict(
            f"gate {write.name!r} is at version {what}, not {write.expect}",
            hint="read it again and repeat the change on what is there now",
        )
    return _gate(write.name, what, write.body)


async def gates(session: Session) -> tuple[Gate, ...]:
    return tuple(sorted(_gates(await session.read("gates", [])), key=lambda gate: gate.name))


async def gate(session: Session, name: str) -> Gate | None:
    found = _gates(await session.read("gates", [as_bytes(name)]))
    return found[0] if found else None


def _gates(fields: Sequence[bytes]) -> list[Gate]:
    rows = zip(fields[0::3], fields[1::3], fields[2::3], strict=True)
    return [_gate(name.decode(), kept, body) for name, kept, body in rows]
