"""`redrive help`, `completion`, `policy` and `init`: what needs no store."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from redrive.cli.exits import Exit
from redrive.cli.root import cli
from redrive.cli.topics import TEXTS
from redrive.core.select import FIELDS
from tests.support.cli import PATIENCE, here


@pytest.mark.parametrize("topic", TEXTS)
def test_every_topic_has_its_page(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "help", topic)
    assert (told.code, told.err) == (Exit.DONE, "")
    assert told.out.count("\n") > 5
    assert max(map(len, told.out.splitlines())) <= 120
    assert topic in here(capsys, "help").out


def test_the_exit_codes_that_are_told_are_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    lines = here(capsys, "help", "exit-codes").out.splitlines()
    codes = {int(line.split()[0]) for line in lines if line.startswith("  ")}
    assert codes == {int(code) for code in Exit}


def test_every_field_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    lines = here(capsys, "help", "fields").out.splitlines()
    assert {line.split()[0] for line in lines if line[:2] == "  " != line[2:4]} == set(FIELDS)


def test_help_of_a_command_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert here(capsys, "help", "queue", "push").out == here(capsys, "queue", "push", "-h").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "completion", shell)
    assert (told.code, told.err) == (Exit.DONE, "")
    assert "_REDRIVE_COMPLETE" in told.out
    assert f"{shell}_complete" in told.out


def test_a_list_of_commands_imports_none_of_them() -> None:
    """A newcomer's first command must not be slow."""
    code = (
        "import sys; from redrive.cli import run; run(['-h']); "
        "late = ('redrive.app', 'redrive.core', 'redrive.stores', 'redrive.cli.letters', 'msgspec', 'asyncio'); "
        "sys.exit(', '.join(name for name in late if name in sys.modules) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(f"\n  {name} " in ended.stdout for name in cli.lazy)


def test_a_command_that_is_not_kept_is_asked_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = here(capsys, "letters", "-h").out
    monkeypatch.setattr("redrive.cli.summaries.SUMMARIES", {})
    assert here(capsys, "letters", "-h").out == kept


# -- policies ----------------------------------------------------------------------------------------------------------


def test_simulate_shows_each_wait_and_their_sum(capsys: pytest.CaptureFixture[str]) -> None:
    told = here(capsys, "policy", "simulate", "exponential", "-n", "4", "--base", "2s", "--factor", "3", "--cap", "10s")
    assert told.out == "1\t2\t2\n2\t6\t8\n3\t10\t18\n4\t10\t28\n"
    told = here(capsys, "policy", "simulate", "constant", "--max-attempts", "2", "--json")
    assert json.loads(told.out) == [
        {"error": 1, "wait": 1.0, "sum": 1.0},
        {"error": 2, "wait": None, "sum": 1.0},
    ]
    assert here(capsys, "policy", "simulate", "never").out == "1\t-\t0\n"


@pytest.mark.parametrize(
    ("args", "category", "action"),
    [
        (["--error", "TimeoutError"], "timeout", "retry"),
        (["--status", "429"], "rate_limit", "limit"),
        (["--error", "json.JSONDecodeError"], "data", "retry"),
        (["--error", "nowhere.ReadTimeout"], "timeout", "retry"),
    ],
)
def test_explain_says_what_becomes_of_an_error(
    args: list[str], category: str, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json.loads(here(capsys, "policy", "explain", *args, "--json").out)
    assert (told["category"], told["action"], told["rule"]) == (category, action, f"default:{category}")


TASKS = """
from redrive import Policy, Redrive, constant, dead_on, never
app = Redrive("memory:")
app.policy("gentle", Policy(constant("1m"), max_attempts=3))
@app.handler("mail", policy=Policy(never(), rules=[dead_on(KeyError)]))
async def send(n): ...
"""


def test_policies_of_an_app(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ruled.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    listed = here(capsys, "policy", "list", "--app", "ruled:app").out.splitlines()
    assert [line.split("\t")[:2] for line in listed] == [
        ["default", "built in"],
        ["gentle", "named"],
        ["mail", "queue"],
    ]
    assert "max-attempts\t3\n" in here(capsys, "policy", "show", "gentle", "--app", "ruled:app").out
    told = here(capsys, "policy", "explain", "mail", "--app", "ruled:app", "--error", "KeyError").out
    assert "then\tdead at the first error\n" in told
    missing = here(capsys, "policy", "show", "gentel", "--app", "ruled:app")
    assert (missing.code, missing.out) == (Exit.NOT_FOUND, "")
    assert "did you mean 'gentle'?" in missing.err
    assert "--app MODULE:APP" in here(capsys, "policy", "show", "gentle").err


# -- init --------------------------------------------------------------------------------------------------------------


def test_init_writes_what_is_not_there_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "shop"
    dry = here(capsys, "init", str(folder), "--dry-run", "--json")
    assert [each["written"] for each in json.loads(dry.out)["files"]] == [True, True]
    assert not folder.exists()
    folder.mkdir()
    (folder / "tasks.py").write_text("mine")
    told = here(capsys, "init", str(folder), "--store", "sqlite:////tmp/a b.db")
    assert (told.code, told.err) == (Exit.DONE, "")
    assert told.out == f"wrote\t{folder}/redrive.toml\nkept\t{folder}/tasks.py\n"
    assert (folder / "tasks.py").read_text() == "mine"
    assert tomllib.loads((folder / "redrive.toml").read_text())["store"] == "sqlite:////tmp/a b.db"
    again = here(capsys, "init", str(folder))
    assert again.code == Exit.CONFLICT
    assert "nothing was written" in again.err


def test_what_init_writes_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    here(capsys, "init")
    assert f"{tmp_path}/redrive.toml" in here(capsys, "config", "show", "--origin").out
    listed = here(capsys, "policy", "show", "emails", "--app", "tasks:app")
    assert "max-attempts\t3\n" in listed.out
    del sys.modules["tasks"]  # the next test may have one of its own


def test_a_password_is_for_nobody_else_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://shop:hunter2@localhost/shop"
    told = here(capsys, "init", str(tmp_path / "shop"), "--store", url)
    assert told.code == Exit.DONE
    assert "redrive.toml has a password in it, so only you may read it" in told.err
    assert "REDRIVE_STORE_FILE" in told.err
    assert "hunter2" not in told.out + told.err
    assert (tmp_path / "shop" / "redrive.toml").stat().st_mode & 0o777 == 0o600
    here(capsys, "init", str(tmp_path / "plain"), "--store", "postgresql://shop@localhost/shop")
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("plain/redrive.toml", "shop/tasks.py")]
    (tmp_path / "usual").write_text("")
    assert modes == [(tmp_path / "usual").stat().st_mode & 0o777] * 2


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    told = here(capsys, "init", str(tmp_path / "file"))
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert "DIRECTORY" in told.err
