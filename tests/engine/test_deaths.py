"""A supervisor says how a worker process died; the letter of what it held says it too. With real processes: R10."""

from __future__ import annotations

import asyncio
import os
import platform
from typing import Any

import pytest

from redrive import Policy, Redrive, constant
from redrive.core.item import Attempt, Ending
from redrive.core.states import State
from redrive.core.verbs import DocumentWrite, LeaseRequest, Want, WorkerFacts
from redrive.engine import deaths
from redrive.errors import ConfigError, StoreUnavailable
from redrive.events import WorkerStarted
from redrive.testing.faults import Fault, FaultyStore
from tests.support.lab import Lab, Seen

PID = 4242


def handled(app: Redrive, queue: str = "q", max_crashes: int = 3) -> None:
    @app.handler(queue, policy=Policy(backoff=constant("1s"), max_crashes=max_crashes), lease="10s")
    async def handle() -> None:
        return


async def beats(lab: Lab, worker: str, *, pid: int = PID, host: str | None = None, stopped: bool = False) -> None:
    """A worker as it is known to the store."""
    node = platform.node() if host is None else host
    facts = WorkerFacts(("q",), host=node, pid=pid, started_at=lab.clock.now(), stopped=stopped)
    await lab.store.beat(worker, facts, 30_000)


async def crash(lab: Lab, app: Redrive, why: str | None, *, worker: str = "ghost", pid: int = PID) -> Attempt:
    """A worker that holds an item and dies: the attempt as the reaper put it on record."""
    item_id = await app.enqueue("q")
    await beats(lab, worker, pid=pid)
    await lab.ghost("q", worker=worker, ttl="1s")
    if why is not None:
        assert await app.report_death(pid, why=why) == (worker,)
    await lab.drain(app)
    return (await lab.history(item_id)).attempts[0]


async def test_the_attempt_says_how_its_worker_died(lab: Lab) -> None:
    app = await lab.app()
    handled(app)
    attempt = await crash(lab, app, "killed by SIGSEGV")
    assert attempt.ending is Ending.CRASHED
    assert attempt.failure is not None
    assert attempt.failure.type == "redrive.WorkerLost"
    assert attempt.failure.text == "worker ghost was lost: killed by SIGSEGV (crash 1)"
    assert attempt.failure.category == "crash"


async def test_the_letter_says_how_its_last_worker_died(lab: Lab) -> None:
    app = await lab.app()
    handled(app, max_crashes=1)
    item_id = await app.enqueue("q")
    await beats(lab, "ghost")
    await lab.store.lease(LeaseRequest("ghost", (Want("q", 1, 1_000, max_crashes=1),), "nonce"))
    await app.report_death(PID, why="killed by SIGKILL: over the memory limit of 200 MiB")
    await lab.drain(app)
    item = await lab.item(item_id)
    assert item.letter is not None
    assert item.letter.reason == "max_crashes"
    assert "over the memory limit of 200 MiB" in item.letter.failure.text
    (cause,) = await app.causes("q")
    assert "over the memory limit" in cause.text


async def test_without_a_report_nobody_knows_more_than_before(lab: Lab) -> None:
    app = await lab.app()
    handled(app)
    attempt = await crash(lab, app, None)
    assert attempt.failure is not None
    assert attempt.failure.text == "worker ghost let its lease run out and was not heard of again (crash 1)"


async def test_a_report_that_comes_late_changes_nothing(lab: Lab) -> None:
    app = await lab.app()
    handled(app)
    item_id = await app.enqueue("q")
    await beats(lab, "ghost")
    await lab.ghost("q", ttl="1s")
    await lab.drain(app)
    before = await lab.history(item_id)
    assert await app.report_death(PID, why="killed by SIGKILL") == ("ghost",)
    assert await lab.history(item_id) == before


async def test_crashes_are_one_cause_for_each_way_to_die(lab: Lab) -> None:
    app = await lab.app()
    handled(app)
    told = [("killed by SIGSEGV", "a", 11), ("killed by SIGSEGV", "b-2207-x1", 22), ("exited with code 3", "c", 33)]
    causes = []
    for why, worker, pid in [*told, (None, "d", 44), (None, "e", 55)]:
        attempt = await crash(lab, app, why, worker=worker, pid=pid)
        assert attempt.failure is not None
        causes.append(attempt.failure.cause)
    assert causes[0] == causes[1]
    assert causes[3] == causes[4]
    assert len(set(causes)) == 3


async def test_a_worker_is_known_before_its_first_handler_runs(lab: Lab) -> None:
    """A poison item may kill the process in its first moment: the supervisor must find whom it killed."""
    app = await lab.app()
    found: list[tuple[str, ...]] = []

    @app.handler("q")
    async def handle() -> None:
        found.append(await app.report_death(os.getpid(), why="killed by SIGKILL"))

    seen = Seen(app)
    await app.enqueue("q")
    await lab.drain(app)
    (started,) = seen.of(WorkerStarted)
    assert found == [(started.worker,)]


async def test_a_worker_that_stopped_in_good_order_did_not_die(lab: Lab) -> None:
    app = await lab.app()
    handled(app)
    await lab.drain(app)
    (beat,) = await app.workers()
    assert beat.facts.stopped
    assert await app.report_death(os.getpid(), why="exited with code 0") == ()
    assert await lab.store.documents(deaths.KIND) == ()


async def test_an_earlier_process_with_the_pid_is_not_blamed_for_one_that_stopped_in_good_order(lab: Lab) -> None:
    app = await lab.app()
    await beats(lab, "first")
    lab.clock.advance("1m")
    await beats(lab, "second", stopped=True)
    assert await app.report_death(PID, why="exited with code 0") == ()


async def test_a_pid_that_is_used_again_means_the_last_process(lab: Lab) -> None:
    """In a container every process has the same pid, and its host the same name."""
    app = await lab.app()
    handled(app)
    items = []
    for worker, why in (("first", "killed by SIGSEGV"), ("second", "killed by SIGABRT")):
        items.append(await app.enqueue("q"))
        await beats(lab, worker)
        await lab.ghost("q", worker=worker, ttl="12s")
        assert await app.report_death(PID, why=why) == (worker,)
        lab.clock.advance("5s")
    await lab.drain(app)
    failures = [(await lab.history(item_id)).attempts[0].failure for item_id in items]
    assert ["SIGSEGV" in failure.text for failure in failures if failure] == [True, False]
    assert ["SIGABRT" in failure.text for failure in failures if failure] == [False, True]


async def test_all_workers_of_the_process_died(lab: Lab) -> None:
    app = await lab.app()
    await beats(lab, "old")
    lab.clock.advance("1m")
    await beats(lab, "one")
    lab.clock.advance("5s")
    await beats(lab, "two")
    lab.clock.advance("5s")
    await lab.store.beat("one", WorkerFacts(("q",), host=platform.node(), pid=PID), 30_000)
    assert await app.report_death(PID, why="killed by SIGKILL") == ("one", "two")


async def test_the_same_pid_on_another_host_is_somebody_else(lab: Lab) -> None:
    app = await lab.app()
    await beats(lab, "elsewhere", host="another-host")
    assert await app.report_death(PID, why="killed by SIGKILL") == ()
    assert await app.report_death(PID + 1, why="killed by SIGKILL") == ()


async def test_a_worker_that_stood_still_for_long_is_still_known(lab: Lab) -> None:
    """Its beat has run out, for its loop was blocked."""
    app = await lab.app()
    await beats(lab, "blocked")
    lab.clock.advance("10m")
    assert [beat.alive for beat in await app.workers()] == [False]
    assert await app.report_death(PID, why="killed by SIGKILL: it stood still") == ("blocked",)


async def test_deaths_do_not_pile_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "KEPT", 10)
    app = await lab.app()
    for number in range(25):
        await beats(lab, f"w-{number}", pid=1000 + number)
        await app.report_death(1000 + number, why="exited with code 1")
        await app.report_death(1000 + number, why="exited with code 2")
    (document,) = await lab.store.documents(deaths.KIND)
    known = await deaths.whys(lab.store, {f"w-{number}" for number in range(25)})
    assert known == {f"w-{number}": "exited with code 2" for number in range(15, 25)}
    assert len(document.body) < 1_000


async def test_supervisors_that_report_at_once_do_not_overwrite_each_other(lab: Lab) -> None:
    app = await lab.app()
    names = [f"w-{number}" for number in range(6)]
    for number, name in enumerate(names):
        await beats(lab, name, pid=1000 + number)
    reports = [app.report_death(1000 + number, why=f"exited with code {number}") for number in range(6)]
    assert await lab.drive(asyncio.gather(*reports)) == [(name,) for name in names]
    assert len(await deaths.whys(lab.store, set(names))) == 6


async def test_a_report_whose_outcome_is_unknown_may_be_repeated(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    await beats(lab, "ghost")
    faulty.next("write_documents", Fault.UNAVAILABLE)
    with pytest.raises(StoreUnavailable):
        await app.report_death(PID, why="killed by SIGKILL")
    for _ in range(2):
        assert await app.report_death(PID, why="killed by SIGKILL") == ("ghost",)
    (document,) = await lab.store.documents(deaths.KIND)
    assert document.body.count(b"ghost") == 1


@pytest.mark.parametrize("trouble", ["damaged", "unreadable"])
async def test_evidence_that_cannot_be_had_never_hinders_a_rescue(lab: Lab, trouble: str) -> None:
    app, faulty = await lab.faulty()
    handled(app)
    if trouble == "damaged":
        await lab.store.write_documents([DocumentWrite(deaths.KIND, deaths.KEY, b"{not json")])
    else:
        faulty.fail("document")
    attempt = await crash(lab, app, None)
    assert attempt.failure is not None
    assert "not heard of again" in attempt.failure.text


async def test_a_damaged_record_is_begun_anew(lab: Lab) -> None:
    app = await lab.app()
    await lab.store.write_documents([DocumentWrite(deaths.KIND, deaths.KEY, b"{not json")])
    await beats(lab, "ghost")
    assert await app.report_death(PID, why="killed by SIGKILL") == ("ghost",)
    assert await deaths.whys(lab.store, {"ghost"}) == {"ghost": "killed by SIGKILL"}


async def test_deaths_are_read_only_when_something_was_lost(lab: Lab) -> None:
    app, faulty = await lab.faulty()
    handled(app)
    await app.enqueue_many("q", [None] * 10)
    await lab.drain(app)
    async with lab.working(app):
        await lab.pass_time("40s")
    assert len(faulty.calls_of("reclaim")) > 2
    assert reads(faulty) == 0
    await crash(lab, app, None)
    assert reads(faulty) == 1


def reads(faulty: FaultyStore) -> int:
    return sum(call.args[0] == deaths.KIND for call in faulty.calls_of("document"))


async def test_a_long_story_is_cut_and_stays_one_line(lab: Lab) -> None:
    app = await lab.app()
    handled(app)
    attempt = await crash(lab, app, "killed\n\x00 by \ud800 " + "x" * 1_000)
    assert attempt.failure is not None
    assert "was lost: killed \x00 by \\ud800 xxx" in attempt.failure.text
    assert len(attempt.failure.text) < 300
    assert "\n" not in attempt.failure.text
    assert (await app.tally()).queues[0].done == 1


@pytest.mark.parametrize(
    ("pid", "why", "field"),
    [
        (0, "x", "pid"),
        (-1, "x", "pid"),
        (True, "x", "pid"),
        ("12", "x", "pid"),
        (7, "", "why"),
        (7, " \n", "why"),
        (7, None, "why"),
        (7, 9, "why"),
    ],
)
async def test_what_cannot_be_a_report_is_refused_by_name(memory_lab: Lab, pid: Any, why: Any, field: str) -> None:
    app = await memory_lab.app()
    with pytest.raises(ConfigError) as caught:
        await app.report_death(pid, why=why)
    assert (caught.value.field, bool(caught.value.hint)) == (field, True)


async def test_a_report_never_touches_items(lab: Lab) -> None:
    """Also for a process that lives: leases lapse by time alone, and only a lapsed one is a crash."""
    app = await lab.app()
    handled(app)
    item_id = await app.enqueue("q")
    await beats(lab, "slow")
    await lab.ghost("q", worker="slow", ttl="1h")
    before = await lab.history(item_id)
    await app.report_death(PID, why="killed by SIGKILL")
    async with lab.working(app):
        await lab.pass_time("15s")
    assert (await lab.history(item_id)) == before
    assert before.item.state is State.LEASED
