"""Settings of families: the defaults of their members, and which limit holds for each member or for all."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from msgspec import structs

from redrive.core.acts import (
    Discard,
)
from redrive.core.item import Terms
from redrive.core.meters import Rate
from redrive.core.select import Ids
from redrive.core.verbs import (
    TRASH_KEPT,
    GateWrite,
    QueueChange,
    QueueSettings,
)
from redrive.testing.conformance.families import FAMILY, MICROS, family, member, queues_of
from redrive.testing.conformance.kit import (
    SECOND,
    World,
    act,
    dead,
    finished,
    new,
    news,
)
from redrive.testing.conformance.wait import returns, started, waiter


async def test_family_settings_are_the_defaults_of_its_members(world: World) -> None:
    await world.set(QueueChange(rate=Rate(5, SECOND), policy="slow", order="skip", keep=9, gate="*"), FAMILY)
    await world.set(QueueChange(capacity=100, max_running=7), FAMILY)
    expected = QueueSettings(rate=Rate(5, SECOND), policy="slow", order="skip", keep=9, gate=member("a"))
    assert await world.store.settings(member("a")) == expected
    await world.set(QueueChange(policy="own", max_running=2), member("a"))
    assert await world.store.settings(member("a")) == structs.replace(expected, policy="own", max_running=2)
    await world.set(QueueChange(policy=""), member("a"))
    assert (await world.store.settings(member("a"))).policy == "slow"
    assert (await world.store.settings(FAMILY)).capacity == 100
    assert await world.store.settings("hooks:a") == QueueSettings()
    (row,) = [row for row in (await world.store.tally()).queues if row.queue == member("a")]
    assert row.settings == QueueSettings(max_running=2)


class Inherited(NamedTuple):
    """What a member and its family were given, one change after the other, and what holds for the member."""

    own: tuple[QueueChange, ...]
    family: QueueChange
    holds: QueueSettings


_SAID = QueueChange(
    rate=Rate(5, SECOND), max_per_key=4, policy="slow", gate="door", keep=9, keep_results=8, retry_share=0.2
)
_HELD = QueueSettings(
    rate=Rate(5, SECOND), max_per_key=4, policy="slow", gate="door", keep=9, keep_results=8, retry_share=0.2
)
INHERITED = (
    Inherited((), _SAID, _HELD),
    Inherited((QueueChange(max_per_key=7, policy="own"),), _SAID, structs.replace(_HELD, max_per_key=7, policy="own")),
    Inherited((QueueChange(rate=Rate(1), gate="own"),), _SAID, structs.replace(_HELD, rate=Rate(1), gate="own")),
    Inherited((QueueChange(keep=1), QueueChange(keep=None)), _SAID, _HELD),
    Inherited((QueueChange(policy="own"), QueueChange(policy="")), _SAID, _HELD),
    # Bounds of a family are not those of a member, nor the other way round.
    Inherited((QueueChange(max_running=3),), QueueChange(capacity=9, max_running=5), QueueSettings(max_running=3)),
    # Each member has a breaker of its own.
    Inherited((), QueueChange(gate="*"), QueueSettings(gate="hook-6:m")),
    # What a queue always has: said for the member it is its own, also where a new queue has the same.
    Inherited((), QueueChange(order="skip", keep_trash=7), QueueSettings(order="skip", keep_trash=7)),
    Inherited((QueueChange(order="block"),), QueueChange(order="skip"), QueueSettings()),
    Inherited((QueueChange(keep_trash=TRASH_KEPT),), QueueChange(keep_trash=7), QueueSettings()),
    Inherited((QueueChange(order="block"), QueueChange(keep=3)), QueueChange(order="skip"), QueueSettings(keep=3)),
    Inherited(
        (QueueChange(order="park", keep_trash=5),), QueueChange(order="skip"), QueueSettings(order="park", keep_trash=5)
    ),
    Inherited(
        (QueueChange(order="block"), QueueChange(order=None)), QueueChange(order="skip"), QueueSettings(order="skip")
    ),
    Inherited(
        (QueueChange(order="park"), QueueChange(order=None)), QueueChange(order="skip"), QueueSettings(order="skip")
    ),
    Inherited(
        (QueueChange(keep_trash=5), QueueChange(keep_trash=None)),
        QueueChange(keep_trash=7),
        QueueSettings(keep_trash=7),
    ),
    Inherited((QueueChange(order="block"),), QueueChange(), QueueSettings()),
    # The share of a lease is the family's.
    Inherited((QueueChange(retry_share=0.9),), QueueChange(retry_share=None), QueueSettings(retry_share=None)),
)


async def test_family_settings_are_inherited_as_the_table_says(world: World) -> None:
    for number, row in enumerate(INHERITED):
        name = f"hook-{number}:m"
        for change in row.own:
            await world.set(change, name)
        await world.set(row.family, f"hook-{number}:*")
        assert structs.replace(await world.store.settings(name), own=()) == row.holds, row


@pytest.mark.parametrize("row", [row for row in INHERITED if row.family.order == "skip"])
async def test_family_order_that_holds_is_obeyed(world: World, row: Inherited) -> None:
    for change in row.own:
        await world.set(change, member("a"))
    await world.set(row.family, FAMILY)
    await world.put(*(new(queue=member("a"), terms=Terms(order_key="k")) for _ in range(2)))
    (item,) = await family(world)
    await world.finish(dead(item))
    assert len(await family(world)) == (row.holds.order == "skip")
    (counted,) = (await world.store.tally()).queues
    assert counted.parked == (row.holds.order == "park")


@pytest.mark.parametrize("row", [row for row in INHERITED if row.family.keep_trash == 7])
async def test_family_keep_trash_that_holds_is_obeyed(world: World, row: Inherited) -> None:
    for change in row.own:
        await world.set(change, member("a"))
    await world.set(row.family, FAMILY)
    await world.put(new(queue=member("a")))
    (item,) = await family(world)
    await world.finish(dead(item))
    await world.store.amend(Ids((item.id,)), Discard(), act())
    world.tick(SECOND)
    await world.store.sweep(100, act())
    gone = (await world.store.tally()).row(member("a")).trash == 0
    assert gone == (row.holds.keep_trash == 7)


PORTIONS = (
    # What a lease of so many gives so many members that have enough, the most first.
    (10, 1, (10,)),
    (10, 2, (5, 5)),
    (10, 3, (4, 4, 2)),
    (10, 4, (3, 3, 3, 1)),
    (3, 5, (1, 1, 1)),
    (11, 5, (3, 3, 3, 2)),
    (64, 9, (8, 8, 8, 8, 8, 8, 8, 8)),
)


async def test_family_lease_gives_the_portions_that_the_table_says(world: World) -> None:
    for number, (limit, members, portions) in enumerate(PORTIONS):
        await world.put(*(new(queue=f"of-{number}:{name}") for name in range(members) for _ in range(limit)))
        items = await world.lease(limit, queue=f"of-{number}:*")
        assert tuple(sorted(Counter(queues_of(items)).values(), reverse=True)) == portions, (limit, members)


async def test_family_rate_holds_for_each_member(world: World) -> None:
    await world.set(QueueChange(rate=Rate(2, SECOND)), FAMILY)
    await world.set(QueueChange(rate=Rate(3, SECOND)), member("b"))
    await world.put(*news(5, member("a")), *news(5, member("b")))
    assert Counter(queues_of(await family(world, 20))) == {member("a"): 2, member("b"): 3}
    assert await family(world, 20) == ()
    assert [row.rate_at is not None for row in (await world.store.tally()).queues] == [True, True]
    world.tick(SECOND)
    assert Counter(queues_of(await family(world, 20))) == {member("a"): 2, member("b"): 2}


async def test_family_rate_of_a_member_also_holds_under_its_own_name(world: World) -> None:
    await world.set(QueueChange(rate=Rate(2, SECOND)), FAMILY)
    await world.put(*news(5, member("a")))
    assert len(await world.lease(5, queue=member("a"))) == 2
    assert await family(world) == ()
    world.tick(SECOND)
    assert len(await family(world)) == 2


async def test_family_rate_gives_as_soon_as_it_may(world: World) -> None:
    await world.set(QueueChange(rate=Rate(1, SECOND)), FAMILY)
    await world.put(*news(3, member("a")))
    assert len(await family(world)) == 1
    world.tick(SECOND - 1)
    assert await family(world) == ()
    world.tick(1)
    assert len(await family(world)) == 1


async def test_family_order_of_members_decides_behind_a_dead_head(world: World) -> None:
    await world.set(QueueChange(order="skip"), FAMILY)
    await world.put(*(new(queue=member("a"), terms=Terms(order_key="k")) for _ in range(2)))
    (item,) = await family(world)
    await world.finish(dead(item))
    assert len(await family(world)) == 1


async def test_family_limit_per_key_holds_within_each_member(world: World) -> None:
    await world.set(QueueChange(max_per_key=1), FAMILY)
    await world.put(*(new(queue=member(name), terms=Terms(limit_key="k")) for name in ("a", "b") for _ in range(2)))
    items = await family(world)
    assert sorted(queues_of(items)) == [member("a"), member("b")]
    assert await family(world) == ()
    await world.finish(finished(items[0]))
    assert queues_of(await family(world)) == [items[0].queue]
    await world.set(QueueChange(max_per_key=None), FAMILY)
    assert len(await family(world)) == 1
    await world.sound()


async def test_family_retention_is_that_of_its_family(world: World) -> None:
    await world.set(QueueChange(keep=SECOND), FAMILY)
    done = await world.done(member("a"))
    world.tick(2 * SECOND)
    assert (await world.store.sweep(100, act())).pruned == 1
    assert await world.store.tombstone(done.id) is not None


async def test_family_breaker_of_each_member_is_its_own(world: World) -> None:
    await world.set(QueueChange(gate="*"), FAMILY)
    await world.put(*news(2, member("a")), *news(2, member("b")))
    shut = await world.store.set_gate(GateWrite(member("a"), 0, 30 * SECOND * MICROS, shut=True))
    assert set(queues_of(await family(world))) == {member("b")}
    assert await family(world) == ()
    waiting = waiter(world, FAMILY, timeout=SECOND)
    await started(world, waiting)
    await world.store.set_gate(GateWrite(member("a"), shut.version))
    await returns(waiting)
    assert queues_of(await family(world)) == [member("a")] * 2


async def test_family_behind_one_gate_comes_back_when_it_opens(world: World) -> None:
    await world.set(QueueChange(gate="api"), FAMILY)
    await world.put(new(queue=member("a")), new(queue=member("b")))
    shut = await world.store.set_gate(GateWrite("api", 0, 30 * SECOND * MICROS, shut=True))
    assert await family(world) == ()
    await world.store.set_gate(GateWrite("api", shut.version))
    assert len(await family(world)) == 2
