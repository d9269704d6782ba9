"""A command is one request in the audit, in however many parts it is done."""

import json
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.app.internals import store_of
from redrive.cli import queue_prune
from redrive.cli.exits import Exit
from redrive.core.verbs import WorkerFacts
from redrive.office import bulk
from tests.support.bound import with_app
from tests.support.cli import here, letters_in

pytestmark = [pytest.mark.usefixtures("on_store"), pytest.mark.slow]
COMMANDS = """
letters archive|archive
letters restore|restore
letters discard --yes|discard
letters restore|restore
letters tag --add vip|tag
letters move --to post --new|move
letters replay --delay 1h|replay
letters recall|recall
queue retry post|replay
item set-policy --clear|set_policy
item run-now|run_now
item park --label schema|park
item unpark|unpark
item expire|expire
queue drop post --yes|discard
letters restore|restore
letters replay --delay 1h|replay
item cancel|cancel
"""


def test_a_command_is_one_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 1)
    monkeypatch.setattr(queue_prune, "BITE", 1)
    ids = letters_in(tmp_path, *"abc")
    acts = []
    for line in COMMANDS.split("\n")[1:-1]:
        command, act = line.split("|")
        told = here(capsys, *command.split(), *ids, "--reason", "x")
        assert told.code == Exit.DONE, (line, told)
        acts.append(act)
    told = here(capsys, "queue", "prune", "post", "--what", "cancelled", "--older", "0s", "--yes", "--reason", "x")
    assert told.code == Exit.DONE, told
    acts.append("prune")
    shown = json.loads(here(capsys, "audit", "list", "--json").out)
    assert [(one["act"], one["count"], one["entries"]) for one in shown if one["act"] in acts] == [
        (act, 3, 3) for act in acts
    ]


def test_several_workers_are_asked_by_one_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def beat(app: Redrive) -> None:
        for name in ("w-1-abcd", "w-2-efgh"):
            await store_of(app).beat(name, WorkerFacts(("q",)), 600_000)

    with_app(tmp_path, beat)
    assert here(capsys, "worker", "drain", "--all", "--yes", "--reason", "x").code == Exit.DONE
    (line,) = json.loads(here(capsys, "audit", "list", "--json").out)
    assert (line["act"], line["count"], line["entries"]) == ("worker drain", 2, 2)
