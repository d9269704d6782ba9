"""How long to wait after the n-th failure: exact integers, no clock, and the roll of the dice passed in.

Jitter is off by default, so that a schedule is what it says. Every delay lies between 0 and the cap; without a cap the
limit is durations.MAX, which also keeps the arithmetic finite at the millionth failure.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Literal, assert_never

from msgspec import Struct

from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.errors import ConfigError

FALLBACK: Millis = 60_000
"""What a custom function that raises or answers rubbish is worth. Its bug is not the item's: killing the item would
lose work, and no delay at all would make a busy loop. A minute does neither."""

Kind = Literal["never", "constant", "linear", "exponential", "custom"]
Custom = Callable[[int], Duration | None]


class Backoff(Struct, frozen=True):
    """Made by the functions below; the fields are for reading."""

    kind: Kind
    base: Millis = 0
    step: Millis = 0
    factor: int | float = 1
    cap: Millis | None = None
    jitter: float = 0.0
    function: Custom | None = None

    def delay(self, failures: int, roll: float) -> Millis | None:
        """The wait after failure number `failures` (from 1), None for no retry. `roll` in [0, 1] places the jitter."""
        if self.kind == "never":
            return None
        number = max(1, failures)
        if self.function is not None:
            return _ask(self.function, number)
        limit = durations.MAX if self.cap is None else self.cap
        return self._jittered(self._base_delay(number, limit), limit, roll)

    def describe(self) -> str:
        """One line for people: `exponential 1s x2 up to 1h`."""
        base = durations.format(self.base)
        match self.kind:
            case "never":
                return "never"
            case "custom":
                return f"custom {getattr(self.function, '__qualname__', type(self.function).__qualname__)}"
            case "constant":
                text = f"constant {base}" if self.base else "immediate"
            case "linear":
                text = f"linear {base}" if self.step == self.base else f"linear {base} + {durations.format(self.step)}"
            case "exponential":
                text = f"exponential {base} x{self.factor:g}"
            case _:
                assert_never(self.kind)
        if self.cap is not None:
            text += f" up to {durations.format(self.cap)}"
        return f"{text}, jitter {self.jitter:.0%}" if self.jitter else text

    def _base_delay(self, number: int, limit: Millis) -> Millis:
        if self.kind == "exponential":
            return _power(self.base, self.factor, number - 1, limit)
        return min(self.base + self.step * (number - 1), limit)

    def _jittered(self, base: Millis, limit: Millis, roll: float) -> Millis:
        if not self.jitter:
            return base
        # A roll outside [0, 1], or none at all (NaN), must not carry the delay out of its bounds.
        fair = roll if 0 <= roll <= 1 else 0.5
        return max(0, min(round(base * (1 + self.jitter * (2 * fair - 1))), limit))


def never() -> Backoff:
    """The first error is the last."""
    return Backoff("never")


def immediate() -> Backoff:
    """Retry at once."""
    return Backoff("constant")


def constant(base: Duration, jitter: float = 0, cap: Duration | None = None) -> Backoff:
    """The same wait each time."""
    return Backoff("constant", base=durations.parse(base, field="base"), cap=_cap(cap), jitter=_jitter(jitter))


def linear(base: Duration, step: Duration | None = None, cap: Duration | None = None, jitter: float = 0) -> Backoff:
    """`base + step * (n - 1)`; the step is the base where none is given."""
    first = durations.parse(base, field="base")
    growth = first if step is None else durations.parse(step, field="step")
    return Backoff("linear", base=first, step=growth, cap=_cap(cap), jitter=_jitter(jitter))


def exponential(base: Duration = "1s", factor: float = 2, cap: Duration | None = None, jitter: float = 0) -> Backoff:
    """`base * factor ** (n - 1)`, exact where the factor is a whole number."""
    return Backoff(
        "exponential",
        base=durations.parse(base, field="base"),
        factor=_factor(factor),
        cap=_cap(cap),
        jitter=_jitter(jitter),
    )


def custom(function: Custom) -> Backoff:
    """Any function of the failure number (from 1) that gives a duration, or None for no retry. See FALLBACK."""
    if not callable(function):
        raise ConfigError(
            f"{shown(function)} is not a function", field="backoff", hint="pass a function of the failure number"
        )
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            "an async function cannot be a backoff", field="backoff", hint="pass a plain function of the failure number"
        )
    return Backoff("custom", function=function)


def as_backoff(value: Backoff | Custom) -> Backoff:
    """A Backoff as it is, a plain function as `custom`, anything else a ConfigError."""
    if isinstance(value, Backoff):
        return value
    if value in _CONSTRUCTORS:
        raise ConfigError("a constructor was given, not its result", field="backoff", hint="call it: exponential(...)")
    if not callable(value):
        raise ConfigError(
            f"{shown(value)} is not a backoff",
            field="backoff",
            hint="use exponential, linear, constant, immediate, never, or a function of the failure number",
        )
    return custom(value)


# `Policy(backoff=immediate)` is an easy slip; as a custom function it would answer FALLBACK for ever.
_CONSTRUCTORS: tuple[object, ...] = (never, immediate, constant, linear, exponential, custom)


def _ask(function: Custom, number: int) -> Millis | None:
    try:
        answer = function(number)
        return None if answer is None else durations.parse(answer)
    except Exception:  # noqa: BLE001 - see FALLBACK
        return FALLBACK


def _power(base: Millis, factor: float, exponent: int, limit: Millis) -> Millis:
    if base == 0 or factor == 1:
        return min(base, limit)
    if isinstance(factor, int):
        # With base >= 1 and factor >= 2 the limit is passed here at the latest; a larger power is never computed.
        if exponent >= limit.bit_length():
            return limit
        return min(base * int(factor**exponent), limit)
    try:
        return math.ceil(min(base * factor**exponent, limit))
    except OverflowError:
        return limit


def _cap(value: Duration | None) -> Millis | None:
    if value is None:
        return None
    # A cap beyond MAX, such as the largest integer, asks for no more than MAX already gives.
    if isinstance(value, int) and not isinstance(value, bool) and value * 1000 > durations.MAX:
        return durations.MAX
    return durations.parse(value, field="cap")


def _jitter(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(
            f"{shown(value)} is not between 0 and 1", field="jitter", hint="0.2 spreads delays by 20 % either way"
        )
    return float(value)


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= durations.MAX:
        hint = "use a number of at least 1, such as 2"
        raise ConfigError(f"{shown(value)} cannot be used", field="factor", hint=hint)
    return value
