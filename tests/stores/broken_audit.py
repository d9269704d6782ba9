"""Planted bugs about the audit entries of settings, documents and puts: what they are, and how each comes into every
store.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from redrive.core.acts import Act
from redrive.core.verbs import NewEntry
from redrive.stores.memory import MemoryStore
from redrive.stores.postgres import PostgresStore, put, session
from redrive.stores.redis import RedisStore
from redrive.stores.reencrypting import Rewrite
from redrive.stores.sqlite import SqliteStore, shelf
from tests.stores.broken import Bent, breath
from tests.stores.broken_servers import Bug
from tests.stores.planting import Edit, Patch, Plant

Bend = Callable[[Any, Callable[[], Awaitable[Any]], NewEntry], Awaitable[Any]]
"""Gets the store, the write without its entry, and the entry."""
VERBS = ("put", "configure", "configure_route", "set_gate", "write_documents")
BUGS: dict[str, Bug] = {
    "AuditsNoSettings": Bug(
        "a queue is paused, and the audit does not say who did it", ("test_audit_goes_with_the_write",)
    ),
    "AuditsApart": Bug(
        "a process that is killed between the two writes leaves a change without its entry",
        ("test_audit_and_its_write_are_one_step_to_those_who_look",),
    ),
    "AuditsTheRefused": Bug(
        "the audit has an act that never happened", ("test_audit_says_nothing_of_what_was_refused",)
    ),
    "ReencryptsUnaudited": Bug(
        "the audit does not say who replaced the bodies", ("test_reencrypt_replaces_old_keys_and_what_was_in_clear",)
    ),
}


async def _not_at_all(_store: Any, write: Callable[[], Awaitable[Any]], _entry: NewEntry) -> Any:
    return await write()


async def _apart(store: Any, write: Callable[[], Awaitable[Any]], entry: NewEntry) -> Any:
    result = await write()
    await breath()
    await store.append([entry])
    return result


async def _whatever_happens(store: Any, write: Callable[[], Awaitable[Any]], entry: NewEntry) -> Any:
    await store.append([entry])
    return await write()


def _verb(right: Any, bend: Bend) -> Any:
    signature = inspect.signature(right)

    async def verb(*args: Any, **how: Any) -> Any:
        bound = signature.bind(*args, **how)
        entry = bound.arguments.pop("audit", None)
        write = partial(right, *bound.args, **bound.kwargs)
        return await (write() if entry is None else bend(args[0], write, entry))

    return verb


def _verbs(store: type, bend: Bend) -> dict[str, Any]:
    return {name: _verb(getattr(store, name), bend) for name in VERBS}


def _bent(store: type, bend: Bend) -> Patch:
    bent = _verbs(store, bend)

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        for name, verb in bent.items():
            monkeypatch.setattr(store, name, verb)

    return plant


def _reencrypts_unaudited(store: Any) -> Patch:
    right = store.rewrite_bodies
    return lambda monkeypatch: monkeypatch.setattr(
        store, "rewrite_bodies", lambda self, rewrites, _: right(self, rewrites, None)
    )


def _sqlite_audits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "append", lambda _tx, _entries: ())


def _postgres_audits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def append(*_: Any) -> tuple[int, ...]:
        return ()

    for module in (session, put):
        monkeypatch.setattr(module, "append_acts", append)


AuditsNoSettings = type("AuditsNoSettings", (Bent,), _verbs(MemoryStore, _not_at_all))
AuditsApart = type("AuditsApart", (Bent,), _verbs(MemoryStore, _apart))
AuditsTheRefused = type("AuditsTheRefused", (Bent,), _verbs(MemoryStore, _whatever_happens))


class ReencryptsUnaudited(Bent):
    async def rewrite_bodies(self, rewrites: Sequence[Rewrite], by: Act | None) -> int:
        return await super().rewrite_bodies(rewrites, None)


_NOTHING = {
    "sqlite": Plant(patches=(_sqlite_audits_nothing,)),
    "postgres": Plant(patches=(_postgres_audits_nothing,)),
    "redis": Plant((Edit("entering", "if ARGV[first] then", "if false then"),)),
}
PLANTS: dict[str, dict[str, Plant]] = {
    engine: {
        "AuditsNoSettings": _NOTHING[engine],
        "AuditsApart": Plant(patches=(_bent(store, _apart),)),
        "AuditsTheRefused": Plant(patches=(_bent(store, _whatever_happens),)),
        "ReencryptsUnaudited": Plant(patches=(_reencrypts_unaudited(store),)),
    }
    for engine, store in {"sqlite": SqliteStore, "postgres": PostgresStore, "redis": RedisStore}.items()
}
