"""The simulated network between one process and the store: delay, errors, lost and late answers, partitions, crashes.

Before and after every store call the seed decides what happens to it. What the store did is noted here, where no
answer is lost: which process holds which lease, and whether it tried to extend it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from redrive.core.families import family_of
from redrive.core.item import Item, Millis
from redrive.core.verbs import LeaseRequest, Settled
from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.base import Store
from redrive.testing._relay import Answer, P, Relay
from redrive.testing.faults import SimulatedCrash
from tests.support.simulation.loop import Process

if TYPE_CHECKING:
    from tests.support.simulation.world import World

READS = frozenset(
    {"get", "find", "ids", "tally", "causes", "changes", "tombstone", "settings", "gates", "gate", "workers", "wait"}
    | {"document", "documents", "journal", "check"}
)

A_REPEAT: Millis = 200
"""What a failure costs a caller that asks again."""
LONGEST_PAUSE: Millis = 5_000
"""After many failures the engine asks again so much later."""


class Fault(Enum):
    ERROR = "not applied; StoreUnavailable"
    LOST = "applied; the answer is lost"
    LATE = "applied later; OutcomeUnknown at once"
    SLOW = "the request or its answer takes long"
    CRASH_BEFORE = "the process dies before it is applied"
    CRASH_AFTER = "the process dies after it was applied"


@dataclass(frozen=True)
class Hold:
    """A lease as the store gave it."""

    process: Process
    since: Millis
    ttl: Millis


class Wire(Relay):
    """One process's way to the store."""

    def __init__(self, store: Store, world: World, process: Process) -> None:
        super().__init__(store)
        self._world = world
        self._process = process
        self._cut_until: Millis = 0
        self._settles = 0
        self._again = False

    @property
    def unsettled(self) -> bool:
        """A result is on its way, or will be sent again."""
        return self._settles > 0 or self._again

    async def open(self) -> Self:
        return self

    async def close(self) -> None:
        return

    def cut(self, duration: Millis) -> None:
        self._cut_until = self._world.now + duration
        self._disturb(duration + LONGEST_PAUSE)

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        world, name = self._world, verb.__name__
        if world.over:
            raise SimulatedCrash("the simulation is over")
        fault = world.weather.draw(name)
        self._look(name, args)
        if name != "settle":
            return await self._carried(fault, verb, name, *args, **kwargs)
        self._settles += 1
        self._again = True
        try:
            answer = await self._carried(fault, verb, name, *args, **kwargs)
            self._again = False
            return answer
        finally:
            self._settles -= 1

    async def _carried(
        self,
        fault: Fault | None,
        verb: Callable[P, Awaitable[Answer]],
        name: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Answer:
        world = self._world
        await self._travel(fault, name)
        await self._fail_before(fault, name)
        if fault is Fault.LATE:
            world.note(self._process, name, "is late")
            self._disturb(2 * world.plan.lease + LONGEST_PAUSE)
            world.deliver_late(self._apply(verb, name, *args, **kwargs))
            raise OutcomeUnknown(f"{name}: connection reset")
        answer = await self._apply(verb, name, *args, **kwargs)
        if fault is Fault.CRASH_AFTER:
            await self._die(name, "dies after it")
        await self._travel(fault, name)
        if fault is Fault.LOST or self._is_cut():
            raise self._lost(name, args, answer)
        return answer

    def _look(self, name: str, args: Sequence[Any]) -> None:
        leases, request = self._world.leases, _lease_request(name, args)
        if name == "extend":
            leases.extending(args)
        elif request is not None:
            for item_id in leases.asking(self._process, request):
                why = f"{self._process.name} was not told of its lease, and does not ask again"
                self._world.found["abandoned"][item_id] = why

    async def _fail_before(self, fault: Fault | None, name: str) -> None:
        if self._is_cut():
            self._world.note(self._process, name, "cut off")
            await self._time_out()
            raise StoreUnavailable(f"{name}: no connection")
        if fault is Fault.ERROR:
            self._world.note(self._process, name, "error")
            self._disturb(A_REPEAT)
            raise StoreUnavailable(f"{name}: connection refused")
        if fault is Fault.CRASH_BEFORE:
            await self._die(name, "dies before it")

    def _lost(self, name: str, args: Sequence[Any], answer: object) -> StoreUnavailable | OutcomeUnknown:
        """The answer does not arrive."""
        self._world.note(self._process, name, "answer lost")
        self._disturb(A_REPEAT)
        request = _lease_request(name, args)
        if name == "reclaim":
            self._world.leases.unanswered(answer)
        elif request is not None:
            self._world.leases.lost(self._process, request)
        return (StoreUnavailable if name in READS else OutcomeUnknown)(f"{name}: connection lost")

    async def _apply(
        self, verb: Callable[P, Awaitable[Answer]], name: str, *args: P.args, **kwargs: P.kwargs
    ) -> Answer:
        if name == "put":
            self._world.check_put(args)
        answer = await verb(*args, **kwargs)
        self._world.leases.applied(self._process, name, args, answer, self._world.now)
        self._world.note(self._process, name, brief(name, args, answer))
        return answer

    def _is_cut(self) -> bool:
        return self._world.now < self._cut_until

    def _disturb(self, duration: Millis) -> None:
        self._process.disturbed.append((self._world.now, duration))

    async def _travel(self, fault: Fault | None, name: str) -> None:
        if name == "wait":
            return
        duration = self._world.weather.delay(fault)
        if fault is Fault.SLOW:
            self._disturb(duration)
        if duration:
            await asyncio.sleep(duration / 1000)  # noqa: TID251 - simulated time

    async def _time_out(self) -> None:
        left = max(1, self._cut_until - self._world.now)
        await asyncio.sleep(min(left, 2_000) / 1000)  # noqa: TID251 - simulated time

    async def _die(self, name: str, how: str) -> None:
        self._world.note(self._process, name, how)
        self._world.crash(self._process)
        await asyncio.get_running_loop().create_future()


class LeaseBook:
    """What the store gave to whom, as it was applied: also where the answer was lost."""

    def __init__(self) -> None:
        self.holds: dict[tuple[str, int], Hold] = {}
        self.tried: set[tuple[str, int]] = set()
        self._given: dict[str, tuple[str, ...]] = {}
        self._lost: dict[int, str] = {}

    def extending(self, args: Sequence[Any]) -> None:
        self.tried.update((held.id, held.delivery) for held in args[0])

    def lost(self, process: Process, request: LeaseRequest) -> None:
        """The answer to this request did not arrive."""
        self._lost[process.pid] = request.nonce

    def asking(self, process: Process, request: LeaseRequest) -> tuple[str, ...]:
        """What was leased in vain, if this is not the request whose answer was lost."""
        nonce = self._lost.pop(process.pid, request.nonce)
        return self._given.get(nonce, ()) if nonce != request.nonce else ()

    def applied(self, process: Process, name: str, args: Sequence[Any], answer: object, now: Millis) -> None:
        request = _lease_request(name, args)
        if request is not None:
            self._leased(process, request, answer if name == "lease" else getattr(answer, "leases", None), now)
        elif name == "reclaim":
            for item in answer:  # type: ignore[attr-defined]
                self.holds[item.id, item.deliveries] = Hold(process, now, args[2])

    def unanswered(self, reclaimed: Any) -> None:
        """A reclaim has no nonce: whoever asks again does not learn what the first took, which lapses once more."""
        for item in reclaimed:
            self.holds.pop((item.id, item.deliveries), None)

    def _leased(self, process: Process, request: LeaseRequest, leases: Any, now: Millis) -> None:
        self._given.setdefault(request.nonce, tuple(item.id for item in leases.items))
        ttls = {want.queue: want.ttl for want in request.wants}
        for item in leases.items:
            queue = item.queue if item.queue in ttls else family_of(item.queue)
            self.holds.setdefault((item.id, item.deliveries), Hold(process, now, ttls[queue]))


def _lease_request(name: str, args: Sequence[Any]) -> LeaseRequest | None:
    if name == "lease":
        return args[0]  # type: ignore[no-any-return]
    return args[1] if name == "settle" else None


def brief(name: str, args: Sequence[Any], answer: object) -> str:
    """What a call was about, for the trace and the history hash."""
    match name:
        case "put":
            return " ".join(item.id for item in args[0])
        case "lease" | "reclaim":
            items: tuple[Item, ...] = answer.items if name == "lease" else answer  # type: ignore[attr-defined,assignment]
            return " ".join(f"{item.id}/{item.deliveries}" for item in items)
        case "settle":
            return _settled(answer, args)
        case "extend":
            lost = getattr(answer, "lost", ())
            return " ".join(f"{one.id}/{one.delivery}{' lost' * (one.id in lost)}" for one in args[0])
        case "amend":
            return f"{type(args[1]).__name__} {getattr(answer, 'changed', ())}"
        case _:
            return ""


def _settled(answer: object, args: Sequence[Any]) -> str:
    assert isinstance(answer, Settled)
    told = [
        f"{one.id}/{one.delivery} {type(one.decision).__name__} {said.verdict}"
        for one, said in zip(args[0], answer.answers, strict=True)
    ]
    if answer.leases is not None and answer.leases.items:
        told.append("then " + " ".join(f"{item.id}/{item.deliveries}" for item in answer.leases.items))
    return ", ".join(told)
