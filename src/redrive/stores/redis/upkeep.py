"""Upkeep of a namespace in Redis. Each act has connections of its own."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

import hiredis
from msgspec.structs import replace

from redrive.core.verbs import Backup, Checkup, Finding
from redrive.errors import ConfigError, RedriveError, StoreError, StoreUnavailable
from redrive.stores.clock import SystemClock
from redrive.stores.migrate import Migration
from redrive.stores.redis import boot, checkup, faults
from redrive.stores.redis.options import Address, Options
from redrive.stores.redis.session import Session
from redrive.stores.redis.wire import Moved, Wire
from redrive.stores.upkeep import StoreAbsent, StoreStatus

T = TypeVar("T")

ENGINE = "redis"
MOST_MOVES = 5
SCANNED = 5_000
"""Keys of the server that one question looks at."""
SIGNS = ("boot", "queues", "item", "sequence", "workers")
"""One of these keys is there as soon as anybody has used the namespace."""


class RedisStatus(StoreStatus, frozen=True, kw_only=True):
    server: str
    """`redis` or `valkey`."""
    role: str
    appendonly: str
    """Empty, as the others, where the server does not say."""
    appendfsync: str
    maxmemory: int
    """0: as much as there is."""
    maxmemory_policy: str
    used_memory: int
    items: int
    keys: int

    def _engine_in_words(self) -> str:
        return f"{self.server} {self.version} ({self.binding})"

    def _facts_in_words(self) -> list[tuple[str, str]]:
        limit = f"{self.maxmemory:,} bytes" if self.maxmemory else "what the machine has"
        return [
            ("role", self.role),
            ("on disk", f"appendonly {self.appendonly or 'not told'}, appendfsync {self.appendfsync or 'not told'}"),
            ("memory", f"{self.used_memory:,} bytes of {limit}; when it is full: {self.maxmemory_policy}"),
            ("namespace", f"{self.items:,} items, {self.keys:,} keys"),
        ]


def _after(schema: int) -> tuple[Migration, ...]:
    """One that nobody has used yet begins with the newest."""
    return tuple([layout for layout in boot.LAYOUTS if 0 < schema < layout.number])


def _pattern(prefix: str) -> str:
    return re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*"


class RedisUpkeep:
    def __init__(self, options: Options) -> None:
        self._options = options

    async def check_is_there(self) -> None:
        async with self._wire():
            pass

    async def status(self) -> RedisStatus:
        async with self._wire() as wire:
            facts = boot.facts_of(await self._in_time(wire.ask("INFO")))
            settings = await self._in_time(boot.settings_of(wire))
            schema = await self._in_time(wire.ask("HGET", self._key("boot"), "schema"))
            found = RedisStatus(
                engine=ENGINE,
                location=self._options.location,
                binding=f"hiredis {hiredis.__version__}",
                version=facts.get("valkey_version", facts.get("redis_version", "")),
                known=boot.SCHEMA,
                schema=int(schema or boot.SCHEMA),
                pending=tuple([layout.name for layout in _after(int(schema or 0))]),
                server="valkey" if "valkey_version" in facts else "redis",
                role="replica" if facts.get("role") == "slave" else "primary",
                appendonly=settings.get("appendonly", ""),
                appendfsync=settings.get("appendfsync", ""),
                maxmemory=int(facts.get("maxmemory", 0)),
                maxmemory_policy=facts.get("maxmemory_policy", ""),
                used_memory=int(facts.get("used_memory", 0)),
                items=await self._in_time(wire.ask("HLEN", self._key("item"))),
                keys=await self._count_keys(wire),
            )
            try:
                server = await self._in_time(boot.look(wire, self._options.location))
            except RedriveError as error:
                return replace(found, trouble=str(error))
            return replace(found, durability=server.durability, trouble="; ".join(server.trouble))

    async def memory(self) -> tuple[int, int]:
        async with self._wire() as wire:
            facts = boot.facts_of(await self._in_time(wire.ask("INFO", "memory")))
        return int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))

    async def pending(self) -> tuple[Migration, ...]:
        """The layouts that come after the one it has. Refuses one that is newer."""
        async with self._session() as session:
            return _after(session.schema)

    def script(self, pending: tuple[Migration, ...]) -> str:  # noqa: ARG002 - it is not done by SQL
        raise ConfigError("a Redis store has no tables, so there is no SQL to make them", field="store")

    async def migrate(self) -> tuple[int, ...]:
        """As opening does, but not beside the work: when it returns, it is done."""
        async with self._session() as session:
            layouts = _after(session.schema)
            if layouts:
                await session.mend()
            return tuple([layout.number for layout in layouts])

    async def check(self, *, quick: bool) -> Checkup:
        await self.check_is_there()
        async with self._session() as session:
            return await checkup.check(session, quick=quick)

    def repairable(self, checked: Checkup) -> frozenset[str]:
        return checkup.REPAIRABLE if checkup.can_repair(checked) else frozenset()

    async def repair(self) -> tuple[Finding, ...]:
        await self.check_is_there()
        async with self._session() as session:
            return await checkup.repair(session)

    async def backup(self, path: str, *, force: bool) -> Backup:  # noqa: ARG002 - the server's own means do it
        where = await self._owner()
        options = ["-s", where.path] if where.path else ["-h", where.host, "-p", str(where.port)]
        options += ["--tls"] if self._options.tls is not None else []
        raise ConfigError(
            "a Redis store is copied by the server's own means, all namespaces together",
            field="store",
            hint=shlex.join(["redis-cli", *options, "--rdb", path]),
        )

    async def _owner(self) -> Address:
        """In a cluster the node that has the namespace; where nobody can be asked, the one that was named."""
        try:
            async with self._wire() as wire:
                return wire.address
        except StoreError:
            return self._options.address

    def _key(self, name: str) -> str:
        return f"{self._options.prefix}{name}"

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        """As the store's, but nothing is put right by the way."""
        session = Session(self._options, SystemClock())
        try:
            await session.open(mend=False)
            yield session
        finally:
            await session.close()

    @asynccontextmanager
    async def _wire(self) -> AsyncIterator[Wire]:
        """To the server that has the namespace, whatever it is like: looking is possible where working is not."""
        options, wire = self._options, None
        try:
            for _ in range(MOST_MOVES):
                wire = Wire(options)
                await wire.connect()
                try:
                    there = await self._in_time(wire.ask("EXISTS", *[self._key(name) for name in SIGNS]))
                    break
                except Moved as error:
                    wire.drop()
                    options = options.at(Address(error.host or options.address.host, error.port))
            else:
                raise StoreUnavailable(f"the nodes of the cluster send us round in circles: {self._options.location}")
            if not there:
                raise self._absent()
            yield wire
        except Exception as error:
            if isinstance(error, RedriveError) or not faults.is_trouble(error):
                raise
            raise faults.translated(error, self._options.location) from None
        finally:
            if wire is not None:
                wire.drop()

    async def _in_time(self, asked: Awaitable[T]) -> T:
        async with asyncio.timeout(self._options.timeout / 1000):
            return await asked

    def _absent(self) -> StoreAbsent:
        return StoreAbsent(
            f"no redrive in {self._options.location}",
            hint="set --store or REDRIVE_STORE, and ?namespace=NAME in it; an app makes a new one",
        )

    async def _count_keys(self, wire: Wire) -> int:
        pattern = _pattern(self._options.prefix)
        count, cursor = 0, b"0"
        while True:
            cursor, keys = await self._in_time(wire.ask("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED))
            count += len(keys)
            if cursor == b"0":
                return count
