"""R16 over a real link: of every verb, each answer in turn is lost after the server has given it, or each request
before it arrives.
"""

from __future__ import annotations

from collections.abc import Callable

from redrive.stores.base import Store
from tests.support.links.claims import Round, hear
from tests.support.links.conditions import CutReply, CutRequest
from tests.support.links.link import Link
from tests.support.links.trial import again, quiet

MOST = 20
"""More round trips no verb should need."""

Cut = type[CutReply] | type[CutRequest]


def nth(number: int) -> Callable[[bytes], bool]:
    """The request of this number from now on."""
    left = number

    def is_it(_: bytes) -> bool:
        nonlocal left
        left -= 1
        return left == 0

    return is_it


async def lose_each(verb: str, cut: Cut, store: Store, direct: Store, link: Link) -> tuple[int, dict[str, str]]:
    """How many round trips there were to cut, and what went wrong with which."""
    faults: dict[str, str] = {}
    for number in range(1, MOST + 2):
        before = link.counts.cuts
        game = Round(f"{verb}-{cut.__name__.lower()}-{number}", direct)
        await game.prepare()
        link.set(cut(nth(number), times=1))
        during = await hear({verb: game.calls(store)[verb]})
        link.heal()
        await quiet(link)
        lies = await game.lies(during)
        after = await again(store, game, {verb})
        twice = {key: why for key, why in (await game.doubles()).items() if key == verb}
        wrong = [*lies.values(), *twice.values()]
        wrong += [word.error for word in (*during.words.values(), *after.words.values()) if word.answer == "wrong"]
        wrong += ["it is not done when it is repeated"] if verb not in after.by_answer("ok") else []
        if wrong:
            faults[f"{verb}, round trip {number}"] = "; ".join(wrong)
        if link.counts.cuts == before:
            return number - 1, faults
    return MOST, {**faults, verb: f"it takes more than {MOST} round trips"}
