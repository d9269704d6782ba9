import asyncio
import subprocess
import sys

import pytest

from redrive.core.item import NewItem
from redrive.errors import OutcomeUnknown, StoreUnavailable
from redrive.stores.base import Store
from redrive.testing import Fault, FaultyStore, MemoryStore, Point, SimulatedCrash


async def opened(**options: list[str]) -> tuple[FaultyStore, MemoryStore]:
    store = await MemoryStore().open()
    return FaultyStore(store, counted=options.get("counted")), store


def one(item_id: str = "a") -> list[NewItem]:
    return [NewItem(item_id, "q", b"")]


async def ready(store: Store) -> int:
    return sum(row.ready for row in (await store.tally()).queues)


async def test_what_is_not_scripted_goes_through() -> None:
    faulty, store = await opened()
    assert (await faulty.put(one())).added == ("a",)
    assert await ready(store) == 1
    assert faulty.info() == store.info()


@pytest.mark.parametrize(
    ("fault", "error", "done"),
    [
        (Fault.UNAVAILABLE, StoreUnavailable, 0),
        (Fault.UNKNOWN, OutcomeUnknown, 1),
        (Fault.UNKNOWN_UNDONE, OutcomeUnknown, 0),
    ],
)
async def test_a_fault_says_what_it_says_and_does_what_it_says(fault: Fault, error: type[Exception], done: int) -> None:
    faulty, store = await opened()
    faulty.next("put", fault)
    with pytest.raises(error, match="put: scripted"):
        await faulty.put(one())
    assert await ready(store) == done
    await faulty.put(one())
    assert await ready(store) == 1


async def test_a_duplicate_gives_the_second_answer() -> None:
    faulty, store = await opened()
    faulty.next("put", Fault.DUPLICATE)
    result = await faulty.put(one())
    assert (result.added, result.already) == ((), ("a",))
    assert await ready(store) == 1


async def test_faults_come_one_a_call_in_their_order_and_only_for_their_verb() -> None:
    faulty, _ = await opened()
    faulty.next("put", Fault.UNAVAILABLE, Fault.UNKNOWN)
    await faulty.tally()
    with pytest.raises(StoreUnavailable):
        await faulty.put(one())
    with pytest.raises(OutcomeUnknown):
        await faulty.put(one())
    await faulty.put(one())


async def test_fail_for_some_times_or_until_healed() -> None:
    faulty, _ = await opened()
    faulty.fail("put", times=2)
    faulty.fail("tally")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await faulty.put(one())
    await faulty.put(one())
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            await faulty.tally()
    faulty.heal("tally")
    await faulty.tally()


async def test_heal_forgets_every_script() -> None:
    faulty, _ = await opened()
    faulty.fail("put")
    faulty.next("put", Fault.UNKNOWN)
    faulty.at("put", 1, Fault.UNKNOWN)
    faulty.heal()
    await faulty.put(one())


async def test_the_nth_call_can_be_chosen() -> None:
    faulty, _ = await opened()
    faulty.at("put", 2, Fault.UNAVAILABLE)
    await faulty.put(one("a"))
    with pytest.raises(StoreUnavailable):
        await faulty.put(one("b"))
    await faulty.put(one("b"))


@pytest.mark.parametrize(("when", "done"), [("before", 0), ("after", 1)])
async def test_a_held_call_waits(when: str, done: int) -> None:
    faulty, store = await opened()
    hold = faulty.hold("put", "after" if when == "after" else "before")
    task = asyncio.create_task(faulty.put(one()))
    await hold.reached.wait()
    assert await ready(store) == done
    assert not task.done()
    hold.release()
    assert (await task).added == ("a",)
    await faulty.put(one("b"))


async def test_calls_are_logged_with_their_arguments() -> None:
    faulty, _ = await opened()
    faulty.next("put", Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await faulty.put(one())
    await faulty.put(one())
    await faulty.reclaim("w", ["q"], 10, 10, force=True)
    assert [(call.verb, call.number) for call in faulty.calls] == [("put", 1), ("put", 2), ("reclaim", 1)]
    assert faulty.calls_of("put")[1].args == (one(),)
    assert faulty.calls_of("reclaim")[0].kwargs == {"force": True}


@pytest.mark.parametrize(("point", "done"), [(1, 0), (2, 1), (3, 1), (4, 2)])
async def test_a_crash_leaves_what_was_done_and_nothing_happens_after_it(point: int, done: int) -> None:
    faulty, store = await opened()
    faulty.crash_at(point)

    async def work() -> None:
        await faulty.put(one("a"))
        await faulty.put(one("b"))

    with pytest.raises(SimulatedCrash):
        await work()
    with pytest.raises(SimulatedCrash, match="dead"):
        await faulty.put(one("c"))
    assert faulty.crashed
    assert await ready(store) == done


async def test_a_call_that_was_held_when_the_process_died_dies_too() -> None:
    faulty, store = await opened()
    hold = faulty.hold("put")
    faulty.crash_at(1)
    task = asyncio.create_task(faulty.put(one()))
    await hold.reached.wait()
    with pytest.raises(SimulatedCrash):
        await faulty.tally()
    hold.release()
    with pytest.raises(SimulatedCrash):
        await task
    assert await ready(store) == 0


async def test_points_are_counted_for_the_verbs_asked_for() -> None:
    faulty, _ = await opened(counted=["put"])
    seen: list[Point] = []
    for point in range(1, 10):
        faulty.crash_at(point, seen.append)
    await faulty.put(one())
    await faulty.tally()
    await faulty.put(one())
    assert seen == [
        Point(1, "put", "before"),
        Point(2, "put", "after"),
        Point(3, "put", "before"),
        Point(4, "put", "after"),
    ]
    assert faulty.points == 4


@pytest.mark.parametrize("name", ["setle", "open", "relay", "__init__"])
async def test_a_script_for_no_verb_is_refused(name: str) -> None:
    faulty, _ = await opened()
    for script in (faulty.next, faulty.fail, faulty.hold):
        with pytest.raises(ValueError, match="not a verb"):
            script(name)


def test_the_kit_needs_no_test_framework() -> None:
    code = "import sys, redrive.testing; sys.exit(bool({'pytest', 'hypothesis'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
