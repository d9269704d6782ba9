"""Space held in reserve beside the database, for the day on which the disk is full.

SQLite cannot even delete without space: what is deleted is written to its log first. So a file, `<database>-ballast`,
holds some. An operator's act (prune, discard, ...) that finds the disk full gets a share of it and is tried again.

Several processes share the file without a lock: to make it whole twice is as good as once, and two who cut it at the
same moment free less than both wanted, find the disk still full, and do it again.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Literal, TypeVar

from redrive.core import sizes
from redrive.core.item import Instant, Millis
from redrive.stores.clock import StoreTime
from redrive.stores.sqlite import faults
from redrive.stores.sqlite.room import free, give_to_owner, size

T = TypeVar("T")

DEFAULT = 16 * 1024 * 1024
"""Pruning a thousand items that lie scattered over a large database writes up to 13 MiB to the log."""
PLENTY = 10
"""It takes at most one part in so many of what is free, and so is smaller on a small disk."""
SMALLEST = 512 * 1024
"""Less would not be worth a file."""
WORTH = 1024 * 1024
"""A database smaller than this has none: nothing could be removed from it that would help."""
SHARES = 4
"""It is not given up at once: what one act leaves over, the next enqueue takes."""
FOR_OPENING = 256 * 1024
"""Opening needs room for the index of the log, and seldom more: it also empties the log into the database."""
LOOK_AGAIN: Millis = 10_000

BallastSize = sizes.Size | Literal["off"] | None

_NOT_OFFERED = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}
_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_CHUNK = 1024 * 1024
_log = logging.getLogger("redrive.stores.sqlite")


def parse(value: BallastSize, *, field: str = "ballast") -> int:
    """In bytes; 0 is none."""
    return 0 if value is None or value == "off" else sizes.parse(value, field=field)


class Ballast:
    """As one writer sees it; everything runs in its thread. What fails here costs nothing but the reserve."""

    def __init__(self, database: str, size: int, time: StoreTime) -> None:
        self._named = database
        self._size = size
        self._time = time
        self._look_at: Instant | None = 0 if size else None
        """When to see again whether it is whole; None: it is, as far as we know."""
        self._looked = False

    @cached_property
    def _database(self) -> str:
        """The file itself, beside which SQLite's log lies: a link to it may be on another disk."""
        return os.path.realpath(self._named)

    @property
    def _path(self) -> str:
        return f"{self._database}-ballast"

    # --- giving ---

    def opening(self, open_: Callable[[], T]) -> T:
        """What `open_` gives. Nothing can be removed from a database that cannot be opened."""
        share = FOR_OPENING
        while True:
            try:
                return open_()
            except Exception as error:
                if not faults.lacks_room(error) or not self._give(share):
                    raise
            share = self._share

    def reaches(self, lacking: int) -> bool:
        """Whether there would be so much room if all of it were given. False where nothing is lacking."""
        return 0 < lacking <= free(self._database) + size(self._path)

    def give_share(self) -> bool:
        """Free a part of it for whoever writes next. False: nothing is left."""
        return self._give(self._share)

    @property
    def _share(self) -> int:
        return -(-self._size // SHARES)

    def _give(self, share: int) -> bool:
        try:
            given = self._cut(share) if self._size else 0
        except OSError:
            given = 0
        if given:
            self._look_at = self._time.now() + LOOK_AGAIN
            _log.warning("the disk takes no more for %s: gave back %s bytes of its ballast", self._named, f"{given:,}")
        return given > 0

    def _cut(self, share: int) -> int:
        descriptor = os.open(self._path, _FLAGS)
        try:
            have = os.fstat(descriptor).st_size
            left = max(0, have - share)
            os.ftruncate(descriptor, left)
            # Many file systems have the room only when they have written down that it is free.
            with suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return have - left

    # --- making it whole ---

    def doubt(self) -> None:
        """Look at the next occasion: another process may have used it, or it may be worth it now."""
        if self._size:
            self._look_at = 0

    def tend(self) -> None:
        """Make it whole where that is worth it and there is room. May follow every write: it seldom looks."""
        if self._look_at is None:
            return
        now = self._time.now()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_AGAIN
        try:
            have = self._have()
            if have is None or have < self._size:
                wanted = self._affordable(have or 0)
                if wanted <= (have or 0):
                    return
                self._fill(wanted)
                if wanted < self._size:
                    return
        except OSError as error:
            _log.debug("no ballast for %s: %s", self._named, error)
            return
        self._look_at = None
        self._looked = True
        if have is not None and have < self._size:
            _log.info("the disk of %s has room again: its ballast is whole", self._named)

    def _have(self) -> int | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - like the others here: no object for it
        except FileNotFoundError:
            return None
        if self._looked:
            return found.st_size
        # A copy of the folder may have left holes where bytes were. Asked once only: some file systems count late.
        return min(found.st_size, found.st_blocks * 512)

    def _affordable(self, have: int) -> int:
        """How large it may be; 0 for not at all."""
        kept = size(self._database) + size(f"{self._database}-wal")
        if kept < WORTH:
            return 0
        wanted = min(self._size, (free(self._database) + have) // PLENTY)
        return wanted if wanted >= min(self._size, SMALLEST) else 0

    def _fill(self, wanted: int) -> None:
        descriptor = os.open(self._path, _FLAGS | os.O_CREAT, 0o600)
        try:
            before = os.fstat(descriptor).st_size
            with suppress(OSError):
                give_to_owner(self._path, self._database, mode=0o600)
            try:
                _allocate(descriptor, wanted)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


def _allocate(descriptor: int, length: int) -> None:
    """Really: a hole would hold nothing."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, length)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
        else:
            return
    os.lseek(descriptor, 0, os.SEEK_SET)
    done = 0
    while done < length:
        # Not zeros: a file system that compresses would keep nothing of them.
        done += os.write(descriptor, os.urandom(min(_CHUNK, length - done)))
