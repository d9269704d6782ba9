"""R17 for a store alone: every verb while the link is in trouble, after it has healed, and what is there in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from redrive.stores.base import Store
from tests.support.links.claims import Heard, Round, hear
from tests.support.links.conditions import (
    BlackHole,
    CutAfter,
    HalfClosed,
    Latency,
    Refuse,
    Side,
    Sliced,
)
from tests.support.links.link import Link
from tests.support.rig.patience import TooLong, eventually

RECOVERY = 10.0
"""Seconds within which a store is itself again when its link is."""
MARGIN = 10.0
"""Seconds for a loaded machine."""
WARM = 60.0
"""Seconds for what comes before the trouble, and proves nothing."""
STILL = 10
"""So many looks at the link at which nothing has moved: nothing is under way any more."""

Trouble = Callable[[Link], None]


def refuse(link: Link) -> None:
    """As if the server was gone: connections end, and there are no new ones."""
    link.set(Refuse())
    link.reset()


def reset(link: Link) -> None:
    """As if the server was restarted between two calls."""
    link.reset()


def deaf_to_new(link: Link) -> None:
    link.set(BlackHole(), existing=False)
    link.reset()


def always(
    condition: Latency | BlackHole | HalfClosed | Sliced | CutAfter, *, existing: bool = True, new: bool = True
) -> Trouble:
    return lambda link: link.set(condition, existing=existing, new=new)


TROUBLES: dict[str, Trouble] = {
    "slow": always(Latency(0.02)),
    "sliced": always(Sliced()),
    "late": always(Latency(2.0)),
    "refuse": refuse,
    "reset": reset,
    "black-hole": always(BlackHole()),
    "black-hole-existing": always(BlackHole(), new=False),
    "black-hole-new": deaf_to_new,
    "half-closed": always(HalfClosed()),
    "half-closed-existing": always(HalfClosed(), new=False),
    "half-closed-up": always(HalfClosed(Side.UP)),
    "cut-before": always(CutAfter(0, Side.UP)),
    "cut-behind": always(CutAfter(0, Side.DOWN)),
    **{
        f"cut-{side}-{count}": always(CutAfter(count, side), new=False)
        for side in Side
        for count in (1, 7, 40, 150, 400)
    },
}
HARMLESS = frozenset({"slow", "sliced"})
"""With these every verb must do as it was told."""
HOPELESS = frozenset({"late", "refuse", "black-hole", "half-closed", "half-closed-up", "cut-before", "cut-behind"})
"""With these nothing can come back."""


@dataclass
class Trial:
    """`faults`: verbs with what is wrong about them, by class."""

    during: Heard
    after: Heard
    faults: dict[str, dict[str, str]]


async def attempt(name: str, store: Store, direct: Store, link: Link, deadline: float) -> Trial:
    """The trouble `name` under all verbs of `store`, which goes through the link; `direct` goes past it."""
    trouble = name.partition(":")[0]
    # Connections are there then, and statements are known: what follows is sent and not merely refused.
    healthy = Round(f"{name}:healthy", direct)
    await healthy.prepare()
    before = await again(store, healthy, limit=WARM)
    assert before.by_answer("ok") == before.words.keys(), before.words
    game = Round(name, direct)
    await game.prepare()
    TROUBLES[trouble](link)
    during = await hear(game.calls(store))
    link.heal()
    await quiet(link)
    lies = await game.lies(during)
    after = await again(store, game)
    faults = {
        "late or wrong": during.faults(deadline),
        "not so": lies,
        "not recovered": {verb: after.words[verb].error for verb in after.words.keys() - after.by_answer("ok")},
        "twice": await game.doubles(),
    }
    if trouble in HARMLESS:
        faults["refused"] = {verb: during.words[verb].error for verb in during.words.keys() - during.by_answer("ok")}
    if trouble in HOPELESS:
        # A wait may end by itself.
        faults["answered"] = dict.fromkeys(during.by_answer("ok") - {"wait"}, "it cannot have had an answer")
    return Trial(during, after, {kind: found for kind, found in faults.items() if found})


async def quiet(link: Link) -> None:
    """Until nothing moves: what arrives late has arrived."""
    seen = [link.counts]

    def still() -> bool:
        counts = link.counts
        if counts != seen[-1]:
            seen.clear()
        seen.append(counts)
        return len(seen) > STILL

    await eventually(still, limit=RECOVERY + MARGIN, what="the link is quiet")


async def again(store: Store, game: Round, verbs: Iterable[str] | None = None, *, limit: float = RECOVERY) -> Heard:
    """The same calls on the same store, until they get through: nobody may have to open it anew."""
    heard = Heard()

    async def through() -> bool:
        calls = game.calls(store)
        wanted = set(calls if verbs is None else verbs) - heard.by_answer("ok")
        heard.words |= (await hear({verb: calls[verb] for verb in wanted})).words
        return heard.by_answer("ok") == heard.words.keys()

    try:
        await eventually(through, limit=limit, what="every verb gets through", poll=0.1)
    except TooLong:
        return heard  # the words say which do not
    return heard
