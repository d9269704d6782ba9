"""Declarations: the settings of queues, routes, gates and schedules in the code of an app, written when it opens.

Only settings that differ from those that the code declared the last time are written, so that a restart does not undo
what an operator changed, and a release with another value does. Why: ADR 21.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import UNSET, convert
from msgspec.structs import replace

from redrive.core import codec
from redrive.core.families import OWN_GATE, family_of
from redrive.core.gate import GateConfig
from redrive.core.schedule import Schedule
from redrive.core.verbs import Document, DocumentWrite, QueueChange
from redrive.engine.asks import known_policy
from redrive.engine.registry import Registry, unknown_queue
from redrive.errors import BadSchedule, ConfigError, Conflict
from redrive.office.gates import declare_gate
from redrive.office.policies import declare_policies
from redrive.office.schedules import declare_schedules
from redrive.office.settings import check_member, check_share, said
from redrive.stores.base import Store
from redrive.stores.checks import check_change

KIND = "declared"
TRIES = 10
logger = logging.getLogger("redrive")

Settings = dict[str, Any]


class Declarations:
    def __init__(self) -> None:
        self.queues: dict[str, QueueChange] = {}
        self.routes: dict[str, int | None] = {}
        self.gates: dict[str, GateConfig] = {}
        self.schedules: dict[str, Schedule] = {}
        self._said = 0
        self._written = 0

    @property
    def pending(self) -> bool:
        """Something was declared since the last write."""
        return self._said != self._written

    def copy(self) -> Declarations:
        other = Declarations()
        other.queues, other.routes, other.gates = dict(self.queues), dict(self.routes), dict(self.gates)
        other.schedules = dict(self.schedules)
        return other

    def queue(self, name: str, change: QueueChange) -> None:
        """Several may speak of one queue: its handler, and whoever limits it. Refuses what a store would refuse."""
        check_change(name, change)
        before = said(self.queues.get(name, QueueChange()))
        now = said(change)
        for field in before.keys() & now.keys():
            if before[field] != now[field]:
                hint = "declare it in one place"
                raise ConfigError(f"queue {name!r} has {before[field]!r} already", field=field, hint=hint)
        settings = {field: getattr(change, field) for field in now}
        self.queues[name] = replace(self.queues.get(name, QueueChange()), **settings)
        self._said += 1

    def policy(self) -> None:
        """The registry has it; that its name is to be written is noted here."""
        self._said += 1

    def route(self, name: str, capacity: int | None) -> None:
        self.routes[name] = capacity
        self._said += 1

    def gate(self, name: str, config: GateConfig) -> None:
        if self.gates.get(name, config) != config:
            hint = "declare it once, or use another name"
            raise ConfigError(f"{name!r} is declared otherwise already", field="gate", hint=hint)
        self.gates[name] = config
        self._said += 1

    def schedule(self, schedule: Schedule) -> None:
        if self.schedules.get(schedule.name, schedule) != schedule:
            hint = "declare it once, or use another name"
            raise BadSchedule(f"{schedule.name!r} is declared otherwise already", field="name", hint=hint)
        self.schedules[schedule.name] = schedule
        self._said += 1

    async def write(self, store: Store, registry: Registry) -> None:
        upto = self._said
        for policy, sayer in sorted(self._policies().items()):
            known_policy(policy, registry.policies, sayer)
        for queue, change in self.queues.items():
            check_share(queue, change, registry.declared)
            await check_member(store, queue, change)
        await declare_policies(store, registry.policies)
        # Before the queues that stand behind them.
        for name in sorted(self.gates.keys() | self._gates_of_queues() - {OWN_GATE}):
            await declare_gate(store, name, self.gates.get(name))
        for queue in sorted(registry.declared | self.queues.keys()):
            await self._write_queue(store, queue)
        for route, capacity in sorted(self.routes.items()):
            await _once(store, f"route:{route}", {"capacity": capacity}, _route_writer(store, route))
        await self._write_schedules(store, registry)
        self._written = upto

    def _policies(self) -> dict[str, str]:
        """Names of policies that were asked for, each with who asks for it."""
        named = {each.terms.policy: f"schedule {name!r}" for name, each in self.schedules.items() if each.terms}
        named |= {str(said.policy): f"queue {name!r}" for name, said in self.queues.items() if said.policy is not UNSET}
        return {policy: sayer for policy, sayer in named.items() if policy}

    def _gates_of_queues(self) -> set[str]:
        return {str(change.gate) for change in self.queues.values() if change.gate is not UNSET and change.gate}

    async def _write_queue(self, store: Store, queue: str) -> None:
        change = self.queues.get(queue)
        settings = {} if change is None else said(change)
        # Also a queue without settings is declared: its name is known from now on.
        await store.configure(queue, QueueChange())
        if settings:
            await _once(store, f"queue:{queue}", settings, _queue_writer(store, queue))

    async def _write_schedules(self, store: Store, registry: Registry) -> None:
        schedules = [self.schedules[name] for name in sorted(self.schedules)]
        elsewhere = {schedule.queue for schedule in schedules} - registry.declared
        known = {row.queue for row in (await store.tally()).queues} if elsewhere else set()
        elsewhere = {queue for queue in elsewhere if family_of(queue) not in registry.declared}
        for schedule in schedules:
            if schedule.queue in elsewhere - known:
                fix = f"register a handler for it, or declare it with app.queue({schedule.queue!r})"
                fix += f"; schedule {schedule.name!r} enqueues to it"
                raise unknown_queue(schedule.queue, registry.declared | known, fix)
        await declare_schedules(store, schedules)


Write = Callable[[Settings], Awaitable[Settings]]
"""Writes these, and tells which of them it could."""


async def _once(store: Store, key: str, settings: Settings, write: Write) -> None:
    document = await store.document(KIND, key)
    for _ in range(TRIES):
        last = _read(document)
        differs = {name: value for name, value in settings.items() if name not in last or last[name] != value}
        if not differs:
            return
        # First the setting, then that it was said: whoever dies in between says it again.
        written = await write(differs)
        version = 0 if document is None else document.version
        try:
            await store.write_documents([DocumentWrite(KIND, key, codec.encode(last | written), version)])
        except Conflict:
            document = await store.document(KIND, key)
        else:
            return
    raise Conflict(f"{key} is declared by others at the same time", hint="declare it in one place")


def _read(document: Document | None) -> Settings:
    return {} if document is None else codec.decode(document.body, Settings)


def _queue_writer(store: Store, queue: str) -> Write:
    async def write(settings: Settings) -> Settings:
        rest = {name: value for name, value in settings.items() if name != "capacity"}
        if rest:
            with codec.making:
                change = convert(rest, QueueChange)
            await store.configure(queue, change)
        if "capacity" not in settings:
            return rest
        capacity = settings["capacity"]
        if not await _fits(store.configure(queue, QueueChange(capacity=capacity)), f"queue {queue!r}"):
            return rest
        return settings

    return write


def _route_writer(store: Store, route: str) -> Write:
    async def write(settings: Settings) -> Settings:
        fits = await _fits(store.configure_route(route, settings["capacity"]), f"route {route!r}")
        return settings if fits else {}

    return write


async def _fits(writing: Awaitable[None], what: str) -> bool:
    """More than fits is there already. The workers that would mend it must be able to start: said, and tried again."""
    try:
        await writing
    except ConfigError as error:
        if error.field != "capacity":
            raise
        logger.warning("the declared capacity of %s is left as it was: %s", what, error)
        return False
    return True
