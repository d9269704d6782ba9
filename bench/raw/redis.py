"""The bare loops on Redis: one plain connection of redis-py that calls the store's scripts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis
from msgspec import msgpack

from bench.load import QUEUE
from bench.raw import BATCH, FIRST, SHARE, TTL, WORKER
from redrive.core import codec
from redrive.engine.ids import new_id, new_ids
from redrive.stores.redis import scripts
from redrive.stores.redis.options import NAMESPACE
from redrive.stores.redis.rows import packed_body

_MAX_CRASHES = 3
_DONE = 1
_PREFIX = f"{{{NAMESPACE}}}:"


class Redis:
    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._scripts = scripts.load()
        for script in self._scripts.values():
            self._client.script_load(script.text)

    def close(self) -> None:
        self._client.close()

    def drain(self, batch: int = BATCH) -> tuple[float, float]:
        done, start, cpu = 0, time.perf_counter(), time.thread_time()
        _, leases = self._run("lease", [_request(batch)])
        while len(leases) > 1:
            ids = leases[1::3]
            ended = [(key.decode(), FIRST, _DONE, 0, False, 0) for key in ids]
            _, refused, leases = self._run("settle", [msgpack.encode(ended), _request(batch)])
            assert not refused, "nobody else is there"
            done += len(ids)
        took, cpu = time.perf_counter() - start, time.thread_time() - cpu
        settled = self._client.zcard(f"{_PREFIX}ended:done:{QUEUE}")
        assert settled == done > 0, f"{done} were leased, {settled} are done"
        return done / took, cpu / done

    def insert(self, payload: object, count: int, chunk: int) -> float:
        body = packed_body(codec.encode(payload))
        chunks = [new_ids(chunk) for _ in range(count // chunk)]
        start = time.perf_counter()
        for keys in chunks:
            self._run("put", [msgpack.encode([(key, QUEUE, 0) for key in keys]), *[body] * chunk])
        return count // chunk * chunk / (time.perf_counter() - start)

    def _run(self, script: str, args: Sequence[bytes]) -> Any:
        return self._client.execute_command("EVALSHA", self._scripts[script].sha, 1, _PREFIX, b"", *args)


def _request(batch: int) -> bytes:
    want = (QUEUE, batch, TTL, _MAX_CRASHES, False, 0, SHARE, False)
    return msgpack.encode((WORKER, new_id(), 0, [want], WORKER, ""))
