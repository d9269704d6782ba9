"""What is told of seeded items, on every engine: when each was put, why it died, and who paused what."""

from __future__ import annotations

import asyncio
import random
import time
from typing import NamedTuple

from bench.load import QUEUE
from redrive.core import codec
from redrive.core.classify import fingerprint
from redrive.core.item import Attempt, Ending, Failure, Frame, Instant, Millis
from redrive.core.verbs import QueueChange
from redrive.stores.base import Store
from redrive.stores.url import store_from_url

DAY: Millis = 24 * 60 * 60 * 1000
SPAN: Millis = 30 * DAY
"""The letters died within so long."""
WORKER = "host-1-seeder"
REASON = "max_attempts"
PAUSED = "held-back"
QUEUES = ("emails", "invoices", "webhooks", "exports", "thumbnails", "search", "billing", "sync", "reports", "push")
CAUSES = 200
ERRORS = (
    ("ConnectionError", "network"),
    ("TimeoutError", "timeout"),
    ("requests.exceptions.HTTPError", "server"),
    ("requests.exceptions.ReadTimeout", "timeout"),
    ("botocore.exceptions.ClientError", "throttled"),
    ("psycopg.errors.SerializationFailure", "conflict"),
    ("shop.errors.PaymentDeclined", "rejected"),
    ("shop.errors.UnknownCustomer", "data"),
    ("KeyError", "data"),
    ("ValueError", "data"),
    ("PermissionError", "auth"),
    ("redrive.errors.HandlerTimeout", "timeout"),
)
LOTS = 50_000
OFTEN = 200
"""Letters draw their kind from so many lots; kinds after the first so many have one lot each."""
LOT_STEP, RAN_STEP = 40_503, 7_919
"""The nth letter draws lot n * LOT_STEP and ran for n * RAN_STEP: it looks random, yet is the same in every run."""


class Kind(NamedTuple):
    """A way to die. The last three are the record of the attempt around the two numbers that differ."""

    queue: str
    cause: str
    error: str
    error_short: str
    category: str
    rule: str
    failure: bytes
    head: str
    middle: str
    tail: str


class Wait(NamedTuple):
    """So many items of a queue, put one after the other within a day, each due `delay` later."""

    size: int
    queue: str
    since: Instant
    delay: Millis = 0


def waits(ready: int, delayed: int, paused: int) -> list[Wait]:
    now = _now()
    every = [
        Wait(ready, QUEUE, now - 3 * DAY),
        Wait(delayed, QUEUE, now - 2 * DAY, 3 * DAY),
        Wait(paused, PAUSED, now - DAY),
    ]
    return [wait for wait in every if wait.size]


def first_death() -> Instant:
    return _now() - SPAN - DAY


def kinds() -> list[Kind]:
    return [_kind(queue, failure) for queue, failure in failures()]


def lots(count: int) -> list[int]:
    """Of so many kinds; a few of them are most."""
    weights = [1 / (rank + 1) for rank in range(OFTEN)]
    often = random.Random(1).choices(range(OFTEN), weights, k=LOTS - count + OFTEN)
    return [*often, *range(OFTEN, count)]


def failures() -> list[tuple[str, Failure]]:
    """Each cause with its queue. A fifth of the causes is met in two queues, and a tenth in the bench's own."""
    found = []
    for number in range(CAUSES):
        failure = _failure(number)
        found.append((QUEUE if number % 10 == 3 else QUEUES[number % len(QUEUES)], failure))
        if number % 5 == 0:
            found.append((QUEUES[(number + 3) % len(QUEUES)], failure))
    return found


def _failure(number: int) -> Failure:
    kind, category = ERRORS[number % len(ERRORS)]
    name = chr(97 + number // 26) + chr(97 + number % 26)
    frames = tuple(
        Frame(f"/srv/shop/lib/shop/{place}/{name}.py", 10 + number, f"{place}_{name}")
        for place in ("handlers", "services", "clients")
    )
    text = f"the {name} service answered 503 to request 7f3a-{number}: try again later"
    cause = fingerprint(kind, text, frames)
    return Failure(kind, text, category, f"builtin:{category}", cause, frames=frames)


def _kind(queue: str, failure: Failure) -> Kind:
    at, ran = 111_222_333, 444_555_666
    attempt = codec.encode(Attempt(1, 1, WORKER, at, ran, Ending.FAILED, failure)).decode()
    head, rest = attempt.split(str(at))
    middle, tail = rest.split(str(ran))
    short = failure.type.rpartition(".")[2]
    names = (failure.cause, failure.type, short, failure.category, failure.rule)
    return Kind(queue, *names, codec.encode(failure), head, middle, tail)


def create(url: str) -> None:
    """A store with nothing in it."""
    asyncio.run(_create(store_from_url(url)))


async def _create(store: Store) -> None:
    await store.open()
    await store.close()


def pause(url: str) -> None:
    asyncio.run(_pause(store_from_url(url)))


async def _pause(store: Store) -> None:
    await store.open()
    await store.configure(PAUSED, QueueChange(paused=True))
    await store.close()


def _now() -> Instant:
    return time.time_ns() // 1_000_000
