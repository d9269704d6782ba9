"""The office on the command line: put away, move, tag, note, export, import, causes, views, audit."""

import csv
import io
import json
import signal
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from redrive import Redrive
from redrive import cli as command_line
from redrive.app.internals import store_of
from redrive.cli.exits import Exit
from redrive.cli.export import FORMULA, neutral
from redrive.core.acts import Act
from redrive.office import bulk
from redrive.office.letters import Letters
from redrive.stores.sqlite import SqliteStore
from tests.support.bound import with_app
from tests.support.cli import Told, here, letters_in, on_sqlite, on_terminal, store_in
from tests.support.signals import Signals

pytestmark = [pytest.mark.usefixtures("on_store"), pytest.mark.slow]

CANARY = "hunter2hunter2"
SECRET = f"cannot reach postgres://bob:{CANARY}@db/x"
HOSTILE = "\x1b[2J\x1b]0;pwned\x07\nforged\tline\r\u202eevil\x9b1m"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    return lambda *args: here(capsys, *args)


def ids_of(told: Told) -> list[str]:
    return [line.split("\t")[0] for line in told.out.splitlines()]


# -- acts ------------------------------------------------------------------------------------------------------------


def test_letters_are_put_away_and_brought_back(tmp_path: Path, run: Callable[..., Told]) -> None:
    one, two, three = letters_in(tmp_path, *"abc")
    assert run("letters", "archive", one[:8], "--reason", "known").err == "archived 1\n"
    assert run("letters", "discard", two, "--reason", "spam", "--yes").err == "discarded 1\n"
    assert ids_of(run("letters", "list")) == [three]
    assert set(ids_of(run("letters", "list", "--where", "disposition:archived,trash"))) == {one, two}
    told = run("letters", "restore", "--where", "queue:mail", "--reason", "look again", "--yes")
    assert (told.code, set(told.out.split()), told.err) == (Exit.DONE, {one, two}, "restored 2\n")
    again = run("letters", "restore", one, "--reason", "x")
    assert (again.code, again.err) == (Exit.CONFLICT, f"skipped {one}: it is open already\nrestored 0, skipped 1\n")


def test_tags_notes_and_moves(tmp_path: Path, run: Callable[..., Told]) -> None:
    one, two = letters_in(tmp_path, *"ab")
    assert run("letters", "tag", one, two, "--add", "vip,eu", "--add", "INC-88").err == "tagged 2\n"
    run("letters", "tag", two, "--remove", "vip", "--reason", "is none")
    assert ids_of(run("letters", "list", "--where", "tag:vip")) == [one]
    assert run("letters", "note", one, "--text", "asked the customer").err == "noted on 1\n"
    moved = run("letters", "move", one, "--to", "slow", "--new", "--reason", "wrong queue")
    assert (moved.code, moved.err) == (Exit.DONE, "moved 1\n")
    shown = run("letters", "show", one).out
    for said in ("queue     slow", "tags      INC-88, eu, vip", "note by", "asked the customer", "move by"):
        assert said in shown
    sent = run("letters", "replay", two, "--to", "slow", "--reason", "there")
    assert (sent.code, json.loads(run("item", "show", two, "--json").out)["queue"]) == (Exit.DONE, "slow")


@on_sqlite
def test_a_queue_that_nobody_has_is_not_made_by_a_slip(tmp_path: Path, run: Callable[..., Told]) -> None:
    (letter,) = letters_in(tmp_path, "a")
    for words in (("move",), ("replay",)):
        told = run("letters", *words, letter, "--to", "mial", "--reason", "x")
        assert told.code == Exit.NOT_FOUND
        assert "did you mean 'mail'?" in told.err
        assert "--new" in told.err
    assert json.loads(run("letters", "show", letter, "--json").out)["queue"] == "mail"


@on_sqlite
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("archive", "--reason", "x"), "name letters by id"),
        (("archive", "{id}", "--all", "--reason", "x"), "only one of these"),
        (("archive", "{id}"), "Missing option '--reason'"),
        (("archive", "{id}", "--reason", " "), "reason: a reason is needed"),
        (("archive", "--where", " ", "--reason", "x"), "--where: it is empty"),
        (("discard", "--where", "eror:x", "--reason", "x"), "did you mean error?"),
        (("tag", "{id}"), "--add: no tag is named"),
        (("tag", "{id}", "--add", "a b"), "tag"),
        (("note", "{id}", "--text", ""), "--text: it is empty"),
        (("move", "{id}", "--to", "", "--reason", "x"), "queue"),
        (("list", "--by", "colour"), "--by"),
        (("list", "--by", "cause", "--cursor", "x"), "--cursor"),
        (("list", "--since", "soon"), "--since"),
        (("list", "--fields", "colour"), "--fields"),
        (("export", "--csv", "--attempts"), "--attempts"),
        (("export", "/nowhere/x.jsonl"), "FILE: /nowhere/x.jsonl cannot be written"),
        (("import", "/nowhere/x.jsonl", "--reason", "x"), "FILE: /nowhere/x.jsonl cannot be read"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_line_with_the_fix_and_changes_nothing(
    args: tuple[str, ...], said: str, tmp_path: Path, run: Callable[..., Told]
) -> None:
    (letter,) = letters_in(tmp_path, "a")
    told = run("letters", *[word.replace("{id}", letter) for word in args])
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert said in told.err
    assert told.err.startswith("redrive: ")
    assert "Traceback" not in told.err
    assert run("audit", "list").out == ""


@on_sqlite
@pytest.mark.parametrize("verb", ["archive", "discard", "restore", "move", "tag", "note", "skip", "replay"])
def test_a_set_needs_a_yes_and_a_dry_run_does_nothing(verb: str, tmp_path: Path, run: Callable[..., Told]) -> None:
    ids = letters_in(tmp_path, *"ab")
    if verb == "restore":
        run("letters", "archive", *ids, "--reason", "x")
    before = run("audit", "list").out
    more = {"move": ["--to", "slow", "--new"], "tag": ["--add", "x"], "note": ["--text", "x"]}.get(verb, [])
    reason = [] if verb == "note" else ["--reason", "x"]
    told = run("letters", verb, "--all", *more, *reason)
    assert (told.code, told.out) == (Exit.REFUSED, "")
    assert "--yes" in told.err
    dry = run("letters", verb, "--all", *more, *reason, "--dry-run", "--json")
    assert json.loads(dry.out)["dry_run"] is True
    assert run("audit", "list").out == before
    done = run("letters", verb, "--all", *more, *reason, "--yes", "--json")
    assert done.code == (Exit.CONFLICT if verb == "skip" else Exit.DONE)
    if verb != "skip":
        assert {**json.loads(done.out), "dry_run": True} == json.loads(dry.out)


@on_sqlite
def test_discard_asks_for_a_single_letter(tmp_path: Path, run: Callable[..., Told]) -> None:
    (letter,) = letters_in(tmp_path, "a")
    told = run("letters", "discard", letter, "--reason", "x")
    assert (told.code, ids_of(run("letters", "list"))) == (Exit.REFUSED, [letter])


@on_sqlite
@pytest.mark.parametrize(("keys", "code"), [("y\n", Exit.DONE), ("n\n", Exit.REFUSED), ("\x03", Exit.INTERRUPTED)])
def test_a_terminal_is_asked_before_discarding(keys: str, code: int, tmp_path: Path, run: Callable[..., Told]) -> None:
    (letter,) = letters_in(tmp_path, HOSTILE)
    told = on_terminal("letters", "discard", letter, "--reason", "x", cwd=tmp_path, keys=keys)
    assert told.code == code
    assert "Discard 1 letter? They can be restored" in told.out
    assert "\x1b[2J" not in told.out
    assert (ids_of(run("letters", "list")) == []) is (code == Exit.DONE)


@on_sqlite
def test_the_same_request_is_done_once(tmp_path: Path, run: Callable[..., Told]) -> None:
    (letter,) = letters_in(tmp_path, "a")
    replay = ("letters", "replay", letter, "--reason", "x", "--request", "r1")
    first, second = run(*replay), run(*replay)
    assert (first.code, first.out.split()) == (Exit.DONE, [letter])
    assert (second.code, second.out) == (Exit.DONE, "")
    assert second.err == "sent again 0, 1 already by this request\n"
    assert len(run("audit", "list").out.splitlines()) == 1
    assert json.loads(run("item", "show", letter, "--json").out)["replays"] == 1


@on_sqlite
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_a_long_act_after_the_bite_and_twice_at_once(
    times: int, tmp_path: Path, run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, signals: Signals
) -> None:
    letters_in(tmp_path, *"abcdef")
    monkeypatch.setattr(bulk, "BATCH", 2)
    archive, sent = Letters.archive, 0

    async def interrupted(self: Letters, *args: object, **more: object) -> object:
        nonlocal sent
        sent += 1
        done = await archive(self, *args, **more)  # type: ignore[arg-type]  # passed through
        for _ in range(times if sent == 2 else 0):
            signals.send(signal.SIGINT)
        await self.count()
        await self.count()
        return done

    monkeypatch.setattr(Letters, "archive", interrupted)
    told = run("letters", "archive", "--all", "--reason", "x", "--yes")
    assert (told.code, sent) == (Exit.INTERRUPTED, 2)
    assert len(ids_of(run("letters", "list"))) == 2
    assert ("archived 4\ninterrupted: 2 were not reached" in told.err) is (times == 1)
    monkeypatch.setattr(Letters, "archive", archive)
    assert run("letters", "archive", "--all", "--reason", "x", "--yes").err == "archived 2\n"


# -- looking ---------------------------------------------------------------------------------------------------------


def test_letters_are_counted_by_what_they_have_in_common(tmp_path: Path, run: Callable[..., Told]) -> None:
    ids = letters_in(tmp_path, *"aab")
    run("letters", "tag", ids[0], "--add", "vip")
    assert run("letters", "list", "--by", "queue").out == "mail\t3\n"
    assert run("letters", "list", "--by", "tag").out == "vip\t1\n"
    assert json.loads(run("letters", "list", "--by", "error", "--json").out) == [{"error": "ValueError", "count": 3}]
    by_cause = [line.split("\t") for line in run("letters", "list", "--by", "cause").out.splitlines()]
    assert [by_cause[0][at] for at in (1, 2, 3, 5)] == ["2", "new", "ValueError", "mail"]
    assert run("causes", "list").out == run("letters", "list", "--by", "cause").out


def test_a_cause_is_shown_by_its_beginning(tmp_path: Path, run: Callable[..., Told]) -> None:
    ids = letters_in(tmp_path, *"aa")
    (row,) = json.loads(run("causes", "list", "--json").out)
    assert (row["count"], row["trend"], row["queues"], row["error"]) == (2, "new", ["mail"], "ValueError")
    assert row["sample"] in ids
    shown = dict(line.split("\t", 1) for line in run("causes", "show", row["cause"][:6]).out.splitlines())
    assert (shown["letters"], shown["queues"], shown["sample"]) == ("2", "mail", row["sample"])
    assert run("causes", "show", "zzzz").code == Exit.NOT_FOUND
    found = run("letters", "list", "--where", f"cause:{row['cause']}", "-q")
    assert set(found.out.split()) == set(ids)


def test_since_and_fields_and_lines(tmp_path: Path, run: Callable[..., Told]) -> None:
    (letter,) = letters_in(tmp_path, "a")
    assert ids_of(run("letters", "list", "--since", "1h")) == [letter]
    assert run("letters", "list", "--since", "0s").out == ""
    assert run("letters", "list", "--fields", "id,queue,tags").out == f"{letter}\tmail\t[]\n"
    (line,) = run("letters", "list", "--jsonl").out.splitlines()
    assert json.loads(line)["id"] == letter


def test_views_are_saved_and_used(tmp_path: Path, run: Callable[..., Told]) -> None:
    one, two = letters_in(tmp_path, *"ab")
    run("letters", "tag", one, "--add", "vip")
    assert run("view", "save", "vips", "tag:vip OR tag:eu").code == Exit.DONE
    assert run("letters", "list", "--view", "vips", "-q").out.split() == [one]
    assert run("letters", "list", "--view", "vips", "--where", "queue:other", "-q").out == ""
    assert run("letters", "replay", "--view", "vips", "--reason", "x", "--yes").out.split() == [one]
    assert run("view", "save", "vips", "queue:mail").code == Exit.CONFLICT
    assert run("view", "save", "vips", "queue:mail", "--replace").code == Exit.DONE
    assert json.loads(run("view", "show", "vips", "--json").out)["filter"] == "queue:mail"
    assert run("view", "list", "-q").out == "vips\n"
    assert run("letters", "list", "--view", "vip").code == Exit.NOT_FOUND
    assert run("view", "save", "bad", "eror:x").code == Exit.USAGE
    assert (run("view", "remove", "vips").code, run("view", "list").out) == (Exit.DONE, "")
    assert ids_of(run("letters", "list")) == [two]


# -- changes ---------------------------------------------------------------------------------------------------------


def test_changes_are_read_on_from_a_number(tmp_path: Path, run: Callable[..., Told]) -> None:
    one, two = letters_in(tmp_path, *"ab")
    first = run("letters", "changes")
    assert [line.split("\t")[1:5] for line in first.out.splitlines()] == [
        [one, "dead", "mail", "open"],
        [two, "dead", "mail", "open"],
    ]
    last = first.out.splitlines()[-1].split("\t")[0]
    assert first.err == f"go on with --after {last}\n"
    nothing = run("letters", "changes", "--after", last, "--json")
    assert json.loads(nothing.out) == {"changes": [], "next": int(last)}
    run("letters", "replay", one, "--reason", "fixed", "--yes")
    run("letters", "discard", two, "--reason", "spam", "--yes")
    run("queue", "prune", "mail", "--reason", "spam", "--yes")
    told = json.loads(run("letters", "changes", "--after", last, "--limit", "1", "--json").out)
    assert [(each["id"], each["item"]["state"]) for each in told["changes"]] == [(one, "ready")]
    rest = json.loads(run("letters", "changes", "--after", str(told["next"]), "--all", "--json").out)
    assert rest["next"] > told["next"]
    assert [each["id"] for each in rest["changes"]] == [two]
    assert run("letters", "changes", "--all", "-q").out.split() == [one, two]
    wrong = run("letters", "changes", "--after", "-1")
    assert (wrong.code, "--after" in wrong.err) == (Exit.USAGE, True)


# -- audit -----------------------------------------------------------------------------------------------------------


def test_the_audit_tells_who_did_what_and_verifies(tmp_path: Path, run: Callable[..., Told]) -> None:
    one, two = letters_in(tmp_path, *"ab")
    run("letters", "archive", one, two, "--reason", "known")
    run("letters", "note", one, "--text", "later")
    first, second = [line.split("\t") for line in run("audit", "list").out.splitlines()]
    assert (first[3], first[4], first[5]) == ("archive", "2", "known")
    assert (second[3], second[4], second[5], second[7]) == ("note", "1", "later", one[:8])
    (entry,) = json.loads(run("audit", "list", "--limit", "1", "--json").out)
    assert (entry["act"], entry["count"], entry["changed"]) == ("note", 1, [one])
    assert run("audit", "list", "--actor", "nobody").out == ""
    assert run("audit", "list", "--since", "0s").out == ""
    found = run("audit", "verify", "--json")
    told = json.loads(found.out)
    assert (found.code, told["sound"], told["seals"], told["entries"], told["unsealed"]) == (Exit.DONE, True, 2, 2, 0)
    assert run("audit", "verify", "--known", told["hash"]).code == Exit.DONE
    wrong = run("audit", "verify", "--known", "0" * 63 + "1")
    assert (wrong.code, "no seal has the hash" in wrong.err) == (Exit.UNSOUND, True)


@on_sqlite
def test_an_audit_that_was_changed_is_10(tmp_path: Path, run: Callable[..., Told]) -> None:
    (letter,) = letters_in(tmp_path, "a")
    run("letters", "archive", letter, "--reason", "known")
    with sqlite3.connect(tmp_path / "redrive.db") as database:
        database.execute("update journal set reason = 'forged'")
    database.close()
    told = run("audit", "verify")
    assert (told.code, told.err) == (Exit.UNSOUND, "the entries under seal 1 are not those that were sealed\n")
    assert (
        told.out == "0 entries under 0 seals fit; what was sealed after them was not looked at; 0 are not sealed yet\n"
    )
    with sqlite3.connect(tmp_path / "redrive.db") as database:
        database.execute("delete from journal")
    database.close()
    told = run("audit", "verify")
    assert (told.code, told.err) == (Exit.UNSOUND, "seal 1 is over 1 entry, and there are 0\ngone: 1\n")


@on_sqlite
def test_a_name_that_looks_like_an_option_goes_after_two_dashes(tmp_path: Path, run: Callable[..., Told]) -> None:
    async def make(app: Redrive) -> None:
        app.queue("-mail")
        await app.enqueue("-mail", id="-x")

    with_app(tmp_path, make)
    told = run("queue", "show", "-mail")
    assert told.code == Exit.USAGE
    assert "see redrive queue show -h; a name that begins with - goes after --)" in told.err
    assert run("queue", "show", "--", "-mail").code == Exit.DONE
    assert run("item", "show", "--", "-x").code == Exit.DONE
    assert "goes after" not in run("queue", "list", "-mail").err


# -- export and import -----------------------------------------------------------------------------------------------


def test_letters_go_from_store_to_store(tmp_path: Path, run: Callable[..., Told]) -> None:
    ids = letters_in(tmp_path, "a", HOSTILE, SECRET)
    run("letters", "tag", ids[0], "--add", "vip")
    told = run("letters", "export", "all.jsonl", "--attempts")
    assert (told.code, told.err) == (Exit.DONE, "exported 3; payloads are as they are, with any secrets\n")
    lines = (tmp_path / "all.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids[::-1]
    assert all(line.isprintable() for line in lines)
    assert ((tmp_path / "all.jsonl").stat().st_mode & 0o777) == 0o600
    other = ("--store", f"sqlite:///{tmp_path}/other.db")
    dry = run("letters", "import", "all.jsonl", "--reason", "moving", "--dry-run", "--store", store_in(tmp_path))
    assert (dry.code, dry.err) == (Exit.DONE, "would take in 0, 3 were there already\n")
    done = run("letters", "import", "all.jsonl", "--reason", "moving", *other)
    assert (done.code, set(done.out.split()), done.err) == (Exit.DONE, set(ids), "took in 3\n")
    again = run("letters", "import", "all.jsonl", "--reason", "moving", *other, "--json")
    assert json.loads(again.out) == {"dry_run": False, "imported": [], "already": json.loads(again.out)["already"]}
    here_, there = [json.loads(run("letters", "show", ids[0], "--json", *where).out) for where in ((), other)]
    for each in (here_, there):
        del each["deeds"]
    assert here_ == there


def test_a_dry_import_says_that_the_store_would_be_made(
    on_store: str, tmp_path: Path, run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("REDRIVE_STORE", f"sqlite:///{tmp_path}/old.db")
        ids = letters_in(tmp_path, "a", "b")
        run("letters", "export", "all.jsonl")
    with ExitStack() as stack:
        if on_store.startswith("postgresql:"):  # a fresh one has its schema already
            from tests.support.servers import schemas

            monkeypatch.setenv("REDRIVE_STORE", stack.enter_context(schemas.schemas().missing()))
        dry = run("letters", "import", "all.jsonl", "--reason", "moving", "--dry-run")
        assert (dry.code, set(dry.out.split())) == (Exit.DONE, set(ids)), dry.err
        first, second = dry.err.splitlines()
        assert first.startswith("no ")
        assert first.endswith(": an import would make it")
        assert second == "would take in 2"
        assert run("status").code == Exit.STORE  # nothing was made
        assert run("letters", "import", "all.jsonl", "--reason", "moving").err == "took in 2\n"


@on_sqlite
def test_an_export_leaves_files_alone_and_is_whole_or_not_there(
    tmp_path: Path, run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "a")
    kept = tmp_path / "kept.jsonl"
    kept.write_text("mine")
    assert run("letters", "export", "kept.jsonl").code == Exit.CONFLICT
    assert kept.read_text() == "mine"

    async def broken(*_: object, **_options: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(SqliteStore, "find", broken)
    assert run("letters", "export", "kept.jsonl", "--force").code == Exit.INTERRUPTED
    assert kept.read_text() == "mine"
    assert [path.name for path in tmp_path.glob("*kept*")] == ["kept.jsonl"]


@on_sqlite
def test_every_fault_of_an_import_is_named_and_nothing_taken_in(tmp_path: Path, run: Callable[..., Told]) -> None:
    letters_in(tmp_path, *"ab")
    run("letters", "export", "all.jsonl")
    one, two = (tmp_path / "all.jsonl").read_text().splitlines()
    bad = one.replace('"queue":"mail"', '"queue":""')
    (tmp_path / "bad.jsonl").write_text(f"{bad}\n\n{two}\n{{\n{two}\n")
    other = f"sqlite:///{tmp_path}/other.db"
    told = run("letters", "import", "bad.jsonl", "--reason", "x", "--store", other)
    assert (told.code, told.out) == (Exit.USAGE, "")
    assert told.err.splitlines()[:3] == [
        "line 1: queue: it is empty",
        "line 4: input data was truncated",
        "line 5: id: line 3 has it already",
    ]
    assert "3 faults; nothing was taken in" in told.err.splitlines()[3]
    assert not (tmp_path / "other.db").exists()


@on_sqlite
def test_a_dry_run_foretells_an_import_into_a_new_store(tmp_path: Path, run: Callable[..., Told]) -> None:
    ids = letters_in(tmp_path, *"ab")
    run("letters", "export", "all.jsonl")
    new = ("letters", "import", "all.jsonl", "--reason", "x", "--store", f"sqlite:///{tmp_path}/new.db", "--json")
    dry = run(*new, "--dry-run")
    assert (dry.code, (tmp_path / "new.db").exists()) == (Exit.DONE, False)
    told = json.loads(run(*new).out)
    assert {**told, "dry_run": True} == json.loads(dry.out)
    assert sorted(told["imported"]) == sorted(ids)


@on_sqlite
def test_export_and_import_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"ab")
    sent = here(capsys, "letters", "export")
    other = f"sqlite:///{tmp_path}/other.db"
    taken = here(capsys, "letters", "import", "-", "--reason", "x", "--store", other, text=sent.out)
    assert (taken.code, set(taken.out.split())) == (Exit.DONE, set(ids))
    assert set(here(capsys, "letters", "list", "-q", "--store", other).out.split()) == set(ids)
    shown = here(capsys, "letters", "payload", ids[0], "--raw")
    assert (shown.out, shown.err) == ('{"item_id":"0"}', "this is all of it, secrets included\n")


# -- S27: cells, lines and terminals ---------------------------------------------------------------------------------

FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    " =1",
    "\uff1d1",
    '"=1',
    "'=1",
    "=cmd|' /C calc'!A0",
    "a\n=1",
]


@on_sqlite
def test_a_file_that_is_named_a_table_is_one(tmp_path: Path, run: Callable[..., Told]) -> None:
    """Its secrets are covered, as whoever opens it in a spreadsheet will show it around."""
    letters_in(tmp_path, CANARY)
    table = run("letters", "export", "--csv").out
    assert run("letters", "export", "some.CSV").err == "exported 1\n"
    assert (tmp_path / "some.CSV").read_bytes().decode() == table
    told = run("letters", "import", "some.CSV", "--reason", "x")
    assert (told.code, told.out, len(told.err.splitlines())) == (Exit.USAGE, "", 1)
    assert "it is a table, which has not all of a letter" in told.err
    assert run("letters", "export", "lines.csv", "--jsonl").code == Exit.DONE
    assert json.loads((tmp_path / "lines.csv").read_text())["queue"] == "mail"
    told = run("letters", "export", "more.csv", "--attempts")
    assert (told.code, (tmp_path / "more.csv").exists()) == (Exit.USAGE, False)
    assert "--jsonl" in told.err


@on_sqlite
def test_s27_no_cell_is_a_formula_and_a_letter_is_one_line(tmp_path: Path, run: Callable[..., Told]) -> None:
    letters_in(tmp_path, *FORMULAS, HOSTILE)
    assert run("letters", "export", "all.csv", "--csv").code == Exit.DONE
    raw = (tmp_path / "all.csv").read_bytes().decode()
    assert len(raw.splitlines()) == len(FORMULAS) + 2
    assert all(line.isprintable() for line in raw.splitlines())
    header, *rows = list(csv.reader(io.StringIO(raw)))
    assert len({len(row) for row in [header, *rows]}) == 1
    cells = [cell for row in rows for cell in row]
    assert not [cell for cell in cells if cell.strip().startswith(FORMULA)]
    text = header.index("text")
    assert rows[-1][text] == "'=1+1"


def test_s27_whatever_begins_like_a_formula_is_neutral() -> None:
    for cell in FORMULAS:
        if cell[0] not in "\"'a":
            assert neutral(cell) == f"'{cell}"
    assert neutral("") == ""
    assert neutral("plain = fine") == "plain = fine"


# -- S14: secrets ----------------------------------------------------------------------------------------------------


def test_s14_secrets_are_shown_only_where_they_are_asked_for(tmp_path: Path, run: Callable[..., Told]) -> None:
    (letter,) = letters_in(tmp_path, SECRET)
    run("letters", "note", letter, "--text", f"the key is api_key={CANARY}")
    cause = json.loads(run("causes", "list", "--json").out)[0]["cause"]
    looks = [
        *[("letters", "list", *more) for more in ((), ("--json",), ("--jsonl",), ("--by", "cause"), ("--wide",))],
        ("letters", "show", letter),
        ("letters", "show", letter, "--json"),
        ("letters", "export", "--csv", "x.csv"),
        ("item", "show", letter),
        ("item", "show", letter, "--json"),
        ("item", "explain", letter),
        ("item", "attempts", letter),
        ("item", "list", "--where", "state:dead"),
        ("causes", "list"),
        ("causes", "show", cause),
        ("status",),
        ("audit", "list"),
        ("audit", "list", "--json"),
    ]
    for look in looks:
        told = run(*look)
        assert told.code == Exit.DONE, look
        assert CANARY not in told.out + told.err, look
    assert CANARY not in (tmp_path / "x.csv").read_text()
    asked = run("letters", "export", "x.jsonl")
    assert CANARY in (tmp_path / "x.jsonl").read_text()
    assert "secrets" in asked.err


@on_sqlite
def test_the_tree_has_what_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(["letters", "-h"]) == Exit.DONE
    told = capsys.readouterr().out
    for verb in ("list", "show", "payload", "replay", "archive", "restore", "discard", "move", "tag", "note", "skip"):
        assert f"\n  {verb} " in told


@on_sqlite
def test_ids_of_every_kind_are_found_together(tmp_path: Path, run: Callable[..., Told]) -> None:
    """Those that users made, with signs that mean something in a filter, and as many as one filter has no room for.

    Some came in by a store's own verb, which takes more than enqueue and import do.
    """
    (letter,) = letters_in(tmp_path, "a")
    ids = [
        "a b",
        'q"uote',
        "st*r",
        "com,ma",
        "(p)",
        "back\\slash",
        "'",
        "ü",
        "x" * 2100,
        *[f"n-{n}" for n in range(900)],
    ]

    async def multiply(app: Redrive) -> int:
        history = await app.letters.get(letter)
        copies = [replace(history, item=replace(history.item, id=each)) for each in ids]
        return len((await store_of(app).take_in(copies, Act("tester", "x", "r"))).added)

    assert with_app(tmp_path, multiply) == 909
    done = run("letters", "archive", *ids, "--reason", "x", "--yes", "--json")
    assert (done.code, set(json.loads(done.out)["archived"])) == (Exit.DONE, set(ids))
