"""One connection to the server, on redis-py's own; imported only by who uses Redis.

redis-py's client would repeat a command whose reply was lost, so this stands on the connection below it, which never
does. One question at a time; whoever was interrupted in the middle must drop the wire, for the answer is still to come.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection

from redrive.stores.redis.options import Options

try:
    _hiredis: Any = import_module("hiredis")
except ImportError:
    _hiredis = None

Arg = bytes | str | int

# redis-py would look up its own version on the disk for every connection, to tell the server. How that is turned off
# depends on its age.
_KNOWN = signature(AbstractConnection.__init__).parameters
_NAMELESS = {name: None for name in ("driver_info",) if name in _KNOWN} or {"lib_name": None, "lib_version": None}


class _Fallible(AbstractConnection):
    """What the wire has to know of a connection, and redis-py does not tell."""

    def lost(self) -> bool:
        """As far as the loop has heard. What it has not heard of yet shows when the answer does not come."""
        reader, writer = self._reader, self._writer
        return reader is None or writer is None or reader.at_eof() or writer.transport.is_closing()

    def fileno(self) -> int:
        writer = self._writer
        socket = None if writer is None else writer.get_extra_info("socket")
        return -1 if socket is None else int(socket.fileno())

    def cut(self) -> None:
        """At once: nothing more is sent, also not what still waits to be."""
        writer, self._reader, self._writer = self._writer, None, None
        self._parser.on_disconnect()  # type: ignore[no-untyped-call]
        if writer is not None:
            writer.transport.abort()


class _Tcp(_Fallible, Connection):
    pass


class _Tls(_Fallible, SSLConnection):
    pass


class _Unix(_Fallible, UnixDomainSocketConnection):
    pass


class Wire:
    def __init__(self, options: Options) -> None:
        self.address = options.address
        self._connection = _made(options)

    async def connect(self) -> None:
        try:
            await self._connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            self.drop()
            raise
        _wires.add(self)

    async def ask(self, *command: Arg) -> Any:
        """The reply; errors as redis-py raises them."""
        await self.send(*command)
        return await self._connection.read_response()

    async def send(self, *command: Arg) -> None:
        connection = self._connection
        packed = connection.pack_command(*command) if _hiredis is None else [_hiredis.pack_command(command)]
        await connection.send_packed_command(packed, check_health=False)

    async def hear(self) -> Any:
        """What comes by itself."""
        return await self._connection.read_response()

    def lost(self) -> bool:
        return self._connection.lost()

    def drop(self) -> None:
        _wires.discard(self)
        self._connection.cut()

    def disown(self) -> None:
        """In a forked child: its copy of the parent's socket leads nowhere, whatever is done with it."""
        number = self._connection.fileno()
        if number >= 0:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)
            os.close(nowhere)


def _made(options: Options) -> _Fallible:
    kinds: dict[str, Any] = {
        "db": options.db,
        "username": options.username,
        "password": options.password,
        # Ours is the deadline of the whole verb.
        "socket_timeout": None,
        "socket_connect_timeout": options.connect_timeout / 1000,
        "protocol": 2,
        **_NAMELESS,
    }
    address = options.address
    if address.path:
        return _Unix(path=address.path, **kinds)
    kinds |= {"host": address.host, "port": address.port, "socket_keepalive": True}
    return _Tcp(**kinds) if options.tls is None else _Tls(**kinds, **options.tls)


_wires: weakref.WeakSet[Wire] = weakref.WeakSet()


def _disown_all() -> None:
    global _wires  # noqa: PLW0603 - the parent's are none of ours
    wires: Sequence[Wire] = tuple(_wires)
    _wires = weakref.WeakSet()
    for wire in wires:
        wire.disown()


os.register_at_fork(after_in_child=_disown_all)
