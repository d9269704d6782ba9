"""The peers on Redis. All but rq have no way to put many at once, so their queues are filled by many callers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from bench.load import PAYLOAD

CALLERS = 20

Handled = Callable[[], None]


async def _many(count: int, one: Callable[[], Awaitable[object]]) -> None:
    async def caller(share: int) -> None:
        for _ in range(share):
            await one()

    await asyncio.gather(*(caller(count // CALLERS + (n < count % CALLERS)) for n in range(CALLERS)))


class Dramatiq:
    def __init__(self, url: str, variant: int, handled: Handled) -> None:
        os.environ["dramatiq_queue_prefetch"] = "200"  # noqa: SIM112 - its name for it
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self._threads = variant
        self._broker = RedisBroker(url=url)
        dramatiq.set_broker(self._broker)

        @dramatiq.actor(actor_name="noop", max_retries=0)
        def noop(payload: object) -> None:  # noqa: ARG001 - an actor gets its payload
            handled()

        self._noop: Any = noop

    def fill(self, count: int) -> None:
        for _ in range(count):
            self._noop.send(PAYLOAD)

    def work(self) -> None:
        import dramatiq

        dramatiq.Worker(self._broker, worker_threads=self._threads).start()
        while True:
            time.sleep(60)


class Huey:
    def __init__(self, url: str, variant: int, handled: Handled) -> None:
        from huey import RedisHuey

        self._workers = variant
        self._huey: Any = RedisHuey("bench", url=url, results=False)

        @self._huey.task(name="noop")
        def noop(payload: object) -> None:  # noqa: ARG001 - a task gets its payload
            handled()

        self._noop: Any = noop

    def fill(self, count: int) -> None:
        for _ in range(count):
            self._noop(PAYLOAD)

    def work(self) -> None:
        self._huey.create_consumer(workers=self._workers, periodic=False).run()


class Saq:
    def __init__(self, url: str, variant: int, handled: Handled) -> None:
        self._url = url
        self._concurrency = variant
        self._handled = handled

    def fill(self, count: int) -> None:
        from saq import Queue

        async def fill() -> None:
            queue = Queue.from_url(self._url)
            await queue.connect()
            await _many(count, lambda: queue.enqueue("noop", payload=PAYLOAD, ttl=0))
            await queue.disconnect()

        asyncio.run(fill())

    def work(self) -> None:
        import uvloop
        from saq import Queue, Worker

        async def noop(context: object, *, payload: object) -> None:  # noqa: ARG001 - what a function gets
            self._handled()

        async def work() -> None:
            queue = Queue.from_url(self._url)
            await queue.connect()
            await Worker(queue, [("noop", noop)], concurrency=self._concurrency).start()

        uvloop.run(work())


class TaskiqList:
    broker = "ListQueueBroker"

    def __init__(self, url: str, variant: int, handled: Handled) -> None:
        self._url = url
        self._tasks = variant
        self._handled = handled

    def _made(self) -> tuple[Any, Any]:
        import taskiq_redis

        broker: Any = getattr(taskiq_redis, self.broker)(self._url, queue_name="bench")

        @broker.task(task_name="noop")
        async def noop(payload: dict[str, Any]) -> None:  # noqa: ARG001 - a task gets its payload
            self._handled()

        return broker, noop

    def fill(self, count: int) -> None:
        async def fill() -> None:
            broker, noop = self._made()
            await broker.startup()
            await _many(count, lambda: noop.kiq(PAYLOAD))
            await broker.shutdown()

        asyncio.run(fill())

    def work(self) -> None:
        import uvloop
        from taskiq.api import run_receiver_task

        async def work() -> None:
            broker, _ = self._made()
            await run_receiver_task(broker, run_startup=True, max_async_tasks=self._tasks, max_prefetch=self._tasks)

        uvloop.run(work())


class TaskiqStream(TaskiqList):
    broker = "RedisStreamBroker"


class Arq:
    """`poll_delay`: it would else wait half a second between two looks, whatever there is to do."""

    def __init__(self, url: str, variant: int, handled: Handled) -> None:
        from arq.connections import RedisSettings

        parts = urlsplit(url)
        self._settings = RedisSettings(parts.hostname or "", parts.port or 0, database=int(parts.path.strip("/")))
        self._jobs = variant
        self._handled = handled

    def fill(self, count: int) -> None:
        from arq import create_pool

        async def fill() -> None:
            pool = await create_pool(self._settings)
            await _many(count, lambda: pool.enqueue_job("noop", PAYLOAD))
            await pool.aclose()

        asyncio.run(fill())

    def work(self) -> None:
        from arq.worker import Worker, func

        async def noop(context: object, payload: object) -> None:  # noqa: ARG001 - what a function gets
            self._handled()

        async def work() -> None:
            settings = {"poll_delay": 0.001, "max_jobs": self._jobs, "keep_result": 0, "handle_signals": False}
            await Worker([func(noop, name="noop")], redis_settings=self._settings, **settings).async_run()

        asyncio.run(work())


_handled: list[Handled] = []


def rq_noop(payload: object) -> None:  # noqa: ARG001 - a job gets its payload
    """Found by its name, so it cannot be made where the others are."""
    _handled[0]()


class Rq:
    """Without a fork for each job, which is its default and slower still."""

    def __init__(self, url: str, variant: int, handled: Handled) -> None:  # noqa: ARG002 - it takes one at a time
        import redis
        from rq import Queue
        from rq.serializers import JSONSerializer

        _handled[:] = [handled]
        self._redis = redis.Redis.from_url(url)
        self._queue: Any = Queue("bench", connection=self._redis, serializer=JSONSerializer)

    def fill(self, count: int) -> None:
        job = {"result_ttl": 0, "timeout": 60}
        jobs = [self._queue.prepare_data(f"{__name__}.rq_noop", (PAYLOAD,), **job) for _ in range(count)]
        self._queue.enqueue_many(jobs)

    def work(self) -> None:
        from rq import SimpleWorker

        worker: Any = SimpleWorker([self._queue], connection=self._redis, serializer=self._queue.serializer)
        worker.work(logging_level="CRITICAL")


PEERS: dict[str, Any] = {
    "dramatiq": Dramatiq,
    "huey": Huey,
    "saq": Saq,
    "taskiq-list": TaskiqList,
    "taskiq-stream": TaskiqStream,
    "arq": Arq,
    "rq": Rq,
}
