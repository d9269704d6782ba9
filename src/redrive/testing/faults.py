"""A store that fails when it is told to.

    faulty = FaultyStore(MemoryStore(clock))
    faulty.next("settle", Fault.UNKNOWN)            # the next settle is done, but the caller is told that nobody knows
    faulty.fail("lease", times=3)                   # the next three leases are not done
    hold = faulty.hold("settle")                    # the next settle waits until hold.release()
    faulty.crash_at(7)                              # the process is dead from its seventh point on

Unscripted calls go through untouched.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection
from enum import Enum
from typing import Literal, NamedTuple

from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.base import Store
from redrive.testing._relay import Answer, P, Relay


class Fault(Enum):
    UNAVAILABLE = "not done; StoreUnavailable"
    UNKNOWN = "done; OutcomeUnknown"
    UNKNOWN_UNDONE = "not done; OutcomeUnknown"
    DUPLICATE = "done twice, as after a repeated request; the second answer"


class SimulatedCrash(BaseException):
    """The process is gone. No `except Exception` holds it up, and after it the store answers nobody."""


class Call(NamedTuple):
    """A call that reached the faulty store; `number` counts the calls of this verb from 1."""

    verb: str
    number: int
    args: tuple[object, ...]
    kwargs: dict[str, object]


class Point(NamedTuple):
    """A place where a process can die: before or after a call has its effect. `number` counts from 1."""

    number: int
    verb: str
    when: Literal["before", "after"]


class Hold:
    """A call that waits. `reached` is set when it has come; `release()` lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    async def pass_through(self) -> None:
        self.reached.set()
        await self._released.wait()


class FaultyStore(Relay):
    """Wraps any store. `calls` has every call in order; `points` counts the points passed.

    `counted` are the verbs that have points (None: all): leave out those whose number depends on timing, such as wait.
    """

    def __init__(self, store: Store, *, counted: Collection[str] | None = None) -> None:
        super().__init__(store)
        self.calls: list[Call] = []
        self.points = 0
        self.crashed = False
        self._counted = counted
        self._numbers: Counter[str] = Counter()
        self._next: dict[str, deque[Fault]] = defaultdict(deque)
        self._at: dict[tuple[str, int], Fault] = {}
        self._always: dict[str, Fault] = {}
        self._holds: dict[tuple[str, str], deque[Hold]] = defaultdict(deque)
        self._actions: dict[int, Callable[[Point], None]] = {}

    # --- the script ---

    def next(self, verb: str, *faults: Fault) -> None:
        """The next calls of the verb meet these faults, one each, after those scripted before."""
        self._next[_known(verb)].extend(faults)

    def at(self, verb: str, number: int, fault: Fault) -> None:
        """The call of that number (counted from 1 since the store was wrapped) meets the fault."""
        self._at[_known(verb), number] = fault

    def fail(self, verb: str, fault: Fault = Fault.UNAVAILABLE, *, times: int | None = None) -> None:
        """So many calls meet the fault; None: all, until `heal`."""
        if times is None:
            self._always[_known(verb)] = fault
        else:
            self.next(verb, *[fault] * times)

    def heal(self, verb: str | None = None) -> None:
        """Forget the faults scripted for the verb, or for all. Holds and crash points stay."""
        for script in (self._next, self._always):
            if verb is None:
                script.clear()
            else:
                script.pop(verb, None)
        self._at = {key: fault for key, fault in self._at.items() if verb is not None and key[0] != verb}

    def hold(self, verb: str, when: Literal["before", "after"] = "before") -> Hold:
        """The next call of the verb that nobody holds yet waits: before it is done, or between doing and answering."""
        hold = Hold()
        self._holds[_known(verb), when].append(hold)
        return hold

    def crash_at(self, point: int, action: Callable[[Point], None] | None = None) -> None:
        """At this point call the action (it may raise, or kill the process); without one, a SimulatedCrash."""
        self._actions[point] = self._crash if action is None else action

    def _crash(self, point: Point) -> None:
        self.crashed = True
        raise SimulatedCrash(f"at point {point.number}, {point.when} {point.verb}")

    def calls_of(self, verb: str) -> list[Call]:
        return [call for call in self.calls if call.verb == _known(verb)]

    # --- the play ---

    async def relay(self, verb: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs) -> Answer:
        name = verb.__name__
        if self.crashed:
            raise SimulatedCrash(f"{name} by a process that is dead")
        self._numbers[name] += 1
        self.calls.append(Call(name, self._numbers[name], args, kwargs))
        fault = self._fault(name, self._numbers[name])
        await self._held(name, "before")
        self._pass(name, "before")
        if fault is Fault.UNAVAILABLE:
            raise StoreUnavailable(f"{name}: scripted, nothing was done")
        if fault is Fault.UNKNOWN_UNDONE:
            raise OutcomeUnknown(f"{name}: scripted, it was not done")
        answer = await verb(*args, **kwargs)
        if fault is Fault.DUPLICATE:
            answer = await verb(*args, **kwargs)
        self._pass(name, "after")
        await self._held(name, "after")
        if fault is Fault.UNKNOWN:
            raise OutcomeUnknown(f"{name}: scripted, it was done")
        return answer

    def _fault(self, verb: str, number: int) -> Fault | None:
        """The most precise script wins; the others wait for their turn."""
        if (verb, number) in self._at:
            return self._at.pop((verb, number))
        if self._next[verb]:
            return self._next[verb].popleft()
        return self._always.get(verb)

    async def _held(self, verb: str, when: str) -> None:
        holds = self._holds[verb, when]
        if holds:
            await holds.popleft().pass_through()
            if self.crashed:
                raise SimulatedCrash(f"{verb} by a process that died while it was held")

    def _pass(self, verb: str, when: Literal["before", "after"]) -> None:
        if self._counted is not None and verb not in self._counted:
            return
        self.points += 1
        action = self._actions.pop(self.points, None)
        if action is not None:
            action(Point(self.points, verb, when))


def _known(verb: str) -> str:
    """A script for a verb that does not exist would never play, and its test would pass for nothing."""
    if verb.startswith("_") or not hasattr(Relay, verb) or verb in {"open", "close", "info", "relay"}:
        raise ValueError(f"{verb!r} is not a verb of a store")
    return verb
