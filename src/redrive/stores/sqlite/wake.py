"""Waking those who wait for work: in this process by a call, in others by one byte to a socket beside the database.

Each store binds a Unix datagram socket in `<database>-wake/`; whoever commits something ready sends to all of them. A
socket nobody listens to any more is removed by the first who finds it so. Nothing depends on a byte arriving: a waiter
also looks by itself from time to time.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from contextlib import suppress

from redrive.stores.aside import tell
from redrive.stores.sqlite.room import give_to_owner
from redrive.stores.waiters import Waiters

LONGEST = 100
"""A socket's address has 108 bytes on Linux and 104 elsewhere."""


class Bell:
    """Our socket, and the way to the others'. All methods but `listen` and `mute` run in the writer's thread."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._folder = f"{database}-wake"
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._base = self._folder
        self._descriptor: int | None = None
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self) -> None:
        """Leaves us without a socket where there are none: then the waiters' own looking must do."""
        if not hasattr(socket, "AF_UNIX"):
            return
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bell.setblocking(False)
        for _ in range(10):
            try:
                os.makedirs(self._folder, exist_ok=True)  # noqa: PTH103 - descriptors below need os anyway
                self._shorten()
                bell.bind(self._address(self._name))
                self._share()
            except FileNotFoundError:
                # Somebody who closed has just removed the empty folder.
                continue
            except OSError:
                break
            self._socket = bell
            return
        bell.close()

    def _share(self) -> None:
        with suppress(OSError):
            give_to_owner(self._folder, self._database, mode=0o755)
            give_to_owner(f"{self._folder}/{self._name}", self._database, mode=0o700)

    def _shorten(self) -> None:
        """A path too long for an address is reached through a descriptor of its folder."""
        if len(os.fsencode(self._address(self._name))) <= LONGEST:
            return
        self._drop_descriptor()
        self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._base = f"/proc/self/fd/{self._descriptor}"

    def _address(self, name: str) -> str:
        return f"{self._base}/{name}"

    def anybody(self) -> bool:
        """Whether another store has the database open, as far as its socket tells."""
        if not hasattr(socket, "AF_UNIX"):
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.setblocking(False)
            self._shorten()
            for name in os.listdir(self._folder):  # noqa: PTH208 - as below
                with suppress(OSError):
                    probe.connect(self._address(name))
                    return True
        return False

    def ring(self) -> None:
        """One byte to everybody else."""
        if self._socket is None:
            return
        with suppress(OSError):
            for name in os.listdir(self._folder):  # noqa: PTH208 - names are all we need, and this runs after each commit
                if name != self._name:
                    self._send(self._socket, name)

    def _send(self, bell: socket.socket, name: str) -> None:
        try:
            bell.sendto(b"\1", self._address(name))
        except ConnectionRefusedError:
            # Its process was killed.
            with suppress(OSError):
                os.unlink(f"{self._folder}/{name}")  # noqa: PTH108 - as above
        except OSError:
            # It has just gone, or it has more bytes waiting than it needs to wake up.
            return

    def listen(self, loop: asyncio.AbstractEventLoop, waiters: Waiters) -> None:
        bell = self._socket
        if bell is None:
            return

        def heard() -> None:
            with suppress(OSError):
                while bell.recv(64):
                    pass
            waiters.wake()

        # A loop without add_reader (Windows) leaves us to the waiters' own looking.
        with suppress(NotImplementedError):
            loop.add_reader(bell.fileno(), heard)
            self._loop = loop

    def mute(self) -> None:
        loop, bell, self._loop = self._loop, self._socket, None
        if loop is None or bell is None or loop.is_closed():
            return
        if loop is asyncio.get_running_loop():
            loop.remove_reader(bell.fileno())
        else:
            number = bell.fileno()
            tell(loop, lambda: loop.remove_reader(number))

    def close(self) -> None:
        bell, self._socket = self._socket, None
        if bell is None:
            return
        bell.close()
        with suppress(OSError):
            os.unlink(f"{self._folder}/{self._name}")  # noqa: PTH108 - as above
        self._drop_descriptor()
        # The last one out.
        with suppress(OSError):
            os.rmdir(self._folder)  # noqa: PTH106 - as above

    def abandon(self) -> None:
        """In a forked child: the name beside the database is still the parent's."""
        bell, self._socket, self._loop = self._socket, None, None
        if bell is not None:
            bell.close()
        self._drop_descriptor()

    def _drop_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
