"""A few connections, each used by one verb at a time. They belong to the loop that made them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from redrive.errors import RedriveError, StoreUnavailable
from redrive.stores.redis import faults
from redrive.stores.redis.options import Address, Options
from redrive.stores.redis.wire import Wire

Greet = Callable[[Wire], Awaitable[None]]


class Pool:
    """`greet` looks at the server behind each new connection, and may refuse it."""

    def __init__(self, options: Options, greet: Greet) -> None:
        self._options = options
        self._nodes: tuple[Address, ...] = (options.address,)
        self._greet = greet
        self._idle: list[Wire] = []
        self._all: set[Wire] = set()
        self._room = asyncio.Semaphore(options.pool)
        self._closed = False

    @property
    def where(self) -> str:
        return self._options.location

    async def take(self) -> Wire:
        """An idle one or a new one. Raises StoreUnavailable in redrive's words; TimeoutError is the caller's."""
        await self._room.acquire()
        try:
            if self._closed:
                raise StoreUnavailable(f"the store {self.where} is closed", hint="use it before close()")
            while self._idle:
                wire = self._idle.pop()
                if not wire.lost():
                    return wire
                self._forget(wire)
            return await self._connect()
        except BaseException:
            self._room.release()
            raise

    def give(self, wire: Wire, *, sound: bool = True) -> None:
        """Back. One that is not sound, or leads elsewhere than the pool now does, goes."""
        if sound and not self._closed and wire.address == self._options.address and not wire.lost():
            self._idle.append(wire)
        else:
            self._forget(wire)
        self._room.release()

    async def connect(self) -> Wire:
        """One outside the pool, for whoever listens. It is the caller's to drop."""
        wire = Wire(self._options)
        try:
            async with asyncio.timeout(self._options.connect_timeout / 1000):
                await wire.connect()
        except Exception as error:
            if faults.is_trouble(error):
                raise faults.translated(error, self.where) from None
            raise
        return wire

    def know(self, nodes: Sequence[Address]) -> None:
        """The nodes of the cluster, beside the one that the user named."""
        self._nodes = (self._nodes[0], *nodes)

    async def _connect(self) -> Wire:
        """If whoever had the namespace is gone, any other node knows who has it now."""
        try:
            return await self._greeted()
        except StoreUnavailable:
            for node in dict.fromkeys(self._nodes):
                if node != self._options.address and (wire := await self._from(node)) is not None:
                    return wire
            raise

    async def _from(self, node: Address) -> Wire | None:
        here = self._options.address
        self.follow(node)
        try:
            return await self._greeted()
        except StoreUnavailable:
            self.follow(here)
            return None

    async def _greeted(self) -> Wire:
        wire = await self.connect()
        try:
            await self._greet(wire)
        except BaseException as error:
            wire.drop()
            if isinstance(error, RedriveError) or not faults.is_trouble(error):
                raise
            raise faults.translated(error, self.where) from None
        self._all.add(wire)
        return wire

    def follow(self, address: Address) -> None:
        """From now on to another node of the cluster."""
        self._options = self._options.at(address)
        for wire in self._idle:
            self._forget(wire)
        self._idle = []

    def _forget(self, wire: Wire) -> None:
        self._all.discard(wire)
        wire.drop()

    async def close(self) -> None:
        """Those in use are given back first: what was sent runs to its end."""
        self._closed = True
        for _ in range(self._options.pool):
            await self._room.acquire()
        self.cut()
        for _ in range(self._options.pool):
            self._room.release()

    def cut(self) -> None:
        """All of them, whatever they are doing."""
        self._closed = True
        for wire in tuple(self._all):
            self._forget(wire)
