"""The file system without the kernel: nodes, names, faults, and what a power cut leaves.

Names follow the strict reading of POSIX: a file that was created, renamed or removed is so for certain when its folder
was synced, and not before. Unsynced changes of names are there after a cut or not, each for itself.
"""

from __future__ import annotations

import errno
import random
import stat
import time
from pathlib import Path

from tests.support.disk.faults import Faults, Refused
from tests.support.disk.pages import Fate, Pages

ROOT = 1
UNLIMITED = 1 << 28
Change = tuple[tuple[int, str, int | None], ...]
"""What one call does to names: (folder, name, node it names now)."""


class Node:
    """A file, a folder or a socket. `names` of a folder is what processes see."""

    def __init__(self, number: int, mode: int, owner: tuple[int, int], content: bytes = b"") -> None:
        self.number = number
        self.mode = mode
        self.owner = owner
        self.times = (time.time_ns(),) * 3
        self.links = 1
        self.opened = 0
        self.name = ""
        self.names: dict[str, int] = {}
        self.pages = Pages(content)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def touch(self) -> None:
        self.times = (self.times[0], *(time.time_ns(),) * 2)


class Model:
    def __init__(self) -> None:
        self.faults = Faults()
        root = Node(ROOT, stat.S_IFDIR | 0o755, (0, 0))
        self.nodes = {ROOT: root}
        self._sure: dict[tuple[int, str], int] = {}
        self._unsure: list[Change] = []

    # -- names ---------------------------------------------------------------------------------------------------

    def node(self, number: int) -> Node:
        if self.faults.off:
            raise Refused(errno.EIO)
        return self.nodes[number]

    def find(self, folder: int, name: str) -> Node:
        number = self.node(folder).names.get(name)
        if number is None:
            raise Refused(errno.ENOENT)
        return self.nodes[number]

    def make(self, folder: int, name: str, mode: int, owner: tuple[int, int]) -> Node:
        if name in self.node(folder).names:
            raise Refused(errno.EEXIST)
        self._change_names()
        node = self._new(mode, owner)
        self._rename(((folder, name, node.number),))
        return node

    def remove(self, folder: int, name: str) -> None:
        node = self.find(folder, name)
        if node.names:
            raise Refused(errno.ENOTEMPTY)
        self._change_names()
        self._rename(((folder, name, None),))

    def rename(self, folder: int, name: str, to_folder: int, to_name: str) -> None:
        node = self.find(folder, name)
        there = self.node(to_folder).names.get(to_name)
        if there is not None and self.nodes[there].names:
            raise Refused(errno.ENOTEMPTY)
        self._change_names()
        self._rename(((folder, name, None), (to_folder, to_name, node.number)))

    def _new(self, mode: int, owner: tuple[int, int], content: bytes = b"") -> Node:
        node = Node(max(self.nodes) + 1, mode, owner, content)
        self.nodes[node.number] = node
        return node

    def _change_names(self) -> None:
        if self.faults.change():
            raise Refused(errno.EIO)

    def _rename(self, change: Change) -> None:
        for folder, name, number in change:
            names = self.nodes[folder].names
            old = names.pop(name, None)
            if old is not None:
                self.nodes[old].links -= 1
            if number is not None:
                names[name] = number
                self.nodes[number].name = name
                self.nodes[number].links = 1
            self.nodes[folder].touch()
        self._unsure.append(change)

    # -- content -------------------------------------------------------------------------------------------------

    def write(self, number: int, offset: int, data: bytes, *, from_cache: bool = False) -> int:
        """How many bytes were written: on a full disk perhaps not all. What the kernel writes back always goes."""
        node = self.node(number)
        goes = self.faults.change(writes=not from_cache)
        size = len(data)
        if not from_cache:
            if self.faults.writes.fails():
                raise Refused(errno.EIO)
            size = node.pages.fits(offset, size, self._room(node))
            if size == 0 and data:
                self.faults.no_room += 1
                raise Refused(errno.ENOSPC)
        node.pages.write(offset, data[:size])
        node.touch()
        if goes:
            raise Refused(errno.EIO)
        return size

    def truncate(self, number: int, size: int) -> None:
        node = self.node(number)
        goes = self.faults.change()
        node.pages.truncate(size)
        node.touch()
        if goes:
            raise Refused(errno.EIO)

    def reserve(self, number: int, offset: int, size: int) -> None:
        node = self.node(number)
        goes = self.faults.change()
        if node.pages.fits(offset, size, self._room(node)) < size:
            raise Refused(errno.ENOSPC)
        node.pages.reserve(offset, size)
        if goes:
            raise Refused(errno.EIO)

    def sync(self, number: int) -> None:
        """Of a file its content, of a folder its names."""
        node = self.node(number)
        if self.faults.change(writes=False):
            raise Refused(errno.EIO)
        if self.faults.syncs.fails():
            node.pages.fail_sync()
            raise Refused(errno.EIO)
        if self.faults.lies:
            return
        if node.is_folder:
            self._sync_names(number)
        else:
            node.pages.sync()

    def _sync_names(self, folder: int) -> None:
        left: list[Change] = []
        for change in self._unsure:
            if any(where == folder for where, _, _ in change):
                _apply(self._sure, change)
            else:
                left.append(change)
        self._unsure = left

    def _room(self, node: Node) -> int:
        """Pages that this file may still take."""
        faults = self.faults
        if faults.limit is None or not node.name.endswith(faults.full_for):
            return UNLIMITED
        return max(0, faults.limit - self.held)

    @property
    def held(self) -> int:
        """Pages in use. What has no name any more counts as long as somebody has it open."""
        return sum(len(node.pages.held) for node in self.nodes.values() if node.links or node.opened)

    @property
    def free(self) -> int:
        """Pages, as programs are told."""
        faults = self.faults
        return UNLIMITED if faults.limit is None or faults.full_for else max(0, faults.limit - self.held)

    # -- power ---------------------------------------------------------------------------------------------------

    def cut(self, seed: int, into: Path) -> None:
        """Write down what the disk may hold after the power went now. Sockets are left out: nobody listens there."""
        luck = random.Random(seed)
        fate = Fate.drawn(luck)
        names = dict(self._sure)
        for change in self._unsure:
            if luck.random() < fate.kept:
                _apply(names, change)
        self._write_out(ROOT, names, into, luck, fate)

    def _write_out(
        self, folder: int, names: dict[tuple[int, str], int], into: Path, luck: random.Random, fate: Fate
    ) -> None:
        into.mkdir()
        for (where, name), number in sorted(names.items()):
            node = self.nodes[number]
            if where != folder:
                continue
            if node.is_folder:
                self._write_out(number, names, into / name, luck, fate)
            elif stat.S_ISREG(node.mode):
                (into / name).write_bytes(node.pages.after_cut(luck, fate))

    def load(self, image: Path, folder: int = ROOT) -> None:
        """What an earlier cut left, now as a disk."""
        for path in sorted(image.iterdir()):
            content = b"" if path.is_dir() else path.read_bytes()
            node = self._new(stat.S_IFDIR | 0o755 if path.is_dir() else stat.S_IFREG | 0o644, (0, 0), content)
            change = ((folder, path.name, node.number),)
            self._rename(change)
            _apply(self._sure, change)
            self._unsure.pop()
            if path.is_dir():
                self.load(path, node.number)


def _apply(names: dict[tuple[int, str], int], change: Change) -> None:
    for folder, name, number in change:
        if number is None:
            names.pop((folder, name), None)
        else:
            names[folder, name] = number
