"""What every measurement needs: children that cannot outlive us, a folder on a disk, facts about the machine."""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.child import PARENT

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
ANSWER = 180.0
"""Seconds that a child may take for a measurement."""


class CannotMeasure(Exception):
    """A worker died, stalled, or did not do the work; there is no figure."""


class Child:
    """One process of a measurement, which speaks JSON lines on stdout. Ended by its own pid only."""

    def __init__(
        self,
        role: str,
        scratch: Path,
        config: Mapping[str, Any],
        *,
        module: str = "bench.worker",
        python: str = sys.executable,
        root: Path = ROOT,
    ) -> None:
        """`root`: the checkout whose code it runs."""
        self.role = role
        path = {} if root == ROOT else {"PYTHONPATH": str(root / "src")}
        self._log = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - it lives as long as the child
        self._process = subprocess.Popen(
            [python, "-m", module, role, json.dumps(config)],
            cwd=root,
            env=dict(os.environ, **{PARENT: str(os.getpid())}, **path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.pid = self._process.pid
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()

    def go(self) -> None:
        """To a child that waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def line(self, timeout: float) -> dict[str, Any]:
        """The next line the child says."""
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        while b"\n" not in self._unread:
            ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise CannotMeasure(f"{self.role} said nothing for {timeout:.0f} s{self._tail()}")
            data = os.read(source, 1 << 16)
            if not data:
                raise CannotMeasure(f"{self.role} ended{self._tail()}")
            self._unread += data
        first, _, self._unread = self._unread.partition(b"\n")
        said = json.loads(first)
        assert isinstance(said, dict)
        return said

    def _tail(self) -> str:
        self._log.seek(0)
        text = self._log.read().decode(errors="replace").strip()
        return f":\n{text[-2000:]}" if text else ""


def ask(role: str, scratch: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Run a child for its one answer."""
    with Child(role, scratch, config) as child:
        return child.line(ANSWER)


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder for this run's databases; refuses a file system in memory, where fsync costs nothing."""
    folder = parent / f"scratch-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        if file_system(folder) in ("tmpfs", "ramfs"):
            raise CannotMeasure(f"{parent} is on {file_system(folder)}; name a folder on a disk with --dir")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cpu_seconds(pid: int) -> dict[int, float]:
    """CPU time of each living thread of a process, by thread id."""
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue
    return times


def family_cpu(pid: int) -> float:
    """CPU seconds of a process, its living children, and those that ended, by the system's clock of 10 ms."""
    ours = _stat(pid)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (sum(ours) + sum(sum(_stat(int(child))[:2]) for child in children)) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[int]:
    """User and system time: its own, then of its children that ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return [0, 0, 0, 0]
    return [int(field) for field in fields[11:15]]


def peak_memory() -> float:
    """The most this process ever had in memory, in MB. Not getrusage: that begins with the parent's before exec."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def fsync_rate(folder: Path, seconds: float = 0.3) -> float:
    """4 KiB writes with fdatasync per second: what the disk was like at this moment."""
    path = folder / "fsync.bin"
    done, start = 0, time.perf_counter()
    with path.open("wb", buffering=0) as out:
        while time.perf_counter() - start < seconds:
            out.write(b"x" * 4096)
            os.fdatasync(out.fileno())
            done += 1
    path.unlink()
    return done / (time.perf_counter() - start)


def file_system(path: Path) -> str:
    """The type of the file system that holds `path`, as the longest mount point that fits says."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, found, *_ = line.split()
        if len(mount) >= len(best) and path.resolve().is_relative_to(mount):
            best, kind = mount, found
    return kind


def machine(folder: Path) -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": platform.platform(),
        "file_system": file_system(folder),
        "fsync_per_s": round(fsync_rate(folder)),
    }
