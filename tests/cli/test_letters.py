import asyncio
import json
import os
import sqlite3
from pathlib import Path

import pytest

from redrive import Policy, Redrive, never
from redrive.cli.exits import Exit
from redrive.cli.letter import page
from redrive.core.item import Attempt, Ending, Failure, Frame, History, Item, Letter
from redrive.core.states import Disposition, State
from redrive.stores.url import store_from_url
from tests.support.cli import here, letters_in, on_sqlite, on_terminal, store_in

HOSTILE = "\x1b[2J\x1b]0;pwned\x07\nforged\tline\r\u202eevil\x9b1m"


pytestmark = pytest.mark.usefixtures("on_store")


def harmless(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


# -- list ------------------------------------------------------------------------------------------------------------


def test_in_a_pipe_a_letter_is_a_line_with_tabs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, "first", "second")
    told = here(capsys, "letters", "list")
    assert (told.code, told.err) == (Exit.DONE, "")
    rows = [line.split("\t") for line in told.out.splitlines()]
    assert [row[0] for row in rows] == ids[::-1]
    assert [row[1] for row in rows] == ["mail", "mail"]
    assert rows[0][3:8] == ["no_retry", "open", "1", "1", "0"]
    assert rows[0][9:] == ["ValueError", "second"]


def test_an_empty_list_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    for args in ([], ["-q"]):
        told = here(capsys, "letters", "list", "--where", "queue:other", *args)
        assert (told.code, told.out, told.err) == (Exit.DONE, "", "")
    assert json.loads(here(capsys, "letters", "list", "--where", "queue:other", "--json").out)["letters"] == []


def test_quiet_gives_ids_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, "a", "b")
    assert here(capsys, "letters", "list", "-q").out.split() == ids[::-1]


def test_pages_go_on_by_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = letters_in(tmp_path, *"abcde")
    seen: list[str] = []
    cursor: list[str] = []
    while None not in cursor:
        found = json.loads(here(capsys, "letters", "list", "--limit", "2", "--json", *cursor).out)
        assert len(found["letters"]) <= 2
        seen += [letter["id"] for letter in found["letters"]]
        cursor = ["--cursor", found["next"]]
    assert seen == ids[::-1]
    assert "--cursor" in here(capsys, "letters", "list", "--limit", "2").err


@on_sqlite
@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("letters", ("--where", "queue:* died<1h OR age<2h")),
        ("letters", ("--where", "-text:nowhere", "--since", "1h")),
        ("letters", ("--view", "mine", "--since", "1h")),
        ("letters", ("--view", "mine", "--where", "state:dead")),
        ("item", ("--where", "queue:*", "--since", "1h")),
        ("item", ("--since", "90m")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_cursor_goes_on_with_the_same_options_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, asked: tuple[str, ...]
) -> None:
    """Ages and times are what was typed, not what the clock said when it was."""
    ids = letters_in(tmp_path, *"abcd")
    here(capsys, "view", "save", "mine", "attempts<9")
    first = json.loads(here(capsys, command, "list", "--limit", "1", "--json", *asked).out)
    told = here(capsys, command, "list", "-q", *asked, "--cursor", first["next"])
    assert (told.code, told.out.split()) == (Exit.DONE, ids[2::-1])
    for other in ((), (*asked[:-1], "2h") if "--since" in asked else (*asked, "--since", "2h")):
        told = here(capsys, command, "list", "-q", *other, "--cursor", first["next"])
        assert (told.code, told.out) == (Exit.USAGE, "")
        assert "is not a cursor of this search" in told.err
        assert "for the same filter" in told.err


def test_a_foreign_cursor_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    assert here(capsys, "letters", "list", "--cursor", "bogus").code == Exit.USAGE


def test_json_has_the_names_of_the_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (id,) = letters_in(tmp_path, "text")  # noqa: A001 - the word of the domain
    (letter,) = json.loads(here(capsys, "letters", "list", "--json").out)["letters"]
    assert letter["id"] == id
    assert letter["died_at"].endswith("Z")
    for name in (
        "queue",
        "disposition",
        "cause",
        "error",
        "category",
        "rule",
        "reason",
        "attempts",
        "crashes",
        "replays",
    ):
        assert name in letter


@on_sqlite
def test_a_bad_filter_is_marked_where_it_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    told = here(capsys, "letters", "list", "--where", "queue:mail eror:x")
    assert (told.code, told.out) == (Exit.USAGE, "")
    first, text, mark = told.err.splitlines()
    assert "column 12" in first
    assert "did you mean error?" in first
    assert text == "  queue:mail eror:x"
    assert mark.index("^") == text.index("eror")


@on_sqlite
def test_the_mark_stands_right_behind_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters_in(tmp_path, "a")
    told = here(capsys, "letters", "list", "--where", "queue:\x1b[31m eror:x")
    _, text, mark = told.err.splitlines()
    assert mark.index("^") == text.index("eror")
    assert harmless(told.err)


@on_sqlite
def test_a_letter_that_somebody_works_on_says_so_and_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = letters_in(tmp_path, "a", "b")

    async def lease() -> None:
        store = await store_from_url(store_in(tmp_path)).open()
        await store.lease_letters([first], "rescue-7", 3_600_000)
        await store.close()

    asyncio.run(lease())
    assert "worker    rescue-7, lease until" in here(capsys, "letters", "show", first).out
    for more in (["--dry-run"], []):
        told = here(capsys, "letters", "replay", first, second, "--reason", "x", "--json", *more)
        assert [skipped["reason"] for skipped in json.loads(told.out)["skipped"]][:1] == ["it is leased by rescue-7"]


@on_sqlite
@pytest.mark.parametrize(
    ("act", "why"),
    [
        (("move", "--to", "mail"), "it is in mail already"),
        (("skip",), "it keeps nothing back: it is not the head of an order key"),
    ],
    ids=["move", "skip"],
)
def test_a_dry_run_promises_no_more_than_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], act: tuple[str, ...], why: str
) -> None:
    (letter,) = letters_in(tmp_path, "a")
    for more in (["--dry-run"], []):
        told = here(capsys, "letters", *act, letter, "--reason", "x", *more)
        assert (told.code, told.out) == (Exit.CONFLICT, "")
        assert f"skipped {letter}: {why}" in told.err


@on_sqlite
def test_on_a_terminal_letters_are_columns(tmp_path: Path) -> None:
    ids = letters_in(tmp_path, HOSTILE)
    told = on_terminal("letters", "list", cwd=tmp_path, env={"NO_COLOR": "1"})
    head, row = told.out.splitlines()
    assert head.split() == ["ID", "QUEUE", "DIED", "REASON", "ATTEMPTS", "CAUSE", "ERROR"]
    assert row.startswith(f"{ids[0][:8]}  mail ")
    assert harmless(told.out)
    empty = on_terminal("letters", "list", "--where", "queue:none", cwd=tmp_path)
    assert (empty.code, empty.out) == (Exit.DONE, "no letters\n")


# -- show ------------------------------------------------------------------------------------------------------------


def test_show_tells_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (id,) = letters_in(tmp_path, "no such mailbox")  # noqa: A001 - the word of the domain
    told = here(capsys, "letters", "show", id[:8])
    assert (told.code, told.err) == (Exit.DONE, "")
    assert told.out.startswith(f"letter {id}\n")
    for said in (
        "queue     mail",
        "state     dead, open",
        "reason    no_retry",
        "error     ValueError: no such mailbox",
        "class     category data, rule default:data",
        "errors 1, crashes 0",
        "failed after",
        "(attempt 1, delivery 1)",
        "support/cli.py:",
        "raise ValueError(texts[int(item_id)])",
        'payload, 15 bytes, JSON\n  {\n    "item_id": "0"\n  }',
    ):
        assert said in told.out


def test_show_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (id,) = letters_in(tmp_path, "x")  # noqa: A001 - the word of the domain
    letter = json.loads(here(capsys, "letters", "show", id, "--json").out)
    assert letter["payload"] == {"item_id": "0"}
    (attempt,) = letter["history"]
    assert attempt["ending"] == "failed"
    assert attempt["ran"] >= 0
    assert attempt["failure"]["frames"][-1]["function"] == "fail"


def test_show_tells_what_operators_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (id,) = letters_in(tmp_path, "x")  # noqa: A001 - the word of the domain
    assert here(capsys, "letters", "replay", id, "--reason", f"try {HOSTILE}").code == Exit.DONE
    told = here(capsys, "letters", "show", id)
    assert told.out.startswith(f"item {id}\n")
    assert "replay by " in told.out
    assert "what operators did" in told.out
    assert harmless(told.out)


def test_hostile_text_is_harmless_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (id,) = letters_in(tmp_path, HOSTILE)  # noqa: A001 - the word of the domain
    for args in (
        ["list"],
        ["list", "--json"],
        ["show", id],
        ["show", id, "--json"],
        ["replay", id, "--reason", HOSTILE],
    ):
        told = here(capsys, "letters", *args)
        assert told.code == Exit.DONE
        assert harmless(told.out + told.err)
        assert "\nforged" not in told.out + told.err


@pytest.mark.parametrize(
    ("payload", "said", "encoding"),
    [
        (b"\x00\xff\x1b[2J", "b'\\x00\\xff\\x1b[2J'", "base64"),
        (b"A" * 10_000, "cut after 4,000 characters", "base64"),
        ({"a": "\x1b[2J\u202e"}, '"a": "\\u001b[2J\\u202e"', "json"),
        (["x" * 50] * 1000, "cut after 4,000 characters", "json"),
        (b"[" * 100_000, "not JSON", "base64"),
        (b"", "payload, 0 bytes", "base64"),
    ],
    ids=["bytes", "many bytes", "escapes", "long", "deep", "empty"],
)
def test_any_payload_can_be_shown(
    payload: object, said: str, encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    id = letter_with(tmp_path, payload)  # noqa: A001 - the word of the domain
    told = here(capsys, "letters", "show", id)
    assert told.code == Exit.DONE
    assert said in told.out
    assert harmless(told.out)
    assert len(told.out) < 10_000
    assert json.loads(here(capsys, "letters", "show", id, "--json").out)["payload_encoding"] == encoding


def letter_with(folder: Path, payload: object) -> str:
    async def make() -> str:
        app = Redrive(store_in(folder), log=False)

        @app.handler("mail", policy=Policy(backoff=never()))
        async def fail() -> None:
            raise ValueError("x")

        async with app:
            made = str(await app.enqueue("mail", payload))
            await app.run(until_idle=True)
            return made

    return asyncio.run(make())


@on_sqlite
def test_a_letter_cannot_make_us_read_what_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "secret.txt").write_text("the secret\n")
    (tmp_path / "source.py").write_text("first()\nsecond()\n")
    files = ["pipe.py", "secret.txt", "source.py", "gone.py", "nul\0.py"]
    frames = tuple(Frame(str(tmp_path / name), 2 if name == "source.py" else 1, "f") for name in files)
    letter = Letter("rule", 1, Disposition.OPEN, Failure("E", "", "error", "default", "cause", frames=frames))
    item = Item("id", "mail", b"1", 1, State.DEAD, 1, 1, 1, letter=letter)
    shown = "\n".join(page(History(item), 2))
    assert "second()" in shown
    assert "secret\n" not in shown
    assert "nul\\x00.py:1 in f" in shown


@on_sqlite
def test_a_long_history_says_what_is_left_out() -> None:
    attempts = tuple(Attempt(n, n, "w", n, 5, Ending.RELEASED, note="the worker stopped") for n in (1, 2, 9, 10))
    item = Item("id", "mail", b"1", 1, State.READY, 1, 1, 1)
    shown = list(page(History(item, attempts, omitted=6), 2))
    (gap,) = [at for at, line in enumerate(shown) if "6 attempts were left out" in line]
    assert "delivery 2" in shown[gap - 2]
    assert "delivery 9" in shown[gap + 1]


# -- prefixes --------------------------------------------------------------------------------------------------------


def named(folder: Path, *ids: str) -> None:
    async def make() -> None:
        app = Redrive(store_in(folder), log=False)

        @app.handler("mail", policy=Policy(backoff=never()))
        async def fail(dies: bool) -> None:
            if dies:
                raise ValueError("x")

        async with app:
            for id in ids:  # noqa: A001 - the word of the domain
                await app.enqueue("mail", {"dies": not id.endswith("done")}, id=id)
            await app.run(until_idle=True)

    asyncio.run(make())


def test_a_prefix_is_enough_if_one_letter_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named(tmp_path, "order-1-a", "order-2-b", "order-2-done")
    assert here(capsys, "letters", "show", "order-1").out.startswith("letter order-1-a\n")
    assert here(capsys, "letters", "show", "order-2").out.startswith("letter order-2-b\n")
    assert here(capsys, "letters", "show", "order-2-done").out.startswith("item order-2-done\n")


@pytest.mark.parametrize("command", [["show", "order"], ["replay", "order", "--reason", "x"]], ids=["show", "replay"])
def test_a_prefix_of_several_says_of_how_many(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named(tmp_path, "order-1", "order-2", "order-3", "other")
    told = here(capsys, "letters", *command)
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert "'order' fits 3 items" in told.err


@pytest.mark.parametrize("id", ["zzzz", "zz", "*", "or*", "-", "order-1x", "queue:mail", '"', "\x1b[2J"])
def test_what_is_not_there_is_5(id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named(tmp_path, "order-1")
    told = here(capsys, "letters", "show", id)
    assert (told.code, told.out) == (Exit.NOT_FOUND, "")
    assert harmless(told.err)


@on_sqlite
def test_a_damaged_letter_is_listed_and_shown_with_its_neighbours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = letters_in(tmp_path, "first", "second", "third")
    with sqlite3.connect(tmp_path / "redrive.db") as db:
        db.execute("update payload set body = x'00' where seq = 2")
    db.close()
    listed = here(capsys, "letters", "list")
    assert (listed.code, len(listed.out.splitlines())) == (Exit.DONE, 3)
    shown = here(capsys, "letters", "show", ids[1])
    assert (shown.code, "the payload cannot be used" in shown.out) == (Exit.DONE, True)
    told = json.loads(here(capsys, "letters", "show", ids[1], "--json").out)
    assert ("checksum" in told["payload_flaw"], told["text"]) == (True, "second")
    assert json.loads(here(capsys, "letters", "show", ids[0], "--json").out)["payload_flaw"] is None
