"""The command line as a shell sees it: exit codes, questions on a terminal, keys and interrupts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from blockbuster import BlockBuster

from redrive import Redrive
from redrive.cli import queue_prune, watch
from redrive.cli.exits import Exit
from redrive.cli.output import say
from redrive.core.verbs import Tombstone
from tests.support.bound import with_app
from tests.support.cli import COMMAND, PATIENCE, Keyboard, environment, here, letters_in, on_sqlite, on_terminal
from tests.support.signals import Signals
from tests.support.warm_child import REDRIVE
from tests.support.warm_python import WarmPython

pytestmark = [pytest.mark.usefixtures("on_store"), pytest.mark.slow]


# -- exit codes --------------------------------------------------------------------------------------------------------

CODES = {
    Exit.DONE: "queue list -q",
    Exit.FAILED: "item wait DEAD",
    Exit.USAGE: "queue lsit",
    Exit.REFUSED: "letters replay --where queue:mail --reason x",
    Exit.NOT_FOUND: "letters replay nobody --reason x",
    Exit.CONFLICT: "letters restore DEAD --reason x",
    Exit.STORE: "queue list --store sqlite:///nowhere.db",
    Exit.STILL_GOING: "item wait READY --timeout 1ms",
    Exit.PARTLY: "letters replay DEAD READY --reason x --once",
    Exit.UNSOUND: "health",
}
WITH_DATA = (Exit.DONE, Exit.PARTLY, Exit.UNSOUND)
"""stdout is data: only what has any prints there."""


@on_sqlite
def test_every_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dead,) = letters_in(tmp_path, "no address")
    ready = here(capsys, "queue", "push", "mail", "1").out.strip()
    told = {
        code: here(capsys, *line.replace("DEAD", dead).replace("READY", ready).split()) for code, line in CODES.items()
    }
    assert [one.code for one in told.values()] == list(CODES)
    assert tuple(code for code, one in told.items() if one.out) == WITH_DATA
    assert not (tmp_path / "nowhere.db").exists()


SCRIPT = """
redrive() { "$PYTHON" -m redrive "$@" >out 2>err </dev/null; echo "$? $(wc -l <out)"; }
redrive queue list -q
redrive letters replay nobody --reason x
"""


@on_sqlite
def test_exit_codes_reach_a_real_shell(tmp_path: Path) -> None:
    letters_in(tmp_path, "no address")
    told = subprocess.run(
        ["bash", "-c", SCRIPT],
        cwd=tmp_path,
        env=environment(PYTHON=COMMAND[0]),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert told.stdout.split() == ["0", "1", "5", "0"]


@pytest.mark.parametrize("on_store", ["postgres", "redis"], indirect=True)
def test_from_push_to_replay_on_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dead,) = letters_in(tmp_path, "no address")
    pushed = here(capsys, "queue", "push", "mail", '{"item_id": "0"}')
    assert (pushed.code, pushed.err) == (Exit.DONE, "")
    assert here(capsys, "queue", "list", "--fields", "queue,ready,dead").out == "mail\t1\t1\n"
    assert "no_worker" in here(capsys, "health").out
    sent = here(capsys, "letters", "replay", "-", "--reason", "mended", text=f"{dead}\n")
    assert (sent.code, sent.out) == (Exit.DONE, f"{dead}\n")


# -- questions ---------------------------------------------------------------------------------------------------------


@contextmanager
def typing(keys: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal as stdin alone."""
    with Keyboard(keys) as stdin, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stdin)
        yield


async def one_of_each(app: Redrive) -> None:
    app.gate("smtp")
    app.queue("reports")
    app.schedule("nightly", "reports", cron="0 2 * * *")
    await app.enqueue("reports", 1, delay="1h", id="waiting")
    await app.cancel(await app.enqueue("reports", 2, delay="1h"), reason="x")


DESTRUCTIVE = [
    ["letters", "discard", "--where", "queue:mail"],
    ["letters", "archive", "--where", "queue:mail"],
    ["letters", "replay", "--where", "queue:mail"],
    ["letters", "move", "--where", "queue:mail", "--to", "reports"],
    ["letters", "skip", "--where", "queue:mail"],
    ["queue", "retry", "mail", "--all-dead"],
    ["queue", "drop", "mail", "LETTER"],
    ["queue", "prune", "reports"],
    ["gate", "remove", "smtp"],
    ["schedule", "remove", "nightly"],
]


def state(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """All that an act could have changed."""
    looks = (["status", "--json"], ["item", "list", "--json"], ["gate", "list", "-q"], ["schedule", "list", "-q"])
    answers = [here(capsys, *look).out for look in looks]
    status = json.loads(answers[0])
    return [json.dumps([status["queues"][at]["dead"] for at in range(len(status["queues"]))]), *answers[1:]]


@on_sqlite
@pytest.mark.parametrize("args", DESTRUCTIVE, ids=lambda args: " ".join(args[:2]))
def test_what_cannot_be_undone_asks_first(
    args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, _ = letters_in(tmp_path, "one", "two")
    with_app(tmp_path, one_of_each)
    before = state(capsys)
    words = [*(word.replace("LETTER", dead) for word in args), "--reason", "x"]
    told = here(capsys, *words)  # nobody is there
    assert (told.code, told.out) == (Exit.REFUSED, "")
    assert "there is no terminal to ask" in told.err
    assert "--yes" in told.err
    for keys, more in (("n\n", []), ("\n", []), ("y\n", ["--no-input"])):
        with typing(keys, monkeypatch):
            told = here(capsys, *words, *more)
        assert (told.code, told.out) == (Exit.REFUSED, ""), keys
        assert ("[y/N]" in told.err) is not bool(more)
    # Nobody waits behind these letters, so there is nothing to skip: the question is asked all the same.
    code = Exit.CONFLICT if args[1] == "skip" else Exit.DONE
    dry = here(capsys, *words, "--dry-run")
    assert dry.code == code, dry.err
    assert "would" in dry.err
    assert state(capsys) == before
    with typing("y\n", monkeypatch):
        told = here(capsys, *words)
    assert told.code == code, told.err


@on_sqlite
@pytest.mark.parametrize("args", DESTRUCTIVE, ids=lambda args: " ".join(args[:2]))
def test_yes_does_not_ask(args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead, _ = letters_in(tmp_path, "one", "two")
    with_app(tmp_path, one_of_each)
    told = here(capsys, *(word.replace("LETTER", dead) for word in args), "--reason", "x", "--yes")
    assert told.code == (Exit.CONFLICT if args[1] == "skip" else Exit.DONE), told.err
    assert "[y/N]" not in told.err


@on_sqlite
def test_cancelling_many_asks_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waiting(app: Redrive) -> list[str]:
        app.queue("mail")
        return [str(made) for made in await app.enqueue_many("mail", range(101), delay="1h")]

    ids = with_app(tmp_path, waiting)
    for keys, code, left in (("n\n", Exit.REFUSED, "101\n"), ("\n", Exit.REFUSED, "101\n"), ("y\n", Exit.DONE, "0\n")):
        with typing(keys, monkeypatch):
            told = here(capsys, "item", "cancel", *ids, "--reason", "x")
        assert told.code == code, told.err
        assert "Cancel 101 items?" in told.err
        assert "… and 96 more" in told.err
        assert here(capsys, "queue", "list", "--fields", "ready").out == left


@on_sqlite
def test_many_need_the_number_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def many(app: Redrive) -> None:
        @app.handler("mail", concurrency=500)
        async def send(n: int) -> None: ...

        await app.enqueue_many("mail", range(1001))
        await app.run(until_idle=True)

    with_app(tmp_path, many)
    prune = ["queue", "prune", "mail", "--reason", "x"]
    for keys, code in (("y\n", Exit.REFUSED), ("1000\n", Exit.REFUSED), ("1,001\n", Exit.DONE)):
        with typing(keys, monkeypatch):
            told = here(capsys, *prune)
        assert told.code == code, keys
        assert "Remove 1,001 items for good? Type the number to go on: " in told.err
    assert here(capsys, "queue", "list", "--fields", "done").out == "0\n"


# -- keys and signals --------------------------------------------------------------------------------------------------


@on_sqlite
def test_a_live_view_ends_with_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blockbuster: BlockBuster) -> None:
    blockbuster.deactivate()  # it reads keys only when there are some
    # Keys that were typed before it begins are not thrown away.
    monkeypatch.setattr("tty.setcbreak", partial(tty.setcbreak, when=termios.TCSANOW))
    letters_in(tmp_path, "no \x1b[2J address")
    told = on_terminal("top", cwd=tmp_path, keys="xq")
    assert told.code == Exit.DONE
    assert "q leaves" in told.out
    assert "no live workers" in told.out
    assert "no \\x1b[2J address" in told.out
    assert told.out.endswith("\x1b[?1049l")  # what was on the screen before is there again


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Calls something after the first look of a watch; the second ends with Ctrl-C. No time passes in between."""

    def after(act: Callable[[], object]) -> None:
        redraw, acts = watch.redraw, iter([act])

        def look(draw: Callable[[], None]) -> None:
            redraw(draw)
            next(acts, interrupt)()

        monkeypatch.setattr(watch, "redraw", look)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "LEAST", 0)
    return after


@on_sqlite
def test_a_watch_on_a_terminal_is_redrawn_until_ctrl_c(
    tmp_path: Path, looks: Callable[[Callable[[], object]], None]
) -> None:
    letters_in(tmp_path, "no address")
    looks(lambda: None)
    told = on_terminal("queue", "list", "--watch=0s", cwd=tmp_path)
    assert (told.code, told.out.count("QUEUE")) == (Exit.INTERRUPTED, 2)
    assert told.out.startswith("\x1b[2J\x1b[H")


@on_sqlite
def test_a_watch_in_a_pipe_streams_until_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], looks: Callable[[Callable[[], object]], None]
) -> None:
    letters_in(tmp_path, "no address")
    looks(lambda: None)
    told = here(capsys, "queue", "list", "--watch=0s", "--jsonl")
    assert (told.code, told.err) == (Exit.INTERRUPTED, "")
    assert [json.loads(line)["dead"] for line in told.out.splitlines()] == [1, 1]


@pytest.fixture
def resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many done items, a batch and one more."""
    count = 3
    monkeypatch.setattr(queue_prune, "BITE", count - 1)

    async def done(app: Redrive) -> None:
        @app.handler("mail")
        async def send(n: int) -> None: ...

        await app.enqueue_many("mail", range(count))
        await app.run(until_idle=True)

    with_app(tmp_path, done)
    return count


def interrupted(monkeypatch: pytest.MonkeyPatch, signals: Signals, times: int) -> None:
    """Ctrl-C while a batch is on its way; with a second one it never ends by itself."""
    prune, heard = Redrive.prune, asyncio.Event()

    def hear(text: str) -> None:
        say(text)
        heard.set()

    async def prune_and_interrupt(app: Redrive, *args: str, **named: Any) -> tuple[Tombstone, ...]:
        gone = await prune(app, *args, **named)
        signals.send(signal.SIGINT)
        await heard.wait()
        if times > 1:
            signals.send(signal.SIGINT)
            await asyncio.Event().wait()
        return gone

    monkeypatch.setattr(Redrive, "prune", prune_and_interrupt)
    monkeypatch.setattr("redrive.cli.interrupts.say", hear)


PRUNE = ["queue", "prune", "mail", "--reason", "x", "--yes"]


@on_sqlite
def test_an_interrupt_ends_a_clean_up_after_its_batch(
    resolved: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, signals: Signals
) -> None:
    with monkeypatch.context() as patched:
        interrupted(patched, signals, 1)
        told = here(capsys, *PRUNE)
    assert (told.code, told.out) == (Exit.INTERRUPTED, "")
    assert told.err.splitlines() == [
        "stopping after what is on its way; once more stops at once",
        "removed 2",
        "interrupted: 1 were not reached; say it again to go on",
    ]
    assert here(capsys, "audit", "verify").code == Exit.DONE
    again = here(capsys, *PRUNE)
    assert (again.code, again.err) == (Exit.DONE, f"removed {resolved - 2}\n")


@on_sqlite
@pytest.mark.usefixtures("resolved")
def test_a_second_interrupt_ends_a_clean_up_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, signals: Signals
) -> None:
    interrupted(monkeypatch, signals, 2)
    told = here(capsys, *PRUNE)
    assert (told.code, told.out) == (Exit.INTERRUPTED, "")
    assert told.err.splitlines() == [
        "stopping after what is on its way; once more stops at once",
        "removed 0, and perhaps what was on its way",
        "redrive: interrupted",
    ]


@on_sqlite
@pytest.mark.parametrize("words", [["item", "list"], ["letters", "export", "-"], ["-h"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_error(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    letters_in(tmp_path, "one", "two")
    read, write = os.pipe()
    os.close(read)
    unread = open(write, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - closing it fails, as the reader is gone
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", unread)
        told = here(capsys, *words)
    assert (told.code, told.err) == (Exit.UNREAD, "")
    with suppress(BrokenPipeError):
        unread.close()


@on_sqlite
def test_what_is_done_is_done_although_the_reader_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm_python: WarmPython
) -> None:
    (one,) = letters_in(tmp_path, "one")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as unread, Path(os.devnull).open() as nothing, TemporaryFile("w+") as err:
        streams = [nothing.fileno(), unread.fileno(), err.fileno()]
        archive = (REDRIVE, "letters", "archive", one, "--reason", "x")
        warm_python.start(archive, cwd=tmp_path, env=environment(), streams=streams)
        assert warm_python.wait() == Exit.UNREAD
        err.seek(0)
        assert err.read() == ""
    assert one in here(capsys, "letters", "list", "--where", "disposition:archived", "-q").out
