import asyncio
import threading
from datetime import timedelta

import pytest

from redrive.errors import BadDuration, ConfigError
from redrive.stores.clock import Clock
from redrive.testing import FakeClock
from tests.support.cli import PATIENCE


async def sleepers(clock: FakeClock, *durations: int) -> tuple[list[int], list[asyncio.Task[None]]]:
    """Tasks that sleep so long and note their duration when they wake, all asleep already."""
    woken: list[int] = []

    async def sleeper(duration: int) -> None:
        await clock.sleep(duration)
        woken.append(duration)

    tasks = [asyncio.create_task(sleeper(duration)) for duration in durations]
    await clock.tick(0)
    return woken, tasks


def test_time_moves_only_when_told() -> None:
    clock: Clock = FakeClock(start=5_000)
    assert (clock.now(), clock.now(), clock.monotonic(), clock.monotonic()) == (5_000, 5_000, 0, 0)


@pytest.mark.parametrize("step", [1_500, "1.5s", "1500ms", timedelta(seconds=1.5)])
def test_both_times_move_together(step: int | str | timedelta) -> None:
    clock = FakeClock(start=5_000)
    clock.advance(step)
    assert (clock.now(), clock.monotonic()) == (6_500, 1_500)


def test_time_does_not_go_back() -> None:
    clock = FakeClock()
    with pytest.raises(ConfigError, match="duration: time does not go back"):
        clock.advance(-1)
    with pytest.raises(BadDuration):
        clock.advance("-1s")


async def test_wall_time_jumps_alone() -> None:
    clock = FakeClock(start=5_000)
    woken, (task,) = await sleepers(clock, 10)
    clock.jump_wall(3_600_000)
    clock.jump_wall(-7_200_000)
    await clock.tick(9)
    assert (clock.now(), clock.monotonic(), woken) == (5_000 - 3_600_000 + 9, 9, [])
    await clock.tick(1)
    await task


async def test_advance_wakes_all_that_are_due_in_the_order_of_their_times() -> None:
    clock = FakeClock()
    woken, tasks = await sleepers(clock, 30, 10, 20, 31)
    clock.advance(30)
    await asyncio.gather(*tasks[:3])
    assert woken == [10, 20, 30]
    assert clock.sleepers == 1
    clock.advance(1)
    await tasks[3]


async def test_tick_lets_each_sleeper_act_at_its_own_time() -> None:
    clock = FakeClock()
    seen: list[int] = []

    async def every_ten() -> None:
        while True:
            await clock.sleep(10)
            seen.append(clock.monotonic())

    task = asyncio.create_task(every_ten())
    await clock.tick(35)
    assert seen == [10, 20, 30]
    assert clock.monotonic() == 35
    assert clock.next_in == 5
    task.cancel()


async def test_tick_comes_to_an_end_beside_a_task_that_never_rests() -> None:
    clock = FakeClock()

    async def restless() -> None:
        while True:
            await clock.sleep(0)

    task = asyncio.create_task(restless())
    await clock.tick(10)
    assert clock.monotonic() == 10
    task.cancel()


async def test_sleeping_for_no_time_only_yields() -> None:
    clock = FakeClock()
    await clock.sleep(0)
    await clock.sleep(-5)
    assert clock.sleepers == 0


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    _, (task,) = await sleepers(clock, 10)
    task.cancel()
    await clock.tick(0)
    assert (clock.sleepers, clock.next_in) == (0, None)


async def test_wait_is_over_when_the_event_is_set() -> None:
    clock, event = FakeClock(), asyncio.Event()
    task = asyncio.create_task(clock.wait(event, 10))
    await clock.tick(9)
    assert not task.done()
    event.set()
    assert await task is True
    assert clock.sleepers == 0


async def test_wait_is_over_when_the_time_is() -> None:
    clock, event = FakeClock(), asyncio.Event()
    task = asyncio.create_task(clock.wait(event, 10))
    await clock.tick(10)
    assert await task is False


async def test_wait_for_what_has_happened_or_for_no_time_does_not_wait() -> None:
    clock, event = FakeClock(), asyncio.Event()
    assert await clock.wait(event, 0) is False
    event.set()
    assert await clock.wait(event, 10) is True
    assert await clock.wait(event, 0) is True


async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    clock, event = FakeClock(), asyncio.Event()
    task = asyncio.create_task(clock.wait(event, 10))
    await clock.tick(0)
    task.cancel()
    await clock.tick(0)
    assert task.cancelled()
    assert clock.sleepers == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_sleepers_of_another_thread_are_woken_in_their_own_loop() -> None:
    clock = FakeClock()
    asleep = threading.Event()

    async def sleep() -> None:
        asyncio.get_running_loop().call_later(0, asleep.set)
        await clock.sleep(10)

    thread = threading.Thread(target=asyncio.run, args=(sleep(),))
    thread.start()
    assert asleep.wait(PATIENCE)
    clock.advance(10)
    thread.join(PATIENCE)
    assert not thread.is_alive()


async def test_autoadvance_jumps_from_sleeper_to_sleeper() -> None:
    clock = FakeClock(autoadvance=True)
    seen: list[tuple[str, int]] = []

    async def beat(name: str, pause: int, times: int) -> None:
        for _ in range(times):
            await clock.sleep(pause)
            seen.append((name, clock.monotonic()))

    await asyncio.gather(beat("day", 86_400_000, 1), beat("hour", 3_600_000, 3))
    assert seen == [("hour", 3_600_000), ("hour", 7_200_000), ("hour", 10_800_000), ("day", 86_400_000)]


async def test_autoadvance_waits_for_those_who_act() -> None:
    """A task that has something to do in every turn of the loop does it before time moves."""
    clock, done = FakeClock(autoadvance=True), asyncio.Event()

    async def busy() -> None:
        for _ in range(500):
            await asyncio.sleep(0)  # noqa: TID251 - a turn of the loop, no time
        done.set()

    task = asyncio.create_task(busy())
    assert await clock.wait(done, 1_000) is True
    assert clock.monotonic() == 0
    await task


def test_autoadvance_goes_on_in_the_next_loop() -> None:
    """A loop that was closed under a sleeper takes nothing with it."""
    clock = FakeClock(autoadvance=True)

    async def leave_a_sleeper() -> None:
        asyncio.create_task(clock.sleep(10)).add_done_callback(lambda _: None)
        await clock.sleep(0)
        await clock.sleep(0)

    asyncio.run(leave_a_sleeper())
    asyncio.run(clock.sleep(5))
    assert clock.monotonic() == 5


# -- what keeps time from passing by itself ----------------------------------------------------------------------------


async def test_rest_waits_for_what_a_thread_does() -> None:
    clock, gate = FakeClock(), threading.Event()
    ended: list[int] = []

    async def work() -> None:
        with clock.busy("a thread"):
            await asyncio.to_thread(gate.wait, PATIENCE)
            ended.append(clock.monotonic())
            await clock.sleep(10)
        ended.append(clock.monotonic())

    task = asyncio.create_task(work())
    resting = asyncio.create_task(clock.rest())
    for _ in range(20):
        await asyncio.to_thread(lambda: None)
    assert not resting.done()
    gate.set()
    await resting
    assert ended == [0], "it is at rest when the thread has ended and its task sleeps on the clock"
    await clock.tick(10)
    assert ended == [0, 10]
    await task


async def test_tick_waits_at_every_stop_for_what_is_busy() -> None:
    clock = FakeClock()
    seen: list[int] = []

    async def every_ten() -> None:
        with clock.busy():
            for _ in range(3):
                await clock.sleep(10)
                await asyncio.to_thread(lambda: None)
                seen.append(clock.monotonic())

    task = asyncio.create_task(every_ten())
    await clock.tick(100)
    assert seen == [10, 20, 30]
    await task


async def test_autoadvance_waits_for_what_is_busy() -> None:
    clock = FakeClock(autoadvance=True)

    async def sleeper() -> int:
        await clock.sleep(1000)
        return clock.monotonic()

    task = asyncio.create_task(sleeper())
    with clock.busy("a thread"):
        for _ in range(20):
            await asyncio.to_thread(lambda: None)
        assert clock.monotonic() == 0
    assert await task == 1000


async def test_what_is_begun_here_may_be_ended_in_a_thread() -> None:
    clock = FakeClock()
    end = clock.begin_busy()
    resting = asyncio.create_task(clock.rest())
    for _ in range(20):
        await asyncio.to_thread(lambda: None)
    assert not resting.done()
    await asyncio.to_thread(end)
    await asyncio.to_thread(end)
    await resting


async def test_one_that_sleeps_is_not_taken_for_another_that_works() -> None:
    clock, gate = FakeClock(), threading.Event()

    async def sleep() -> None:
        with clock.busy():
            await clock.sleep(10)

    async def work() -> None:
        with clock.busy():
            await asyncio.to_thread(gate.wait, PATIENCE)

    tasks = [asyncio.create_task(sleep()), asyncio.create_task(work())]
    resting = asyncio.create_task(clock.rest())
    for _ in range(20):
        await asyncio.to_thread(lambda: None)
    assert not resting.done()
    gate.set()
    await resting
    clock.advance(10)
    await asyncio.gather(*tasks)


async def test_a_block_in_a_block_sleeps_for_both() -> None:
    clock = FakeClock()
    with clock.busy("outer"), clock.busy("inner"):
        task = asyncio.create_task(clock.sleep(10))
        await clock.rest()
    clock.advance(10)
    await task
    await clock.rest()


async def test_a_driven_clock_does_not_advance_by_itself() -> None:
    clock = FakeClock(autoadvance=True)
    task = asyncio.create_task(clock.sleep(10))
    with clock.driven():
        await clock.rest()
        assert clock.monotonic() == 0
    await task
    assert clock.monotonic() == 10


async def test_a_cancelled_rest_leaves_nothing_behind() -> None:
    clock = FakeClock()
    with clock.busy():
        resting = asyncio.create_task(clock.rest())
        await asyncio.to_thread(lambda: None)
        resting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await resting
    assert asyncio.all_tasks() == {asyncio.current_task()}
