"""What an open store has in one loop of one process: its connections, the bell, and what it remembers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple

from redrive.core import sizes
from redrive.errors import RedriveError, StoreUnavailable
from redrive.stores.aside import aside, tell, through
from redrive.stores.bodies import Bodies
from redrive.stores.clock import Clock, StoreTime, SystemClock
from redrive.stores.gather import Gather
from redrive.stores.memo import Memo
from redrive.stores.redis import boot, faults, scripts
from redrive.stores.redis.mend import Mender
from redrive.stores.redis.options import Address, Options
from redrive.stores.redis.pool import Pool
from redrive.stores.redis.put import put
from redrive.stores.redis.scripts import Script
from redrive.stores.redis.texts import packed
from redrive.stores.redis.wake import Bell
from redrive.stores.redis.wire import Arg, Moved, NoScript, Wire
from redrive.stores.waiters import Waiters

_log = logging.getLogger("redrive.stores")

_MOST_MOVES = 5
"""Nodes that send us on to each other, before we say so."""
_MOST_LOADS = 3
"""Scripts that are flushed as fast as we load them, before we say so."""


class _Elsewhere(NamedTuple):
    """The namespace is on another node."""

    address: Address


class Session:
    """Belongs to the process and the loop that opened it."""

    def __init__(self, options: Options, clock: Clock, bodies: Bodies | None = None) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.get_running_loop()
        self.options = options
        self.prefix = options.prefix
        self.bodies = Bodies(sizes.MAX) if bodies is None else bodies
        self.memo = Memo()
        self.waiters = Waiters()
        self._time = None if isinstance(clock, SystemClock) else StoreTime(clock)
        self._timeout = options.timeout / 1000
        self.server = boot.Server()
        self.schema = 0
        self._scripts: Mapping[str, Script] = {}
        self.pool = Pool(options, self._greet)
        self.bell = Bell(self.pool, options, self.waiters)
        self._mender = Mender(self)
        self._life = self._until_the_loop_ends()
        self.gather = Gather(lambda items: put(self.run, items))

    async def open(self, *, mend: bool = True) -> None:
        """Without `mend` only to look: nothing is put right."""
        await anext(self._life)
        self._scripts = scripts.load()
        self.schema, run, missing = await self.read("boot", [packed(boot.commands(self.prefix))])
        boot.check_rights([name.decode() for name in missing], self.pool.where)
        boot.check_schema(self.schema, self.pool.where)
        if mend:
            await self._mender.begin(self.server.run_id, run.decode(), self.schema)

    async def mend(self) -> None:
        """All that opening does beside the work, to its end."""
        await self._mender.begin(self.server.run_id, "", self.schema)
        await self._mender.finish()

    async def _greet(self, wire: Wire) -> None:
        """Of every new connection: it may lead to a server that was restarted, or to another one."""
        server = await boot.look(wire, self.pool.where)
        before, self.server = self.server, server
        self.pool.know(server.nodes)
        if server.run_id != before.run_id:
            boot.tell(server, self.pool.where)
            if before.run_id:
                self._mender.begin_again(server.run_id)

    def emptied(self) -> None:
        """Somebody flushed it under our hands. Nobody else would say so: an empty namespace looks like a new one."""
        _log.error(
            "%s was emptied while it was in use (FLUSHALL, FLUSHDB or DEL): all that was in it is gone", self.pool.where
        )
        self._mender.begin_again(self.server.run_id)

    def pinned(self) -> bytes:
        """The time of a test's clock; empty for the server's own."""
        return b"" if self._time is None else b"%d" % self._time.now()

    async def run(self, script: str, args: Sequence[Arg] = ()) -> Any:
        """A script that writes. OutcomeUnknown if it was sent and no answer came."""
        return await self._ask(await self._script(script), args, writes=True)

    async def read(self, script: str, args: Sequence[Arg] = ()) -> Any:
        """A script that only reads: whatever goes wrong, nothing happened."""
        return await self._ask(await self._script(script), args, writes=False)

    async def _script(self, name: str) -> Script:
        known = self._scripts
        if isinstance(known, scripts.Scripts) and name not in known.at_hand:
            return await aside(lambda: known[name])
        return known[name]

    async def _ask(self, script: Script, args: Sequence[Arg], *, writes: bool) -> Any:
        deadline = self.loop.time() + self._timeout
        for _ in range(_MOST_MOVES):
            wire = await self._wire(deadline)
            # What was sent runs to its end, also when nobody waits for it any more.
            reply = await through(self._exchange(wire, script, args, deadline, writes=writes))
            if not isinstance(reply, _Elsewhere):
                return reply
            self.pool.follow(reply.address)
        raise StoreUnavailable(f"the nodes of the cluster send us round in circles: {self.pool.where}")

    async def _wire(self, deadline: float) -> Wire:
        try:
            async with asyncio.timeout_at(deadline):
                return await self.pool.take()
        except TimeoutError as error:
            raise faults.unreachable(error, self.pool.where) from None

    async def _exchange(self, wire: Wire, script: Script, args: Sequence[Arg], deadline: float, *, writes: bool) -> Any:
        sound = False
        try:
            async with asyncio.timeout_at(deadline):
                reply = await self._evaluate(wire, script, args)
            sound = True
            return reply
        except Moved as error:
            sound = True
            return _Elsewhere(Address(error.host or wire.address.host, error.port))
        except RedriveError:
            sound = True
            raise
        except Exception as error:
            if not faults.is_trouble(error):
                raise
            sound = faults.is_reply(error)
            raise self._failed(error, writes=writes) from None
        finally:
            self.pool.give(wire, sound=sound)

    def _failed(self, error: Exception, *, writes: bool) -> RedriveError:
        if faults.is_reply(error):
            return faults.refused(error, self.pool.where)
        if writes:
            return faults.unanswered(error, self.pool.where)
        return faults.unreachable(error, self.pool.where)

    async def _evaluate(self, wire: Wire, script: Script, args: Sequence[Arg]) -> Any:
        command = (b"EVALSHA", script.sha, b"1", self.prefix, self.pinned(), *args)
        for _ in range(_MOST_LOADS):
            try:
                return await wire.ask(*command)
            except NoScript:
                # It did not run: the server has never heard of it, was restarted, or somebody flushed its scripts.
                await self._load(wire, script)
        return await wire.ask(*command)

    async def _load(self, wire: Wire, script: Script) -> None:
        try:
            await wire.ask(b"SCRIPT", b"LOAD", script.text)
        except Exception as error:
            if faults.is_trouble(error) and not faults.is_reply(error):
                wire.drop()
                raise faults.unreachable(error, self.pool.where) from None
            raise

    async def _until_the_loop_ends(self) -> AsyncGenerator[None, None]:
        """A loop closes its generators before it ends. Whoever forgot to close the store leaves no connections."""
        try:
            yield
        finally:
            self.pool.cut()

    async def close(self) -> None:
        """What was accepted is finished, then the connections go."""
        self.waiters.wake()
        await self.bell.mute()
        await self._mender.stop()
        await self.pool.close()
        await self._life.aclose()

    def abandon(self) -> None:
        """From another loop, or where this one's is over."""
        if self.pid == os.getpid() and not self.loop.is_closed():
            tell(self.loop, self._let_go)

    def _let_go(self) -> None:
        self._closing = asyncio.ensure_future(self.close())
