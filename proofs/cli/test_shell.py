"""The command line in a real shell and on a real terminal: exit codes, keys, Ctrl-C, readers that go away."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from redrive.cli.exits import Exit
from tests.support.cli import COMMAND, PATIENCE, environment, here, letters_in, on_sqlite, piped, real_terminal

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


@on_sqlite
@pytest.mark.parametrize(("shell", "code"), [(">/dev/full", 1), (">&-", 1), ("2>/dev/full >/dev/full", 1), ("2>&-", 0)])
def test_output_that_cannot_be_written_has_an_exit_code(
    shell: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (one,) = letters_in(tmp_path, "a")
    ended = subprocess.run(
        ["sh", "-c", f'"$@" letters archive {one} --reason x {shell}', "sh", *COMMAND],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == code
    heard = "2>" not in shell
    said = [line.partition(" cannot be")[0] for line in ended.stderr.splitlines()]
    assert said == ["redrive: archived 1, but stdout"] * heard
    assert one in here(capsys, "letters", "list", "--where", "disposition:archived", "-q").out


# -- questions ---------------------------------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    ("keys", "code", "left"),
    [("y\n", Exit.DONE, 0), ("\n", Exit.REFUSED, 2), ("\x04", Exit.REFUSED, 2), ("\x03", Exit.INTERRUPTED, 2)],
)
def test_a_terminal_is_asked(
    keys: str, code: int, left: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    letters_in(tmp_path, "first \x1b[2J", "second")
    told = real_terminal("letters", "replay", "--where", "queue:mail", "--reason", "x", cwd=tmp_path, keys=keys)
    assert told.code == code
    assert "Send 2 letters again? [y/N]" in told.out
    assert "Traceback" not in told.out
    assert "\x1b[2J" not in told.out
    assert len(here(capsys, "letters", "list", "-q").out.split()) == left


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


INTERRUPTED_BACKUP = """
import os, signal, sys, threading
from redrive.cli import main
from redrive.stores.sqlite import backup

backup.PAGES = 1
copy, create = backup._copy, backup._create

def copying(source, settings, half, stopped):
    global heard
    heard = stopped
    copy(source, settings, half, stopped)

def interrupted(*args, **options):
    create(*args, **options)
    os.kill(os.getpid(), signal.SIGINT)
    # Another thread hears it, and may be slow to.
    for _ in range(3000):
        if heard():
            break
        threading.Event().wait(0.01)

backup._copy = copying
backup._create = interrupted
sys.argv = ["redrive", "db", "backup", "copy.db"]
main()
"""


@on_sqlite
def test_an_interrupted_backup_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while the pages are copied."""
    letters_in(tmp_path, "no address")
    told = subprocess.run(
        [COMMAND[0], "-c", INTERRUPTED_BACKUP],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert told.returncode in (Exit.INTERRUPTED, -signal.SIGINT)
    assert "Traceback" not in told.stderr
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["redrive.db"]
