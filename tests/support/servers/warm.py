"""Connections to the shared PostgreSQL that outlive a test.

A new session reads the catalog and compiles every function that it calls, which takes longer than many a test. So a
connection that a store is done with, and that is at rest, is given to the next store that asks for just such a one. For
that store it is new: whoever still holds the old one finds it closed. Where anything is left in doubt it is told
(`Shelf.doubts`, `Shelf.in_use`), so that the next test gets a schema that nobody knows.
"""

from __future__ import annotations

import functools
import os
import select
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict

from redrive.stores.postgres import connect, pool, session
from redrive.stores.postgres.wire import Wire, teach
from tests.support import held

if TYPE_CHECKING:
    from psycopg._preparing import PrepareManager

    from redrive.stores.postgres.options import Options

ROOM = 16
"""Connections that may rest at the same time. A race takes more, for once."""

Key = tuple[tuple[str, Any], ...]
"""All that is said to the server when connecting."""


@dataclass(frozen=True)
class Resting:
    link: pq.abc.PGconn
    prepared: PrepareManager
    prepare_threshold: int | None


class Shelf:
    """Of one process. `serve`: only who asks for just such a server, and for nothing special, is served from here."""

    def __init__(self) -> None:
        self.doubts = 0
        """Grows with each process that is started, and with each connection that was not at rest at its end."""
        self._pid = os.getpid()
        self._served: list[dict[str, Any]] = []
        self._resting: dict[Key, list[Resting]] = {}
        self._lent: dict[Wire, tuple[Key, str]] = {}
        self._connect = connect.connect
        self._finish = pool.finish
        self._nowhere = pq.PGconn.connect_start(b"")
        self._nowhere.finish()

    def install(self) -> None:
        """Under the stores of this process."""
        vars(session)["connect"] = self.connect
        pool.finish = self.finish
        os.register_at_fork(before=self.doubt)
        start = subprocess.Popen.__init__

        def told(*args: Any, **options: Any) -> None:
            self.doubt()
            start(*args, **options)

        subprocess.Popen.__init__ = told  # type: ignore[method-assign]

    def serve(self, url: str) -> None:
        self._served.append(conninfo_to_dict(url))

    def doubt(self) -> None:
        self.doubts += 1

    def in_use(self, schema: str) -> bool:
        return any(used == schema for _, used in self._lent.values())

    async def connect(self, options: Options) -> Wire:
        if self._pid != os.getpid() or not self._serves(options.url):
            return await self._connect(options)
        key = tuple(sorted(connect.parameters(options).items()))
        wire = self._taken(key) or await self._connect(options)
        self._lent[wire] = (key, options.schema)
        return wire

    def empty(self) -> None:
        """Close those that rest."""
        for resting in self._resting.values():
            while resting:
                held.release(resting[-1].link.socket)
                resting.pop().link.finish()

    def _serves(self, url: str) -> bool:
        """What libpq cannot read is for the store itself to tell."""
        try:
            return conninfo_to_dict(url) in self._served
        except ProgrammingError:
            return False

    def _taken(self, key: Key) -> Wire | None:
        resting = self._resting.get(key, [])
        while resting:
            kept = resting.pop()
            held.release(kept.link.socket)
            if _at_rest(kept.link):
                wire = Wire(kept.link)
                # As connecting would have it, but that the server knows some statements already, by these names.
                wire._autocommit = True  # noqa: SLF001 - to set it otherwise has to be awaited
                wire._prepared = kept.prepared  # noqa: SLF001 - see above
                wire.prepare_threshold = kept.prepare_threshold
                wire.pid = self._pid
                teach(wire)
                return wire
            kept.link.finish()
        return None

    def finish(self, wire: Wire) -> None:
        key, _ = self._lent.pop(wire, (None, ""))
        if key is None or self._pid != os.getpid():
            self._finish(wire)
        elif not _at_rest(wire.pgconn):
            self.doubt()
            self._finish(wire)
        elif sum(map(len, self._resting.values())) >= ROOM:
            self._finish(wire)
        else:
            kept = Resting(wire.pgconn, wire._prepared, wire.prepare_threshold)  # noqa: SLF001 - see above
            held.keep(wire.pgconn.socket)
            self._resting.setdefault(key, []).append(kept)
            wire.pgconn = self._nowhere
            self._finish(wire)


@functools.cache
def shelf() -> Shelf:
    made = Shelf()
    made.install()
    return made


def _at_rest(link: pq.abc.PGconn) -> bool:
    """In no transaction, and with nothing to say, not even goodbye."""
    if link.status != pq.ConnStatus.OK or link.transaction_status != pq.TransactionStatus.IDLE:
        return False
    poll = select.poll()
    poll.register(link.socket, select.POLLIN)
    return not poll.poll(0)
