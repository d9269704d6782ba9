"""The process behind the mounted folder: `python -m tests.support.disk.serve <folder> <control> <parent>`.

A process of its own, because whoever maps a file of ours waits for us while it holds its interpreter's lock. It takes
one request of the kernel or of its master at a time, so that a power cut falls between two of them.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.disk import kernel, wire
from tests.support.disk.faults import Refused
from tests.support.disk.model import Model, Node
from tests.support.disk.pages import PAGE
from tests.support.disk.wire import Op, Set

DEVICE = "/dev/fuse"
NO_REPLY = {Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT}
Handler = Callable[[int, bytes, tuple[int, int]], bytes]


def describe(node: Node) -> bytes:
    return wire.attr(
        node.number,
        size=len(node.pages),
        held=len(node.pages.held) * PAGE,
        times=node.times,
        mode=node.mode,
        links=max(1, node.links),
        owner=node.owner,
    )


class Requests:
    """What the kernel asks, answered from the model: (node, body, who asks) to the body of the answer."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.handlers: dict[int, Handler] = {
            Op.INIT: self._init,
            Op.LOOKUP: self._lookup,
            Op.GETATTR: self._getattr,
            Op.SETATTR: self._setattr,
            Op.MKNOD: self._mknod,
            Op.MKDIR: self._mkdir,
            Op.CREATE: self._create,
            Op.UNLINK: self._remove,
            Op.RMDIR: self._remove,
            Op.RENAME: self._rename,
            Op.RENAME2: self._rename2,
            Op.OPEN: self._open,
            Op.OPENDIR: self._open,
            Op.READ: self._read,
            Op.READDIR: self._readdir,
            Op.WRITE: self._write,
            Op.FALLOCATE: self._fallocate,
            Op.FSYNC: self._sync,
            Op.FSYNCDIR: self._sync,
            Op.RELEASE: self._release,
            Op.RELEASEDIR: self._release,
            Op.STATFS: self._statfs,
            Op.ACCESS: self._access,
        }

    def _init(self, _: int, body: bytes, __: tuple[int, int]) -> bytes:
        _, _, readahead, offered = wire.INIT.unpack_from(body)
        return wire.inited(readahead, offered)

    # -- names ---------------------------------------------------------------------------------------------------

    def _lookup(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        return self._entry(self._model.find(number, wire.name(body)))

    def _entry(self, node: Node) -> bytes:
        return wire.entry(node.number, describe(node))

    def _mknod(self, number: int, body: bytes, owner: tuple[int, int]) -> bytes:
        mode, _, _, _ = wire.MKNOD.unpack_from(body)
        return self._entry(self._model.make(number, wire.name(body[wire.MKNOD.size :]), mode, owner))

    def _mkdir(self, number: int, body: bytes, owner: tuple[int, int]) -> bytes:
        mode, _ = wire.MKDIR.unpack_from(body)
        name = wire.name(body[wire.MKDIR.size :])
        return self._entry(self._model.make(number, name, stat.S_IFDIR | mode, owner))

    def _create(self, number: int, body: bytes, owner: tuple[int, int]) -> bytes:
        _, mode, _, _ = wire.CREATE.unpack_from(body)
        node = self._model.make(number, wire.name(body[wire.CREATE.size :]), stat.S_IFREG | mode, owner)
        node.opened += 1
        return self._entry(node) + wire.opened()

    def _remove(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        self._model.remove(number, wire.name(body))
        return b""

    def _rename(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        (to,) = wire.RENAME.unpack_from(body)
        return self._renamed(number, to, body[wire.RENAME.size :])

    def _rename2(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        to, flags, _ = wire.RENAME2.unpack_from(body)
        if flags:
            raise Refused(errno.EINVAL)
        return self._renamed(number, to, body[wire.RENAME2.size :])

    def _renamed(self, number: int, to: int, names: bytes) -> bytes:
        old, new, _ = names.split(b"\0", 2)
        self._model.rename(number, old.decode(), to, new.decode())
        return b""

    def _readdir(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        offset, size = wire.READ.unpack_from(body)[1:3]
        found = b""
        names = [(".", number), ("..", number), *self._model.node(number).names.items()]
        for place, (name, child) in enumerate(names[offset:], offset + 1):
            one = wire.dirent(child, place, name, stat.S_IFMT(self._model.node(child).mode) >> 12)
            if len(found) + len(one) > size:
                break
            found += one
        return found

    # -- attributes ----------------------------------------------------------------------------------------------

    def _getattr(self, number: int, _: bytes, __: tuple[int, int]) -> bytes:
        return wire.attributes(describe(self._model.node(number)))

    def _setattr(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_rest, mtime_rest, _, mode, _, uid, gid, _ = (
            wire.SETATTR.unpack_from(body)
        )
        node = self._model.node(number)
        if valid & Set.SIZE:
            self._model.truncate(number, size)
        if valid & Set.MODE:
            node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        node.owner = (uid if valid & Set.UID else node.owner[0], gid if valid & Set.GID else node.owner[1])
        accessed = atime * 10**9 + atime_rest if valid & Set.ATIME else node.times[0]
        modified = mtime * 10**9 + mtime_rest if valid & Set.MTIME else node.times[1]
        node.times = (accessed, modified, node.times[2])
        return wire.attributes(describe(node))

    def _access(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        mask, _ = wire.ACCESS.unpack_from(body)
        self._model.node(number)
        if mask & os.W_OK and self._model.faults.read_only:
            raise Refused(errno.EROFS)
        return b""

    def _statfs(self, _: int, __: bytes, ___: tuple[int, int]) -> bytes:
        free = self._model.free
        return wire.statfs(self._model.held + free, free)

    # -- content -------------------------------------------------------------------------------------------------

    def _open(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        flags, _ = wire.OPEN.unpack_from(body)
        node = self._model.node(number)
        if flags & os.O_ACCMODE != os.O_RDONLY and self._model.faults.read_only:
            raise Refused(errno.EROFS)
        node.opened += 1
        return wire.opened()

    def _release(self, number: int, _: bytes, __: tuple[int, int]) -> bytes:
        self._model.nodes[number].opened -= 1
        return b""

    def _read(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        offset, size = wire.READ.unpack_from(body)[1:3]
        return self._model.node(number).pages.read(offset, size)

    def _write(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        offset, size, flags = wire.WRITE.unpack_from(body)[1:4]
        data = body[wire.WRITE.size : wire.WRITE.size + size]
        written = self._model.write(number, offset, data, from_cache=bool(flags & wire.FROM_CACHE))
        return wire.WRITTEN.pack(written, 0)

    def _fallocate(self, number: int, body: bytes, _: tuple[int, int]) -> bytes:
        _, offset, size, mode, _ = wire.FALLOCATE.unpack_from(body)
        if mode:
            raise Refused(errno.EOPNOTSUPP)
        self._model.reserve(number, offset, size)
        return b""

    def _sync(self, number: int, _: bytes, __: tuple[int, int]) -> bytes:
        self._model.sync(number)
        return b""


class Server:
    def __init__(self, folder: Path, control: socket.socket) -> None:
        self._folder = folder
        self._control = control.makefile("rwb", buffering=0)
        self._waiting_for_off = False
        self._device = -1
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._model = Model()
        self._handlers: dict[int, Handler] = {}
        self._mount(self._model)

    def _mount(self, model: Model) -> None:
        """Anew: the kernel must not remember anything of another disk."""
        if self._device >= 0:
            kernel.unmount(self._folder)
            self._poll.unregister(self._device)
            os.close(self._device)
        self._device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        kernel.mount_fuse(self._folder, self._device)
        self._poll.register(self._device, select.POLLIN)
        self._model = model
        self._handlers = Requests(model).handlers

    def run(self) -> None:
        """Until the master is gone."""
        buffer = bytearray(wire.BUFFER)
        try:
            while True:
                for number, _ in self._poll.poll():
                    if number != self._device:
                        if not self._obey():
                            return
                        # The disk may be another one now.
                        break
                    self._serve(buffer)
        finally:
            kernel.unmount(self._folder)

    # -- the kernel ----------------------------------------------------------------------------------------------

    def _serve(self, buffer: bytearray) -> None:
        try:
            length = os.readv(self._device, [buffer])
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                return
            raise
        _, op, unique, node, uid, gid, *_ = wire.REQUEST.unpack_from(buffer)
        if op in NO_REPLY:
            return
        number = 0
        try:
            answer = self._answer(op, node, bytes(memoryview(buffer)[wire.REQUEST.size : length]), (uid, gid))
        except Refused as refused:
            number, answer = refused.number, b""
        try:
            os.write(self._device, wire.REPLY.pack(wire.REPLY.size + len(answer), -number, unique) + answer)
        except FileNotFoundError:
            # Whoever asked was killed meanwhile.
            return
        finally:
            self._tell_if_off()

    def _answer(self, op: int, node: int, body: bytes, owner: tuple[int, int]) -> bytes:
        handler = self._handlers.get(op)
        if handler is None:
            raise Refused(errno.ENOSYS)
        return handler(node, body, owner)

    # -- the master ----------------------------------------------------------------------------------------------

    def _obey(self) -> bool:
        line = self._control.readline()
        if not line:
            return False
        order: dict[str, Any] = json.loads(line)
        getattr(self, f"_do_{order.pop('do')}")(**order)
        return True

    def _say(self, **answer: object) -> None:
        self._control.write(json.dumps(answer).encode() + b"\n")

    def _do_format(self, image: str | None) -> None:
        model = Model()
        if image is not None:
            model.load(Path(image))
        self._mount(model)
        self._say()

    def _do_set(self, **faults: object) -> None:
        for name, value in faults.items():
            setattr(self._model.faults, name, value)
        self._say()

    def _do_fill(self, left: int | None, name: str) -> None:
        faults = self._model.faults
        faults.limit = None if left is None else self._model.held + left // PAGE
        faults.full_for = name
        self._say()

    def _do_fail(self, calls: str, numbers: list[int]) -> None:
        getattr(self._model.faults, calls).fail(numbers)
        self._say()

    def _do_power_off(self, after: int) -> None:
        self._model.faults.power_off_after(after)
        self._say()

    def _do_wait_until_off(self) -> None:
        self._waiting_for_off = True
        self._tell_if_off()

    def _tell_if_off(self) -> None:
        if self._waiting_for_off and self._model.faults.off:
            self._waiting_for_off = False
            self._say()

    def _do_cut(self, seed: int, into: str) -> None:
        self._model.cut(seed, Path(into))
        self._say()

    def _do_counts(self) -> None:
        faults = self._model.faults
        failed = {"failed_syncs": faults.syncs.failed, "failed_writes": faults.writes.failed}
        self._say(syncs=faults.syncs.count, writes=faults.writes.count, no_room=faults.no_room, **failed)


def main() -> None:
    folder, descriptor, parent = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    kernel.die_with(parent)
    control = socket.socket(fileno=descriptor)
    try:
        server = Server(folder, control)
    except OSError as error:
        control.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
        return
    control.sendall(b"{}\n")
    server.run()


if __name__ == "__main__":
    main()
