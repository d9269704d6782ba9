"""One connection to the server: RESP 2 over TCP, TLS or a socket of the machine, read and written by hiredis.

A client library would repeat a command whose reply was lost; this never does. It also takes a tenth of the time to
import, which every command in a shell would pay. One question at a time; whoever was interrupted in the middle must
drop the wire, for the answer is still to come.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import hiredis

from redrive.stores.aside import aside
from redrive.stores.redis.options import Options

if TYPE_CHECKING:
    import ssl

Arg = bytes | str | int


class Refused(Exception):
    """What the server answered instead of doing it, in its words. The first says what kind it is."""

    @property
    def word(self) -> str:
        return str(self).partition(" ")[0]


class Moved(Refused):
    """Another node of the cluster has it: `MOVED slot host:port`. Without a host: another port of the same one."""

    @property
    def host(self) -> str:
        return str(self).split()[2].rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(str(self).rpartition(":")[2])


class NoScript(Refused):
    """It has never heard of this script, or was restarted."""


def _refused(text: str) -> Refused:
    return _KINDS.get(text.partition(" ")[0], Refused)(text)


# Its own types know tuples of one alone.
_pack: Callable[[tuple[Arg, ...]], bytes] = cast("Any", hiredis.pack_command)
_KINDS = {"MOVED": Moved, "NOSCRIPT": NoScript}


class _Line(asyncio.Protocol):
    """What came in and has not been asked for yet, and how it ended."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(protocolError=ConnectionError, replyError=_refused)
        self._replies: deque[Any] = deque()
        self._hearing: asyncio.Future[None] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._is_full = False
        self.transport: asyncio.Transport | None = None
        self.ended: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a stream is made of
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                self._replies.append(reply)
        except ConnectionError as error:
            # No Redis speaks so.
            self.end(error)
            return
        if self._replies:
            _release(self._hearing)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc or ConnectionResetError("the server closed the connection"))

    def end(self, why: Exception) -> None:
        self.ended = self.ended or why
        if self.transport is not None:
            self.transport.abort()
        _release(self._hearing)
        _release(self._sending)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        _release(self._sending)

    async def send(self, packed: bytes) -> None:
        if self.ended is not None or self.transport is None:
            raise self._why()
        self.transport.write(packed)
        if self._is_full:
            self._sending = asyncio.get_running_loop().create_future()
            await self._sending

    async def hear(self) -> Any:
        while not self._replies:
            if self.ended is not None:
                raise self._why()
            self._hearing = asyncio.get_running_loop().create_future()
            await self._hearing
        return self._replies.popleft()

    def _why(self) -> Exception:
        """Anew for each who is told."""
        return ConnectionResetError(str(self.ended or "not connected"))


def _release(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class Wire:
    def __init__(self, options: Options) -> None:
        self.address = options.address
        self._options = options
        self._line = _Line()

    async def connect(self) -> None:
        try:
            async with asyncio.timeout(self._options.connect_timeout / 1000):
                await self._reach()
                await self._introduce()
        except BaseException:
            self.drop()
            raise
        _wires.add(self)

    async def _reach(self) -> None:
        loop, address, tls = asyncio.get_running_loop(), self.address, self._options.tls
        if address.path:
            await loop.create_unix_connection(lambda: self._line, address.path)
            return
        context = None if tls is None else await aside(partial(_context, tls))
        await loop.create_connection(lambda: self._line, address.host, address.port, ssl=context)
        line = self._socket()
        if line is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def _introduce(self) -> None:
        user, password = self._options.username, self._options.password
        if user:
            await self.ask("AUTH", user, password or "")
        elif password:
            await self.ask("AUTH", password)
        if self._options.db:
            await self.ask("SELECT", self._options.db)

    async def ask(self, *command: Arg) -> Any:
        """The reply; Refused if it is an error."""
        await self._line.send(_pack(command))
        return await self.hear()

    async def hear(self) -> Any:
        """The next that comes, also by itself."""
        reply = await self._line.hear()
        if isinstance(reply, Refused):
            raise reply
        return reply

    def lost(self) -> bool:
        """As far as the loop has heard. What it has not heard of yet shows when the answer does not come."""
        line = self._line
        return line.ended is not None or line.transport is None or line.transport.is_closing()

    def drop(self) -> None:
        """At once: nothing more is sent, also not what still waits to be."""
        _wires.discard(self)
        self._line.end(ConnectionAbortedError("the connection was dropped"))

    def disown(self) -> None:
        """In a forked child: its copy of the parent's socket leads nowhere, whatever is done with it."""
        line = self._socket()
        if line is not None and line.fileno() >= 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, line.fileno())
            os.close(nowhere)

    def _socket(self) -> socket.socket | None:
        transport = self._line.transport
        return None if transport is None else transport.get_extra_info("socket")


def _context(tls: Mapping[str, Any]) -> ssl.SSLContext:
    """Strict unless the URL says otherwise: a certificate that a known authority gave to this host."""
    import ssl

    context = ssl.create_default_context()
    needs = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
    mode = needs[tls.get("ssl_cert_reqs", "required")]
    # In this order: a context that knows the host insists on a certificate.
    context.check_hostname = mode != ssl.CERT_NONE and bool(tls.get("ssl_check_hostname", True))
    context.verify_mode = mode
    if tls.get("ssl_ca_certs") or tls.get("ssl_ca_path"):
        context.load_verify_locations(tls.get("ssl_ca_certs"), tls.get("ssl_ca_path"))
    if tls.get("ssl_certfile"):
        context.load_cert_chain(tls["ssl_certfile"], tls.get("ssl_keyfile"), tls.get("ssl_password"))
    if tls.get("ssl_ciphers"):
        context.set_ciphers(tls["ssl_ciphers"])
    return context


_wires: weakref.WeakSet[Wire] = weakref.WeakSet()


def _disown_all() -> None:
    global _wires  # noqa: PLW0603 - the parent's are none of ours
    wires: Sequence[Wire] = tuple(_wires)
    _wires = weakref.WeakSet()
    for wire in wires:
        wire.disown()


os.register_at_fork(after_in_child=_disown_all)
