import asyncio
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from redrive import Policy, Redrive, never
from redrive.cli.exits import Exit
from redrive.core.acts import LEASED_SINCE, Amended, Skipped
from redrive.office import bulk
from redrive.office.replays import Replays
from redrive.stores.sqlite import SqliteStore
from tests.support.cli import here, letters_in, made_in, on_sqlite, on_terminal

pytestmark = pytest.mark.usefixtures("on_store")


def still_dead(capsys: pytest.CaptureFixture[str]) -> set[str]:
    return set(here(capsys, "letters", "list", "-q", "--limit", "5000").out.split())


def test_ids_are_sent_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, three = letters_in(tmp_path, *"abc")
    told = here(capsys, "letters", "replay", one[:10], two, one, "--reason", "fixed")
    assert (told.code, told.out.split(), told.err) == (Exit.DONE, [one, two], "sent again 2\n")
    assert still_dead(capsys) == {three}


def test_the_longest_dead_of_a_filter_goes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"abc")
    for more in (("--dry-run",), ("--yes",)):
        told = here(capsys, "letters", "replay", "--where", "died<1h", "--reason", "fixed", *more)
        assert told.out.split() == ids


def test_delay_and_once_reach_the_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (id,) = letters_in(tmp_path, "a")  # noqa: A001 - the word of the domain
    assert here(capsys, "letters", "replay", id, "--reason", "x", "--once", "--delay", "90m").code == Exit.DONE
    (row,) = json.loads(here(capsys, "status", "--json").out)["queues"]
    assert row["ready"] == 1
    assert row["oldest_due_age"] is None


def test_a_dry_run_says_the_same_and_moves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"abc")
    here(capsys, "letters", "replay", ids[0], "--reason", "x")
    before = still_dead(capsys)
    dry = here(capsys, "letters", "replay", *ids, "--reason", "x", "--dry-run", "--json")
    assert still_dead(capsys) == before
    wet = here(capsys, "letters", "replay", *ids, "--reason", "x", "--json")
    assert dry.code == wet.code == Exit.PARTLY
    assert json.loads(dry.out) == json.loads(wet.out) | {"dry_run": True}
    assert dry.err == wet.err


def test_a_replay_is_taken_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, three = letters_in(tmp_path, *"abc")
    here(capsys, "letters", "replay", one, two, "--reason", "x", "--delay", "1h", "--request", "ticket-1")
    tried = here(capsys, "letters", "recall", "--request", "ticket-1", "--reason", "x", "--dry-run", "--json")
    assert json.loads(tried.out) == {"dry_run": True, "recalled": [one, two], "skipped": []}
    told = here(capsys, "letters", "recall", "--request", "ticket-1", "--reason", "too early")
    assert (told.code, told.out.split(), told.err) == (Exit.DONE, [one, two], "recalled 2\n")
    assert still_dead(capsys) == {one, two, three}
    again = here(capsys, "letters", "recall", one, "--reason", "x")
    assert (again.code, "it was not replayed, or it was recalled already" in again.err) == (Exit.CONFLICT, True)
    nowhere = here(capsys, "letters", "recall", "--request", "ticket-2", "--reason", "x")
    assert (nowhere.code, "no replay has the request id 'ticket-2'" in nowhere.err) == (Exit.NOT_FOUND, True)
    neither = here(capsys, "letters", "recall", "--reason", "x")
    assert (neither.code, "one of the three" in neither.err) == (Exit.USAGE, True)


def test_a_dry_run_by_filter_needs_no_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"abc")
    told = here(capsys, "letters", "replay", "--where", "queue:mail", "--reason", "x", "--dry-run")
    assert (told.code, set(told.out.split()), told.err) == (Exit.DONE, set(ids), "would send again 3\n")


def test_some_skipped_is_9_and_all_skipped_is_6(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = letters_in(tmp_path, *"ab")
    assert here(capsys, "letters", "replay", one, "--reason", "x").code == Exit.DONE
    told = here(capsys, "letters", "replay", one, two, "--reason", "x")
    assert (told.code, told.out.split()) == (Exit.PARTLY, [two])
    assert f"skipped {one}: it is ready, not a dead letter\n" in told.err
    again = here(capsys, "letters", "replay", one, two, "--reason", "x")
    assert (again.code, again.out) == (Exit.CONFLICT, "")


def test_one_unknown_id_and_nothing_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"ab")
    told = here(capsys, "letters", "replay", *ids, "zzzz", "--reason", "x")
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert "nothing was sent again" in told.err
    assert still_dead(capsys) == set(ids)


def test_a_filter_without_a_terminal_needs_yes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"ab")
    told = here(capsys, "letters", "replay", "--where", "queue:mail", "--reason", "x")
    assert (told.code, told.out) == (Exit.REFUSED, "")
    assert "2 letters would be sent again" in told.err
    assert "--yes" in told.err
    assert still_dead(capsys) == set(ids)
    assert here(capsys, "letters", "replay", "--where", "queue:mail", "--reason", "x", "--yes").code == Exit.DONE
    assert still_dead(capsys) == set()


def test_a_filter_that_matches_nothing_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    told = here(capsys, "letters", "replay", "--where", "queue:none", "--reason", "x")
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "sent again 0\n")


@on_sqlite
def test_ids_from_stdin_and_more_than_a_hundred_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *["x"] * 101)
    everything = here(capsys, "letters", "list", "--limit", "500").out
    replay = ("letters", "replay", "-", "--reason", "x")
    assert here(capsys, *replay, text=everything).code == Exit.REFUSED
    assert here(capsys, *replay, text="\n".join(ids[:100])).code == Exit.DONE
    sent = here(capsys, *replay, "--yes", text=everything)
    assert (sent.code, sent.out.split()) == (Exit.PARTLY, [ids[100]])
    assert sent.err.count("skipped ") == 101
    assert here(capsys, *replay, text="").code == Exit.DONE


@pytest.mark.parametrize(
    ("keys", "code", "left"),
    [("y\n", Exit.DONE, 0), ("\n", Exit.REFUSED, 2), ("\x04", Exit.REFUSED, 2), ("\x03", 130, 2)],
)
@on_sqlite
def test_a_terminal_is_asked(
    keys: str, code: int, left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters_in(tmp_path, "first \x1b[2J", "second")
    told = on_terminal("letters", "replay", "--where", "queue:mail", "--reason", "x", cwd=tmp_path, keys=keys)
    assert told.code == code
    assert "Send 2 letters again? [y/N]" in told.out
    assert "Traceback" not in told.out
    assert "\x1b[2J" not in told.out
    assert len(still_dead(capsys)) == left


@on_sqlite
def test_above_a_thousand_the_number_must_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, *["x"] * 1001)
    args = ("letters", "replay", "--where", "queue:mail", "--reason", "x")
    assert on_terminal(*args, cwd=tmp_path, keys="y\n").code == Exit.REFUSED
    assert on_terminal(*args, cwd=tmp_path, keys="1001\n").code == Exit.DONE
    assert still_dead(capsys) == set()


@on_sqlite
def test_a_locked_database_is_7(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = letters_in(tmp_path, "a")
    defaults = SqliteStore.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "busy_timeout", "50ms")
    database = sqlite3.connect(tmp_path / "redrive.db", isolation_level=None)
    database.execute("begin exclusive")
    try:
        told = here(capsys, "letters", "replay", ids[0], "--reason", "x", "--json")
    finally:
        database.execute("rollback")
        database.close()
    assert told.code == Exit.STORE
    assert json.loads(told.err)["error"]["code"] == "store_unavailable"


def test_a_paced_replay_is_one_in_the_background(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)
    ids = letters_in(tmp_path, *"abcde")
    told = here(capsys, "letters", "replay", *ids, "--reason", "x", "--pace", "1/h", "--request", "r-1")
    assert (told.code, told.err) == (Exit.DONE, "reserved 5 letters for replay r-1\n")
    assert still_dead(capsys) == set(ids)
    shown = json.loads(here(capsys, "replay", "show", "r-1", "--json").out)
    assert {name: shown[name] for name in ("state", "rate", "total", "sent", "left")} == {
        "state": "running",
        "rate": "1/h",
        "total": 5,
        "sent": 0,
        "left": 5,
    }
    assert f"reserved for replay {'r-1'}" in here(capsys, "letters", "discard", ids[0], "--reason", "x", "--yes").err
    assert "it is reserved for replay r-1" in here(capsys, "item", "explain", ids[0]).out
    assert here(capsys, "replay", "list", "-q").out.split() == ["r-1"]
    assert here(capsys, "replay", "pause", "r-1", "--reason", "x").err == "paused r-1: 0 sent, 5 left\n"
    assert here(capsys, "replay", "resume", "r-1", "--reason", "x").err == "resumed r-1: 0 sent, 5 left\n"
    assert "rate\t10/s" in here(capsys, "replay", "set-rate", "r-1", "10/s", "--reason", "x").out
    again = (*ids, "--reason", "x", "--pace", "1/h", "--request", "r-1", "--json")
    more = json.loads(here(capsys, "letters", "replay", *again).out)
    assert (more["reserved"], more["replay"], sorted(more["already"])) == ([], "r-1", sorted(ids))
    for word in ("pause", "resume", "pause"):
        assert here(capsys, "replay", word, "r-1", "--reason", "x", "--request", "t-1").code == Exit.DONE
    assert json.loads(here(capsys, "replay", "show", "r-1", "--json").out)["state"] == "running", "paused once"
    assert here(capsys, "replay", "cancel", "r-1", "--reason", "x").err == "cancelled r-1: 0 sent, 0 left\n"
    assert here(capsys, "replay", "undo", "r-1", "--reason", "x").err == "recalled 0\n"
    assert here(capsys, "letters", "archive", *ids, "--reason", "x").code == Exit.DONE
    gone = here(capsys, "replay", "pause", "r-1", "--reason", "x")
    assert (gone.code, "replay r-1 is cancelled" in gone.err) == (Exit.CONFLICT, True)
    assert here(capsys, "replay", "show", "r-2").code == Exit.NOT_FOUND


def test_a_replay_of_nothing_in_the_background(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    asked = ("letters", "replay", "--where", "queue:nowhere", "--background", "--reason", "x", "--yes")
    told = here(capsys, *asked)
    assert (told.code, told.out, told.err) == (Exit.DONE, "", "nothing to replay\n")
    assert "replay" not in json.loads(here(capsys, *asked, "--json").out)
    assert here(capsys, "replay", "list", "-q").out == ""


def test_undo_counts_the_reasons_of_what_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def undo(*_: object, **__: object) -> Amended:
        return Amended(("a",), (), tuple([Skipped(one, *LEASED_SINCE) for one in "bc"]))

    letters_in(tmp_path, "a")
    monkeypatch.setattr(Replays, "undo", undo)
    told = here(capsys, "replay", "undo", "r-1", "--reason", "x")
    assert (told.code, told.out) == (Exit.PARTLY, "")
    assert told.err == "skipped 2: a worker has leased it since its replay\nrecalled 1, skipped 2\n"


def test_a_bad_pace_is_told_before_anything_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"ab")
    told = here(capsys, "letters", "replay", *ids, "--reason", "x", "--pace", "quickly")
    assert told.code == Exit.USAGE
    assert "--pace" in told.err
    assert still_dead(capsys) == set(ids)


def repairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's, in the working directory."""
    (tmp_path / "repairs.py").write_text(
        "seen = []\n"
        "number = 5\n"
        "def new_form(payload):\n"
        "    if payload['text'] == 'b':\n"
        "        raise LookupError('no such order')\n"
        "    if payload['text'] == 'exit':\n"
        "        raise SystemExit(3)\n"
        "    return {**payload, 'text': payload['text'].upper()}\n"
        "def nothing(payload):\n"
        "    seen.append(payload)\n"
    )
    monkeypatch.delitem(sys.modules, "repairs", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def dead_with(folder: Path, *texts: str) -> list[str]:
    """Letters of the queue `mail` with these payloads."""

    async def make() -> list[str]:
        app = Redrive(made_in(folder), log=False)

        @app.handler("mail", policy=Policy(backoff=never()), concurrency=1)
        async def fail(text: str) -> None:
            raise ValueError(text)

        async with app:
            ids = [str(made) for made in await app.enqueue_many("mail", [{"text": text} for text in texts])]
            await app.run(until_idle=True)
            return ids

    return asyncio.run(make())


def test_a_paced_replay_by_payload_says_what_workers_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repairs(tmp_path, monkeypatch)
    (letter,) = dead_with(tmp_path, "a")
    how = ("--transform", "repairs:new_form", "--dedupe-by", "text", "--pace", "1/h", "--request", "r-1")
    told = here(capsys, *BY_PAYLOAD, *how)
    assert (told.code, told.err) == (Exit.DONE, "reserved 1 letter for replay r-1\n")
    assert still_dead(capsys) == {letter}
    shown = json.loads(here(capsys, "replay", "show", "r-1", "--json").out)
    assert (shown["dedupe_by"], shown["transform"], shown["problem"]) == ("text", "repairs:new_form", None)
    assert "transform\trepairs:new_form" in here(capsys, "replay", "show", "r-1").out


BY_PAYLOAD = ("letters", "replay", "--where", "queue:mail", "--reason", "x", "--yes")


def test_dedupe_by_sends_the_first_of_each_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, three = dead_with(tmp_path, "a", "a", "b")
    dry = here(capsys, *BY_PAYLOAD, "--dedupe-by", "text", "--dry-run", "--json")
    assert still_dead(capsys) == {one, two, three}
    wet = here(capsys, *BY_PAYLOAD, "--dedupe-by", "text", "--json")
    assert (dry.code, wet.code) == (Exit.DONE, Exit.DONE)
    told = json.loads(wet.out)
    assert json.loads(dry.out) == told | {"dry_run": True}
    assert (told["replayed"], told["kept"], told["skipped"]) == ([one, three], [], [])
    assert [each["id"] for each in told["duplicates"]] == [two]
    again = here(capsys, "letters", "replay", two, "--reason", "x", "--dedupe-by", "text")
    assert (again.code, again.out) == (Exit.DONE, "")
    assert again.err == (
        f"duplicate {two}: {one}, with the same dedupe key, was replayed to mail, or is about to be\n"
        "sent again 0, duplicates 1, kept 0\n"
    )
    assert still_dead(capsys) == {two}


def test_a_transformed_letter_is_a_new_item_and_one_that_fails_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repairs(tmp_path, monkeypatch)
    one, two = dead_with(tmp_path, "a", "b")
    dry = here(capsys, *BY_PAYLOAD, "--transform", "repairs:new_form", "--dry-run")
    assert still_dead(capsys) == {one, two}
    told = here(capsys, *BY_PAYLOAD, "--transform", "repairs:new_form")
    assert (dry.out, dry.code) == (told.out, told.code)
    assert told.code == Exit.PARTLY
    reason = f"kept {two}: its payload could not be used: builtins.LookupError: no such order\n"
    assert told.err == f"{reason}sent again 1, duplicates 0, kept 1\n"
    assert dry.err == f"{reason}would send again 1, duplicates 0, kept 1\n"
    (new,) = told.out.split()
    assert (new != one, still_dead(capsys)) == (True, {two})
    assert '"A"' in here(capsys, "item", "show", new).out
    assert here(capsys, *BY_PAYLOAD, "--transform", "repairs:new_form").code == Exit.CONFLICT


def test_a_function_that_ends_the_program_keeps_its_letter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repairs(tmp_path, monkeypatch)
    (letter,) = dead_with(tmp_path, "exit")
    told = here(capsys, *BY_PAYLOAD, "--transform", "repairs:new_form")
    assert (told.code, told.out) == (Exit.CONFLICT, "")
    assert told.err.startswith(f"kept {letter}: its payload could not be used: builtins.SystemExit: 3\n")
    assert still_dead(capsys) == {letter}


@on_sqlite
@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        (("--dedupe-by", "order..id"), Exit.USAGE, "--dedupe-by: 'order..id' is not a path into a payload"),
        (
            ("--transform", "repairs.py"),
            Exit.USAGE,
            "does not name a function (write module:variable, as in repairs:function)",
        ),
        (("--transform", "nowhere:f"), Exit.USAGE, "--transform: no module 'nowhere'"),
        (
            ("--transform", "repairs:f"),
            Exit.USAGE,
            "module 'repairs' has no 'f' (use repairs:new_form or repairs:nothing)",
        ),
        (("--transform", "repairs:number"), Exit.USAGE, "repairs:number is a int, not a function"),
        (("--transform", "repairs:nothing"), Exit.USAGE, "--transform: the function returned None for "),
        (("--transform", "broken:f"), Exit.FAILED, "importing 'broken' failed: ZeroDivisionError"),
        (("--transform", "repairs:new_form", "--once"), Exit.USAGE, "--once cannot be used with --transform"),
    ],
)
def test_a_path_or_function_that_cannot_be_used_changes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    how: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    repairs(tmp_path, monkeypatch)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    ids = letters_in(tmp_path, "a")
    told = here(capsys, *BY_PAYLOAD, *how)
    assert (told.code, told.out) == (code, "")
    assert text in told.err
    assert still_dead(capsys) == set(ids)
