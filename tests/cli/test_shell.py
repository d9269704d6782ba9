"""The command line as a shell sees it: exit codes of real processes, questions on a real terminal, keys and signals."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from redrive import Redrive
from redrive.cli.exits import Exit
from redrive.cli.output import say
from redrive.core.verbs import Tombstone
from tests.support.bound import with_app
from tests.support.cli import COMMAND, PATIENCE, environment, here, letters_in, on_sqlite, piped

pytestmark = pytest.mark.usefixtures("on_store")


# -- exit codes in a script --------------------------------------------------------------------------------------------

SCRIPT = """
redrive() { "$PYTHON" -m redrive "$@" >out 2>err </dev/null; echo "$? $(wc -l <out) $*"; }
redrive queue list -q
redrive item wait "$DEAD"
redrive queue lsit
redrive letters replay --where queue:mail --reason x
redrive letters replay nobody --reason x
redrive letters restore "$DEAD" --reason x
redrive queue list --store sqlite:///nowhere.db
redrive item wait "$READY" --timeout 1ms
redrive letters replay "$DEAD" "$READY" --reason x --once
redrive health
"""
CODES = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]


@pytest.mark.slow
@on_sqlite
def test_every_exit_code_in_a_real_shell(tmp_path: Path) -> None:
    (dead,) = letters_in(tmp_path, "no address")
    ready = piped("queue", "push", "mail", "1", cwd=tmp_path).stdout.strip()
    told = subprocess.run(
        ["bash", "-c", SCRIPT],
        cwd=tmp_path,
        env=environment(PYTHON=COMMAND[0], DEAD=dead, READY=ready),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    lines = [line.split(maxsplit=2) for line in told.stdout.splitlines()]
    assert [(int(code), command) for code, _, command in lines] == list(
        zip(CODES, [command for _, _, command in lines], strict=True)
    )
    printed = {command: int(count) for _, count, command in lines}
    # stdout is data: only what has any printed it.
    assert [command for command, count in printed.items() if count] == [
        "queue list -q",
        f"letters replay {dead} {ready} --reason x --once",
        "health",
    ]
    assert not (tmp_path / "nowhere.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize("on_store", ["postgres", "redis"], indirect=True)
def test_from_push_to_replay_on_a_server(tmp_path: Path) -> None:
    """Smoke, in processes of their own: what the shell adds does not depend on the engine."""
    (dead,) = letters_in(tmp_path, "no address")
    pushed = piped("queue", "push", "mail", '{"item_id": "0"}', cwd=tmp_path)
    assert (pushed.returncode, pushed.stderr) == (Exit.DONE, "")
    assert piped("queue", "list", "--fields", "queue,ready,dead", cwd=tmp_path).stdout == "mail\t1\t1\n"
    assert "no_worker" in piped("health", cwd=tmp_path).stdout
    sent = piped("letters", "replay", "-", "--reason", "mended", cwd=tmp_path, text=f"{dead}\n")
    assert (sent.returncode, sent.stdout) == (Exit.DONE, f"{dead}\n")


# -- questions ---------------------------------------------------------------------------------------------------------


@contextmanager
def typing(keys: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real terminal as stdin, at which somebody has typed."""
    keyboard, terminal = pty.openpty()
    os.write(keyboard, keys.encode())
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        try:
            yield
        finally:
            os.close(keyboard)


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


@pytest.mark.slow
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


@pytest.mark.slow
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


class Terminal:
    """A command on a terminal, its output read until it shows something."""

    def __init__(self, *args: str, cwd: Path) -> None:
        pid, self._screen = pty.fork()
        if pid == 0:  # pragma: no cover - the child becomes the command
            try:
                os.chdir(cwd)
                os.execve(COMMAND[0], [*COMMAND, *args], environment(COLUMNS="100"))  # noqa: S606 - as above
            finally:
                os._exit(99)
        self.pid = pid
        self.seen = ""

    def until(self, text: str) -> None:
        ends = time.monotonic() + PATIENCE
        while text not in self.seen:
            assert time.monotonic() < ends, self.seen
            if select.select([self._screen], [], [], 1)[0]:
                self.seen += os.read(self._screen, 65536).decode()

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def end(self) -> int:
        """Its exit code; what it still says is read."""
        ends = time.monotonic() + PATIENCE
        try:
            while time.monotonic() < ends:
                try:
                    self.seen += os.read(self._screen, 65536).decode()
                except OSError:
                    break
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        finally:
            os.close(self._screen)


@pytest.mark.slow
@on_sqlite
def test_a_live_view_is_redrawn_until_somebody_leaves(tmp_path: Path) -> None:
    letters_in(tmp_path, "no \x1b[2J address")
    top = Terminal("top", "--every", "100ms", cwd=tmp_path)
    top.until("q leaves")
    top.until("no live workers")
    top.type("xq")
    assert top.end() == Exit.DONE
    assert top.seen.endswith("\x1b[?1049l")  # what was on the screen before is there again
    assert "no \\x1b[2J address" in top.seen
    watch = Terminal("queue", "list", "--watch=200ms", cwd=tmp_path)
    watch.until("QUEUE")
    piped("queue", "push", "mail", "1", cwd=tmp_path)
    watch.until("NO WORKER")
    watch.type("\x03")
    assert watch.end() == Exit.INTERRUPTED
    assert "Traceback" not in watch.seen


@pytest.mark.slow
@on_sqlite
def test_a_watch_in_a_pipe_streams_until_it_is_interrupted(tmp_path: Path) -> None:
    letters_in(tmp_path, "no address")
    args = ["queue", "list", "--watch=200ms", "--jsonl"]
    with subprocess.Popen(
        [*COMMAND, *args],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["dead"] for _ in range(2)] == [1, 1]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (Exit.INTERRUPTED, "")


@pytest.fixture
def resolved(tmp_path: Path) -> int:
    """So many done items, a bite and one more."""
    count = 1001

    async def many(app: Redrive) -> None:
        @app.handler("mail", concurrency=500)
        async def send(n: int) -> None: ...

        await app.enqueue_many("mail", range(count))
        await app.run(until_idle=True)

    with_app(tmp_path, many)
    return count


def interrupted(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Ctrl-C while a bite is on its way; with a second one it never ends by itself."""
    prune, heard = Redrive.prune, asyncio.Event()

    def hear(text: str) -> None:
        say(text)
        heard.set()

    async def prune_and_interrupt(app: Redrive, *args: str, **named: Any) -> tuple[Tombstone, ...]:
        gone = await prune(app, *args, **named)
        os.kill(os.getpid(), signal.SIGINT)
        await heard.wait()
        if times > 1:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return gone

    monkeypatch.setattr(Redrive, "prune", prune_and_interrupt)
    monkeypatch.setattr("redrive.cli.interrupts.say", hear)


PRUNE = ["queue", "prune", "mail", "--reason", "x", "--yes"]


@pytest.mark.slow
@on_sqlite
def test_an_interrupt_ends_a_clean_up_after_its_bite(
    resolved: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        interrupted(patched, 1)
        told = here(capsys, *PRUNE)
    assert (told.code, told.out) == (Exit.INTERRUPTED, "")
    assert told.err.splitlines() == [
        "stopping after what is on its way; once more stops at once",
        "removed 1,000",
        "interrupted: 1 were not reached; say it again to go on",
    ]
    assert here(capsys, "audit", "verify").code == Exit.DONE
    again = here(capsys, *PRUNE)
    assert (again.code, again.err) == (Exit.DONE, f"removed {resolved - 1000}\n")


@on_sqlite
@pytest.mark.usefixtures("resolved")
def test_a_second_interrupt_ends_a_clean_up_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(monkeypatch, 2)
    told = here(capsys, *PRUNE)
    assert (told.code, told.out) == (Exit.INTERRUPTED, "")
    assert told.err.splitlines() == [
        "stopping after what is on its way; once more stops at once",
        "removed 0, and perhaps what was on its way",
        "redrive: interrupted",
    ]


@pytest.mark.slow
@on_sqlite
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, _ = letters_in(tmp_path, "one", "two")
    for words in (["item", "list"], ["letters", "export", "-"], ["-h"], ["letters", "archive", one, "--reason", "x"]):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write) as unread:
            ended = subprocess.run(
                [*COMMAND, *words],
                cwd=tmp_path,
                env=environment(),
                stdout=unread,
                stderr=subprocess.PIPE,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        assert ended.returncode == Exit.UNREAD, ended
        assert "redrive:" not in ended.stderr
        assert "Traceback" not in ended.stderr
    assert one in here(capsys, "letters", "list", "--where", "disposition:archived", "-q").out  # done all the same
