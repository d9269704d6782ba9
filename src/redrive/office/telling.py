"""What every answer of `explain` is put together from."""

from __future__ import annotations

from typing import NamedTuple

from redrive.core.durations import brief
from redrive.core.item import Attempt, Instant, Item, short_id
from redrive.office.scene import Explanation, Scene, Why, state_of


class Then(NamedTuple):
    """What happens next."""

    what: str
    at: Instant | None = None
    advice: tuple[str, ...] = ()


def with_state(other: Item, now: Instant) -> str:
    if other.letter is not None:
        return f"{short_id(other.id)} (dead since {brief(now - other.letter.died_at)}: {other.letter.failure.type})"
    return f"{short_id(other.id)} ({state_of(other, now)})"


def answer(scene: Scene, state: str, summary: str, why: tuple[Why, ...], then: Then) -> Explanation:
    item = scene.history.item
    return Explanation(item.id, item.queue, state, summary, why, then.what, then.at, then.advice)


def last_attempt(scene: Scene) -> Attempt | None:
    return scene.history.attempts[-1] if scene.history.attempts else None


def replayed_at(scene: Scene) -> Instant:
    return max((deed.at for deed in scene.history.deeds if deed.change == "replay"), default=0)


def done_by(scene: Scene, change: str) -> str:
    deeds = [deed for deed in scene.history.deeds if deed.change == change]
    return f" by {deeds[-1].actor}: {deeds[-1].reason}" if deeds else ""
