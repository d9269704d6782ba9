"""Settings of queues and routes as people say them, checked, and the audit entries of their changes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from msgspec import UNSET, Struct, to_builtins

from redrive.core import codec, durations, rates
from redrive.core.acts import Act
from redrive.core.durations import Duration
from redrive.core.families import family_of
from redrive.core.policy import Policy
from redrive.core.policy_data import PolicyLike, is_data, policy_text, read
from redrive.core.quantity import shown
from redrive.core.rates import RateText
from redrive.core.select import Ids
from redrive.core.verbs import SAYABLE, SETTINGS, NewEntry, QueueChange
from redrive.engine.asks import empty_policy, one_of
from redrive.errors import ConfigError
from redrive.stores.audit import TOPIC
from redrive.stores.base import Store
from redrive.stores.checks import ORDERS, check_text

NAME_LIMIT = 128
OFF = "off"
"""As a share: retries go with first attempts, in due order."""


class QueueOptions(TypedDict, total=False):
    """What `app.queue` declares and `app.configure` changes. None takes a limit away.

    `max_running`, `max_per_key`: how many run at once, in the queue and for each limit key. `rate`: how fast they are
    given out, as in "100/min". `capacity`: how many may wait or run before `enqueue` raises QueueFull. `order`: what
    becomes of those behind a dead head of an order key: block, park or skip. `policy`: by name, or as numbers. `gate`:
    the gate it stands behind. `keep`, `keep_results`: how long finished items, and results alone, are kept.
    `retry_share`: of slots, rate and probes of the gate, what retries and replays may take while first attempts wait:
    0.5 unless set; None or "off" for all. `keep_trash`: how long discarded letters can be brought back.
    `encrypt`: payloads and results are stored encrypted.
    """

    max_running: int | None
    max_per_key: int | None
    rate: RateText | None
    capacity: int | None
    order: str | None
    policy: PolicyLike | None
    gate: str | None
    keep: Duration | None
    keep_results: Duration | None
    retry_share: float | Literal["off"] | None
    keep_trash: Duration | None
    encrypt: bool


class GateOptions(TypedDict, total=False):
    """What `app.gate` declares; see `redrive.core.gate.gate_config`."""

    failure_rate: float | None
    least: int
    window: Duration
    consecutive: int | None
    interval: Duration
    longest: Duration
    probes: int
    successes: int
    retry_share: float | None
    retry_floor: Duration
    retry_burst: int
    ignore: Iterable[str]


class SettingsRecord(Struct, frozen=True):
    """What the audit says of a change of settings: an AuditRecord about no item, with what was set beside it."""

    change: str
    selection: Ids
    changed: tuple[str, ...]
    settings: dict[str, Any]


def queue_change(options: Mapping[str, Any], queue: str = "") -> QueueChange:
    """Raises ConfigError that names the option. None gives a member of a family any of them as its family has it."""
    check_known(options, _CHECKS, "a queue")
    inherits = set(SAYABLE) if family_of(queue) else set()
    values: dict[str, Any] = {
        name: None if value is None and name in inherits else _CHECKS[name](value, name)
        for name, value in options.items()
    }
    return QueueChange(**values)


async def check_member(store: Store, queue: str, change: QueueChange) -> None:
    """Against the families that the store has."""
    if family_of(queue) and change.retry_share is not UNSET:
        check_share(queue, change, [row.queue for row in (await store.tally(members=False)).families])


def check_share(queue: str, change: QueueChange, families: Container[str]) -> None:
    family = family_of(queue)
    if family and family in families and change.retry_share is not UNSET:
        hint = f"set it for {family!r}: one lease, with one share, is for all of its members"
        raise ConfigError(
            f"{queue!r} is a member of a family and has no share of its own", field="retry_share", hint=hint
        )


def check_known(options: Iterable[str], known: Iterable[str], what: str) -> None:
    names = list(known)
    for name in options:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise ConfigError(f"there is no such setting of {what}", field=name, hint=hint)


def said(change: QueueChange) -> dict[str, Any]:
    """The settings a change speaks of, as plain values."""
    values = {name: getattr(change, name) for name in SETTINGS}
    return {name: to_builtins(value) for name, value in values.items() if value is not UNSET}


def check_capacity(value: object) -> int | None:
    return _count(value, "capacity")


def check_name(name: object, field: str) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LIMIT or not name.isprintable() or " " in name:
        hint = f"use 1 to {NAME_LIMIT} printable characters without blanks"
        raise ConfigError(f"{shown(name)} is not a name", field=field, hint=hint)
    check_text(field, name)
    return name


def settings_entry(change: str, name: str, settings: dict[str, Any], by: Act) -> NewEntry:
    """For the write that makes the change."""
    body = codec.encode(SettingsRecord(change, Ids(()), (name,), settings))
    return NewEntry(TOPIC, body, by.actor, by.reason, by.request_id)


def _count(value: object, field: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        hint = "use a whole number of at least 1, or None for no limit"
        raise ConfigError(f"{shown(value)} cannot be used", field=field, hint=hint)
    return value


def _rate(value: Any, field: str) -> object:
    return None if value is None else rates.parse(value, field=field)


def _order(value: object, field: str) -> str:
    return one_of(field, value, ORDERS)


def _name(value: object, field: str) -> str:
    return "" if value is None or value == "" else check_name(value, field)


def _kept(value: Any, field: str) -> int | None:
    return None if value is None else durations.parse(value, field=field)


def _trash_kept(value: Any, field: str) -> int:
    if value is None:
        raise ConfigError("the trash has an end", field=field, hint="use a long duration such as 3650d; 30d if not set")
    return durations.parse(value, field=field)


def policy_value(value: object, field: str) -> str:
    """What is stored: a name, the numbers of a policy as JSON, or "" for none."""
    if isinstance(value, Policy | Mapping):
        return policy_text(value)
    if isinstance(value, str) and is_data(value):
        read(value)
        return value
    if value == "":
        raise empty_policy(field)
    return _name(value, field)


def _share(value: object, field: str) -> float | None:
    if value is None or value == OFF:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        hint = "use a number above 0 and at most 1, such as 0.3 for 30 %, or None for no such line"
        raise ConfigError(f"{shown(value)} is not a share", field=field, hint=hint)
    return float(value)


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{shown(value)} is neither True nor False", field=field, hint="use True or False")
    return value


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "max_running": _count,
    "max_per_key": _count,
    "rate": _rate,
    "capacity": _count,
    "order": _order,
    "policy": policy_value,
    "gate": _name,
    "keep": _kept,
    "keep_results": _kept,
    "retry_share": _share,
    "keep_trash": _trash_kept,
    "encrypt": _flag,
}
