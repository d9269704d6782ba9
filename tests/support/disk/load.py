"""The work under which the power is cut: clients that enqueue and a worker that ends, in one process.

What was promised is written down beside the disk, never on it: an enqueue that returned, an end that was accepted.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from redrive import Dead, Item, Policy, Redrive, constant, never
from redrive.engine.ids import new_id
from redrive.stores.sqlite import checkpoint
from tests.support.rig.log import Log
from tests.support.rig.producer import Producer
from tests.support.rig.worker import transcriber

DATABASE = "redrive.db"
QUEUES = ("ok", "flaky", "doomed", "hopeless")
CLIENTS = 4
OPTIONS = {"network": "allow", "ballast": "128KiB"}
"""Who makes the file system is known here; and the usual ballast would be most of what is on it."""
CHECKPOINT_EVERY = 150
"""Pages: so few that many cuts fall into a checkpoint."""


def often_checkpoint() -> None:
    for name in ("LOOK", "AFTER"):
        assert hasattr(checkpoint, name), "checkpoints are no longer made by this measure"
        setattr(checkpoint, name, CHECKPOINT_EVERY)


def url(folder: Path, **options: str) -> str:
    """Of the database on this disk: the one place that knows with which options its store is opened."""
    query = "&".join(f"{name}={value}" for name, value in {**OPTIONS, **options}.items())
    return f"sqlite:///{folder / DATABASE}?{query}"


def build(store: str) -> Redrive:
    app = Redrive(store, log=False, actor="load")

    @app.handler("ok", concurrency=4)
    async def ok(text: str, item: Item) -> str:
        return item.id + text

    @app.handler("flaky", policy=Policy(backoff=constant("1ms")), concurrency=4)
    async def flaky(text: str, item: Item) -> None:
        if not item.errors:
            raise ConnectionError("works the second time")

    @app.handler("doomed", policy=Policy(backoff=never()), concurrency=4)
    async def doomed(text: str) -> None:
        raise ValueError("never works")

    @app.handler("hopeless", concurrency=2)
    async def hopeless(text: str) -> None:
        raise Dead("not worth another try")

    return app


async def work(store: str, logs: Path, name: str) -> None:
    """Until the power is cut: this does not return by itself."""
    often_checkpoint()
    app = build(store)
    app.events.subscribe(transcriber(Log(logs / f"events-{name}.log")))
    producer = Producer(app, Log(logs / f"producer-{name}.log"))
    items = endless(name)
    async with app:
        await asyncio.gather(app.run(), *(client(producer, items) for _ in range(CLIENTS)))


def endless(seed: str) -> Iterator[tuple[str, str]]:
    """Queue and text of one item after another; some texts need several pages."""
    luck = random.Random(seed)
    for number in itertools.count():
        yield QUEUES[number % len(QUEUES)], incompressible(luck, luck.choice((1, 100, 100, 6_000)))


def incompressible(luck: random.Random, size: int) -> str:
    return base64.b85encode(luck.randbytes(size))[:size].decode()


async def client(producer: Producer, items: Iterator[tuple[str, str]]) -> None:
    for queue, text in items:
        await producer.enqueue(queue, new_id(), {"text": text})
