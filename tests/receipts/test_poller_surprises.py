"""A broker that gives what nobody asked for, or nothing for long, and handlers that go too far."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive.errors import ReceiptSuperseded, ReceiptUnreachable
from redrive.receipts import blocking
from redrive.receipts.jobs import Job
from tests.receipts.shop import Shop, code_of, giving, shop
from tests.support.broker import Broker
from tests.support.logs import ours

__all__ = ["shop"]

LATE = "jobs that came after the stop are not begun, their leases run out: lease-late"
LATE_JOB = {"lease_id": "lease-late", "task_id": "task-late"}


def told(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in ours(caplog) if text in record.getMessage()]


# --- answers ---


@pytest.mark.parametrize("bad", [{"lease_id": "l"}, {"payload": 1}, None, 5])
async def test_what_is_no_job_is_no_sign_of_more_work(shop: Shop, bad: Any) -> None:
    """It is asked again as if nothing had come, not when a place becomes free that nobody took."""
    shop.jobs.append(bad)
    shop.add("a")
    shop.start(giving("fine"), polling_interval=5)
    assert (await shop.end_of("a")).summary == "fine"
    assert shop.asked[1] - shop.asked[0] == 5_000


async def test_a_job_that_it_has_already_is_no_sign_of_more_work(shop: Shop) -> None:
    async def handle(job: Job) -> None:
        if job.payload == "a":
            await shop.passing(40)

    shop.add("a", "a", "b")
    shop.start(handle, polling_interval=5, max_concurrent_jobs=2)
    await shop.end_of("b")
    assert shop.time < 10
    await shop.end_of("a")


@pytest.mark.parametrize(
    "shaped",
    [
        lambda job: {"tasks": [job]},
        lambda job: [job],
        lambda job: {"task": job},
        lambda job: job,
    ],
)
async def test_jobs_come_in_several_shapes(
    shop: Shop, shaped: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [{"tasks": []}, [], {"task": None}, None, {}, shaped({"lease_id": "lease-a", "task_id": "task-a"})]

    async def call(_tool: str, _arguments: object) -> Any:
        return answers.pop(0) if answers else None

    monkeypatch.setattr(shop.client, "call", call)
    shop.start(giving("fine"), poll=None)
    assert (await shop.end_of("a")).summary == "fine"
    assert not told(caplog, "asked for work")


async def test_an_answer_of_another_shape_is_told_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [{"jobs": [], "secret": "hunter2"}, "nothing to do", {"tasks": "none"}, 7] * 2
    answers.append({"tasks": [{"lease_id": "lease-a", "task_id": "task-a"}]})

    async def call(_tool: str, _arguments: object) -> Any:
        return answers.pop(0) if answers else None

    monkeypatch.setattr(shop.client, "call", call)
    shop.start(giving("fine"), poll=None)
    await shop.end_of("a")
    assert [line.split(", not")[0] for line in told(caplog, "asked for work")] == [
        "asked for work, the broker gave a mapping with jobs, secret",
        "asked for work, the broker gave a str",
        "asked for work, the broker gave a mapping with tasks",
        "asked for work, the broker gave a int",
    ]
    assert "hunter2" not in caplog.text


# --- more jobs than places ---


class Flood:
    """Gives all its jobs at once, however few are asked for."""

    def __init__(self, shop: Shop, *names: str) -> None:
        shop.add(*names)
        self._jobs, shop.jobs = shop.jobs, []

    async def poll(self, _most: int) -> list[dict[str, Any]]:
        given, self._jobs = self._jobs, []
        return given


async def test_jobs_beyond_the_places_wait_for_one(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    at_work: set[str] = set()
    most = 0

    async def handle(job: Job) -> None:
        nonlocal most
        at_work.add(job.payload)
        most = max(most, len(at_work))
        await shop.passing(20)
        at_work.discard(job.payload)

    poller = shop.start(handle, poll=Flood(shop, *"abcdef").poll, max_concurrent_jobs=2, job_timeout=30)
    await shop.passing(15)
    assert list(poller.active) == [f"lease-{name}" for name in "abcdef"]
    await shop.until(lambda: len(shop.final()) == 6)
    assert most == 2
    assert [each.status for each in shop.final()] == ["complete"] * 6  # no time of the wait counts as work
    assert 60 <= shop.time < 65
    assert told(caplog, "gave 6") == ["asked for 2 jobs, the broker gave 6: some wait for a slot"]


async def test_heartbeats_keep_what_waits_for_a_place(shop: Shop) -> None:
    began: list[str] = []
    kept: set[str] = set()

    async def handle(job: Job) -> None:
        began.append(job.payload)
        await shop.passing(100)

    async def renew(job: Job) -> None:
        kept.add(job.payload)
        if job.payload == "b":
            raise ReceiptSuperseded("gone")

    shop.start(handle, poll=Flood(shop, *"abc").poll, renew=renew, heartbeat_interval=10)
    lost = await shop.end_of("b")
    assert (code_of(lost), shop.time < 20) == ("LEASE_LOST", True)
    await shop.until(lambda: "c" in began)
    assert (began, kept) == (["a", "c"], {"a", "b", "c"})


async def test_what_waits_for_a_place_is_given_back_at_the_stop(shop: Shop) -> None:
    began: list[str] = []

    async def handle(job: Job) -> str:
        began.append(job.payload)
        await shop.passing(50)
        return "finished"

    poller = shop.start(handle, poll=Flood(shop, *"abc").poll)
    await shop.passing(10)
    stopping = asyncio.create_task(poller.stop())
    for name in "bc":
        back = await shop.end_of(name)
        assert code_of(back) == "SHUTDOWN_CANCELLED"
        assert back.error_metadata is not None
        assert back.error_metadata["retryable"] is True
    assert shop.time < 15
    await stopping
    assert (await shop.end_of("a")).summary == "finished"
    assert began == ["a"]


# --- a question that hangs ---


@pytest.mark.parametrize("listens", [True, False])
async def test_a_question_that_hangs_does_not_hold_up_the_end(
    shop: Shop, caplog: pytest.LogCaptureFixture, *, listens: bool
) -> None:
    answered, cancelled = asyncio.Event(), asyncio.Event()
    shop.add("a")

    async def poll(most: int) -> list[dict[str, Any]]:
        if shop.jobs:
            return [shop.jobs.pop()]
        try:
            await answered.wait()
        except asyncio.CancelledError:
            cancelled.set()
            if listens:
                raise
            await answered.wait()
        return [LATE_JOB]

    async def handle(job: Job) -> str:
        await shop.passing(20)
        return "finished"

    poller = shop.start(handle, poll=poll, max_concurrent_jobs=2, polling_interval=1, drain_timeout=30)
    try:
        await shop.passing(10)
        stopping = asyncio.create_task(poller.stop())
        await shop.until(stopping.done, most=31)
        assert cancelled.is_set()
        assert shop.time < 22
        assert (await shop.end_of("a")).summary == "finished"
    finally:
        answered.set()
    await shop.passing(1)
    assert told(caplog, "after the stop") == ([] if listens else [LATE])
    assert poller.active == {}
    assert len(shop.final()) == 1


def test_a_plain_question_that_hangs_is_left_behind(broker: Broker, tmp_path: Path) -> None:
    asked, answered, late = threading.Event(), threading.Event(), threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == LATE:
                late.set()

    def poll(_most: int) -> list[dict[str, Any]]:
        asked.set()
        answered.wait()
        return [LATE_JOB]

    began: list[Job] = []
    listener, log = Listener(), logging.getLogger("redrive.receipts")
    log.addHandler(listener)
    try:
        with blocking.ReceiptClient(broker.url, f"sqlite:///{tmp_path}/redrive.db", log=False) as client:
            poller = blocking.WorkPoller(client, began.append, poll=poll, renew=lambda _: None)
            running = threading.Thread(target=poller.run, daemon=True)
            running.start()
            assert asked.wait(10)
            stopping = threading.Thread(target=poller.stop, daemon=True)
            stopping.start()
            stopping.join(10)
            running.join(10)
            ended = not stopping.is_alive() and not running.is_alive()
            answered.set()
            assert ended
            assert late.wait(10)
    finally:
        answered.set()
        log.removeHandler(listener)
    assert began == []


# --- handlers that go too far ---


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
async def test_a_handler_that_ends_the_program_ends_its_job(shop: Shop, error: BaseException, said: str) -> None:
    async def handle(job: Job) -> str:
        if job.payload == "a":
            raise error
        return "fine"

    shop.add("a", "b")
    shop.start(handle)
    failed = await shop.end_of("a")
    assert (code_of(failed), failed.summary) == ("HANDLER_ERROR", said)
    assert (await shop.end_of("b")).summary == "fine"


class Asked:
    """Gives jobs of the shop, and tells when it was asked so often: with one place, all before had ended then."""

    def __init__(self, shop: Shop, times: int) -> None:
        self._shop = shop
        self._left = times
        self._enough = asyncio.Event()

    async def poll(self, most: int) -> list[dict[str, Any]]:
        self._left -= 1
        if not self._left:
            self._enough.set()
        return [self._shop.jobs.pop(0)] if self._shop.jobs else []

    async def enough(self) -> None:
        async with asyncio.timeout(20):
            await self._enough.wait()


@pytest.mark.parametrize(
    ("going_too_far", "said"),
    [
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: next(iter(())), "StopIteration"),
    ],
)
async def test_a_thread_that_ends_the_program_ends_its_job(
    shop: Shop, going_too_far: Callable[[], Any], said: str
) -> None:
    def handle(job: Job) -> Any:
        return going_too_far() if job.payload == "a" else "fine"

    shop.add("a", "b")
    with shop.clock.driven():  # fake time would run away from a thread
        asked = Asked(shop, 3)
        shop.start(handle, poll=asked.poll)
        await asked.enough()
    failed = await shop.end_of("a")
    assert (code_of(failed), failed.summary) == ("HANDLER_ERROR", said)
    assert (await shop.end_of("b")).summary == "fine"


async def test_a_thread_of_an_earlier_run_takes_no_place_of_a_later_one(shop: Shop) -> None:
    began, let_go = threading.Event(), threading.Event()

    def handle(job: Job) -> str:
        if job.payload == "slow":
            began.set()
            let_go.wait()
        return "fine"

    shop.add("slow", "next")
    asked = Asked(shop, 3)
    poller = shop.start(handle, poll=asked.poll)
    try:
        with shop.clock.driven():
            assert await asyncio.to_thread(began.wait, 20)
        await poller.stop(drain_timeout=0)
        with shop.clock.driven():
            again = asyncio.create_task(poller.run())
            await shop.clock.rest()
            let_go.set()
            await asked.enough()
    finally:
        let_go.set()
    assert (await shop.end_of("next")).summary == "fine"
    await poller.stop()
    await again


# --- leases ---


@pytest.mark.parametrize("code", ["", "GONE", "TASK_NOT_FOUND"])
async def test_superseded_is_a_lost_lease_whatever_its_code(shop: Shop, code: str) -> None:
    async def handle(job: Job) -> None:
        await shop.passing(3600)

    shop.lost = ReceiptSuperseded("somebody else has it", code=code)
    shop.add("a")
    shop.start(handle, heartbeat_interval=60, job_timeout="2h")
    assert code_of(await shop.end_of("a")) == "LEASE_LOST"
    assert shop.beats == [60]


async def test_a_heartbeat_that_fails_is_told_once_in_its_interval(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(job: Job) -> None:
        await shop.passing(250)

    shop.lost = ReceiptUnreachable("down")
    shop.add("a")
    shop.start(handle, heartbeat_interval=60)
    await shop.end_of("a")
    assert len(shop.beats) > 10
    assert len(told(caplog, "cannot prolong")) == 4  # at 60, 120, 180 and 240
