"""What is wrong with the disk at the moment, and what is about to go wrong."""

from __future__ import annotations

import errno


class Refused(OSError):
    """An answer of the file system that is an error number."""

    def __init__(self, number: int) -> None:
        super().__init__(number, errno.errorcode[number])
        self.number = number


class Calls:
    """Of one kind: how many there were, and which of them fail."""

    def __init__(self) -> None:
        self.count = 0
        self.failed = 0
        self._failing: set[int] = set()

    def fail(self, numbers: list[int]) -> None:
        """The n-th from now; an empty list: no more failures."""
        self._failing = {self.count + number for number in numbers}

    def fails(self) -> bool:
        self.count += 1
        fails = self.count in self._failing
        self.failed += fails
        return fails


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
        self.syncs = Calls()
        self.writes = Calls()
        self.changes = 0
        self.no_room = 0
        """Writes that found the disk full."""
        self._off_at: int | None = None

    def power_off_after(self, changes: int) -> None:
        """The power goes with the n-th change from now."""
        self._off_at = self.changes + changes

    def change(self, *, writes: bool = True) -> bool:
        """Before each change. True: the power goes in the middle of it."""
        if self.off:
            raise Refused(errno.EIO)
        if writes and self.read_only:
            raise Refused(errno.EROFS)
        self.changes += 1
        self.off = self.changes == self._off_at
        return self.off
