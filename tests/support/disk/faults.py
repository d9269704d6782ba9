"""What is wrong with the disk at the moment, and what is about to go wrong."""

from __future__ import annotations

import errno


class Refused(OSError):
    """An answer of the file system that is an error number."""

    def __init__(self, number: int) -> None:
        super().__init__(number, errno.errorcode[number])
        self.number = number


class Faults:
    def __init__(self) -> None:
        self.off = False
        self.read_only = False
        self.lies = False
        """Syncs report success and do nothing."""
        self.limit: int | None = None
        """Pages that may be held in all; None: as many as you like."""
        self.full_for = ""
        """Only files whose name ends like this find the disk full."""
        self.syncs = 0
        self.failed_syncs = 0
        self.changes = 0
        self._failing: set[int] = set()
        self._off_at: int | None = None

    def power_off_after(self, changes: int) -> None:
        """The power goes with the n-th change from now."""
        self._off_at = self.changes + changes

    def fail_syncs(self, numbers: list[int]) -> None:
        """The n-th syncs from now; an empty list: no more failures."""
        self._failing = {self.syncs + number for number in numbers}

    def change(self, *, writes: bool = True) -> bool:
        """Before each change. True: the power goes in the middle of it."""
        if self.off:
            raise Refused(errno.EIO)
        if writes and self.read_only:
            raise Refused(errno.EROFS)
        self.changes += 1
        self.off = self.changes == self._off_at
        return self.off

    def sync(self) -> bool:
        """Before each sync. True: it succeeds."""
        if self.change(writes=False):
            return False
        self.syncs += 1
        fails = self.syncs in self._failing
        self.failed_syncs += fails
        return not fails
