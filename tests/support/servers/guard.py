"""A small process that runs one server for as long as another process lives, and then ends it.

Tests die in many ways, and SIGKILL leaves no time to tidy up: so somebody else has to. The guard is told whose life to
watch; when that ends, it stops its server, or removes its folder, whichever it was given. Should a guard itself be
killed, the kernel stops its server.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.servers import processes

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 8.0
"""Longer than the 5 s after which a PostgreSQL that was told to quit kills its own children."""

_guards: list[subprocess.Popen[bytes]] = []
"""Those that run: a Popen that is collected before its process ends complains."""


@dataclass(frozen=True)
class Order:
    life: int
    """The process whose end is the end of everything."""
    command: tuple[str, ...] = ()
    log: str = os.devnull
    user: int | None = None
    group: int | None = None
    stop: int = signal.SIGTERM
    remove: str = ""


def launch(order: Order) -> tuple[subprocess.Popen[bytes], int]:
    """The guard, in a process group of its own, and the id of its server (0 without one)."""
    # -S and -E: no site-packages and no PYTHON variables, which a guard does not need and which take their time.
    command = [sys.executable, "-S", "-E", "-m", __name__, json.dumps(asdict(order))]
    with Path(order.log).open("ab") as log:
        # Not our stderr: whoever reads it to the end would wait for the guard as well.
        guard = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    _guards[:] = [guard, *(each for each in _guards if each.poll() is None)]
    assert guard.stdout is not None
    with guard.stdout as told:
        pid = told.readline()
    if not pid:
        raise RuntimeError(f"no guard for {order.command[:1] or order.remove}: it exited with {guard.wait()}")
    return guard, int(pid)


@atexit.register
def _let_go() -> None:
    """A guard outlives the process that started it: its Popen must not warn of that."""
    for guard in _guards:
        if guard.poll() is None:
            guard.returncode = 0


def main() -> int:
    given = json.loads(sys.argv[1])
    order = Order(**{**given, "command": tuple(given["command"])})
    try:
        life = os.pidfd_open(order.life)
    except ProcessLookupError:
        _remove(order.remove)
        return 1
    server = _start(order) if order.command else None
    _tell(server.pid if server else 0)
    watched = [life] if server is None else [life, os.pidfd_open(server.pid)]
    ended, _, _ = select.select(watched, [], [])
    if server is not None:
        if life in ended:
            _end(server, signal.Signals(order.stop))
        server.wait()
    if life in ended:
        _remove(order.remove)
    return 0


def _start(order: Order) -> subprocess.Popen[bytes]:
    guard, stop = os.getpid(), signal.Signals(order.stop)
    with Path(order.log).open("ab") as log:
        return subprocess.Popen(
            order.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=order.user,
            group=order.group,
            extra_groups=None if order.user is None else [],
            cwd="/",
            start_new_session=True,
            # After the change of user, which would undo it. The guard has one thread, so a fork is harmless.
            preexec_fn=lambda: processes.die_with(guard, stop),  # noqa: PLW1509 - see above
        )


def _tell(pid: int) -> None:
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()
    # Nobody waits for the end of this stream, and a reader of ours may be gone long before us.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(server: subprocess.Popen[bytes], by: signal.Signals) -> None:
    """Kindly at first, even to a server that was paused."""
    server.send_signal(by)
    processes.thaw(server.pid)
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        processes.annihilate(server.pid)


def _remove(folder: str) -> None:
    """Until it is gone: servers of the same run may be writing their last in it."""
    deadline = time.monotonic() + 2 * PATIENCE
    while folder and Path(folder).exists() and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)  # noqa: TID251 - other processes need real time to end


if __name__ == "__main__":
    sys.exit(main())
