"""How tests use the disk: everything that touches it is a process of its own, in a mount namespace of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.disk import kernel
from tests.support.disk.disk import Disk
from tests.support.disk.troubles import MEMORY
from tests.support.rig.fleet import ROOT, environment

PROBE_LIMIT = 30.0
NOT_RUN = "not run: "


def drive(module: str, *args: object, limit: float) -> list[dict[str, Any]]:
    """Run a module of this package; what it printed. It ends with us, and takes what it mounted along."""
    command = [sys.executable, "-m", f"tests.support.disk.{module}", *map(str, args)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{module} {args} did not end within {limit} s: {late.stdout!r} {late.stderr!r}") from late
    if done.returncode and NOT_RUN in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, f"{module} {args}: {done.stdout}{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


@cache
def available(kind: str = "disk") -> str | None:
    """Why this machine cannot run it, or None. `disk`: our own; `memory`: a small one in memory."""
    if not kernel.LINUX:
        return f"{NOT_RUN}{sys.platform} has neither FUSE as we speak it nor mount namespaces"
    command = [sys.executable, "-m", "tests.support.disk.drive", kind]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PROBE_LIMIT, check=False
    )
    if done.returncode == 0:
        return None
    return f"{NOT_RUN}{(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"


def needs(kind: str) -> None:
    """Skip the test, and say so, where it cannot be run."""
    reason = available(kind)
    if reason is not None:
        pytest.skip(reason)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="redrive-") as name:
        yield Path(name)


def probe(kind: str) -> None:
    """Raises what stands in the way."""
    kernel.private_mounts()
    with _folder() as folder:
        place = folder / "place"
        place.mkdir()
        if kind == "memory":
            kernel.mount_memory(place, MEMORY)
            (place / "file").write_bytes(b"works")
            kernel.unmount(place)
            return
        with Disk(place) as disk:
            (place / "file").write_bytes(b"works")
            disk.cut(0, folder / "image")


if __name__ == "__main__":
    try:
        probe(sys.argv[1])
    except OSError as error:
        raise SystemExit(str(error)) from error
