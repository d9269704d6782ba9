"""The content of one file, twice: as processes see it, and as the disk holds it for certain.

Between two syncs a page of the file may reach the disk in any of the versions it has had, or not at all, and the size
may be any it has had. After a sync that failed the kernel takes the pages for clean, as Linux does: the next sync
reports success without them, and they stay in doubt until they are written again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PAGE = 4096
SECTOR = 512
VERSIONS = 4
"""Versions of a page that are remembered: enough to be nasty, and bounded."""


@dataclass(frozen=True)
class Fate:
    """How a power cut goes: how likely what was not synced is there nevertheless, and whether pages may be torn."""

    kept: float
    torn: bool

    @classmethod
    def drawn(cls, luck: random.Random) -> Fate:
        return cls(luck.choice((0.0, 0.1, 0.5, 0.9, 1.0)), luck.random() < 0.5)


class Pages:
    def __init__(self, content: bytes = b"") -> None:
        self.seen = bytearray(content)
        self._sure = bytearray(content)
        self._sizes: list[int] = []
        self._versions: dict[int, list[bytes]] = {}
        self._dirty: set[int] = set()
        self.held = set(range(-(-len(content) // PAGE)))

    def __len__(self) -> int:
        return len(self.seen)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self.seen[offset : offset + size])

    def fits(self, offset: int, size: int, free: int) -> int:
        """How many of these bytes can be written if only so many pages are free."""
        for page in range(offset // PAGE, -(-(offset + size) // PAGE)):
            if page not in self.held:
                if free == 0:
                    return max(0, page * PAGE - offset)
                free -= 1
        return size

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self.grow(offset)
        self.seen[offset:end] = data
        touched = range(offset // PAGE, -(-end // PAGE))
        self.held.update(touched)
        self._changed(touched)

    def grow(self, size: int) -> None:
        """Zeros up to there, that take no room."""
        if size > len(self.seen):
            self.seen.extend(bytes(size - len(self.seen)))
            self._changed(())

    def truncate(self, size: int) -> None:
        if size >= len(self.seen):
            self.grow(size)
            return
        cut = range(size // PAGE, -(-len(self.seen) // PAGE))
        del self.seen[size:]
        self.held.difference_update(range(-(-size // PAGE), cut.stop))
        self._changed(cut)

    def reserve(self, offset: int, size: int) -> None:
        """Room without content, as fallocate gives it."""
        self.grow(offset + size)
        self.held.update(range(offset // PAGE, -(-(offset + size) // PAGE)))

    def _changed(self, pages: range | tuple[()]) -> None:
        if not self._sizes or self._sizes[-1] != len(self.seen):
            self._sizes.append(len(self.seen))
        for page in pages:
            versions = self._versions.setdefault(page, [])
            versions.append(bytes(self.seen[page * PAGE : (page + 1) * PAGE]).ljust(PAGE, b"\0"))
            del versions[:-VERSIONS]
            self._dirty.add(page)

    def sync(self) -> None:
        """From here on it is certain; except for what an earlier sync failed to write."""
        size = len(self.seen)
        _resize(self._sure, size)
        for page in self._dirty:
            self._versions.pop(page, None)
            # May lie beyond the end: then there is nothing to copy.
            start, end = page * PAGE, min((page + 1) * PAGE, size)
            if start < end:
                self._sure[start:end] = self.seen[start:end]
        self._dirty.clear()
        self._sizes.clear()

    def fail_sync(self) -> None:
        self._dirty.clear()

    def after_cut(self, luck: random.Random, fate: Fate) -> bytes:
        """What the disk may hold when the power is back."""
        found = bytearray(self._sure)
        if self._sizes and luck.random() < fate.kept:
            _resize(found, self._sizes[-1] if fate.kept == 1.0 else luck.choice(self._sizes))
        for page, versions in sorted(self._versions.items()):
            start = page * PAGE
            if start >= len(found) or luck.random() >= fate.kept:
                continue
            chosen = versions[-1] if fate.kept == 1.0 else luck.choice(versions)
            if fate.torn and luck.random() < 0.3:
                before = bytes(found[start : start + PAGE]).ljust(PAGE, b"\0")
                chosen = _torn(luck, before, chosen)
            found[start : start + PAGE] = chosen[: len(found) - start]
        return bytes(found)


def _torn(luck: random.Random, before: bytes, after: bytes) -> bytes:
    sides = (before, after)
    return b"".join(luck.choice(sides)[start : start + SECTOR] for start in range(0, PAGE, SECTOR))


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
