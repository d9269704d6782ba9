"""How the commands of doors end: with codes of their own, and with errors that are not redrive's."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from types import ModuleType

import click
import pytest

from redrive import doors
from redrive.cli import root
from redrive.cli.exits import Exit, Talk, tell
from redrive.doors import Door, Group
from redrive.errors import RedriveError
from tests.support.cli import here


class Jam(RedriveError):
    """Of redrive's kind."""


class Tear(Exception):
    """Of the door alone."""


@pytest.fixture
def printer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`redrive printer print`, of a door that is not redrive's own."""

    @click.group()
    def commands() -> None:
        pass

    @commands.command("print")
    @click.argument("page")
    @click.option("--json", is_flag=True)
    def print_page(page: str, json: bool) -> None:
        raise {"jam": Jam("paper jam", hint="open the lid"), "tear": Tear("torn")}.get(page) or KeyError(page)

    module = ModuleType("printer_door")
    module.commands = commands  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "printer_door", module)
    monkeypatch.setattr(root.cli, "lazy", dict(root.cli.lazy))
    monkeypatch.setattr(root.cli, "of_doors", dict(root.cli.of_doors))
    monkeypatch.setattr(doors, "_registered", dict(doors._registered))  # noqa: SLF001 - a process never forgets a door
    doors.register(
        Door(
            name="printers",
            groups={"printer": Group("printer_door:commands", "Printers.")},
            exits={Jam: (20, "jam"), Tear: (125, "tear")},
        )
    )
    yield
    doors.every.cache_clear()


@pytest.mark.usefixtures("printer")
@pytest.mark.parametrize(
    ("word", "code", "message", "hint"),
    [("jam", 20, "paper jam", "open the lid"), ("tear", 125, "torn", "")],
)
def test_an_error_of_a_door_ends_with_the_code_of_its_own(
    word: str, code: int, message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = here(capsys, "printer", "print", word)
    assert (told.code, told.out) == (code, "")
    assert told.err == f"redrive: {message}{f' ({hint})' if hint else ''}\n"
    told = here(capsys, "printer", "print", word, "--json")
    assert (told.code, told.out) == (code, "")
    assert json.loads(told.err)["error"] == {"code": word, "message": message, "hint": hint, "details": {}}


@pytest.mark.usefixtures("printer")
def test_only_errors_of_redrives_kind_end_so_in_other_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(Jam("paper jam"), Talk(debug=False)) == 20
    assert tell(Tear("torn"), Talk(debug=False)) == Exit.FAILED
    assert "this is a bug in redrive: Tear: torn" in capsys.readouterr().err


@pytest.mark.usefixtures("printer")
def test_an_exception_in_a_command_of_a_door_is_an_error_in_that_door(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = here(capsys, "printer", "print", "photo")
    assert told.code == Exit.FAILED
    assert (
        told.err == "redrive: this is an error in the door printers: KeyError: 'photo' (REDRIVE_DEBUG=1 shows where)\n"
    )
    monkeypatch.delattr(sys.modules["printer_door"], "commands")
    told = here(capsys, "printer", "print", "photo")
    assert "this is an error in the door printers: AttributeError" in told.err


def test_an_exception_in_a_command_of_redrives_own_doors_is_a_bug_in_redrive(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from redrive.cli import mailbox

    monkeypatch.setattr(mailbox.mailbox, "invoke", lambda _context: 1 / 0)
    told = here(capsys, "mailbox", "list")
    assert "this is a bug in redrive: ZeroDivisionError" in told.err


def test_an_installed_door_that_cannot_be_registered_is_named_as_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Point:
        def load(self) -> Door:
            return Door(name="pings", start=5)  # type: ignore[arg-type]

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [Point()])
    told = here(capsys, "pings")
    assert (told.code, told.out, told.err) == (Exit.USAGE, "", "redrive: start: must be a text, got 5\n")
