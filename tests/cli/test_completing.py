"""What a shell offers while somebody types: the names of the store that the command would go to, or nothing at all."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from redrive.cli import completing
from redrive.cli.completing_bash import Bash
from redrive.cli.exits import Talk
from redrive.cli.root import COMPLETING, cli
from tests.support.bound import with_app
from tests.support.cli import PATIENCE, environment, here, letters_in, made_in, on_sqlite, piped

pytestmark = pytest.mark.usefixtures("on_store")


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than a typist would wait."""
    monkeypatch.setattr(completing, "PATIENCE", PATIENCE)
    monkeypatch.setenv(COMPLETING, "bash_complete")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def offered(line: str) -> list[str]:
    """Without a process. The line is typed up to its end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COMP_LINE", f"redrive {line}")
        bash = Bash(cli, {"obj": Talk()}, "redrive", COMPLETING)
        return [str(item.value) for item in bash.get_completions(*bash.get_completion_args())]


@pytest.mark.usefixtures("patient")
def test_names_are_those_of_the_store_in_force(tmp_path: Path) -> None:
    (dead,) = letters_in(tmp_path, "no address")
    assert offered("queue show m") == ["mail"]
    assert offered(f"letters replay {dead[:3]}") == [dead]
    assert offered("queue show x") == []


@on_sqlite
@pytest.mark.usefixtures("patient")
def test_ids_of_ones_own_may_have_signs(tmp_path: Path) -> None:
    letters_in(tmp_path, "no address")
    with_app(tmp_path, lambda app: app.enqueue("mail", id="order:17(a)"))
    assert offered("item show order:1") == ["order:17(a)"]
    assert offered("item show order:*") == []


@on_sqlite
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("said", ["flag", "flag=", "variable", "config", "nearest", "default"])
def test_the_store_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """The one with letters, though others would have been taken if it were not for what was said."""
    letters_in(tmp_path, "no address", name="redrive.db" if said == "default" else "mine.db")
    url, other = f"sqlite:///{tmp_path}/mine.db", f"sqlite:///{tmp_path}/other.db"
    options = ""
    if said.startswith("flag"):
        monkeypatch.setenv("REDRIVE_STORE", other)
        options = f"--store={url}" if said == "flag=" else f"--store {url}"
    elif said == "variable":
        (tmp_path / "redrive.toml").write_text(f'store = "{other}"')
        monkeypatch.setenv("REDRIVE_STORE", url)
    elif said == "config":
        (tmp_path / "redrive.toml").write_text(f'store = "{other}"')
        (tmp_path / "named.toml").write_text(f'store = "{url}"')
        options = "--config named.toml"
    elif said == "nearest":
        (tmp_path / "redrive.toml").write_text(f'store = "{url}"')
    assert offered(f"queue show {options} m") == ["mail"]


@on_sqlite
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "store", ["sqlite:///nowhere.db", "sqlite:///no/folder/x.db", "memory:", "nonsense", "postgresql://127.0.0.1:1/x"]
)
def test_a_store_that_cannot_be_asked_offers_nothing_and_is_not_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], store: str
) -> None:
    for line in (f"queue show --store {store} m", f"letters show --store {store} ", f"gate open --store {store} "):
        assert offered(line) == []
    (tmp_path / "redrive.toml").write_text("store = 7\nnonsense")
    assert offered("queue show m") == []
    assert capfd.readouterr() == ("", "")
    assert [file.name for file in tmp_path.iterdir()] == ["redrive.toml"]


@pytest.mark.parametrize(
    ("line", "words", "last"),
    [
        ("redrive queue ", ["queue"], ""),
        ("redrive queue sho", ["queue"], "sho"),
        ("redrive queue show --store sqlite:///x.db ma", ["queue", "show", "--store", "sqlite:///x.db"], "ma"),
        ("redrive letters list --where 'queue:mail dis", ["letters", "list", "--where"], "queue:mail dis"),
    ],
)
@on_sqlite
def test_bash_tells_the_line_since_it_breaks_urls(
    monkeypatch: pytest.MonkeyPatch, line: str, words: list[str], last: str
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert Bash(cli, {}, "redrive", COMPLETING).get_completion_args() == (words, last)


# -- in a shell --------------------------------------------------------------------------------------------------------


def completed(folder: Path, *words: str) -> list[str]:
    """As shells ask that tell words."""
    asked = {COMPLETING: "bash_complete", "COMP_WORDS": " ".join(["redrive", *words])}
    env = {**asked, "COMP_CWORD": str(len(words)), "XDG_CACHE_HOME": str(folder / "cache")}
    told = piped(cwd=folder, env=env)
    assert (told.returncode, told.stderr) == (0, "")
    return [line.partition(",")[2] for line in told.stdout.splitlines()]


@pytest.mark.slow
@on_sqlite
def test_names_of_the_store_are_completed_also_when_it_is_away(tmp_path: Path) -> None:
    (dead,) = letters_in(tmp_path, "no address")
    assert completed(tmp_path, "queue", "sho") == ["show"]
    # A busy machine may take longer than a typist would wait; then nothing is offered, and the next try has it.
    for words, found in ((["queue", "show", "m"], ["mail"]), (["item", "explain", dead[:3]], [dead])):
        ends = time.monotonic() + PATIENCE
        while completed(tmp_path, *words) != found:
            assert time.monotonic() < ends
    for file in tmp_path.glob("redrive.db*"):
        file.rename(tmp_path / f"away-{file.name}")
    assert completed(tmp_path, "queue", "show", "m") == ["mail"]
    assert not (tmp_path / "redrive.db").exists()
    assert completed(tmp_path, "letters", "list", "--where", "dispo") == ["disposition:"]
    assert completed(tmp_path, "lettres", "list", "x") == [], "a word that is none is told when it is sent"


IN_BASH = """
source ./script
COMP_LINE="redrive queue show --store sqlite:///mine.db eu:m" COMP_CWORD=9
COMP_WORDS=(redrive queue show --store sqlite : ///mine.db eu : m) COMP_POINT=${#COMP_LINE}
_redrive_completion redrive
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.slow
@on_sqlite
def test_colons_are_no_ends_of_words_in_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bash takes them for that, and puts what is offered behind the last one."""
    made_in(tmp_path, "mine.db")
    assert here(capsys, "queue", "push", "eu:mail", "1", "--new", "--store", "sqlite:///mine.db").code == 0
    (tmp_path / "script").write_text(here(capsys, "completion", "bash").out)
    (tmp_path / "redrive").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m redrive "$@"\n')
    (tmp_path / "redrive").chmod(0o700)
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    env["PATH"] = f"{tmp_path}:{env['PATH']}"
    ends = time.monotonic() + PATIENCE
    while True:
        told = subprocess.run(
            ["bash", "--norc", "-c", IN_BASH],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        assert told.stderr == ""
        if told.stdout != "\n":
            break
        assert time.monotonic() < ends
    assert told.stdout == "mail\n"
