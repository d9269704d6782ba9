"""Append-only record files. One file per process, one `write` per line: a kill leaves whole lines, or a stump."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tests.support.rig.records import Record

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


Write = Callable[[Record], None]
"""Takes one record. A log of this process is one."""


def now_ns() -> int:
    return time.monotonic_ns()


class Log:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def __call__(self, record: Record) -> None:
        line = _encoder.encode(record) + b"\n"
        if os.write(self._fd, line) != len(line):
            raise OSError("a record was written in part: nothing this run says can be trusted")

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class Tail:
    """Reads a growing file record by record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[Record]:
        """Records whose line is complete and that were not given before."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            yield _decoder.decode(line)


class TornLog(Exception):
    pass


def read(path: Path) -> list[Record]:
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        raise TornLog(f"{path} ends in the middle of a line")
    return [_decoder.decode(line) for line in data.splitlines()]


def read_all(folder: Path) -> list[Record]:
    """Every record of the folder, in the order of their times."""
    records = [record for path in sorted(folder.glob("*.log")) for record in read(path)]
    return sorted(records, key=lambda record: record.ns)
