"""What a shell offers while somebody types: the names of the store that the command would go to, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from redrive.cli import completing
from redrive.cli.completing_bash import Bash
from redrive.cli.exits import Talk
from redrive.cli.root import COMPLETING, cli
from tests.support.bound import with_app
from tests.support.cli import PATIENCE, here, letters_in, on_sqlite

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


@on_sqlite
@pytest.mark.usefixtures("patient")
def test_a_shell_is_answered_by_its_variables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "no address")
    monkeypatch.delenv("COMP_LINE", raising=False)
    monkeypatch.setenv("COMP_CWORD", "3")
    # A word that is none is told when it is sent.
    for words, answer in (("queue show m", "plain,mail\n"), ("lettres list x", "")):
        monkeypatch.setenv("COMP_WORDS", f"redrive {words}")
        told = here(capsys)
        assert (told.code, told.out, told.err) == (0, answer, "")


@on_sqlite
@pytest.mark.usefixtures("patient")
def test_names_of_the_store_are_completed_also_when_it_is_away(tmp_path: Path) -> None:
    (dead,) = letters_in(tmp_path, "no address")
    assert offered("queue sho") == ["show"]
    assert offered("queue show m") == ["mail"]
    assert offered(f"item explain {dead[:3]}") == [dead]
    for file in tmp_path.glob("redrive.db*"):
        file.rename(tmp_path / f"away-{file.name}")
    assert offered("queue show m") == ["mail"]
    assert not (tmp_path / "redrive.db").exists()
    assert offered("letters list --where dispo") == ["disposition:"]
