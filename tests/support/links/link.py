"""The proxy: it listens beside a server and passes everything on, as far as its condition allows.

It has a thread and an event loop of its own, so that it goes on whatever the test does. It knows bytes, no protocol.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from tests.support.links.conditions import Clear, Condition, CutReply, CutRequest, Refuse
from tests.support.links.connection import Connection, Counts

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
BACKLOG = 128
PATIENCE = 10.0


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((LOOPBACK, port))
    return made


class Link:
    """To one server. Set a condition at any time; what is on its way keeps its order."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        # Keeps the port while nobody listens: another server that took it would be taken for this one.
        self._keeper = _bound(0)
        self.port: int = self._keeper.getsockname()[1]
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="link", daemon=True)
        self._condition: Condition = Clear()
        self._times: int | None = None
        self._counts = Counts()
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._broken: BaseException | None = None

    @classmethod
    def to(cls, url: str) -> Self:
        """To the server of a store URL."""
        parts = urlsplit(url)
        assert parts.hostname, "a link needs a host"
        assert parts.port, "a link needs a port"
        return cls((parts.hostname, parts.port))

    def through(self, url: str) -> str:
        """The same URL by way of this link."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{LOOPBACK}:{self.port}").geturl()

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._do(self._hang_up)
        asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._keeper.close()
        if self._broken is not None:
            raise AssertionError("the link itself failed: nothing this run says can be trusted") from self._broken

    # -- from any thread -----------------------------------------------------------------------------------------

    def set(self, condition: Condition, *, existing: bool = True, new: bool = True) -> None:
        """For the connections there are, and for those to come."""

        def change() -> None:
            self._times = condition.times if isinstance(condition, CutRequest | CutReply) else None
            if new:
                self._change(condition)
            if existing:
                for connection in self._connections:
                    connection.become(condition)

        self._do(change)

    def heal(self) -> None:
        self.set(Clear())

    def reset(self) -> int:
        """End every connection without a goodbye. When it returns both sides have been told. How many there were."""

        def cut() -> list[asyncio.Task[None]]:
            ended = list(self._connections.values())
            for task in ended:
                task.cancel()
            return ended

        async def over(ended: list[asyncio.Task[None]]) -> None:
            await asyncio.gather(*ended, return_exceptions=True)

        ended = self._do(cut)
        asyncio.run_coroutine_threadsafe(over(ended), self._loop).result(PATIENCE)
        return len(ended)

    @property
    def counts(self) -> Counts:
        return self._do(lambda: replace(self._counts))

    @property
    def open(self) -> int:
        """Connections there are."""
        return self._do(lambda: len(self._connections))

    def _do(self, act: Callable[[], T]) -> T:
        answer: Future[T] = Future()

        def obey() -> None:
            try:
                answer.set_result(act())
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(obey)
        return answer.result(PATIENCE)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.setblocking(False)
            self._listener.listen(BACKLOG)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _listen_no_more(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _change(self, condition: Condition) -> None:
        self._condition = condition
        if isinstance(condition, Refuse):
            self._listen_no_more()
        else:
            self._listen()

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it has gone again
        self._counts.connections += 1
        connection = Connection(client, self._condition, self._counts, self._spend)
        task = self._loop.create_task(connection.run(self._server))
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._over(connection))

    def _over(self, connection: Connection) -> None:
        connection.close()
        task = self._connections.pop(connection)
        if not task.cancelled() and task.exception() is not None:
            self._broken = task.exception()

    def _spend(self) -> bool:
        """Whether there is a cut left."""
        if self._times is None:
            return True
        self._times -= 1
        return self._times >= 0

    def _hang_up(self) -> None:
        self._listen_no_more()
        for task in self._connections.values():
            task.cancel()

    async def _ended(self) -> None:
        while self._connections:
            await asyncio.wait(self._connections.values())
