"""Doors register themselves: how they are found, and what the layers below take from them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redrive
from redrive import Redrive, doors
from redrive.app.internals import store_of
from redrive.cli.root import cli
from redrive.doors import BadDoor, Door, Group
from redrive.errors import AppClosed
from redrive.mailboxes import MailboxMetrics
from redrive.observe.app_metrics import AppMetrics
from redrive.observe.metrics import Metrics
from redrive.office import doors as office
from redrive.office.health import Problem
from redrive.receipts import ReceiptMetrics
from redrive.settings.model import fields
from redrive.stores.base import Store
from redrive.stores.memory import MemoryStore
from tests.docs.pages import ROOT, blocks
from tests.support.cli import piped

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


# --- what is refused ---

PINGS = Group("pings:commands", "Pings.")


@pytest.mark.parametrize(
    ("door", "message"),
    [
        ("x", "door: must be a redrive.doors.Door, got 'x'"),
        (Door(name=""), "name: must be a text that is not empty, got ''"),
        (Door(name=" "), "name: must be a text that is not empty, got ' '"),
        (Door(name=5), "name: must be a text that is not empty, got 5"),  # type: ignore[arg-type]
        (Door(name="letters"), "name: 'letters' is a command or a setting of redrive (choose another name)"),
        (Door(name="log"), "name: 'log' is a command or a setting of redrive (choose another name)"),
        (
            Door(name="mailboxes"),
            "name: another door is registered as 'mailboxes' (choose another name, or register it once)",
        ),
        (Door("pings", start=5), "start: must be a text, got 5"),  # type: ignore[arg-type]
        (Door("pings", body=5), "body: must be a function or None, got 5"),  # type: ignore[arg-type]
        (Door("pings", section=5), "section: must be a function or None, got 5"),  # type: ignore[arg-type]
        (Door("pings", metrics="pings"), "metrics: must be a tuple of texts, got 'pings'"),  # type: ignore[arg-type]
        (Door("pings", groups=5), "groups: must be a mapping of names to redrive.doors.Group, got 5"),  # type: ignore[arg-type]
        (Door("pings", groups={5: PINGS}), "groups: must be a mapping with names as keys, got 5"),  # type: ignore[dict-item]
        (Door("pings", groups={"pings": 5}), "groups['pings']: must be a redrive.doors.Group, got 5"),  # type: ignore[dict-item]
        (
            Door("pings", groups={"pings": Group("pings", "Pings.")}),
            "groups['pings'].place: must be a text like \"module:attribute\", got 'pings'",
        ),
        (
            Door("pings", groups={"letters": PINGS}),
            "groups: 'letters' is a command of redrive (choose another name)",
        ),
        (
            Door("pings", groups={"mailbox": PINGS}),
            "groups: 'mailbox' is a command of the door 'mailboxes' (choose another name)",
        ),
        (Door("pings", exits=5), "exits: must be a mapping of exception classes to (code, word), got 5"),  # type: ignore[arg-type]
        (Door("pings", exits={"Jam": (20, "jam")}), "exits: must be keyed by exception classes, got 'Jam'"),  # type: ignore[dict-item]
        (Door("pings", exits={int: (20, "jam")}), "exits: must be keyed by exception classes, got <class 'int'>"),  # type: ignore[dict-item]
        (Door("pings", exits={OSError: 20}), "exits[OSError]: must be a tuple (code, word), got 20"),  # type: ignore[dict-item]
        (Door("pings", exits={OSError: (0, "jam")}), "exits[OSError]: must be a code from 1 to 125, got 0"),
        (Door("pings", exits={OSError: (126, "jam")}), "exits[OSError]: must be a code from 1 to 125, got 126"),
        (Door("pings", exits={OSError: (True, "jam")}), "exits[OSError]: must be a code from 1 to 125, got True"),
        (
            Door("pings", exits={OSError: (20, "")}),
            "exits[OSError]: must be a code with a word that is not empty, got ''",
        ),
    ],
)
def test_a_door_that_cannot_work_is_not_registered(door: Any, message: str) -> None:
    with pytest.raises(BadDoor) as refused:
        doors.register(door)
    assert str(refused.value) == message
    assert door not in doors.every()


def test_one_door_has_one_name_and_its_own_commands() -> None:
    door = doors.register(Door("pings", groups={"ping": PINGS}))
    assert doors.register(door) is door
    with pytest.raises(BadDoor, match="another door is registered as 'pings'"):
        doors.register(Door("pings"))
    with pytest.raises(BadDoor, match="'ping' is a command of the door 'pings'"):
        doors.register(Door("pongs", groups={"ping": PINGS}))
    assert doors.loaded("pings") is door
    assert doors.loaded("pongs") is None


def test_the_names_that_no_door_may_have_are_those_of_redrive() -> None:
    of_doors = {name for door in doors.every() for name in door.groups}
    assert set(cli.lazy) - of_doors == doors.COMMANDS
    sections = {door.name for door in doors.every()}
    assert {name.partition(".")[0] for name in fields()} - sections == doors.SETTINGS


# --- the command `redrive` ---


@pytest.mark.slow
def test_the_redrive_command_knows_the_door_of_an_installed_package(tmp_path: Path) -> None:
    """The example of docs/doors.md, with the entry point that an installer writes."""
    for block in blocks(ROOT / "docs" / "doors.md"):
        if block.file_name is not None:
            (tmp_path / block.file_name).write_text(block.text, encoding="utf-8")
    packages = tmp_path / "packages"
    information = packages / "reminders-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: reminders\nVersion: 1.0\n")
    points = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["entry-points"]["redrive.doors"]
    lines = ["[redrive.doors]", *(f"{name} = {place}" for name, place in points.items())]
    (information / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "reminders.py").rename(packages / "reminders.py")
    source = Path(redrive.__file__).parent.parent
    installed = {"PYTHONPATH": os.pathsep.join([str(source), str(packages)]), "REDRIVE_STORE": ""}

    added = piped("reminders", "add", "eve", "stand up", "--id", "e", cwd=tmp_path, env=installed)
    assert (added.returncode, added.stdout, added.stderr) == (0, "e\n", "")
    health = piped("health", cwd=tmp_path, env=installed)
    assert (health.returncode, health.stderr) == (10, "")
    assert "reminder_late" in health.stdout
    ran = piped("worker", "run", "desk:app", "--until-idle", cwd=tmp_path, env=installed)
    assert (ran.returncode, ran.stdout) == (0, "eve: stand up\n")
    unknown = piped("reminders", "add", "zoe", "sit down", cwd=tmp_path, env=installed)
    assert (unknown.returncode, unknown.stderr) == (5, "redrive: no person 'zoe' (people has ann, bob, eve)\n")
