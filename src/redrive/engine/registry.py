"""Which function handles which queue, and how a payload becomes its arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from redrive.core import codec, durations
from redrive.core.families import family_of, is_family, served
from redrive.core.item import Item, Millis
from redrive.core.policy import Policy
from redrive.core.policy_data import resolve
from redrive.core.select import And, Match, Or, Selection
from redrive.core.verbs import QueueTally
from redrive.errors import ConfigError, PayloadUndecodable, UnknownQueue
from redrive.stores.checks import check_pattern

Function = Callable[..., Any]
QUEUE_NAME_LIMIT = 128
OUTBOX = "redrive.outbox."
"""What the names of outbox queues begin with (`engine.outbox`)."""


def ready_of(handler: Handler, queue: str) -> Selection | None:
    """The ready items of a queue that the handler serves, of its kinds; None if it has them all."""
    if handler.kinds is None:
        return None
    kinds = Or(tuple([Match("kind", "=", kind) for kind in handler.kinds]))
    return And((Match("queue", "=", queue), Match("state", "=", "ready"), kinds))


def is_outbox(queue: str) -> bool:
    return queue.startswith(OUTBOX)


def user_queue_name(name: object) -> str:
    """As `check_queue_name`, for a queue that a user declares or handles."""
    queue = check_queue_name(name)
    check_pattern(queue)
    if queue == "*":
        raise ConfigError(
            "'*' is not a queue name", field="queue", hint="name each queue, or a family such as webhook:*"
        )
    if is_outbox(queue):
        raise outbox_refused(queue)
    return queue


def outbox_refused(queue: str) -> ConfigError:
    target = queue.removeprefix(OUTBOX)
    hint = f"register the target with app.outbox({target!r}, deliver), and use app.follow_up with the name it returns"
    return ConfigError(f"{queue!r} is the outbox queue of target {target!r}", field="queue", hint=hint)


def unknown_outbox(queue: str) -> ConfigError:
    target = queue.removeprefix(OUTBOX)
    hint = f"register the target with app.outbox({target!r}, deliver), or app.outbox({target!r}) if others deliver"
    return ConfigError(f"{queue!r} is not declared here", field="queue", hint=hint)


def check_queue_name(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > QUEUE_NAME_LIMIT or not name.isprintable() or " " in name:
        hint = f"use 1 to {QUEUE_NAME_LIMIT} printable characters without blanks"
        raise ConfigError(f"{name!r} is not a queue name", field="queue", hint=hint)
    return name


def check_kind(name: object) -> str:
    """As the name of a queue: a worker's heartbeat names both."""
    if not isinstance(name, str) or not name or len(name) > QUEUE_NAME_LIMIT or not name.isprintable() or " " in name:
        hint = f"use 1 to {QUEUE_NAME_LIMIT} printable characters without blanks, or leave it out"
        raise ConfigError(f"{name!r} is not a kind", field="kind", hint=hint)
    return str(name)


class Signature:
    """How to call a handler. Read once at registration: a call per item must not inspect anything."""

    def __init__(self, function: Function) -> None:
        self.item_name: str | None = None
        self.raw_name: str | None = None
        self.names: set[str] = set()
        self.required: set[str] = set()
        self.open = False
        self.first: str | None = None
        hints = _hints(function)
        for parameter in inspect.signature(function).parameters.values():
            self._add(parameter, hints.get(parameter.name, parameter.annotation))

    def _add(self, parameter: inspect.Parameter, hint: object) -> None:
        if parameter.kind is parameter.VAR_KEYWORD:
            self.open = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            hint_text = "name its parameters, so that the payload's keys can be passed by name"
            raise ConfigError(f"parameter {parameter.name!r} cannot be passed by name", field="handler", hint=hint_text)
        elif hint in (Item, "Item"):
            self.item_name = parameter.name
        elif hint in (bytes, "bytes") and not self.names:
            self.raw_name = parameter.name
            self.names.add(parameter.name)
        else:
            self.first = self.first or parameter.name
            self.names.add(parameter.name)
            if parameter.default is parameter.empty:
                self.required.add(parameter.name)

    def arguments(self, item: Item) -> dict[str, Any]:
        """Raises PayloadUndecodable if the payload does not fit."""
        arguments = self._from_payload(item.payload) if self.names or self.open else {}
        if self.item_name is not None:
            arguments[self.item_name] = item
        return arguments

    def _from_payload(self, payload: bytes) -> dict[str, Any]:
        if self.raw_name is not None and len(self.names) == 1:
            return {self.raw_name: payload}
        value = codec.load_payload(payload)
        if isinstance(value, dict):
            # By far the most frequent case: exactly the names the handler takes.
            return value if value.keys() == self.names else self._fit(value)
        if value is None and not self.required:
            return {}
        if self.first is not None and self.required <= {self.first}:
            return {self.first: value}
        raise PayloadUndecodable(f"the payload is a {type(value).__name__}, the handler needs {self._wanted()}")

    def _fit(self, value: dict[str, Any]) -> dict[str, Any]:
        # A key with the name of the item's parameter would be overwritten by it in silence.
        extra = sorted(value.keys() & {self.item_name} if self.open else value.keys() - self.names)
        if self.required <= value.keys() and not extra:
            return value
        missing = sorted(self.required - value.keys())
        parts = [f"misses {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(extra)}"] * bool(extra)
        raise PayloadUndecodable(f"the payload {' and '.join(parts)}; the handler takes {self._wanted()}")

    def _wanted(self) -> str:
        return ", ".join(sorted(self.names)) or "nothing"


def _hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - a hint that cannot be resolved here is no reason to refuse the handler
        return {}


@dataclass(frozen=True, slots=True)
class Handler:
    """Of a queue, or of one `kind` of it. `others`: the handlers of the queue for kinds of their own; where this one
    has no kind, it serves all the rest. `given`: which of lease and concurrency were given, not defaults. `is_member`:
    it is that of a family, for one member, which may not exist yet.
    """

    queue: str
    function: Function
    policy: Policy
    lease: Millis
    timeout: Millis | None
    concurrency: int
    is_async: bool
    signature: Signature
    max_result: int | None = None
    kind: str | None = None
    given: frozenset[str] = frozenset()
    others: Mapping[str, Handler] = field(default_factory=dict)
    is_member: bool = False

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """What a lease asks for; None for all."""
        return None if self.kind is None else tuple(sorted({self.kind, *self.others}))

    @property
    def everyone(self) -> tuple[Handler, ...]:
        """Itself and those of other kinds."""
        return (self, *self.others.values())

    @property
    def all_async(self) -> bool:
        return all(each.is_async for each in self.everyone)

    def takes(self, kind: str) -> bool:
        return self.kind is None or kind == self.kind or kind in self.others

    def for_kind(self, kind: str) -> Handler:
        """Of a kind that none has: itself, which judges what a lost worker had."""
        return self.others.get(kind, self)

    def of_member(self, queue: str) -> Handler:
        """The handler of a family, for one member alone."""
        others = {kind: replace(each, queue=queue) for kind, each in self.others.items()}
        return replace(self, queue=queue, others=others, is_member=True)

    def call(self, arguments: dict[str, Any]) -> Awaitable[Any] | Any:
        return self.function(**arguments)


def handler_of(handlers: Mapping[str, Handler], queue: str) -> Handler:
    """That of the queue, or of the family it belongs to."""
    handler = handlers.get(queue)
    return handlers[family_of(queue)] if handler is None else handler


class Registry:
    """Handlers by queue, queues and outbox queues that are declared without a handler here, and policies by name."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self._by_kind: dict[str, dict[str | None, Handler]] = {}
        self.declared: set[str] = set()
        self.outboxes: set[str] = set()
        self.policies: dict[str, Policy] = {}

    def copy(self) -> Registry:
        other = Registry()
        other.handlers, other.policies = dict(self.handlers), dict(self.policies)
        other.declared, other.outboxes = set(self.declared), set(self.outboxes)
        other._by_kind = {queue: dict(each) for queue, each in self._by_kind.items()}
        return other

    def add(self, handler: Handler) -> None:
        for other in self.handlers:
            if handler.queue == family_of(other) or other == family_of(handler.queue):
                hint = "give a family one handler, or each of its members its own"
                raise ConfigError(f"{handler.queue!r} and {other!r} are of one family", field="queue", hint=hint)
        there = self._by_kind.get(handler.queue, {})
        if handler.kind in there:
            hint = "give each queue one handler" if handler.kind is None else "give each kind of a queue one handler"
            of_kind = "" if handler.kind is None else f" for kind {handler.kind!r}"
            raise ConfigError(f"{handler.queue!r} has a handler{of_kind} already", field="queue", hint=hint)
        parts = {**there, handler.kind: handler}
        self.handlers[handler.queue] = _joined(parts)
        self._by_kind[handler.queue] = parts
        if not is_outbox(handler.queue):
            self.declared.add(handler.queue)

    def knows(self, queue: str) -> bool:
        """Whether items may be put into it: it, its family or its target is declared here."""
        if is_family(queue):
            return False
        return bool(served(tuple(self.declared), queue)) or queue in self.outboxes

    def name_policy(self, name: str, policy: Policy) -> None:
        if self.policies.setdefault(name, policy) != policy:
            hint = "give each policy a name of its own"
            raise ConfigError(f"{name!r} names another policy already", field="policy", hint=hint)

    def policy_of(self, item: Item, row: QueueTally) -> tuple[Policy, str] | None:
        """The one that judges it, as far as this app knows: its own, else its queue's, else its handler's; and which
        names were passed over.
        """
        handler = self.handlers.get(item.queue) or self.handlers.get(family_of(item.queue))
        handler = handler.for_kind(item.kind) if handler is not None and handler.takes(item.kind) else None
        texts = (row.settings.policy, "" if item.terms is None else item.terms.policy)
        if handler is None and not any(text in self.policies for text in texts):
            return None
        return resolve(Policy() if handler is None else handler.policy, self.policies, *texts)

    def choose(self, queues: Iterable[str] | None) -> dict[str, Handler]:
        """The handlers to run: all, or those named; and those of outbox queues in any case.

        A member of a family may be named: it alone is served, by the handler of the family.
        """
        if queues is None:
            if not self.handlers:
                raise ConfigError("no handler is registered", field="handler", hint="decorate one with @app.handler")
            return dict(self.handlers)
        wanted = [] if isinstance(queues, str) else list(queues)
        if not wanted:
            hint = "give a list of queue names, or leave it out for all"
            raise ConfigError(f"{queues!r} names no queues", field="queues", hint=hint)
        chosen: dict[str, Handler] = {}
        for queue in wanted:
            by = served(tuple(self.handlers), queue)
            if not by:
                raise unknown_queue(queue, self.handlers, "register a handler for it with @app.handler")
            if by == queue:
                chosen[queue] = self.handlers[by]
            elif by not in wanted:
                chosen[queue] = self.handlers[by].of_member(user_queue_name(queue))
        return chosen | {queue: each for queue, each in self.handlers.items() if is_outbox(queue)}


def _joined(parts: Mapping[str | None, Handler]) -> Handler:
    """The handlers of a queue as one. Lease, concurrency and max_crashes are the queue's, whichever of them gave it."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    every = list(parts.values())
    lease = _shared("lease", [each for each in every if "lease" in each.given], durations.format, every[0])
    slots = _shared("concurrency", [each for each in every if "concurrency" in each.given], str, None)
    usual = Policy().max_crashes
    crashes = {each.kind: each.policy.max_crashes for each in every if each.policy.max_crashes != usual}
    if len(set(crashes.values())) > 1:
        raise _contradiction("max_crashes", every[0].queue, {kind: str(most) for kind, most in crashes.items()})
    shared = {
        kind: replace(
            each,
            lease=lease,
            concurrency=slots or min(one.concurrency for one in every),
            policy=each.policy.with_values(max_crashes=next(iter(crashes.values()), usual)),
        )
        for kind, each in parts.items()
    }
    first = shared[None if None in shared else every[0].kind]
    return replace(first, others={kind: each for kind, each in shared.items() if kind is not None})


def _shared(name: str, given: Sequence[Handler], said: Callable[[int], str], default: Handler | None) -> int:
    values = {each.kind: getattr(each, name) for each in given}
    if len(set(values.values())) > 1:
        raise _contradiction(name, given[0].queue, {kind: said(value) for kind, value in values.items()})
    return next(iter(values.values()), 0 if default is None else getattr(default, name))


def _contradiction(name: str, queue: str, values: Mapping[str | None, str]) -> ConfigError:
    told = " and ".join(
        f"{value} by the handler {'without a kind' if kind is None else f'of kind {kind!r}'}"
        for kind, value in values.items()
    )
    hint = f"{name} is the queue's: give it to one handler, or the same to all"
    return ConfigError(f"{queue!r} has {told}", field=name, hint=hint)


def unknown_queue(queue: str, known: Iterable[str], fix: str, *, what: str = "queue") -> UnknownQueue:
    near = get_close_matches(queue, [name for name in known if is_family(name) or not is_family(queue)], n=1)
    guess = f"did you mean {near[0]!r}? otherwise " if near else ""
    return UnknownQueue(f"no {what} {queue!r}", hint=f"{guess}{fix}")
