"""The one server of each kind that all tests of a run share: named by the environment, else started on first need."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
import redis as client

from tests.support import held
from tests.support.servers import postgres as pg
from tests.support.servers import redis as rd
from tests.support.servers import run
from tests.support.servers.server import ServerFailed


@dataclass(frozen=True)
class Shared:
    """Where it is, for the tests, and for whoever tidies up after them."""

    url: str
    admin: str


@functools.cache
def postgres(version: int | None = None) -> Shared:
    """Of a certain major version it is always one of ours."""
    given = os.environ.get(pg.ADDRESS)
    if given and version is None:
        with _told_by(pg.ADDRESS):
            psycopg.connect(given).close()
        return Shared(given, given)

    def start(folder: Path, life: int) -> Shared:
        server = pg.PostgresServer(folder, pg.programs(version), {}, life)
        server.start()
        return Shared(server.url(), server.url(user="postgres"))

    return _of_this_run("postgres" if version is None else f"postgres-of-{version}", start)


def postgres_apart() -> Shared:
    """One that only the tests of this process share, one after the other; and it does nothing by itself.

    On the other one somebody else's transaction may keep what is dead in every table, and plans go by it.
    """
    return _postgres_apart(os.getpid())


@functools.cache
def _postgres_apart(pid: int) -> Shared:
    def start(folder: Path, life: int) -> Shared:
        server = pg.PostgresServer(folder, pg.programs(), {"autovacuum": False}, life)
        server.start()
        return Shared(server.url(), server.url(user="postgres"))

    return _of_this_run(f"postgres-for-{pid}", start)


@functools.cache
def redis(flavour: str | None = None) -> Shared:
    """Of a certain flavour it is always one of ours."""
    given = os.environ.get(rd.ADDRESS)
    if given and flavour is None:
        with _told_by(rd.ADDRESS), client.Redis.from_url(given) as link:
            link.ping()
        return Shared(given, given)

    def start(folder: Path, life: int) -> Shared:
        server = rd.RedisServer(folder, rd.program(flavour), {}, life)
        server.start()
        return Shared(server.url(), server.url())

    # The one that is not asked for by flavour is the first that is there, and not one more.
    return _of_this_run(flavour or next(iter(rd.flavours()), "redis"), start)


@contextlib.contextmanager
def _told_by(variable: str) -> Iterator[None]:
    """A server that somebody named has to be there. The drivers leave passwords out of what they say."""
    try:
        yield
    except (psycopg.Error, client.RedisError, ValueError) as error:
        raise ServerFailed(f"{variable} names a server that cannot be used: {error}") from None


def _of_this_run(kind: str, start: Callable[[Path, int], Shared]) -> Shared:
    current = run.current()
    note = current.folder / f"{kind}.json"
    with current.lock(kind):
        if not note.exists():
            try:
                with held.lasting():
                    made = start(current.room(kind), current.life)
                note.write_text(json.dumps(asdict(made)))
            except ServerFailed as error:
                # Nobody has to wait for it again: what failed once fails in every test, with the same words.
                note.write_text(json.dumps({"failed": str(error)}))
        facts = json.loads(note.read_text())
    if "failed" in facts:
        raise ServerFailed(facts["failed"])
    return Shared(**facts)
