"""Seeds on Redis: a script of our own on the store's prelude, which keeps every index by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import redis
from msgspec import msgpack

from bench.load import PAYLOAD
from bench.seeds import story
from bench.seeds.story import Kind, Wait
from redrive.core import codec
from redrive.engine.ids import new_ids
from redrive.stores.redis.options import NAMESPACE
from redrive.stores.redis.rows import STAMP, packed_body

CHUNK = 5_000
"""Items of one call: the server answers nobody else meanwhile."""
_PREFIX = f"{{{NAMESPACE}}}:"


def waiting(url: str, ready: int, *, delayed: int = 0, paused: int = 0) -> str:
    story.create(url)
    planter = _Planter(url)
    for wait in story.waits(ready, delayed, paused):
        planter.wait(wait)
    planter.close()
    if paused:
        story.pause(url)
    return url


def letters(url: str, count: int) -> str:
    story.create(url)
    planter = _Planter(url)
    kinds = story.kinds()
    planter.die(count, kinds, story.lots(len(kinds)))
    planter.close()
    return url


class _Planter:
    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url)
        self._body = packed_body(codec.encode(PAYLOAD))

    def close(self) -> None:
        self._client.close()

    def wait(self, wait: Wait) -> None:
        script = self._script("waiting")
        for numbers in _chunks(wait.size):
            rows = []
            for key, n in zip(new_ids(len(numbers)), numbers, strict=True):
                at = wait.since + n * story.DAY // wait.size
                rows.append((key, at, at + (wait.delay + n if wait.delay else 0)))
            self._run(script, [msgpack.encode(rows), wait.queue, self._body])

    def die(self, count: int, kinds: Sequence[Kind], lots: Sequence[int]) -> None:
        script = self._script("letters")
        since = story.first_death()
        heads = msgpack.encode([(each.queue, each.cause, each.error_short, each.category) for each in kinds])
        parts = [part for each in kinds for part in (each.failure, each.head, each.middle, each.tail)]
        for numbers in _chunks(count):
            rows = []
            for key, n in zip(new_ids(len(numbers)), numbers, strict=True):
                kind, ran = lots[n * story.LOT_STEP % len(lots)], n * story.RAN_STEP % story.DAY
                rows.append((key, since + n * story.SPAN // count, ran, kind + 1))
            self._run(script, [msgpack.encode(rows), story.WORKER, story.REASON, self._body, heads, *parts])
        self._number_changes(count)

    def _number_changes(self, count: int) -> None:
        """The script gave them numbers in the order of enqueue; they died in another."""
        for numbers in _chunks(count):
            died = self._client.zrange(f"{_PREFIX}letters", numbers.start, numbers.stop - 1)
            changes = {member[STAMP:]: nth + 1 for nth, member in zip(numbers, died, strict=True)}
            self._client.zadd(f"{_PREFIX}changes", changes)

    def _script(self, name: str) -> str:
        prelude = resources.files("redrive.stores").joinpath("lua", "prelude.lua").read_text(encoding="utf-8")
        ours = resources.files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
        return str(self._client.script_load(f"{prelude}\n{ours}"))

    def _run(self, script: str, args: Sequence[bytes | str]) -> None:
        self._client.execute_command("EVALSHA", script, 1, _PREFIX, b"", *args)


def _chunks(count: int) -> Iterator[range]:
    for first in range(0, count, CHUNK):
        yield range(first, min(first + CHUNK, count))
