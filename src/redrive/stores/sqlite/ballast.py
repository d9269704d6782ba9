"""Space held in reserve beside the database, for the day on which the disk is full.

SQLite cannot even delete without space: what is deleted is written to its log first. So a file, `<database>-ballast`,
keeps some. An operator's act (prune, discard, ...) that finds the disk full gets a share of it and is tried again.

Several processes share the file without a lock: to make it whole twice is as good as once, and two who give back at the
same moment give back less than both wanted, find the disk still full, and do it again.
"""

from __future__ import annotations

import errno
import logging
import os
from functools import cached_property
from typing import Literal

from redrive.core import sizes
from redrive.core.item import Instant, Millis

DEFAULT = 16 * 1024 * 1024
"""Pruning a thousand letters that lie scattered over a large database takes up to 13 MiB of the log."""
PLENTY = 10
"""It is made, and made whole again, where so many times its size is free."""
SHARES = 4
"""Not all at once: what one act leaves over, the next enqueue takes."""
LOOK_AGAIN: Millis = 10_000

BallastSize = sizes.Size | Literal["off"] | None

_NOT_THERE = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}
_CHUNK = 1024 * 1024
_log = logging.getLogger("redrive.stores.sqlite")


def parse(value: BallastSize) -> int:
    """In bytes; 0 for none."""
    return 0 if value is None or value == "off" else sizes.parse(value, field="ballast")


class Ballast:
    """As one writer sees it; everything runs in its thread. Failing costs nothing but the reserve."""

    def __init__(self, database: str, size: int) -> None:
        self._database = database
        self._size = size
        self._look_at: Instant | None = 0
        self._known = False
        self._gave = False

    @cached_property
    def path(self) -> str:
        # Beside the file itself, as SQLite does it with its log: a link may lie on another disk.
        return f"{os.path.realpath(self._database)}-ballast"

    def tend(self, now: Instant) -> None:
        """Make it whole if it is not, there is room, and it was not tried just now. Cheap: may follow every write."""
        if self._look_at is not None and now >= self._look_at:
            self.stock(now)

    def stock(self, now: Instant) -> None:
        """Make it whole if it is not and there is room."""
        if not self._size:
            self._look_at = None
            return
        self._look_at = now + LOOK_AGAIN
        try:
            if self._have() < self._size:
                if free(self.path) < PLENTY * self._size:
                    return
                self._fill()
        except OSError as error:
            _log.debug("no ballast for %s: %s", self._database, error)
            return
        self._look_at = None
        self._known = True
        if self._gave:
            self._gave = False
            _log.warning("the disk of %s has room again: its ballast is whole", self._database)

    def give_back(self, share: int) -> int:
        """Free so many bytes for others to write, or what is left of it. 0: nothing was left."""
        if not self._size:
            return 0
        try:
            given = self._cut(share)
        except OSError:
            return 0
        if given:
            self._look_at = self._look_at or 0
            self._gave = True
            _log.warning(
                "the disk of %s is full: %s bytes of its ballast were given back, so that something can be removed",
                self._database,
                f"{given:,}",
            )
        return given

    @property
    def share(self) -> int:
        return -(-self._size // SHARES)

    def _have(self) -> int:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - runs after checkpoints: no object for it
        except FileNotFoundError:
            return 0
        if self._known:
            return found.st_size
        # A copy of the folder may have left holes where the bytes were. Asked only once: some file systems count late.
        return min(found.st_size, getattr(found, "st_blocks", found.st_size) * 512)

    def _fill(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self.path, flags, 0o600)
        try:
            _allocate(descriptor, self._size)
        except OSError:
            # Half a reserve in a place that has no room for it would only make the lack worse.
            os.ftruncate(descriptor, 0)
            raise
        finally:
            os.close(descriptor)

    def _cut(self, share: int) -> int:
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self.path, flags)
        try:
            have = os.fstat(descriptor).st_size
            left = max(0, have - share)
            os.ftruncate(descriptor, left)
            # Many file systems free what is cut only with their next commit.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return have - left


def free(path: str) -> int:
    """Bytes that the disk of this file can still take from us."""
    found = os.statvfs(os.path.dirname(path))  # noqa: PTH120 - text is enough
    return found.f_bavail * found.f_frsize


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
        else:
            return
    # Bytes that cannot be compressed or left out as a hole.
    done = 0
    while done < size:
        done += os.pwrite(descriptor, os.urandom(min(_CHUNK, size - done)), done)
