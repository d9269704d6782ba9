"""The real command line in real processes: piped, on a terminal, and as a worker that is signalled."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

import pytest

from redrive import Policy, Redrive, never
from redrive import cli as command_line
from tests.support.servers import processes
from tests.support.stores import EACH, StoreUrl
from tests.support.templates import prepared

PATIENCE = 120
"""Seconds. Only a failing test waits so long; the machine may be busy."""
COMMAND = (sys.executable, "-m", "redrive")


on_sqlite = pytest.mark.parametrize("on_store", ["sqlite"], indirect=True)
"""For what is about the file, or would only show once more that the stores are alike."""


@pytest.fixture(params=[kind for kind in EACH if kind != "memory"])
def on_store(
    request: pytest.FixtureRequest, tmp_path: Path, store_url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Commands work on a store of this kind, without being told: by REDRIVE_STORE, or by what is used without it.

    Not in memory, which ends with its process.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REDRIVE_STORE", raising=False)
    if request.param != "sqlite":
        monkeypatch.setenv("REDRIVE_STORE", store_url(request.param))
    return store_in(tmp_path)


def store_in(folder: Path, name: str = "redrive.db") -> str:
    return os.environ.get("REDRIVE_STORE") or f"sqlite:///{folder}/{name}"


def made_in(folder: Path, name: str = "redrive.db") -> str:
    """The same, with its tables in it."""
    if not os.environ.get("REDRIVE_STORE"):
        prepared(folder / name)
    return store_in(folder, name)


def environment(**more: str) -> dict[str, str]:
    """Ours without what would change the output; the store is as `on_store` has set it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("REDRIVE_", "NO_COLOR", "COLUMNS"))}
    kept |= {key: value for key, value in os.environ.items() if key == "REDRIVE_STORE"}
    return kept | {"TERM": "xterm", "PYTHONUNBUFFERED": "1"} | more


def piped(
    *args: str, cwd: Path, text: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        cwd=cwd,
        env=environment(**(env or {})),
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@dataclass
class Told:
    code: int
    out: str
    err: str = ""


def real_terminal(*args: str, cwd: Path, keys: str = "") -> Told:
    """A process on a terminal of 100 columns; `keys` are typed when it asks something."""
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child becomes the command
        try:
            os.chdir(cwd)
            os.execve(COMMAND[0], [*COMMAND, *args], environment(COLUMNS="100"))  # noqa: S606 - as above
        finally:
            os._exit(99)
    alarm = threading.Timer(PATIENCE, os.kill, (pid, signal.SIGKILL))
    alarm.start()
    out = b""
    try:
        while True:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # Linux says so when the other side is gone
                break
            if not chunk:
                break
            out += chunk
            if keys and (b"[y/N]" in out or b"Type the number" in out):
                os.write(terminal, keys.encode())
                keys = ""
        _, status = os.waitpid(pid, 0)
    finally:
        alarm.cancel()
        os.close(terminal)
    return Told(os.waitstatus_to_exitcode(status), out.decode().replace("\r\n", "\n"))


CTRL_C = "\x03"


class Screen(io.TextIOWrapper):
    """What a command writes to a terminal: stdout and stderr in their order."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        self.flush()
        return cast("io.BytesIO", self.buffer).getvalue().decode()


class Keyboard(io.TextIOWrapper):
    """The stdin of a terminal at which `keys` were typed, and then the end of input."""

    def __init__(self, keys: str) -> None:
        keyboard, terminal = pty.openpty()
        super().__init__(os.fdopen(terminal, "rb"))
        self._keyboard = keyboard
        self._keys = keys
        os.write(keyboard, f"{keys}\x04".encode())

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # the stub of the class has it twice
        if self._keys == CTRL_C:  # nobody's terminal: it would send no signal
            raise KeyboardInterrupt
        return super().readline(size)

    def close(self) -> None:
        if not self.closed:
            os.close(self._keyboard)
        super().close()


def on_terminal(*args: str, cwd: Path, keys: str = "", env: Mapping[str, str] | None = None) -> Told:
    """On a terminal of 100 columns at which `keys` were typed, without a process."""
    screen = Screen()
    with pytest.MonkeyPatch.context() as patch, Keyboard(keys) as keyboard:
        patch.chdir(cwd)
        patch.setattr(os, "environ", environment(COLUMNS="100", **(env or {})))
        for name, stream in (("stdin", keyboard), ("stdout", screen), ("stderr", screen)):
            patch.setattr(sys, name, stream)
        code = command_line.run(args)
    return Told(code, screen.shown())


class Left(BaseException):
    """Where the process would have ended at once."""


def here(capsys: pytest.CaptureFixture[str], *args: str, text: str | None = None) -> Told:
    """Without a process, where a process would add nothing. `text` comes through a pipe."""
    capsys.readouterr()
    ended: list[int] = []

    def leave(code: int) -> NoReturn:
        ended.append(code)
        raise Left

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", leave)
        if text is not None:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        try:
            code = command_line.run(args)
        except Left:
            code = ended[0]
    told = capsys.readouterr()
    return Told(code, told.out, told.err)


@dataclass
class WorkerProcess:
    """`redrive worker run …` with its lines: wait for what it says, never for time to pass."""

    process: subprocess.Popen[str]
    lines: queue.SimpleQueue[str | None]
    seen: list[str] = field(default_factory=list)
    reader: threading.Thread = field(init=False)

    @classmethod
    def start(cls, *args: str, cwd: Path) -> WorkerProcess:
        process = subprocess.Popen(
            [*COMMAND, "worker", "run", *args],
            cwd=cwd,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        return cls(process, queue.SimpleQueue())

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def until(self, text: str) -> str:
        """Read on until a line has the text."""
        while (line := self._next()) is not None:
            if text in line:
                return line
        pytest.fail(f"the worker ended without saying {text!r}:\n" + "\n".join(self.seen))

    def end(self) -> int:
        """Its exit code, after it has said everything."""
        while self._next() is not None:
            pass
        return self.process.wait(PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        children = processes.children(self.process.pid)
        self.process.kill()
        self.process.wait(PATIENCE)
        # Those of a group that had no time to end its own: as long as they have the other end, nothing can be closed.
        for child in children:
            processes.send(child, signal.SIGKILL)
        assert self.process.stdout is not None
        self.reader.join(PATIENCE)
        assert not self.reader.is_alive(), "something that the worker started still writes"
        self.process.stdout.close()

    def _next(self) -> str | None:
        try:
            line = self.lines.get(timeout=PATIENCE)
        except queue.Empty:
            pytest.fail("the worker said nothing more:\n" + "\n".join(self.seen))
        if line is not None:
            self.seen.append(line)
        return line


def letters_in(folder: Path, *texts: str, name: str = "redrive.db") -> list[str]:
    """A database with one dead letter per error text, in the queue `mail`; their ids. A few die in their order."""

    async def make() -> list[str]:
        app = Redrive(made_in(folder, name), log=False, actor="tester")

        @app.handler("mail", policy=Policy(backoff=never()), concurrency=1 if len(texts) < 100 else 500)
        async def fail(item_id: str) -> None:
            raise ValueError(texts[int(item_id)])

        async with app:
            payloads = [{"item_id": str(number)} for number in range(len(texts))]
            ids = [str(made) for made in await app.enqueue_many("mail", payloads)]
            await app.run(until_idle=True)
            return ids

    return asyncio.run(make())
