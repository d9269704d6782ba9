"""Which SQLite library speaks to the file: Python's own, or the newer one that `redrive[sqlite]` brings.

Two libraries in one process must never touch one file: closing it in one drops the locks of the other without a word.
So each file has one binding per process, and a second is refused.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Literal, Protocol

from redrive.core.item import Millis
from redrive.errors import BindingConflict, ConfigError, MissingExtra

BindingName = Literal["auto", "stdlib", "apsw"]
NAMES: tuple[BindingName, ...] = ("auto", "stdlib", "apsw")
SAFE_SINCE = (3, 51, 3)
"""Earlier ones can damage the file when a commit runs beside a checkpoint (SQLite's "WAL-reset bug")."""
OLDEST = (3, 35, 0)


class Cursor(Protocol):
    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """What redrive needs of a connection. It belongs to one thread, except for `interrupt`."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor: ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Cursor: ...

    @property
    def in_transaction(self) -> bool: ...

    def close(self) -> None: ...

    def interrupt(self) -> None: ...

    @abstractmethod
    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Execute, and say how many rows it changed."""

    @abstractmethod
    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """The sum over all rows."""

    @abstractmethod
    def insert(self, sql: str, values: Sequence[Any]) -> int:
        """Execute, and say which rowid it gave."""

    @abstractmethod
    def changes_ever(self) -> int:
        """Rows changed since the connection was opened."""

    @abstractmethod
    def add_function(self, name: str, arguments: int, function: Callable[..., Any]) -> None: ...

    @abstractmethod
    def watch(self, stop: Callable[[], bool] | None, steps: int) -> None:
        """Ask `stop` after every so many steps of the engine; a statement for which it says yes is interrupted."""

    @abstractmethod
    def keep_plans(self, *, keep: bool) -> None:
        """Plan a statement once, whatever values come. Else one may be planned anew each time, for its values."""

    @abstractmethod
    def copy_to(self, path: str, pages: int, between: Callable[[], None]) -> None:
        """The whole database into a new file, so many pages at a time; what `between` raises ends it.

        Inside a transaction, or every commit of another connection makes it begin again.
        """


class Binding(Protocol):
    """A library."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def errors(self) -> type[Exception]:
        """The base of what it raises."""

    def connect(self, path: str, busy_timeout: Millis) -> Connection: ...


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def is_risky(binding: Binding) -> bool:
    return numbers(binding.version) < SAFE_SINCE


class _StdlibConnection(sqlite3.Connection):
    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        return self.execute(sql, values).rowcount

    def change_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        return self.executemany(sql, rows).rowcount

    def insert(self, sql: str, values: Sequence[Any]) -> int:
        return int(self.execute(sql, values).lastrowid or 0)

    def changes_ever(self) -> int:
        return self.total_changes

    def add_function(self, name: str, arguments: int, function: Callable[..., Any]) -> None:
        self.create_function(name, arguments, function, deterministic=True)

    def watch(self, stop: Callable[[], bool] | None, steps: int) -> None:
        self.set_progress_handler(stop, steps)

    def keep_plans(self, *, keep: bool) -> None:
        if sys.version_info >= (3, 12):
            self.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_QPSG, keep)

    def copy_to(self, path: str, pages: int, between: Callable[[], None]) -> None:
        target = sqlite3.connect(path, isolation_level=None)
        try:
            self.backup(target, pages=pages, progress=lambda *_: between())
        finally:
            target.close()


class Stdlib:
    name = "stdlib"
    errors = sqlite3.Error

    @property
    def version(self) -> str:
        return sqlite3.sqlite_version

    def connect(self, path: str, busy_timeout: Millis) -> Connection:
        return sqlite3.connect(
            path,
            timeout=busy_timeout / 1000,
            isolation_level=None,
            cached_statements=256,
            factory=_StdlibConnection,
        )


STDLIB = Stdlib()


def check_name(name: BindingName) -> BindingName:
    if name not in NAMES:
        raise ConfigError(f"{name!r} is not a binding", field="binding", hint=f"use one of {', '.join(NAMES)}")
    return name


def choose(name: BindingName, path: str) -> Binding:
    """`auto` is what this process uses for the file already, or else what is preferred."""
    if name == "stdlib":
        return _checked(STDLIB)
    if name == "apsw":
        return _checked(_apsw())
    return _checked(_claims.binding_of(path) or preferred())


def preferred() -> Binding:
    """Python's own, unless it is risky and a better one was installed."""
    if is_risky(STDLIB):
        with suppress(MissingExtra):
            return _apsw()
    return STDLIB


def _checked(binding: Binding) -> Binding:
    if numbers(binding.version) < OLDEST:
        hint = 'pip install "redrive[sqlite]" brings a newer one'
        raise ConfigError(f"SQLite {binding.version} is too old, 3.35 is needed", field="binding", hint=hint)
    return binding


def _apsw() -> Binding:
    try:
        module = import_module("redrive.stores.sqlite._apsw")
    except ImportError as error:
        raise MissingExtra(
            f"the binding apsw cannot be used: {error}", field="binding", hint='pip install "redrive[sqlite]"'
        ) from error
    found: Binding = module.APSW
    return found


class _Claims:
    """Which file is open through which binding in this process, and how often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[Binding, int]] = {}

    def binding_of(self, path: str) -> Binding | None:
        with self._lock:
            found = self._held.get(os.path.realpath(path))
        return None if found is None else found[0]

    def add(self, key: str, path: str, binding: Binding) -> None:
        with self._lock:
            used, count = self._held.get(key, (binding, 0))
            if used.name != binding.name:
                raise BindingConflict(
                    f"{path} is open in this process through {used.name}; a second SQLite library on the same file, "
                    f"{binding.name}, would break its locks",
                    field="binding",
                    hint=f"use binding={used.name} (or auto) for both, or close the other store first",
                )
            self._held[key] = (binding, count + 1)

    def drop(self, key: str) -> None:
        with self._lock:
            binding, count = self._held[key]
            if count > 1:
                self._held[key] = (binding, count - 1)
            else:
                del self._held[key]


_claims = _Claims()


def _forget_after_fork() -> None:
    """What the parent has open is the parent's: a child that uses the file opens it anew."""
    global _claims  # noqa: PLW0603 - its lock may have been held by a thread that the child does not have
    _claims = _Claims()


os.register_at_fork(after_in_child=_forget_after_fork)


class Claim:
    """Held while a store is open. `path` has no links in it, so that a file has one.

    After a fork it is the parent's, and releasing it in the child does nothing.
    """

    def __init__(self, path: str, binding: Binding) -> None:
        self._key = path
        self._claims: _Claims | None = _claims
        _claims.add(self._key, path, binding)

    def release(self) -> None:
        claims, self._claims = self._claims, None
        if claims is not None and claims is _claims:
            claims.drop(self._key)


@contextmanager
def claimed(path: str, binding: Binding) -> Iterator[None]:
    """For a visit that is no store: a check, a backup."""
    claim = Claim(path, binding)
    try:
        yield
    finally:
        claim.release()
