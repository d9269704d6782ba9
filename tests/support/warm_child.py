"""The process of `warm_python`, run as a script: it imports redrive and pytest, and forks a child per request."""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

LIMIT = 1 << 18
"""Bytes of one request."""
REDRIVE = "redrive"
"""The installed command, as a program; any other program is the path of a script, or `PYTEST`."""
PYTEST = "pytest"
"""As `python -m pytest`, with what every run of it imports."""
IMPORTED = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
"""The warning that its run would otherwise show for what is imported already."""


def serve(channel: socket.socket) -> list[str]:
    """Fork a child per request until the tests' side is gone. Returns in a child, with its arguments."""
    while True:
        request, streams, _, _ = socket.recv_fds(channel, LIMIT, 3)
        if not request:
            sys.exit()
        child = os.fork()
        if child == 0:
            channel.close()
            program, folder, environment = json.loads(request)
            return become(program, folder, environment, streams)
        for stream in streams:
            os.close(stream)
        with suppress(BrokenPipeError):
            channel.send(str(child).encode())
            _, status = os.waitpid(child, 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())


def become(program: list[str], folder: str, environment: Mapping[str, str], streams: Sequence[int]) -> list[str]:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - open as long as the process lives
    buffered = not os.environ.get("PYTHONUNBUFFERED")
    sys.stdout = open(1, "w", closefd=False, buffering=1 if os.isatty(1) or not buffered else -1)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")  # noqa: SIM115
    return program


def import_all(package: ModuleType) -> None:
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        # The kit for tests is no part of a program, and pytest rewrites the assertions in it.
        if module.name == "redrive.testing" or module.name.endswith("__main__"):
            continue
        with suppress(ImportError):  # of a package that is not installed
            imported = importlib.import_module(module.name)
            if module.ispkg:
                import_all(imported)


def main() -> None:
    import _pytest

    import redrive

    import_all(redrive)
    import_all(_pytest)
    importlib.import_module("pytest_asyncio.plugin")
    gc.freeze()  # else each child would walk through all of this, and copy it, when it ends
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        program, *arguments = serve(channel)
    sys.argv = [program, *arguments]
    if program == REDRIVE:
        from redrive.cli import main as command_line

        command_line()
    elif program == PYTEST:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(PYTEST, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(program).resolve().parent))
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
