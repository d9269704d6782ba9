"""Claims hold for as long as somebody asks for them, and end: on every store."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import Any

import pytest

from redrive.core.item import Millis
from redrive.mailboxes import Replayer, StoreMailbox
from redrive.mailboxes.boxes.message import StoreMessage
from redrive.office.replay import claims
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Openers
from tests.mailboxes.ends import dead_letter

DAY: Millis = 24 * 60 * 60 * 1000


def neighbours(number: int) -> list[str]:
    """Names of one shelf."""
    first = claims.name_of("first")
    same = (name for name in map(claims.name_of, count()) if name[: claims.DIGITS] == first[: claims.DIGITS])
    return [first, *[next(same) for _ in range(number - 1)]]


async def shelves(store: Store) -> list[int]:
    return [each.body.count(b'":[') for each in await store.documents(claims.KIND)]


@pytest.mark.slow
def test_claims_that_nobody_asks_for_are_taken_away_by_whoever_comes_next(
    kind: str, mailboxes: Openers, clock: FakeClock
) -> None:
    place = mailboxes(kind)("any").shared

    async def asked(name: str, by: str) -> str:
        return (await claims.claim(place.store, {name: by}, clock.now(), f"call of {by}"))[name]

    one, two, three = neighbours(3)
    assert place.call(asked, one, "ann") == "ann"
    assert place.call(asked, two, "ann") == "ann"
    for days in ("2d", "87d"):
        clock.advance(days)
        assert place.call(asked, two, "bob") == "ann", "it holds, and goes on to hold since it was asked for"
    clock.advance("2d")
    assert place.call(asked, three, "bob") == "bob"
    assert place.call(shelves, place.store) == [2], "the first is over"
    assert place.call(asked, one, "bob") == "bob"
    clock.advance("86d")
    assert place.call(asked, two, "bob") == "ann", "it was asked for 88 days ago"
    place.call(claims.withdraw, place.store, two, "another call of ann")
    assert place.call(asked, two, "bob") == "ann"
    place.call(claims.withdraw, place.store, two, "call of ann")
    assert place.call(asked, two, "bob") == "bob"


@pytest.mark.slow
async def test_claims_of_many_at_once_have_one_owner_each(clock: FakeClock) -> None:
    """Also where they meet on the same shelves, all of them in one call or each in its own."""
    store = MemoryStore(clock)
    await store.open()
    names = [*neighbours(3), *[claims.name_of("other", number) for number in range(20)]]
    whole = [claims.claim(store, dict.fromkeys(names, f"w{number}"), 0, f"{number}") for number in range(8)]
    single = [claims.claim(store, {name: f"s{number}"}, 0, name) for number, name in enumerate(names)]
    owners = await asyncio.gather(*whole, *single)
    told = Counter((name, owner) for answer in owners for name, owner in answer.items())
    assert sorted(name for name, _ in told) == sorted(names)
    assert set(told.values()) == {9}
    await store.close()


@pytest.mark.parametrize(("later", "replayed"), [(89 * DAY, 0), (91 * DAY, 1)])
def test_a_request_counts_as_replayed_for_ninety_days(
    mailboxes: Openers, clock: FakeClock, later: Millis, replayed: int
) -> None:
    requests, dead = mailboxes("memory")("requests"), mailboxes("memory")("dead")
    for _ in range(2):
        die(requests)
        clock.advance("1s")
    assert (len(Replayer(dead).matching().replayed), dead.approximate_count()) == (1, 1)
    clock.advance(later)
    assert len(Replayer(dead).matching().replayed) == replayed


def die(requests: StoreMailbox[Any, Any]) -> None:
    requests.send({"request_id": "7d444840-9dc0-11d1-b245-5ffdce74fad2"})
    (message,) = requests.receive()
    assert isinstance(message, StoreMessage)
    assert dead_letter(message, route="dead", reason="test", error=ValueError("no")) == "dead"
