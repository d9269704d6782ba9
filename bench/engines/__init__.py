"""The engines a store can be measured on, each with a place of its own that this run made and takes down again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.engines.base import Engine

NAMES = ("sqlite", "postgres", "redis")


@contextmanager
def started(name: str, scratch: Path, *, watched: bool = False) -> Iterator[Engine]:
    """`watched`: with whatever the server needs to tell where its time goes."""
    match name:
        case "sqlite":
            from bench.engines.sqlite import Sqlite

            yield Sqlite(scratch)
        case "postgres":
            from bench.engines import postgres

            with postgres.started(scratch, watched=watched) as engine:
                yield engine
        case "redis":
            from bench.engines import redis

            with redis.started(scratch) as engine:
                yield engine
        case _:
            raise ValueError(f"{name!r} is none of {NAMES}")
