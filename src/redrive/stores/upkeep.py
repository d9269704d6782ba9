"""What an operator does with the data of a store themselves: look, check, copy, bring the schema up to date.

It needs no open store, and so also serves one that cannot be opened: too new, too old, damaged, on a full disk. Every
engine that keeps data of its own has one.
"""

from __future__ import annotations

from typing import Literal, Protocol, Self, runtime_checkable

from msgspec import Struct

from redrive.core.verbs import Backup, Checkup, Finding
from redrive.errors import StoreUnavailable
from redrive.stores.migrate import Migration

Fact = str | int | bool


class StoreAbsent(StoreUnavailable):
    """What is named can be reached, and nothing of redrive's is there yet: whoever brings something in makes it."""


class StoreStatus(Struct, frozen=True, kw_only=True):
    """The data as they stand. An engine adds fields for what only it has.

    `trouble`: why they cannot be read; then the schema and most of the rest are not known.
    """

    engine: str
    location: str
    """Without a password, should it have one."""
    binding: str
    """The library that we speak to the engine with."""
    version: str
    """Of the engine itself."""
    risky: bool = False
    """This version has a fault that redrive has to work around."""
    schema: int = 0
    known: int
    pending: tuple[str, ...] = ()
    changed: tuple[int, ...] = ()
    """Migrations that were applied with other contents than this redrive has."""
    durability: Literal["power-loss", "process-crash", "none"] = "none"
    trouble: str = ""

    def facts(self) -> dict[str, Fact]:
        """What only this engine has, by name."""
        common = StoreStatus.__struct_fields__
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in common}

    def unusable(self) -> str:
        """Why no app can work with it, in words; empty if one can."""
        if self.schema > self.known or self.changed:
            return self.trouble or f"no app can work with it: schema {self._schema_in_words()}"
        return self.trouble

    def words(self) -> list[tuple[str, str]]:
        """All of it for people to read: names, and what to know about them."""
        words = [("engine", self._engine_in_words())]
        if not self.trouble:
            words += [("schema", self._schema_in_words()), ("survives", self.durability)]
        return [*words, *self._facts_in_words()]

    def _engine_in_words(self) -> str:
        return f"{self.engine} {self.version} ({self.binding})"

    def _facts_in_words(self) -> list[tuple[str, str]]:
        return []

    def _schema_in_words(self) -> str:
        if self.schema > self.known:
            return f"{self.schema}, made by a newer redrive; this one knows schemas up to {self.known}: upgrade it"
        if self.changed:
            numbers = ", ".join(str(number) for number in self.changed)
            return f"{self.schema}, but migration {numbers} was applied with other contents than this redrive has"
        if self.pending:
            return f"{self.schema}, to be brought to {self.known} by redrive db migrate or by opening an app"
        return f"{self.schema}, up to date"


class Upkeep(Protocol):
    """Each act has connections of its own and lets go of them. Only `migrate` and `repair` change anything."""

    async def check_is_there(self) -> None:
        """StoreUnavailable if there is nothing of redrive's, saying where it was looked for."""

    async def status(self) -> StoreStatus:
        """StoreUnavailable if there is nothing of redrive's."""

    async def pending(self) -> tuple[Migration, ...]:
        """What `migrate` would apply."""

    def script(self, pending: tuple[Migration, ...]) -> str:
        """The SQL that `migrate` would run."""

    async def migrate(self) -> tuple[int, ...]:
        """The numbers of the migrations that were applied."""

    async def check(self, *, quick: bool) -> Checkup:
        """As `Store.check`."""

    def repairable(self, checkup: Checkup) -> frozenset[str]:
        """The kinds of findings that `repair` would mend; none when it had better not write at all."""

    async def repair(self) -> tuple[Finding, ...]:
        """What was wrong in what is counted and is not any more. No item is touched."""

    async def backup(self, path: str, *, force: bool) -> Backup:
        """As `Store.backup`."""


@runtime_checkable
class Kept(Protocol):
    """A store that keeps its data beyond its process."""

    def upkeep(self) -> Upkeep: ...


@runtime_checkable
class Remote(Protocol):
    """A store at the other end of a connection: to look first whether it is there would take one more."""

    async def open_existing(self) -> Self:
        """As `open`, but nothing is made: StoreUnavailable if there is nothing of redrive's."""


@runtime_checkable
class InMemory(Protocol):
    """A store whose server has its data in memory, and refuses what is put when that is full."""

    async def memory(self) -> tuple[int, int]:
        """Bytes that are used, and how many may be; 0 where there is no bound."""
