"""Bash completes names of the store while they are typed, also when the store is away."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from redrive.cli.root import COMPLETING
from tests.support.cli import PATIENCE, environment, here, letters_in, made_in, on_sqlite, piped

pytestmark = pytest.mark.usefixtures("on_store")


def completed(folder: Path, *words: str) -> list[str]:
    """As shells ask that tell words."""
    asked = {COMPLETING: "bash_complete", "COMP_WORDS": " ".join(["redrive", *words])}
    env = {**asked, "COMP_CWORD": str(len(words)), "XDG_CACHE_HOME": str(folder / "cache")}
    told = piped(cwd=folder, env=env)
    assert (told.returncode, told.stderr) == (0, "")
    return [line.partition(",")[2] for line in told.stdout.splitlines()]


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
