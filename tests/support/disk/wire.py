"""The kernel's side of FUSE: what is read from /dev/fuse and written back (linux/fuse.h, protocol 7.31)."""

from __future__ import annotations

import struct
from enum import IntEnum

MAJOR, MINOR = 7, 31
MAX_WRITE = 128 * 1024
BUFFER = MAX_WRITE + 4096
FOR_EVER = 3600
"""Seconds the kernel may believe names and attributes: nobody but the kernel changes them."""
BIG_WRITES = 1 << 5
KEEP_CACHE = 1 << 1
"""Of an open file: pages that processes share by mmap must not be dropped when one more opens it."""
FROM_CACHE = 1 << 0
"""Of a write: pages changed through mmap, written back by the kernel some time later."""


class Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


class Set(IntEnum):
    """Which fields of a SETATTR count."""

    MODE = 1
    UID = 2
    GID = 4
    SIZE = 8
    ATIME = 16
    MTIME = 32


REQUEST = struct.Struct("<IIQQIIIHH")  # length, op, unique, node, uid, gid, pid, extensions
REPLY = struct.Struct("<IiQ")  # length, error, unique
INIT = struct.Struct("<IIII")
INITED = struct.Struct("<IIIIHHIIHHI7I")
_ATTR = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_VALID = struct.Struct("<QII")
_OPENED = struct.Struct("<QII")
SETATTR = struct.Struct("<II6Q8I")
MKNOD = struct.Struct("<4I")
MKDIR = struct.Struct("<2I")
CREATE = struct.Struct("<4I")
OPEN = struct.Struct("<2I")
RENAME = struct.Struct("<Q")
RENAME2 = struct.Struct("<QII")
READ = struct.Struct("<QQIIQII")
WRITE = READ
WRITTEN = struct.Struct("<II")
FALLOCATE = struct.Struct("<QQQII")
ACCESS = struct.Struct("<2I")
_STATFS = struct.Struct("<5Q4I6I")
_DIRENT = struct.Struct("<QQII")


def inited(readahead: int, offered: int) -> bytes:
    return INITED.pack(MAJOR, MINOR, readahead, offered & BIG_WRITES, 16, 12, MAX_WRITE, 1, 0, 0, 0, *[0] * 7)


def attr(
    node: int, *, size: int, held: int, times: tuple[int, int, int], mode: int, links: int, owner: tuple[int, int]
) -> bytes:
    """`held` in bytes, `times` (access, change of content, change of the rest) in nanoseconds."""
    seconds = [each // 10**9 for each in times]
    rest = [each % 10**9 for each in times]
    return _ATTR.pack(node, size, held // 512, *seconds, *rest, mode, links, *owner, 0, 4096, 0)


def attributes(packed: bytes) -> bytes:
    return _VALID.pack(FOR_EVER, 0, 0) + packed


def entry(node: int, packed: bytes) -> bytes:
    return _ENTRY.pack(node, 0, FOR_EVER, FOR_EVER, 0, 0) + packed


def opened() -> bytes:
    return _OPENED.pack(0, KEEP_CACHE, 0)


def statfs(blocks: int, free: int) -> bytes:
    return _STATFS.pack(blocks, free, free, 2**20, 2**20, 4096, 255, 4096, 0, *[0] * 6)


def dirent(node: int, after: int, name: str, kind: int) -> bytes:
    raw = name.encode()
    packed = _DIRENT.pack(node, after, len(raw), kind) + raw
    return packed + bytes(-len(packed) % 8)


def name(body: bytes) -> str:
    return body.partition(b"\0")[0].decode()
