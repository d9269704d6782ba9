"""Runs the `$ …` lines of a console block on a terminal and compares what they print with what the page shows.

Numbers, times, ids and names of workers differ from run to run: they count as `#`, and any run of blanks as one. A
line `…` in the page stands for any number of lines.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from tests.docs.addresses import Addresses
from tests.docs.pages import ROOT, Block
from tests.support.warm_child import IMPORTED, PYTEST, REDRIVE
from tests.support.warm_python import WarmPython

ANYTHING = "…"
CHANGES = re.compile(r"\d|^[a-z]{8}$|[a-z]{24}|@run-[a-z]{12}$|^\((stdlib|apsw)\)$|^(power-loss|process-crash),?$")
"""A number, or an id that happens to have none (a word of eight letters is taken for one, on both sides), or which
SQLite library is installed here, or what the disk of the tests' folders survives.
"""
PYTHON = "python"
FILE_TOOLS = ("cp", "mv", "rm")
NOT_THE_READERS = ("valkey", "randomly", "xdist", "xdist.looponfail", "timeout", "platformdirs", "hypothesispytest")
"""Plugins of pytest that only we have. Their imports would take longer than a page's tests."""


@dataclass(frozen=True)
class Command:
    line: int
    words: tuple[str, ...]
    shown: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for word in self._leading())

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.words[len(self._leading()) :]

    def _leading(self) -> list[str]:
        leading: list[str] = []
        for word in self.words:
            if not word.partition("=")[0].isidentifier() or "=" not in word:
                break
            leading.append(word)
        return leading


def commands(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        words = tuple(shlex.split(lines[start].removeprefix("$ ")))
        yield Command(block.line + start, words, tuple(lines[start + 1 : end]))


class Shell:
    def __init__(self, folder: Path, addresses: Addresses, warm: WarmPython) -> None:
        self._folder = folder
        self._addresses = addresses
        self._warm = warm
        self._status = 0

    def run(self, block: Block) -> None:
        found = list(commands(block))
        for number, command in enumerate(found):
            where = f"{block.page.name}:{command.line}: {shlex.join(command.words)}"
            if command.words == ("echo", "$?"):
                assert [str(self._status)] == [line for line in command.shown if line], where
                continue
            printed = self._start(command)
            asked = number + 1 < len(found) and found[number + 1].words == ("echo", "$?")
            assert asked or self._status == 0, f"{where} exits with {self._status}:\n{printed}"
            assert alike(command.shown, printed.splitlines()), f"{where} prints\n{printed}"

    def _start(self, command: Command) -> str:
        program, *rest = map(self._addresses.real, command.arguments)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE")}
        environment |= {
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "300",  # nothing is cut, whatever the widths of this run
            "NO_COLOR": "1",
            "LOGNAME": "ada",
            "PYTEST_ADDOPTS": shlex.join(["-W", IMPORTED, *(f"-pno:{plugin}" for plugin in NOT_THE_READERS)]),
            **{name: self._addresses.real(value) for name, value in command.environment.items()},
        }
        terminal, end = pty.openpty()
        with os.fdopen(terminal, "rb", buffering=0) as printed, os.fdopen(end, "wb") as output:
            if program == PYTHON and rest[0] == "-m":
                assert rest[1] == PYTEST, f"{rest[1]} is not a module that documents may run"
                wait = self._warm_start(rest[1:], environment, end)
            elif program in (PYTHON, REDRIVE):
                wait = self._warm_start([program, *rest] if program == REDRIVE else rest, environment, end)
            else:
                wait = self._file_tool([program, *rest], environment, end)
            output.close()
            text = _read(printed)
        status = wait()
        self._status = status if status >= 0 else 128 - status
        return text

    def _warm_start(self, program: list[str], environment: dict[str, str], end: int) -> Callable[[], int]:
        with Path(os.devnull).open() as nothing:
            self._warm.start(program, cwd=self._folder, env=environment, streams=[nothing.fileno(), end, end])
        return self._warm.wait

    def _file_tool(self, command: list[str], environment: dict[str, str], end: int) -> Callable[[], int]:
        assert command[0] in FILE_TOOLS, f"{command[0]} is not a command that documents may run"
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=self._folder, env=environment, stdin=nothing, stdout=end, stderr=end)
        return process.wait


def _read(terminal: FileIO) -> str:
    """Until the command has let go of its terminal, which Linux reports as an error."""
    chunks: list[bytes] = []
    while True:
        try:
            chunk = terminal.read(65536)
        except OSError:
            chunk = b""
        if not chunk:
            return b"".join(chunks).decode()
        chunks.append(chunk)


def alike(shown: Sequence[str], printed: Sequence[str]) -> bool:
    wanted = [plain(line) for line in shown if line.strip()]
    actual = [plain(line) for line in printed if line.strip()]
    return _alike(wanted, actual)


def _alike(wanted: Sequence[str], actual: Sequence[str]) -> bool:
    if not wanted:
        return not actual
    if wanted[0] == ANYTHING:
        return any(_alike(wanted[1:], actual[skipped:]) for skipped in range(len(actual) + 1))
    return bool(actual) and wanted[0] == actual[0] and _alike(wanted[1:], actual[1:])


def plain(line: str) -> str:
    return " ".join("#" if CHANGES.search(word) else word for word in line.split())
