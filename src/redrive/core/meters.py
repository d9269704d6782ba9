"""How much may pass now: a meter is one number, the instant up to which it is spent, so all that counts time is here.

A meter gives `burst` at once and one more each `interval`. Its number is the instant at which it will be full again:
taking n moves it n intervals ahead. Instants and intervals here are whole microseconds, so that a thousand a second and
more can be told apart and every store counts alike.
"""

from __future__ import annotations

from msgspec import Struct

from redrive.core.item import Instant, Millis


class Rate(Struct, frozen=True):
    """`count` leases each `per`; `burst` of them at once (None: what one second gives, at least one)."""

    count: int
    per: Millis = 1000
    burst: int | None = None

    @property
    def interval(self) -> int:
        """Microseconds from one to the next."""
        return max(1, self.per * 1000 // self.count)

    @property
    def most(self) -> int:
        """How many at once."""
        return max(1, self.count * 1000 // self.per) if self.burst is None else self.burst


def room(interval: int, burst: int, full_at: int, now: int) -> int:
    """How many the meter gives now."""
    return max(0, (now + burst * interval - max(full_at, now)) // interval)


def spent(interval: int, full_at: int, now: int, count: int) -> int:
    """The meter's number after giving `count`."""
    return max(full_at, now) + count * interval if count else full_at


def opens_at(interval: int, burst: int, full_at: int) -> int:
    """From when on it gives at least one."""
    return full_at - (burst - 1) * interval


def gives_again(rate: Rate | None, full_at: int, now: Instant) -> Instant | None:
    """When a rate that is spent gives the next, in milliseconds and not too early; None if it does now, or is none."""
    if rate is None:
        return None
    at = -(-opens_at(rate.interval, rate.most, full_at) // 1000)
    return at if at > now else None
