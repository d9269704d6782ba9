"""Every command that acts leaves a sealed audit: without a worker, nobody else would seal what it did."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive import Redrive
from redrive.cli.exits import Exit
from redrive.errors import StoreUnavailable
from redrive.office.audit import Audit
from tests.support.bound import with_app
from tests.support.cli import Told, here, letters_in, on_sqlite

pytestmark = [pytest.mark.usefixtures("on_store"), on_sqlite]

ACTS = (
    ("queue", "pause", "mail", "--reason", "x"),
    ("queue", "resume", "mail"),
    ("queue", "set", "mail", "--max-running", "3", "--reason", "x"),
    ("queue", "prune", "mail", "--what", "cancelled", "--reason", "x", "--yes"),
    ("view", "save", "mine", "queue:mail"),
    ("view", "remove", "mine"),
    ("gate", "open", "smtp", "--reason", "x"),
    ("gate", "close", "smtp", "--reason", "x"),
    ("gate", "remove", "smtp", "--reason", "x", "--yes"),
    ("route", "set", "billing", "--capacity", "5", "--reason", "x"),
    ("schedule", "pause", "nightly", "--reason", "x"),
    ("schedule", "resume", "nightly"),
    ("schedule", "run", "nightly", "--reason", "x"),
    ("schedule", "remove", "nightly", "--reason", "x", "--yes"),
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    return lambda *args: here(capsys, *args)


async def furnished(app: Redrive) -> None:
    app.gate("smtp")
    app.queue("mail")
    app.queue("calm")
    app.route("billing")
    app.schedule("nightly", "calm", {}, cron="0 3 * * *")
    ids = await app.enqueue_many("mail", range(2))
    await app.cancel([str(each) for each in ids], reason="for the test")
    await app.audit.seal()


@pytest.mark.slow
def test_what_a_command_did_is_sealed_when_it_ends(tmp_path: Path, run: Callable[..., Told]) -> None:
    with_app(tmp_path, furnished)
    before = 1
    for act in ACTS:
        told = run(*act)
        assert told.code == Exit.DONE, (act, told.err)
        found = json.loads(run("audit", "verify", "--json").out)
        assert (found["sound"], found["unsealed"]) == (True, 0), act
        assert found["entries"] > before, act
        before = found["entries"]


def test_an_end_of_the_audit_that_was_cut_off_is_found(tmp_path: Path, run: Callable[..., Told]) -> None:
    """A prune cannot be undone: that it was done must not be made to vanish."""
    with_app(tmp_path, furnished)
    run("queue", "prune", "mail", "--what", "cancelled", "--reason", "bye", "--yes")
    database = sqlite3.connect(tmp_path / "redrive.db")
    with database:
        database.execute("delete from journal where position = (select max(position) from journal)")
    database.close()
    told = run("audit", "verify")
    assert told.code == Exit.UNSOUND
    assert "; what was sealed after them was not looked at; 0 are not sealed yet\n" in told.out


def test_an_act_is_done_though_it_cannot_be_sealed(
    tmp_path: Path, run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "a")

    async def unwell(_audit: Audit) -> None:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Audit, "seal", unwell)
        told = run("queue", "pause", "mail", "--reason", "x")
        assert (told.code, told.err) == (Exit.DONE, "paused mail\n")
    assert json.loads(run("audit", "verify", "--json").out)["unsealed"] == 1
    run("queue", "resume", "mail")
    assert json.loads(run("audit", "verify", "--json").out)["unsealed"] == 0
