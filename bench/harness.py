"""What every measurement needs: the load, children that cannot outlive us, fresh database files, machine facts."""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redrive.stores.sqlite.binding import choose

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
QUEUE = "bench"
PAYLOAD = {"user_id": 123456, "kind": "invoice.created", "body": "x" * 110, "tags": ["a", "b", "c"], "amount": 1299}
"""About 200 bytes of JSON."""
ANSWER = 180.0
"""Seconds that a child may take for a measurement."""


class CannotMeasure(Exception):
    """A worker died, stalled, or did not do the work; there is no figure."""


class Child:
    """One process of `bench.worker` that speaks JSON lines on stdout. Ended by its own pid only."""

    def __init__(self, role: str, scratch: Path, config: Mapping[str, Any]) -> None:
        self.role = role
        self._log = (scratch / f"{role}.stderr").open("w+b")
        environ = dict(os.environ, BENCH_PARENT=str(os.getpid()))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.worker", role, json.dumps(config)],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
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
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()

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


def remove(path: Path) -> Path:
    for suffix in ("", "-wal", "-shm", "-ballast"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return path


def copy(template: Path, path: Path) -> Path:
    """A fresh database with the template's rows, wholly on the disk before anything is measured."""
    db = sqlite3.connect(template)
    db.execute("pragma wal_checkpoint(truncate)")
    db.close()
    shutil.copyfile(template, remove(path))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path


def cpu_seconds(pid: int) -> dict[int, float]:
    """CPU time of each living thread of a process, by thread id."""
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            continue
    return times


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
    binding = choose("auto", str(folder))
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "sqlite": f"{binding.version} ({binding.name})",
        "system": platform.platform(),
        "file_system": file_system(folder),
        "fsync_per_s": round(fsync_rate(folder)),
    }
