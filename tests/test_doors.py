"""Doors register themselves: how they are found, and what the layers below take from them."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Redrive, doors
from redrive.app.internals import store_of
from redrive.doors import Door
from redrive.errors import AppClosed
from redrive.mailboxes import MailboxMetrics
from redrive.observe.app_metrics import AppMetrics
from redrive.observe.metrics import Metrics
from redrive.office import doors as office
from redrive.office.health import Problem
from redrive.receipts import ReceiptMetrics
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore

BELOW = ("core", "stores", "engine", "office", "observe", "app", "settings", "blocking")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    known = dict(doors._registered)  # noqa: SLF001 - a process never forgets a door
    yield
    doors._registered.clear()  # noqa: SLF001
    doors._registered.update(known)  # noqa: SLF001
    doors.every.cache_clear()


def test_no_layer_below_names_a_door() -> None:
    names = re.compile("|".join(door.name for door in doors.every()))
    root = Path(redrive.__file__).parent
    files = [file for layer in BELOW for file in (root / layer).rglob("*") if file.suffix in (".py", ".sql", ".lua")]
    assert [str(file) for file in files if names.search(file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("metrics", [MailboxMetrics, ReceiptMetrics])
def test_the_metrics_of_a_door_are_those_that_it_exports(metrics: type[Metrics]) -> None:
    name = metrics.__module__.split(".")[1]
    (door,) = [door for door in doors.every() if door.name == name]
    assert door.metrics == tuple(family.name for family in metrics.families)
    assert not set(door.metrics) & {family.name for family in AppMetrics.families}, "both are exported as redrive_…"


def test_a_door_of_an_installed_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        def load(self) -> Door:
            return Door(name="pings")

    def entry_points(*, group: str, name: str) -> list[Point]:
        return [Point()] if (group, name) == ("redrive.doors", "pings") else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert doors.find("nothing") is None
    found = doors.find("pings")
    assert found is not None
    assert found in doors.every()


@pytest.mark.parametrize(
    ("name", "payload", "body"),
    [
        ("mailboxes", b'{"redrive.mailbox":1,"body":{"a":1},"reply_to":"answers"}', b'{"a":1}'),
        ("receipts", b'{"receipt":{"a":1},"tenant_id":"shop"}', b'{"a":1}'),
    ],
)
def test_a_payload_is_shown_and_edited_by_its_body(name: str, payload: bytes, body: bytes) -> None:
    door = doors.find(name)
    assert door is not None
    assert door.body is not None
    assert door.with_body is not None
    assert door.body(payload) == body
    assert door.body(b"no envelope") == b"no envelope"
    edited = json.loads(door.with_body(payload, b'{"a":2}'))
    assert edited == {**json.loads(payload), "body" if name == "mailboxes" else "receipt": {"a": 2}}


async def test_the_body_is_shown_for_queues_of_the_door_alone() -> None:
    doors.register(Door(name="pings", body=lambda payload: json.dumps(json.loads(payload)["ping"]).encode()))
    async with Redrive("memory:", log=False) as app:
        app.queue("pings")
        app.queue("plain")
        ping, plain = await app.enqueue("pings", {"ping": 1}), await app.enqueue("plain", {"ping": 1})
        store: Store = store_of(app)
        await office.mark(store, "pings", "pings")
        shown = [(await office.show_body(store, await app.history(each))).item.payload for each in (ping, plain)]
        assert shown == [b"1", b'{"ping":1}']


async def test_what_runs_at_the_opening_of_an_app_and_what_its_check_finds() -> None:
    seen: list[object] = []

    async def opened(app: Any, store: Any) -> None:
        app.queue("pings")
        await app.enqueue("pings", 1)
        await office.mark(store, "pings", "pings")
        seen.append(app)

    async def check(_store: Any, queues: tuple[str, ...]) -> list[Problem]:
        return [Problem("late", queue, "too late", "redrive queue list") for queue in queues]

    doors.register(Door(name="pings", opened=opened, check=check))
    async with Redrive("memory:", log=False) as app:
        assert seen == [app]
        assert [problem.what for problem in await office.problems(store_of(app))] == ["pings"]


async def test_an_app_whose_door_cannot_start_is_closed() -> None:
    async def opened(_app: Any, _store: Any) -> None:
        raise OSError("no line")

    doors.register(Door(name="pings", opened=opened))
    app = Redrive(MemoryStore(), log=False)
    with pytest.raises(OSError, match="no line"):
        await app.open()
    with pytest.raises(AppClosed):
        await app.tally()
