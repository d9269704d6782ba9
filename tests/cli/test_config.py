"""`redrive config` and how settings reach commands and apps."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from redrive import Redrive, blocking
from redrive.cli.exits import Exit
from redrive.errors import BadSettings, PayloadTooLarge
from redrive.settings.model import fields
from tests.support.cli import here, letters_in, on_terminal

SECRET = "hunter2"  # noqa: S105 - it opens nothing
SERVER = f"postgresql://shop:{SECRET}@db.example/shop?password={SECRET}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "config", "show")
    assert told.code == Exit.DONE
    assert [line.split("\t")[0] for line in told.out.splitlines()] == list(fields())
    assert "worker.grace\t30s\n" in told.out
    assert told.err == ""


def test_show_says_where_each_came_from(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "redrive.toml").write_text('[worker]\nqueues = ["a", "b"]\n')
    monkeypatch.setenv("REDRIVE_LOG_LEVEL", "error")
    told = here(capsys, "config", "show", "--origin")
    assert f"worker.queues\ta,b\t{folder}/redrive.toml\n" in told.out
    assert "log.level\terror\tenvironment REDRIVE_LOG_LEVEL\n" in told.out
    assert "actor\t-\tdefault\n" in told.out
    as_json = json.loads(here(capsys, "config", "show", "--origin", "--json").out)
    assert as_json["worker"]["queues"] == {"value": ["a", "b"], "origin": f"{folder}/redrive.toml"}
    assert as_json["file"] == f"{folder}/redrive.toml"
    assert json.loads(here(capsys, "config", "show", "--json").out)["log"] == {"level": "error", "format": "text"}


@pytest.mark.parametrize("form", [[], ["--origin"], ["--json"], ["--json", "--origin"]])
def test_show_leaves_passwords_out(
    form: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_STORE", SERVER)
    told = here(capsys, "config", "show", *form)
    assert told.code == Exit.DONE
    assert "postgresql://shop:…@db.example/shop?password=…" in told.out
    assert SECRET not in told.out + told.err


def test_show_on_a_terminal_has_columns(folder: Path) -> None:
    told = on_terminal("config", "show", "--origin", "--no-color", cwd=folder)
    assert told.code == Exit.DONE
    assert told.out.splitlines()[0].split() == ["SETTING", "VALUE", "ORIGIN"]


# -- check and schema --------------------------------------------------------------------------------------------------


def test_check_tells_every_fault_on_a_line_of_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "redrive.toml").write_text(f'store = "{SERVER}&nope=1"\nactor = ""\n[log]\nlevl = "info"\n')
    told = here(capsys, "config", "check")
    assert told.code == Exit.UNSOUND
    assert [line.partition(":")[0] for line in told.out.splitlines()] == ["log.levl", "store", "actor"]
    assert SECRET not in told.out + told.err
    as_json = here(capsys, "config", "check", "--json")
    assert (as_json.code, len(json.loads(as_json.out)["faults"])) == (Exit.UNSOUND, 3)


def test_check_names_variables_that_mean_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_STOER", "memory:")
    told = here(capsys, "config", "check")
    assert (told.code, told.out) == (Exit.UNSOUND, "REDRIVE_STOER means nothing; did you mean REDRIVE_STORE?\n")


def test_check_of_what_is_fine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "config", "check")
    assert (told.code, told.out) == (Exit.DONE, "")
    assert "there is no file" in told.err
    (folder / "other.yaml").write_text("actor: ops")
    told = here(capsys, "config", "check", "--config", "other.yaml")
    assert (told.code, told.out) == (Exit.DONE, "")
    assert f"the file is {folder}/other.yaml" in told.err


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "config", "schema")
    assert json.loads(told.out)["properties"]["worker"]["properties"]["processes"]["maximum"] == 256


# -- in commands and apps ----------------------------------------------------------------------------------------------


def test_commands_take_the_store_from_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(folder, "no", name="shop.db")
    (folder / "redrive.toml").write_text('store = "sqlite:///shop.db"')
    (folder / "below").mkdir()
    for place in (folder, folder / "below"):
        monkeypatch.chdir(place)
        assert here(capsys, "queue", "list", "-q").out == "mail\n"
    monkeypatch.setenv("REDRIVE_STORE", "sqlite:///nowhere.db")
    assert here(capsys, "queue", "list").code == Exit.STORE
    assert here(capsys, "queue", "list", "-q", "--store", f"sqlite:///{folder}/shop.db").out == "mail\n"


def test_who_acts_is_a_setting(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(folder, "no")
    monkeypatch.setenv("REDRIVE_ACTOR", "night shift")
    assert here(capsys, "queue", "pause", "mail", "--reason", "so").code == Exit.DONE
    assert "night shift" in here(capsys, "queue", "show", "mail").out


def test_the_release_of_what_commands_put_is_a_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(folder, "no", name="shop.db")
    (folder / "other.toml").write_text(f'store = "sqlite:///{folder}/shop.db"\nrelease = "1.4.2"\n')
    for command in (("queue", "push", "mail", "{}"), ("mailbox", "send", "inbox", "5", "--new")):
        assert here(capsys, *command, "--config", "other.toml").code == Exit.DONE
    found = here(capsys, "item", "list", "--where", "release:1.4.2", "--json", "--config", "other.toml")
    assert sorted(item["queue"] for item in json.loads(found.out)["items"]) == ["inbox", "mail"]


@pytest.mark.parametrize("command", [["queue", "list"], ["worker", "run", "tasks:app"], ["config", "show"]])
def test_bad_settings_end_every_command_with_one_line(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_WORKER_GRACE", "soon")
    monkeypatch.setenv("REDRIVE_LOG_LEVEL", "loud")
    told = here(capsys, *command)
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert told.err.startswith("redrive: 2 settings cannot be used: ")
    assert "worker.grace" in told.err
    assert "log.level" in told.err
    assert told.err.count("\n") == 1


def used_by(app: Redrive) -> tuple[str, str, bool]:
    """Its engine, who acts, and whether two kilobytes are too large for it."""

    async def look() -> tuple[str, str, bool]:
        async with app:
            app.queue("q")
            await app.pause("q", reason="so")
            (row,) = (await app.tally()).queues
            try:
                await app.enqueue("q", "x" * 2000)
            except PayloadTooLarge:
                return app.info().engine, row.paused_by, True
            return app.info().engine, row.paused_by, False

    return asyncio.run(look())


def test_an_app_without_a_store_takes_the_settings(folder: Path) -> None:
    (folder / "redrive.toml").write_text('store = "memory:"\nactor = "ops"\nmax_payload = "1KiB"')
    assert used_by(Redrive()) == ("memory", "ops", True)
    assert used_by(Redrive(actor="me", max_payload="1MiB")) == ("memory", "me", False)
    with blocking.Redrive() as app:
        assert app.info().engine == "memory"
    (folder / "redrive.toml").write_text('max_payload = "none"')
    for make in (Redrive, blocking.Redrive):
        with pytest.raises(BadSettings, match="max_payload"):
            make()


def test_an_app_that_names_its_store_reads_no_settings(folder: Path) -> None:
    (folder / "redrive.toml").write_text('store = "nope:"\nactor = "ops"\nmax_payload = "1KiB"')
    engine, actor, too_large = used_by(Redrive("memory:"))
    assert (engine, actor == "ops", too_large) == ("memory", False, False)


def test_no_password_is_shown_by_a_command_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_STORE", f"postgresql://shop:{SECRET}@127.0.0.1:1/shop?connect_timeout=1s")
    for command in (["queue", "list"], ["config", "show"], ["db", "status", "-v"]):
        told = here(capsys, *command)
        assert SECRET not in told.out + told.err
