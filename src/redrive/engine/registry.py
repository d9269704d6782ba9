"""Which function handles which queue, and how a payload becomes its arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from redrive.core import codec
from redrive.core.item import Item, Millis
from redrive.core.policy import Policy
from redrive.core.policy_data import resolve
from redrive.core.verbs import QueueTally
from redrive.errors import ConfigError, PayloadUndecodable, UnknownQueue

Function = Callable[..., Any]
QUEUE_NAME_LIMIT = 128
OUTBOX = "redrive.outbox."
"""What the names of outbox queues begin with (`engine.outbox`)."""


def is_outbox(queue: str) -> bool:
    return queue.startswith(OUTBOX)


def user_queue_name(name: object) -> str:
    """As `check_queue_name`, for a queue that a user declares or handles."""
    queue = check_queue_name(name)
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
    queue: str
    function: Function
    policy: Policy
    lease: Millis
    timeout: Millis | None
    concurrency: int
    is_async: bool
    signature: Signature
    max_result: int | None = None

    def call(self, arguments: dict[str, Any]) -> Awaitable[Any] | Any:
        return self.function(**arguments)


class Registry:
    """Handlers by queue, queues and outbox queues that are declared without a handler here, and policies by name."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.declared: set[str] = set()
        self.outboxes: set[str] = set()
        self.policies: dict[str, Policy] = {}

    def copy(self) -> Registry:
        other = Registry()
        other.handlers, other.policies = dict(self.handlers), dict(self.policies)
        other.declared, other.outboxes = set(self.declared), set(self.outboxes)
        return other

    def add(self, handler: Handler) -> None:
        if handler.queue in self.handlers:
            hint = "give each queue one handler"
            raise ConfigError(f"{handler.queue!r} has a handler already", field="queue", hint=hint)
        self.handlers[handler.queue] = handler
        if not is_outbox(handler.queue):
            self.declared.add(handler.queue)

    def name_policy(self, name: str, policy: Policy) -> None:
        if self.policies.setdefault(name, policy) != policy:
            hint = "give each policy a name of its own"
            raise ConfigError(f"{name!r} names another policy already", field="policy", hint=hint)

    def policy_of(self, item: Item, row: QueueTally) -> tuple[Policy, str] | None:
        """The one that judges it, as far as this app knows: its own, else its queue's, else its handler's; and which
        names were passed over.
        """
        handler = self.handlers.get(item.queue)
        texts = (row.settings.policy, "" if item.terms is None else item.terms.policy)
        if handler is None and not any(text in self.policies for text in texts):
            return None
        return resolve(Policy() if handler is None else handler.policy, self.policies, *texts)

    def choose(self, queues: Iterable[str] | None) -> dict[str, Handler]:
        """The handlers to run: all, or those named; and those of outbox queues in any case."""
        if queues is None:
            if not self.handlers:
                raise ConfigError("no handler is registered", field="handler", hint="decorate one with @app.handler")
            return dict(self.handlers)
        wanted = [] if isinstance(queues, str) else list(queues)
        if not wanted:
            hint = "give a list of queue names, or leave it out for all"
            raise ConfigError(f"{queues!r} names no queues", field="queues", hint=hint)
        for queue in wanted:
            if queue not in self.handlers:
                raise unknown_queue(queue, self.handlers, "register a handler for it with @app.handler")
        outboxes = {queue: each for queue, each in self.handlers.items() if is_outbox(queue)}
        return {queue: self.handlers[queue] for queue in wanted} | outboxes


def unknown_queue(queue: str, known: Iterable[str], fix: str, *, what: str = "queue") -> UnknownQueue:
    near = get_close_matches(queue, list(known), n=1)
    guess = f"did you mean {near[0]!r}? otherwise " if near else ""
    return UnknownQueue(f"no {what} {queue!r}", hint=f"{guess}{fix}")
