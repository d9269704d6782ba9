"""`redrive alert …`: rules and how they stand, silences, tests of channels."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.app.internals import parts_of
from redrive.cli.exits import Exit
from redrive.observe.alerts import callback, custom
from tests.support.bound import with_app
from tests.support.cli import Told, here, made_in, on_sqlite
from tests.support.in_process import RunWorker, run_worker

__all__ = ["run_worker"]

pytestmark = [pytest.mark.usefixtures("on_store"), pytest.mark.slow]

SETTINGS = """
[alerts.channels.ops]
kind = "command"
argv = [{python!r}, "-c", "import sys; sys.stdin.read(); sys.exit(__import__('os').path.exists('broken'))"]

[alerts.rules.in-file]
when = "oldest_letter"
than = "1h"
to = "ops"
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    return lambda *args: here(capsys, *args)


def judged(folder: Path) -> None:
    """A worker has judged two rules, one of which fires."""

    async def judge(app: Redrive) -> None:
        app.alerts.channel("ops", callback(print))
        app.alerts.rule("disk", custom(lambda: {"sda": "hot", "sdb": "hot"}), to="ops", severity="critical")
        app.alerts.rule("tape", custom(lambda: None), to="ops", queues=["a", "b"], for_="5m", repeat=None)
        await app.alerts.evaluate()

    with_app(folder, judge)


def test_rules_are_listed_with_how_they_stand(tmp_path: Path, run: Callable[..., Told]) -> None:
    judged(tmp_path)
    lines = [line.split("\t") for line in run("alert", "list").out.splitlines()]
    assert [line[:2] for line in lines] == [["disk", "firing"], ["tape", "ok"]]
    assert lines[0][3:] == [
        "critical",
        "ops",
        "custom function=judged.<locals>.judge.<locals>.<lambda>",
        "sda: hot and 1 more",
    ]
    disk, tape = json.loads(run("alert", "list", "--json").out)
    assert (disk["rule"], disk["state"], disk["repeat"], disk["to"]) == ("disk", "firing", 14400.0, ["ops"])
    assert disk["channels"] == ["ops: callback function=print"]
    assert [each["subject"] for each in disk["firing"]] == ["sda", "sdb"]
    assert (tape["queues"], tape["for"], tape["repeat"], tape["firing"]) == (["a", "b"], 300.0, None, [])


@on_sqlite
def test_rules_of_the_settings_that_no_worker_has_judged_are_listed_too(
    tmp_path: Path, run: Callable[..., Told]
) -> None:
    made_in(tmp_path)
    (tmp_path / "redrive.toml").write_text(SETTINGS.format(python=sys.executable))
    (rule,) = json.loads(run("alert", "list", "--json").out)
    assert (rule["rule"], rule["state"], rule["when"]) == ("in-file", "unknown", "oldest_letter than=1h")


def test_silences_are_made_listed_and_ended(tmp_path: Path, run: Callable[..., Told]) -> None:
    judged(tmp_path)
    told = run("alert", "silence", "disk", "--for", "2h", "--queue", "emails", "--reason", "known")
    assert told.code == Exit.DONE
    assert told.err.startswith("silenced disk for emails until 20")
    run("alert", "silence", "*", "--for", "30m", "--reason", "moving", "--json")
    rows = [line.split("\t") for line in run("alert", "silences").out.splitlines()]
    assert [(row[1], row[2], row[5]) for row in rows] == [("*", "-", "moving"), ("disk", "emails", "known")]
    assert [row["state"] for row in json.loads(run("alert", "list", "--json").out)] == ["silenced", "silenced"]
    ended = run("alert", "unsilence", rows[0][0][:8], "--reason", "moved")
    assert (ended.code, ended.err) == (Exit.DONE, f"ended the silence {rows[0][0]} of *\n")
    assert run("alert", "silences", "-q").out.split() == [rows[1][0]]
    acts = [line for line in run("audit", "list").out.splitlines() if "silence" in line]
    assert len(acts) == 3


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("silence", "dsik", "--for", "2h", "--reason", "x"), Exit.NOT_FOUND, "did you mean 'disk'?"),
        (("silence", "disk", "--for", "0s", "--reason", "x"), Exit.USAGE, "greater than 0"),
        (("silence", "disk", "--for", "2h", "--reason", " "), Exit.USAGE, "a reason is needed"),
        (("silence", "disk", "--for", "2h", "--queue", "a b", "--reason", "x"), Exit.USAGE, "not a queue name"),
        (("unsilence", "zzzz", "--reason", "x"), Exit.NOT_FOUND, "fits no silence"),
        (("test", "ops"), Exit.USAGE, "no channels are declared here"),
    ],
)
@on_sqlite
def test_bad_input(tmp_path: Path, run: Callable[..., Told], args: tuple[str, ...], code: Exit, says: str) -> None:
    judged(tmp_path)
    told = run("alert", *args)
    assert told.code == code
    assert says in told.err


@on_sqlite
def test_a_channel_is_tested_and_a_refusal_is_an_exit_code(tmp_path: Path, run: Callable[..., Told]) -> None:
    (tmp_path / "redrive.toml").write_text(SETTINGS.format(python=sys.executable))
    assert run("alert", "test", "ops").out == "ops\tcommand\texit 0\n"
    assert json.loads(run("alert", "test", "ops", "--json").out) == {
        "channel": "ops",
        "kind": "command",
        "answer": "exit 0",
    }
    (tmp_path / "broken").touch()
    told = run("alert", "test", "ops")
    assert (told.code, told.out) == (Exit.FAILED, "")
    assert "exited with 1" in told.err
    unknown = run("alert", "test", "opps")
    assert (unknown.code, "did you mean 'ops'?" in unknown.err) == (Exit.NOT_FOUND, True)


@on_sqlite
def test_a_channel_of_the_code_is_tested_by_its_app(
    tmp_path: Path, run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "alerting.py").write_text(
        "from redrive import Redrive\n"
        "from redrive.observe.alerts import callback\n"
        "app = Redrive('memory:')\n"
        "app.alerts.channel('mine', callback(lambda message: None))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("alert", "test", "mine", "--app", "alerting:app").out == "mine\tcallback\tcalled\n"
    monkeypatch.delitem(sys.modules, "alerting")


@on_sqlite
def test_a_worker_takes_rules_of_the_settings_to_those_of_its_app(tmp_path: Path, run_worker: RunWorker) -> None:
    (tmp_path / "redrive.toml").write_text(SETTINGS.format(python=sys.executable))
    app = Redrive(made_in(tmp_path))
    app.handler("emails")(lambda: None)
    assert run_worker(app, "--until-idle").code == Exit.DONE
    assert list(parts_of(app).alerts.rules) == ["in-file"]
