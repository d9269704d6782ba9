"""What the caller of `enqueue` asks for, in words, checked and made into the values that a store takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from redrive.core.durations import Duration, parse
from redrive.core.item import Dedupe, Instant, Millis, NewItem, Priority, Terms
from redrive.core.policy import Policy
from redrive.core.policy_data import PolicyLike, is_data, policy_text, read
from redrive.core.quantity import shown
from redrive.core.validation import check_traceparent
from redrive.engine.registry import check_kind
from redrive.errors import ConfigError
from redrive.stores.checks import check_headers, check_schema, check_text

T = TypeVar("T")
KeyOf = str | Callable[[Any], str | None]
"""One key for all, or a function that gives each payload its own; None for none."""

KEY_LIMIT = 512
AFTER_LIMIT = 1000
SCOPES = ("queue", "store")
ON_DEAD = ("wait", "die")
PRIORITIES = tuple(each.value for each in Priority)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Asks(Struct, frozen=True, kw_only=True):
    """As the caller said it; `ready` checks it."""

    delay: Duration | None = None
    at: datetime | None = None
    priority: str = "normal"
    order_key: KeyOf | None = None
    limit_key: KeyOf | None = None
    dedupe_key: KeyOf | None = None
    dedupe_window: Duration | None = None
    dedupe_scope: str = "queue"
    after: str | Iterable[str] = ()
    on_dead: str = "wait"
    policy: PolicyLike | None = None
    kind: str | None = None
    schema: int = 0
    trace: str | None = None
    headers: Mapping[str, str] | None = None


class Offer(Struct, frozen=True):
    """The same for every item of a call, checked; `keyed` where an item has a key of its own."""

    delay: Millis
    at: Instant | None
    priority: Priority
    terms: Terms | None
    asks: Asks
    keyed: bool
    kind: str = ""

    def item(self, item_id: str, queue: str, body: bytes, payload: object, release: str = "") -> NewItem:
        terms = self._own(payload) if self.keyed else self.terms
        return NewItem(item_id, queue, body, self.delay, self.at, self.priority, terms, self.kind, release)

    def _own(self, payload: object) -> Terms | None:
        asks, common = self.asks, self.terms or Terms()
        dedupe_key = key_of("dedupe_key", asks.dedupe_key, payload)
        terms = replace(
            common,
            order_key=key_of("order_key", asks.order_key, payload) or "",
            limit_key=key_of("limit_key", asks.limit_key, payload) or "",
            dedupe=None if dedupe_key is None else _dedupe(asks, dedupe_key),
        )
        return None if terms == _NOTHING else terms


_NOTHING = Terms()
_PLAIN = Asks()
PLAIN = Offer(0, None, Priority.NORMAL, None, _PLAIN, keyed=False)


def ready(asks: Asks, policies: Collection[str]) -> Offer:
    """Raises ConfigError that names the parameter. Most ask for nothing, and that costs a comparison."""
    if asks == _PLAIN:
        return PLAIN
    if asks.delay is not None and asks.at is not None:
        raise ConfigError("it cannot go with delay", field="at", hint="say how long (delay=) or when (at=), not both")
    delay = 0 if asks.delay is None else parse(asks.delay, field="delay")
    keyed = any(callable(key) for key in (asks.order_key, asks.limit_key, asks.dedupe_key))
    kind = "" if asks.kind is None else check_kind(asks.kind)
    return Offer(delay, _instant(asks.at), _priority(asks.priority), _terms(asks, policies), asks, keyed, kind)


def _terms(asks: Asks, policies: Collection[str]) -> Terms | None:
    window = asks.dedupe_window is not None or asks.dedupe_scope != "queue"
    if asks.dedupe_key is None and window:
        field = "dedupe_window" if asks.dedupe_window is not None else "dedupe_scope"
        raise ConfigError("it says nothing without a key", field=field, hint="give dedupe_key= too")
    # Made also where each item will have a key of its own: what is wrong is said before anything is encoded.
    dedupe_key, keyless = key_of("dedupe_key", asks.dedupe_key), _dedupe(asks, "")
    terms = Terms(
        order_key=key_of("order_key", asks.order_key) or "",
        limit_key=key_of("limit_key", asks.limit_key) or "",
        dedupe=None if dedupe_key is None else replace(keyless, key=dedupe_key),
        after=_after(asks.after),
        on_dead=cast('Literal["wait", "die"]', one_of("on_dead", asks.on_dead, ON_DEAD)),
        policy="" if asks.policy is None else known_policy(asks.policy, policies),
        schema=schema_of(asks.schema),
        trace="" if asks.trace is None else check_traceparent(asks.trace, field="trace"),
        headers=() if asks.headers is None else headers_of(asks.headers),
    )
    return None if terms == _NOTHING else terms


def key_of(field: str, key: KeyOf | None, *payload: object) -> str | None:
    """A function gives none until there is a payload to give it to."""
    if callable(key):
        key = key(*payload) if payload else None
    if key is None:
        return None
    said: object = key
    if not isinstance(said, str):
        hint = f"use text of at most {KEY_LIMIT} characters; for a number, str(...)"
        raise ConfigError(f"{shown(said)} is not a text", field=field, hint=hint)
    if not said:
        raise ConfigError("it is empty", field=field, hint="leave it out for none")
    if len(said) > KEY_LIMIT:
        hint = f"at most {KEY_LIMIT}; use a digest of what is longer"
        raise ConfigError(f"it has {len(said):,} characters", field=field, hint=hint)
    check_text(field, said)
    return str(said)


def schema_of(schema: object) -> int:
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise ConfigError(f"{shown(schema)} is not a version of a schema", field="schema", hint="use a whole number")
    check_schema(schema)
    return schema


def headers_of(headers: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(headers, Mapping):
        hint = 'use a mapping of text by name, such as {"tenant": "acme"}'
        raise ConfigError(f"{shown(headers)} is not a mapping", field="headers", hint=hint)
    for name, text in headers.items():
        if not isinstance(name, str) or not isinstance(text, str):
            hint = "names and values are text; for a number, str(...)"
            raise ConfigError(f"{shown(name)}: {shown(text)} is not text by name", field="headers", hint=hint)
    pairs = tuple([(str(name), str(text)) for name, text in headers.items()])
    check_headers(pairs)
    return pairs


def _dedupe(asks: Asks, key: str) -> Dedupe:
    window = None if asks.dedupe_window is None else parse(asks.dedupe_window, field="dedupe_window")
    scope = one_of("dedupe_scope", asks.dedupe_scope, SCOPES)
    return Dedupe(key, cast('Literal["queue", "store"]', scope), window)


def _after(after: object) -> tuple[str, ...]:
    if isinstance(after, str):
        after = (after,)
    hint = "give the ids that enqueue returned"
    if not isinstance(after, Iterable) or isinstance(after, bytes | Mapping):
        raise ConfigError(f"{shown(after)} names no items", field="after", hint=hint)
    ids: dict[str, None] = {}
    for each in after:
        if not isinstance(each, str) or not each:
            raise ConfigError(f"{shown(each)} is not an id", field="after", hint=hint)
        ids[str(each)] = None
    if len(ids) > AFTER_LIMIT:
        hint = f"at most {AFTER_LIMIT:,}; let one item wait for some of them, and the next for that one"
        raise ConfigError(f"it names {len(ids):,} items", field="after", hint=hint)
    return tuple(ids)


def _instant(at: object) -> Instant | None:
    """Fractions of a millisecond are rounded up, so that nothing is ever early."""
    if at is None:
        return None
    if not isinstance(at, datetime):
        hint = "use a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)"
        raise ConfigError(f"{shown(at)} is not a datetime", field="at", hint=hint)
    if at.utcoffset() is None:
        hint = "say which one: datetime(..., tzinfo=UTC), or at.astimezone() for this machine's"
        raise ConfigError(f"{at.isoformat()} has no time zone", field="at", hint=hint)
    # What has passed is due at once, however long ago.
    return max(0, -((_EPOCH - at) // timedelta(milliseconds=1)))


def _priority(word: object) -> Priority:
    return Priority(one_of("priority", word, PRIORITIES))


def one_of(field: str, word: object, words: Collection[str]) -> str:
    if not isinstance(word, str) or word not in words:
        raise ConfigError(f"{shown(word)} is none of {', '.join(words)}", field=field, hint=_guess(word, words))
    return str(word)


def known_policy(policy: object, policies: Collection[str], asked_by: str = "") -> str:
    """What is stored: the name of a policy that is known, or the numbers of one."""
    if isinstance(policy, Policy | Mapping):
        return policy_text(policy)
    if not isinstance(policy, str):
        hint = "use Policy(...), a mapping such as {'max_attempts': 3}, or the name of a policy"
        raise ConfigError(f"{shown(policy)} is not a policy", field="policy", hint=hint)
    name = policy
    if not name:
        raise empty_policy("policy")
    if is_data(name):
        read(name)
    elif name not in policies:
        declare = f"declare it with app.policy({shown(name)}, Policy(...))"
        near = get_close_matches(name, list(policies), n=1)
        hint = f"did you mean {near[0]!r}? otherwise {declare}" if near else declare
        whose = f", which {asked_by} asks for" if asked_by else ""
        raise ConfigError(f"no policy {shown(name)} here{whose}", field="policy", hint=hint)
    return name


def empty_policy(field: str) -> ConfigError:
    return ConfigError("a policy must not be empty", field=field, hint="use None for no policy")


def _guess(word: object, words: Collection[str]) -> str:
    near = get_close_matches(word.lower(), list(words), n=1) if isinstance(word, str) else []
    return f"did you mean {near[0]!r}?" if near else f"use {next(iter(words))!r}"
