"""Which source files changed, by looking at them. No dependency, and good enough for development."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

Stamp = tuple[int, int]


class Sources:
    """The files that worker processes name, every other source beside them, and those of the current directory."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._seen = self._look()

    def add(self, files: Iterable[str]) -> None:
        """What is newly watched counts as seen as it is now."""
        more = set(files) - self._files
        if more:
            self._files |= more
            self._seen = self._look() | self._seen

    def changed(self) -> list[str]:
        """Those that are new, other or gone since the last look."""
        now, before = self._look(), self._seen
        self._seen = now
        return sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))

    def _look(self) -> dict[str, Stamp]:
        folders = {str(Path.cwd()), *(os.path.dirname(file) for file in self._files)}  # noqa: PTH120
        found: dict[str, Stamp] = {}
        for folder in folders:
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue  # gone; its files are, too
            for entry in entries:
                if entry.name.endswith(".py") or entry.path in self._files:
                    stamp = _stamp(entry)
                    if stamp is not None:
                        found[entry.path] = stamp
        return found


def _stamp(entry: os.DirEntry[str]) -> Stamp | None:
    try:
        about = entry.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
