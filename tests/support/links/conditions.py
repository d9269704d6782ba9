"""What a link can be like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Mark = bytes | Callable[[bytes], bool]
"""Bytes by which a request is known, or a question about the bytes that were sent."""


class Side(StrEnum):
    UP = "up"  # from the client to the server
    DOWN = "down"


@dataclass(frozen=True)
class Clear:
    """Everything goes through."""


@dataclass(frozen=True)
class Latency:
    """Everything comes so many seconds later, in each direction."""

    seconds: float


@dataclass(frozen=True)
class Refuse:
    """Nobody listens: a connect is answered by a reset. Connections that are there go on."""


@dataclass(frozen=True)
class BlackHole:
    """Connections are accepted and nothing comes through, not even their end.

    What was sent meanwhile arrives when the link heals, as TCP sends again what was dropped: late, but in order and
    whole. That is the trap: a request whose caller has long given up is carried out after all.
    """


@dataclass(frozen=True)
class HalfClosed:
    """One direction has ended, politely; the other goes on."""

    side: Side = Side.DOWN


@dataclass(frozen=True)
class Sliced:
    """Everything arrives in pieces of this size."""

    size: int = 1


@dataclass(frozen=True)
class CutAfter:
    """A reset after so many more bytes of each connection in this direction."""

    count: int
    side: Side = Side.DOWN


@dataclass(frozen=True)
class CutRequest:
    """A reset instead of the request with this mark: it never arrives. `times` in all; None: always."""

    mark: Mark
    times: int | None = None


@dataclass(frozen=True)
class CutReply:
    """The request with this mark arrives and is answered; then a reset, and the answer is never seen."""

    mark: Mark
    times: int | None = None


Condition = Clear | Latency | Refuse | BlackHole | HalfClosed | Sliced | CutAfter | CutRequest | CutReply
