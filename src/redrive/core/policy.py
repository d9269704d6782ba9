"""What a queue allows: how long to wait, how often to try, and which errors are different. decide() obeys it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from msgspec.structs import replace

from redrive.core import classify as classifier
from redrive.core import durations
from redrive.core.backoff import Backoff, Custom, as_backoff, exponential
from redrive.core.classify import Rule, Verdict
from redrive.core.durations import Duration
from redrive.core.item import MOST_TRIES, Failure, Millis
from redrive.core.quantity import shown
from redrive.core.routes import RouteKey, Routes
from redrive.errors import ConfigError

DEFAULT_BACKOFF = exponential("1s", factor=2, cap="1h")
PATIENCE: Millis = 1000
"""What is given back, or kept because its route is full, comes again after no less: at once would be a busy loop."""
LIMITED_STEPS = 10
"""An item knows how often it was given back, but not why (rate limits, shutdowns, before a replay): so the wait after a
rate limit grows no further than this step of the backoff."""


class Policy:
    """Frozen. An item is dead after `max_attempts` errors, an error at `max_age` or older, or `max_crashes` crashes.

    `max_attempts` None means no such limit. `max_hint` bounds what the other side (Retry-After) may ask for. `routes`
    gives letters a label by error type or category, `route` gives one to all others. A plain class and not a Struct,
    because it takes durations as people write them and keeps milliseconds.
    """

    __slots__ = ("_by_name", "_routes", "backoff", "max_age", "max_attempts", "max_crashes", "max_hint", "rules")

    backoff: Backoff
    max_attempts: int | None
    max_age: Millis | None
    max_crashes: int
    max_hint: Millis
    rules: tuple[Rule, ...]
    _by_name: dict[str, Rule]
    _routes: Routes

    def __init__(
        self,
        backoff: Backoff | Custom = DEFAULT_BACKOFF,
        max_attempts: int | None = 25,
        *,
        max_age: Duration | None = None,
        max_crashes: int = 3,
        rules: Sequence[Rule] = (),
        max_hint: Duration = "1d",
        routes: Mapping[RouteKey, str] | None = None,
        route: str = "",
    ) -> None:
        named = _unique(_checked(rules))
        values = {
            "backoff": as_backoff(backoff),
            "max_attempts": None if max_attempts is None else _count(max_attempts, "max_attempts"),
            "max_age": None if max_age is None else _age(max_age),
            "max_crashes": _count(max_crashes, "max_crashes"),
            "max_hint": durations.parse(max_hint, field="max_hint"),
            "rules": named,
            "_by_name": {rule.name: rule for rule in named},
            "_routes": Routes({} if routes is None else routes, route),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Policy cannot be changed; make a new one to set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Policy cannot be changed; make a new one without {name}")

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"<Policy {self.describe()}>"

    def delay(self, errors: int, roll: float, rule_name: str) -> Millis | None:
        """The wait after error number `errors`, by the rule's own backoff where it has one. None: do not retry."""
        rule = self._by_name.get(rule_name)
        backoff = self.backoff if rule is None or rule.backoff is None else rule.backoff
        return backoff.delay(errors, roll)

    def crash_delay(self, crashes: int, roll: float) -> Millis:
        """Crashes have a limit of their own, so a backoff that never retries errors does not speak about them."""
        return self.backoff.delay(crashes, roll) or 0

    def limited_delay(self, given_back: int, roll: float, rule_name: str) -> Millis:
        """The wait after a rate limit that names none. It is no error: a backoff that never retries does not end it."""
        number = min(max(0, given_back) + 1, LIMITED_STEPS)
        delay = self.delay(number, roll, rule_name)
        return max(PATIENCE, DEFAULT_BACKOFF.delay(number, roll) or 0 if delay is None else delay)

    def route_of(self, failure: Failure) -> str:
        """The label of a letter that died of it."""
        return self._routes.of(failure)

    @property
    def route(self) -> str:
        """The label of letters that no entry of `routes` gives another."""
        return self._routes.usual

    @property
    def has_routes(self) -> bool:
        return len(self._routes.pairs) > 1

    def with_values(self, **values: Any) -> Policy:
        """A copy with another `backoff`, `max_attempts`, `max_age` (in milliseconds) or `route`; none is checked."""
        copied = Policy.__new__(Policy)
        if "route" in values:
            values["_routes"] = self._routes.with_usual(values.pop("route"))
        for name in Policy.__slots__:
            object.__setattr__(copied, name, values.get(name, getattr(self, name)))
        return copied

    def clamp(self, after: Millis) -> Millis:
        """A hint within reason: never negative, never above max_hint."""
        return max(0, min(after, self.max_hint))

    def ceiling(self, rule_name: str) -> int:
        """How many errors a never_dead rule forgives. An unknown rule, from an older release, has the usual ceiling."""
        rule = self._by_name.get(rule_name)
        return 1000 if rule is None or rule.ceiling is None else rule.ceiling

    def classify(self, error_type: type[BaseException] | None, code: str | None, text: str) -> Verdict:
        return classifier.classify(error_type, code, text, self.rules)

    def simulate(self, failures: int) -> list[Millis | None]:
        """The waits after the first `failures` errors, without jitter. None is the end: dead."""
        waits: list[Millis | None] = []
        for number in range(1, failures + 1):
            last = self.max_attempts is not None and number >= self.max_attempts
            # The middle roll is the one that jitter leaves alone.
            waits.append(None if last else self.backoff.delay(number, 0.5))
            if waits[-1] is None:
                break
        return waits

    def describe(self) -> str:
        """One line for people."""
        parts = [self.backoff.describe()]
        parts.append("any number of attempts" if self.max_attempts is None else f"{self.max_attempts} attempts")
        if self.max_age is not None:
            parts.append(f"for {durations.format(self.max_age)}")
        parts.append(f"{self.max_crashes} crashes")
        parts.extend(f"{rule.action} on {rule.name}" for rule in self.rules)
        parts.extend(f"{what or 'letters'} to {route}" for what, route in self._routes.pairs if route)
        return ", ".join(parts)

    def _values(self) -> tuple[Any, ...]:
        limits = (self.backoff, self.max_attempts, self.max_age, self.max_crashes, self.max_hint)
        return (*limits, self.rules, self._routes.pairs)


def _count(value: object, field: str) -> int:
    most = MOST_TRIES if field == "max_attempts" else None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        hint = "use a whole number of at least 1"
        if most is not None:
            hint = f"use a whole number from 1 to {most:,}, or None for no limit"
        raise ConfigError(f"{shown(value)} cannot be used", field=field, hint=hint)
    return value


def _age(value: Duration) -> Millis:
    age = durations.parse(value, field="max_age")
    if age == 0:
        raise ConfigError(
            "no item is younger than 0", field="max_age", hint="use never() for no retry, None for no limit"
        )
    return age


def _checked(rules: object) -> tuple[Rule, ...]:
    hint = "give a list of retry_on(...), dead_on(...), never_dead(...) and rate_limited(...)"
    if not isinstance(rules, Iterable):
        raise ConfigError(f"{shown(rules)} is not a list of rules", field="rules", hint=hint)
    checked = []
    for rule in rules:
        if not isinstance(rule, Rule):
            raise ConfigError(f"{shown(rule)} is not a rule", field="rules", hint=hint)
        checked.append(rule)
    return tuple(checked)


def _unique(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Failures remember rules by name, so two rules of one policy must not share one."""
    taken: set[str] = set()
    named = []
    for rule in rules:
        name, number = rule.name, 1
        while name in taken:
            number += 1
            name = f"{rule.name}#{number}"
        taken.add(name)
        named.append(rule if name == rule.name else replace(rule, name=name))
    return tuple(named)
