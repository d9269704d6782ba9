"""Queue families: `webhook:acme` is a member of the family `webhook:*`, which gives its members their defaults.

The settings of a family stand under its pattern, as those of a queue stand under its name. `capacity` and `max_running`
of a family bound all of its members together. Any other setting of a family is the default of each member; a member
that has a value of its own for a setting keeps it. `retry_share` is the family's alone: one lease, with one share, is
for all members. `encrypt` is set on members only. A breaker `*` of the family gives each member one of its own, named
as the member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from redrive.core.item import Instant
from redrive.core.verbs import SETTINGS, QueueSettings

OWN_GATE = "*"
"""As the breaker of a family: each member has one under its own name."""
VISITS = 64
"""The most members that one lease of a family looks at."""
LOOK_AGAIN = 1_000
"""Milliseconds after which a lease looks again at a member that waits for the retry budget of a shared breaker: other
queues may fill it, and nothing tells the member.
"""

_OWN = frozenset({"capacity", "max_running", "encrypt"})
_DEFAULTS = QueueSettings()
_INHERITED = tuple((name, getattr(_DEFAULTS, name)) for name in SETTINGS if name not in {*_OWN, "retry_share"})


def is_family(queue: str) -> bool:
    """Whether it is the pattern of a family: a name without ":", then ":*"."""
    return queue.endswith(":*") and queue.find(":") == len(queue) - 2 > 0


def family_of(queue: str) -> str:
    """The pattern of the family that a queue would belong to; "" for a name without ":", and for a pattern."""
    place = queue.find(":")
    return f"{queue[:place]}:*" if place > 0 and queue[place:] != ":*" else ""


def family_and_member(names: Iterable[str]) -> set[str]:
    """The names, and the families they would belong to: what a waiter may wait for."""
    found = set(names)
    found.update([family for name in tuple(found) if (family := family_of(name))])
    return found


def names_between(family: str) -> tuple[str, str]:
    """The names of members sort after the first and before the second."""
    head = family.removesuffix(":*")
    return f"{head}:", f"{head};"


def member_settings(queue: str, own: QueueSettings, family: QueueSettings) -> QueueSettings:
    """The settings that hold for a member: its own, and those of its family where it has the default."""
    inherited = {
        name: getattr(family, name)
        for name, default in _INHERITED
        if getattr(own, name) == default and name not in own.own
    }
    if inherited.get("gate") == OWN_GATE:
        inherited["gate"] = queue
    return replace(own, **inherited, retry_share=family.retry_share, own=())


def portion(limit: int, members: int) -> int:
    """What each of so many members gets of a lease in the first round."""
    return -(-limit // max(1, members))


def look_again(opens: Instant | None, now: Instant, *, shared_budget: bool) -> Instant | None:
    """When to look at a member again, of which `next_change` said `opens`; None: not before a wake."""
    if opens is not None and shared_budget:
        return min(opens, now + LOOK_AGAIN)
    return opens


def served(queues: Sequence[str], queue: str) -> str:
    """Under which of these names a worker serves a queue: its own or that of its family; "" if under none."""
    if queue in queues:
        return queue
    family = family_of(queue)
    return family if family and family in queues else ""
