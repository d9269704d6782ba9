"""One question for work: it may hang without holding up the end, and its answer may have several shapes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from redrive.errors import ConfigError
from redrive.receipts._logs import say
from redrive.receipts.jobs import Job

STOPPED = "the poller was stopped while it asked for work: jobs that are given now are not begun, their leases run out"
SHAPE = '{"tasks": [{"lease_id": …, "task_id": …, "payload": …}, …]}'
_MOST_KEYS = 6
_MOST_SHAPES = 20
"""A broker whose answers are odd in ever new ways does not fill the log."""


async def answer_of(poll: Callable[[int], Awaitable[Any]], most: int, stopping: asyncio.Event) -> Any:
    """None if it was stopped before there was one."""
    loop = asyncio.get_running_loop()
    asking = loop.create_task(_asked(poll, most), name="question for work")
    stopped = loop.create_task(stopping.wait(), name="end of the questions")
    try:
        await asyncio.wait({asking, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        if not asking.done():
            say(logging.INFO, STOPPED)
            asking.cancel()
            asking.add_done_callback(came_late)
    return asking.result() if asking.done() else None


async def _asked(poll: Callable[[int], Awaitable[Any]], most: int) -> Any:
    return await poll(most)


def came_late(asking: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
    """Tell of jobs in an answer that nobody waited for."""
    if not asking.cancelled() and asking.exception() is None and (jobs := jobs_of(asking.result())):
        say(logging.WARNING, f"jobs that came after the stop are not begun, their leases run out: {_leases(jobs)}")


def _leases(jobs: list[Any]) -> str:
    return ", ".join(str(job.get("lease_id")) if isinstance(job, Mapping) else "?" for job in jobs)


def jobs_of(answer: Any) -> list[Any] | None:
    """The jobs in `{"tasks": […]}`, in a list, in `{"task": {…}}`, or a job alone; None if it is something else."""
    match answer:
        case None | {"tasks": None} | {"task": None}:
            return []
        case {"tasks": list() as jobs}:
            return jobs
        case {"task": Mapping() as job}:
            return [job]
        case Mapping():
            # What names one of the two may be a job, and is told as a bad one if it is none.
            return [answer] if {"lease_id", "task_id"} & answer.keys() else None if answer else []
        case str() | bytes():
            return None
        case Iterable():
            return list(answer)
        case _:
            return None


class Reader:
    """Reads answers, and tells once of each shape that is none of an answer."""

    def __init__(self) -> None:
        self._odd: set[str] = set()

    def jobs(self, answer: Any) -> list[Job]:
        """Those that are jobs; the others are told of."""
        given = jobs_of(answer)
        if given is None:
            self._tell(_shape(answer))
        return [job for job in map(_job, given or ()) if job is not None]

    def _tell(self, shape: str) -> None:
        if shape not in self._odd and len(self._odd) < _MOST_SHAPES:
            self._odd.add(shape)
            say(logging.WARNING, f"asked for work, the broker gave {shape}, not {SHAPE}: taken for no work")


def _job(given: Any) -> Job | None:
    try:
        return Job.of(given)
    except ConfigError as error:
        say(logging.ERROR, f"the broker gave what is no job: {error}")
        return None


def _shape(answer: Any) -> str:
    """Names, never values: what is in there is not for a log."""
    if not isinstance(answer, Mapping):
        return f"a {type(answer).__name__}"
    names = sorted(str(name)[:40] for name in answer)
    more = ", …" if len(names) > _MOST_KEYS else ""
    return f"a mapping with {', '.join(names[:_MOST_KEYS])}{more}"
