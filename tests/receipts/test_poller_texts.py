"""Brokers and handlers may say anything: a job that began ends with a receipt, and the log has no lines but ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import pytest

from redrive.errors import ConfigError
from redrive.receipts.jobs import Job
from redrive.receipts.model import NAME_LIMIT, RECEIPT_LIMIT, SUMMARY_LIMIT
from tests.receipts.shop import Shop, code_of, giving, shop
from tests.receipts.target import Mute
from tests.receipts.test_poller_surprises import told
from tests.support.logs import ours

__all__ = ["shop"]

NASTY = "broke \x1b[31m token=hunter2\n2026-11-16 ERROR forged"
PLAIN = r"broke \x1b[31m token=[redacted]\n2026-11-16 ERROR forged"


class Blank:
    """Cannot be shown, nor sent."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class MuteExit(SystemExit):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


# --- whatever a handler does, its job has a receipt ---


def raising(error: BaseException) -> Callable[[Job], Any]:
    async def handle(job: Job) -> None:
        raise error

    return handle


async def without_a_job() -> None:
    """A handler that cannot be called with one."""


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (raising(Mute()), "Mute: <Mute, whose __str__ raised RuntimeError>"),
        (raising(ValueError("half \ud800")), r"ValueError: half \ud800"),
        (raising(MuteExit(3)), "MuteExit: 3"),
        (raising(asyncio.CancelledError()), "CancelledError: the handler was cancelled"),
        (giving(Blank()), "what the handler returned cannot be sent: RuntimeError: no words"),
        (
            giving("half \ud800"),
            "what the handler returned cannot be sent: receipt: it cannot be sent: summary contains",
        ),
        (giving("x" * RECEIPT_LIMIT), "what the handler returned cannot be sent: the receipt has more than"),
        (without_a_job, "TypeError: without_a_job() takes 0 positional arguments but 1 was given"),
    ],
)
async def test_a_failure_that_cannot_be_shown_is_a_receipt(
    shop: Shop, handler: Callable[[Job], Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.add("a")
    poller = shop.start(handler)
    failed = await shop.end_of("a")
    assert (code_of(failed), failed.summary[: len(said)]) == ("HANDLER_ERROR", said)
    assert poller.active == {}
    assert not told(caplog, "without a receipt")


@pytest.mark.parametrize("shaped", [lambda text: text, lambda text: {"summary": text, "artifact_pointers": ["s3://b"]}])
async def test_a_summary_that_is_too_long_is_whole_in_an_artifact(shop: Shop, shaped: Callable[[str], Any]) -> None:
    text = "x" * SUMMARY_LIMIT
    shop.add("fits", "long")

    async def handle(job: Job) -> Any:
        return shaped(text if job.payload == "fits" else f"{text}y")

    shop.start(handle)
    fits, long = await shop.end_of("fits"), await shop.end_of("long")
    given = ["s3://b"] if isinstance(shaped(""), dict) else []
    assert (fits.summary, fits.artifact_pointers) == (text, given)
    assert (long.status, long.summary) == ("complete", f"{text[:-1]}…")
    assert long.artifact_pointers == [*given, {"summary": f"{text}y"}]


# --- ids that no receipt can have ---


@pytest.mark.parametrize("name", ["lease_id", "task_id"])
@pytest.mark.parametrize(
    "bad",
    ["x" * (NAME_LIMIT + 1), "a\0b", "half \ud800", 10**5000, " ", ""],
    ids=["long", "NUL", "half", "digits", "blank", "empty"],
)
async def test_a_job_that_no_receipt_can_name_is_not_begun(
    shop: Shop, name: str, bad: str | int, caplog: pytest.LogCaptureFixture
) -> None:
    began: list[Any] = []

    async def handle(job: Job) -> None:
        began.append(job.payload)

    shop.jobs.append({"lease_id": "l", "task_id": "t", "payload": "bad", name: bad})
    shop.add("a")
    shop.start(handle, max_concurrent_jobs=2)
    await shop.end_of("a")
    assert began == ["a"]
    (line,) = told(caplog, "gave no job")
    assert name in line
    assert line.isprintable()
    assert len(line) < 300


def test_the_longest_ids_are_those_of_a_job() -> None:
    longest = "x" * NAME_LIMIT
    assert Job.of({"lease_id": longest, "task_id": 7}).lease_id == longest
    with pytest.raises(ConfigError, match="lease_id has 513 characters"):
        Job.of({"lease_id": f"{longest}x", "task_id": 7})


# --- what cancels itself ---


async def test_a_question_that_cancels_itself_is_asked_again(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    async def poll(most: int) -> list[dict[str, Any]]:
        shop.asked.append(most)
        if len(shop.asked) < 3:
            raise asyncio.CancelledError
        given, shop.jobs = shop.jobs, []
        return given

    shop.add("a")
    poller = shop.start(giving("fine"), poll=poll, polling_interval=1)
    assert (await shop.end_of("a")).summary == "fine"
    assert told(caplog, "cannot ask for work") == [
        "cannot ask for work, again in 2000 ms: CancelledError",
        "cannot ask for work, again in 4000 ms: CancelledError",
    ]
    run = shop.run_of(poller)
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled(), "whoever cancels it means it"


async def test_a_thread_that_cancels_itself_ends_its_job(shop: Shop) -> None:
    def handle(job: Job) -> None:
        raise CancelledError

    shop.add("a")
    ended = asyncio.Event()

    async def poll(most: int) -> list[dict[str, Any]]:
        given, shop.jobs = shop.jobs, []
        if not given:
            ended.set()
        return given

    with shop.clock.driven():  # fake time would run away from a thread
        shop.start(handle, poll=poll)
        async with asyncio.timeout(20):
            await ended.wait()
    failed = await shop.end_of("a")
    assert (code_of(failed), failed.summary) == ("HANDLER_ERROR", "CancelledError: the handler was cancelled")


async def test_a_heartbeat_that_cancels_itself_comes_again(shop: Shop) -> None:
    beats: list[float] = []

    async def renew(job: Job) -> None:
        beats.append(shop.time)
        raise asyncio.CancelledError

    async def handle(job: Job) -> str:
        await shop.passing(25)
        return "fine"

    shop.add("a")
    shop.start(handle, renew=renew, heartbeat_interval=8)
    assert (await shop.end_of("a")).summary == "fine"
    assert [round(beat) for beat in beats][:4] == [8, 10, 12, 14]


# --- the log ---


async def test_what_others_say_forges_no_lines_and_tells_no_secrets(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(job: Job) -> None:
        await shop.passing(15)
        error = ValueError(NASTY)
        error.add_note(NASTY)
        raise error from KeyError(NASTY)

    shop.silent = ValueError(NASTY)
    shop.lost = ValueError(NASTY)
    shop.start(handle, heartbeat_interval=10)
    await shop.until(lambda: told(caplog, "cannot ask"))
    shop.silent = None
    shop.jobs.append({"lease_id": f"l {NASTY}", "task_id": "task-a"})
    await shop.end_of("a")
    lines = told(caplog, "")
    assert lines[0] == f"cannot ask for work, again in 10000 ms: ValueError: {PLAIN}"
    assert lines[1] == rf"cannot prolong lease l {PLAIN}: ValueError: {PLAIN}"
    first, *trace = lines[2].split("\n")
    assert first == rf"the handler of l {PLAIN} failed: ValueError: {PLAIN}"
    assert "  Traceback (most recent call last):" in trace
    assert any(line.startswith(f'    File "{__file__}", line ') and line.endswith(" in handle") for line in trace)
    assert f"  ValueError: {PLAIN}" in trace
    assert all(line.startswith("  ") and line.isprintable() for line in trace)
    assert "hunter2" not in caplog.text
    assert {record.name for record in ours(caplog)} == {"redrive.receipts"}
    assert {record.filename for record in ours(caplog)} == {"poller.py"}, "and not where all of it is written"


async def test_an_endless_text_is_cut(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.add("a")
    shop.start(raising(ValueError("x" * 1_000_000)))
    failed = await shop.end_of("a")
    assert failed.error_metadata is not None
    assert failed.error_metadata["message"].endswith("x… (1000000 characters)")
    (record,) = ours(caplog)
    assert record.levelno == logging.ERROR
    assert len(record.getMessage()) < 10_000
