"""What a command says of what it did: also the second time, to nobody, and when others were faster."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from redrive import Policy, Redrive, never
from redrive.cli import run as run_command
from redrive.cli.exits import Exit
from tests.docs.tables import commands
from tests.support.cli import COMMAND, PATIENCE, environment, here, letters_in, on_sqlite, store_in

pytestmark = [pytest.mark.usefixtures("on_store"), on_sqlite, pytest.mark.slow]
FULL = Path("/dev/full")


def die_again(folder: Path) -> None:
    async def run() -> None:
        app = Redrive(store_in(folder), log=False)

        @app.handler("mail", policy=Policy(backoff=never()))
        async def fail(item_id: str) -> None:
            raise ValueError(item_id)

        async with app:
            await app.run(until_idle=True)

    asyncio.run(run())


def lies(capsys: pytest.CaptureFixture[str], item_id: str) -> str:
    """Where the letter is; its state if it is none any more."""
    item = json.loads(here(capsys, "letters", "show", item_id, "--json").out)
    return str(item.get("disposition") or item["state"])


# -- said again --------------------------------------------------------------------------------------------------------


def test_a_repeated_request_does_not_claim_to_have_sent_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = letters_in(tmp_path, "a")
    command = ("letters", "replay", one, "--reason", "x", "--request", "Q")
    first = here(capsys, *command)
    assert (first.code, first.out, first.err) == (Exit.DONE, f"{one}\n", "sent again 1\n")
    die_again(tmp_path)
    again = here(capsys, *command)
    assert (again.code, again.out, again.err) == (Exit.DONE, "", "sent again 0, 1 already by this request\n")
    told = json.loads(here(capsys, *command, "--json").out)
    assert told == {"dry_run": False, "replayed": [], "already": [one], "skipped": []}


# -- to nobody ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["replay", "archive", "import"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_act_that_cannot_be_reported_says_that_it_is_done(
    verb: str,
    form: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one,) = letters_in(tmp_path, "a")
    which = [one]
    if verb == "import":
        (tmp_path / "x.jsonl").write_text(here(capsys, "letters", "export", "-").out)
        which = ["x.jsonl", "--store", "sqlite:///other.db"]
    done = {"replay": "sent again 1", "archive": "archived 1", "import": "took in 1"}[verb]
    for broken, why in ((FULL.open("w"), "No space left on device"), (None, "it is closed")):
        command = ["letters", verb, *which, "--reason", "x", *form]
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", broken)
            code = run_command(command)
        err = capsys.readouterr().err
        assert code == Exit.FAILED
        assert err.count("\n") == 1
        assert f"{done}, but stdout cannot be written: {why}" in err
        assert "bug" not in err
        if broken is not None:
            with pytest.raises(OSError, match="No space"):
                broken.close()
        if verb == "import":
            which[-1] = "sqlite:///third.db"
        else:
            here(capsys, "letters", "restore", one, "--reason", "x")
            die_again(tmp_path)


@pytest.mark.parametrize("command", [("status",), ("letters", "list"), ("letters", "export", "-"), ("letters", "-h")])
def test_a_list_on_a_full_disk_is_no_bug(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "a")
    broken = FULL.open("w")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", broken)
        code = run_command(command)
    with pytest.raises(OSError, match="No space"):
        broken.close()
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (Exit.FAILED, 1)
    assert "cannot be written: No space left on device" in err


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_error_that_nobody_hears_has_its_exit_code(
    form: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "a")
    with io.TextIOWrapper(io.FileIO(FULL, "w"), write_through=True) as broken, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", broken)
        assert run_command(["letters", "show", "nope", *form]) == Exit.NOT_FOUND


@pytest.mark.parametrize(("shell", "code"), [(">&-", 1), ("2>/dev/full >/dev/full", 1)])
def test_a_real_shell_gets_the_code(shell: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = letters_in(tmp_path, "a")
    line = f'"$@" letters archive {one} --reason x {shell}'
    ended = subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == code
    lines = ended.stderr.splitlines()
    heard = "2>" not in shell
    assert [line.partition(" cannot be")[0] for line in lines] == ["redrive: archived 1, but stdout"] * heard
    assert lies(capsys, one) == "archived"


# -- to a file ---------------------------------------------------------------------------------------------------------


def test_an_export_to_what_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = set(tmp_path.iterdir())
    told = here(capsys, "letters", "export", "folder", "--force", "--jsonl")
    assert told.code == Exit.USAGE
    error = json.loads(told.err)["error"]
    assert (error["message"], error["details"]) == ("FILE: folder is a directory", {"field": "FILE"})
    pipe = here(capsys, "letters", "export", "pipe", "--force")
    assert (pipe.code, "FILE: pipe is not a regular file" in pipe.err) == (Exit.USAGE, True)
    assert (tmp_path / "pipe").is_fifo()
    assert set(tmp_path.iterdir()) == before


def test_an_export_to_a_full_disk_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "a")
    before = set(tmp_path.iterdir())

    def on_full_disk(*, prefix: str, dir: Path) -> tuple[int, str]:
        place = dir / f"{prefix}half"
        place.touch()
        return os.open(FULL, os.O_WRONLY), str(place)

    monkeypatch.setattr("redrive.office.files.tempfile.mkstemp", on_full_disk)
    told = here(capsys, "letters", "export", "out.jsonl")
    assert (told.code, told.err.count("\n")) == (Exit.FAILED, 1)
    assert "out.jsonl cannot be written: No space left on device; nothing of it is left" in told.err
    assert set(tmp_path.iterdir()) == before


def test_an_export_says_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    assert "attempts were left out (--attempts" in here(capsys, "letters", "export", "-").err
    assert "left out" not in here(capsys, "letters", "export", "-", "--attempts").err
    for verb in ("export", "import"):
        about = " ".join(here(capsys, "letters", verb, "-h").out.split())
        assert "--attempts" in about
        assert "Notes and" in about


# -- others were faster ------------------------------------------------------------------------------------------------


class Terminal:
    """Somebody who thinks for a while before they say yes; meanwhile colleagues do their work."""

    def __init__(self, *meanwhile: tuple[str, ...]) -> None:
        self.meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        for command in self.meanwhile:
            assert run_command(command) == Exit.DONE
        return "y\n"


def test_what_was_put_away_while_it_asked_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, archived, discarded, moved = letters_in(tmp_path, *"abcd")
    why = ("--reason", "do not send this")
    terminal = Terminal(
        ("letters", "archive", archived, *why),
        ("letters", "discard", discarded, "--yes", *why),
        ("letters", "move", moved, "--to", "by-hand", "--new", *why),
    )
    monkeypatch.setattr(sys, "stdin", terminal)
    told = here(capsys, "letters", "replay", "--where", "queue:mail,by-hand died<1h", "--reason", "x")
    assert told.code == Exit.PARTLY
    assert f"skipped {archived}: it was archived since\n" in told.err
    assert f"skipped {discarded}: it was discarded since\n" in told.err
    assert f"skipped {moved}: it was moved to by-hand since\n" in told.err
    assert "sent again 1, skipped 3\n" in told.err
    assert [lies(capsys, each) for each in (sent, archived, discarded, moved)] == ["ready", "archived", "trash", "open"]


def test_if_all_were_put_away_while_it_asked_nothing_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = letters_in(tmp_path, "a")
    monkeypatch.setattr(sys, "stdin", Terminal(("letters", "archive", one, "--reason", "mine")))
    told = here(capsys, "letters", "tag", "--all", "--add", "x", "--reason", "x")
    assert (told.code, f"skipped {one}: it was archived since" in told.err) == (Exit.CONFLICT, True)


# -- all of them -------------------------------------------------------------------------------------------------------


def test_a_list_that_was_cut_says_how_to_get_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, *"abc")
    for form in ("-q", "--jsonl"):
        told = here(capsys, "letters", "list", "--limit", "2", form)
        assert len(told.out.splitlines()) == 2
        assert told.err.startswith("there are more: --cursor ")
        assert told.err.endswith(" goes on, --all gives all of them\n")
    assert here(capsys, "letters", "list", "--all", "--limit", "2").code == Exit.USAGE


def test_items_that_were_cut_can_be_had_all_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"abc")
    told = here(capsys, "item", "list", "--limit", "2")
    assert (len(told.out.splitlines()), told.err.endswith(" goes on, --all gives all of them\n")) == (2, True)
    for form in ([], ["-q"], ["--jsonl"]):
        told = here(capsys, "item", "list", "--all", *form)
        assert (len(told.out.splitlines()), told.err) == (3, "")
    assert set(here(capsys, "item", "list", "--all", "-q").out.split()) == set(ids)
    assert here(capsys, "item", "list", "--all", "--limit", "2").code == Exit.USAGE


def test_causes_of_more_letters_than_can_be_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, *"abc")
    for bound, whole in ((2, False), (3, True)):
        monkeypatch.setattr("redrive.office.causes.LOOKED_AT", bound)
        monkeypatch.setattr("redrive.cli.causes.LOOKED_AT", bound)
        for command in (("causes", "list"), ("letters", "list", "--by", "cause")):
            told = here(capsys, *command, "--where", "error:ValueError", "--json")
            assert {row["whole"] for row in json.loads(told.out)} == {whole}
            assert sum(row["count"] for row in json.loads(told.out)) == bound
            assert told.err == ("" if whole else "counted the last 2 letters to die; there are more\n")
    monkeypatch.setattr("redrive.office.causes.LOOKED_AT", 1)
    assert here(capsys, "causes", "list", "--where", "queue:mail").err == ""  # counters know all of them


def lists() -> list[list[str]]:
    """Every command that can list nothing."""
    always = {"redrive policy list", "redrive policy simulate"}
    found = [path for path, each in commands() if any(one.name == "fields" for one in each.params)]
    return [path.split()[1:] for path in found if path not in always]


@pytest.mark.parametrize("words", lists(), ids=" ".join)
def test_a_wrong_field_is_told_also_where_there_is_nothing_to_list(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def make() -> None:
        async with Redrive(store_in(tmp_path), log=False) as app:
            if "attempts" in words:
                app.queue("mail")
                await app.enqueue("mail", 1, id="untried")

    asyncio.run(make())
    more = ["untried"] if "attempts" in words else []
    for form in ([], ["--json"], ["--jsonl"]):
        wrong = here(capsys, *words, *more, *form, "--fields", "xyzzy")
        assert (wrong.code, wrong.out) == (Exit.USAGE, "")
        assert "no field 'xyzzy'" in wrong.err
    known = re.search(r"there are ([\w, ]+)", here(capsys, *words, *more, "--fields", "xyzzy").err)
    assert known is not None
    right = here(capsys, *words, *more, "--fields", known[1].replace(" ", ""))
    assert (right.code, right.out) == (Exit.DONE, "")


def test_all_are_more_than_the_usual_hundred(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *["x"] * 101)
    told = here(capsys, "letters", "list", "--all", "-q")
    assert (set(told.out.split()), told.err) == (set(ids), "")
    assert len(here(capsys, "letters", "list", "--all").out.splitlines()) == len(ids)
    assert here(capsys, "letters", "list", "--all", "--by", "queue").out == "mail\t101\n"
    assert len(here(capsys, "letters", "list", "--all", "--by", "cause").out.splitlines()) == 1


def test_recipes_in_the_help_mean_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("list", "replay", "archive"):
        lines = [line for line in here(capsys, "letters", verb, "-h").out.splitlines() if "letters list" in line]
        recipes = [line for line in lines if " | redrive letters " in line]
        assert recipes
        assert all("--all -q |" in line for line in recipes)
