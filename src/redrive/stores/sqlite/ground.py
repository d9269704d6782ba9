"""On what kind of file system the database would lie. Asked before the file is made or touched.

SQLite's write-ahead log needs locks that hold and memory that all its users share. A file system that comes over a
network promises neither to a second machine, and some not even to a second process.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple

from redrive.errors import ConfigError, UnsafeFileSystem

Network = Literal["refuse", "allow"]
CHOICES: tuple[Network, ...] = ("refuse", "allow")

MOUNTS = "/proc/self/mountinfo"

# fmt: off
REFUSED = frozenset({
    # other machines' files
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "smb", "ncpfs", "ncp", "afs", "auristorfs", "coda", "9p", "davfs",
    # files of many machines
    "ceph", "glusterfs", "lustre", "beegfs", "orangefs", "pvfs2", "gpfs", "panfs", "wekafs", "moosefs", "juicefs",
    # the host's files, as a virtual machine sees them, without shared memory or without locks
    "vboxsf", "vmhgfs", "prl_fs", "drvfs",
    # all of that through FUSE
    "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.goofys", "fuse.gcsfuse", "fuse.blobfuse", "fuse.blobfuse2",
    "fuse.mount-s3", "fuse.s3backer", "fuse.geesefs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.juicefs",
    "fuse.mfs", "fuse.seaweedfs", "fuse.curlftpfs", "fuse.davfs", "fuse.davfs2", "fuse.smbnetfs", "fuse.httpfs",
    "fuse.nfs", "fuse.afpfs", "fuse.gvfsd-fuse", "fuse.kio-fuse", "fuse.google-drive-ocamlfuse", "fuse.onedriver",
    "fuse.dropbox", "fuse.vmhgfs-fuse", "fuse.lustre", "fuse.cvmfs2", "fuse.hdfs", "fuse.alluxio-fuse", "fuse.xrootdfs",
})
DOUBTED = frozenset({"fuse", "virtiofs", "gfs2", "ocfs2", "acfs"})
"""Locks may hold there, and may not. So may those of a FUSE file system that is not listed above."""
# fmt: on

IN_MEMORY = frozenset({"tmpfs", "ramfs"})

_OCTAL = re.compile(rb"\\([0-7]{3})")
_log = logging.getLogger("redrive.stores.sqlite")


class _Mount(NamedTuple):
    device: int
    point: bytes
    kind: str


def check_choice(network: Network) -> Network:
    if network not in CHOICES:
        raise ConfigError(f"{network!r} is not known", field="network", hint=f"use one of {', '.join(CHOICES)}")
    return network


def check(path: str, network: Network) -> None:
    """UnsafeFileSystem where the locks cannot be relied on, unless that is allowed; a warning where nobody can tell.

    Nothing is said where the system does not tell its mounts, and nothing of a folder that is not there.
    """
    kind = kind_of(path)
    if kind is None:
        return
    if kind not in REFUSED:
        if network != "allow" and (kind in DOUBTED or kind.startswith("fuse.")):
            _warn_doubt(path, kind)
        return
    if network != "allow":
        raise UnsafeFileSystem(
            f"{path} would be on a network file system ({kind}), where SQLite's locks are not to be relied on: "
            "what is accepted could be damaged or lost",
            field="path",
            hint="put it on a local disk; if you know that only this machine uses it and that locks work there: "
            '?network=allow in the URL, or SqliteStore(network="allow")',
        )
    _warn_allowed(path, kind)


def check_names(path: str, network: Network) -> None:
    """A database has its log beside it, by name. Under two names it would have two, and each would lose the other's."""
    try:
        found = os.stat(path)  # noqa: PTH116 - see _kind_at
    except OSError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{path} is not a file", field="path", hint="name a file, in a folder of its own")
    if network == "allow":
        return
    real = os.fsencode(os.path.realpath(path))
    try:
        mounted = any(mount.point == real for mount in _mounts())
    except OSError:
        mounted = False
    if not mounted and found.st_nlink < 2:
        return
    how = "is mounted by itself, without its folder" if mounted else f"has {found.st_nlink} names (hard links)"
    raise UnsafeFileSystem(
        f"{path} {how}: whoever uses it under another name has another log, and what one accepts the other loses",
        field="path",
        hint="mount the folder and not the file"
        if mounted
        else "remove the other names, or copy it with redrive db backup",
    )


def kind_of(path: str) -> str | None:
    """As the system names it, ext4 or nfs4; None if it does not say."""
    real = os.path.realpath(path)
    # The log lies beside the database. That may be another file system than its own, when only the file is mounted.
    kinds = [found for found in (_kind_at(real), _kind_at(os.path.dirname(real))) if found is not None]  # noqa: PTH120 - text
    return next((found for found in kinds if found in REFUSED), kinds[0] if kinds else None)


def in_memory(path: str) -> bool:
    """Whether it is gone when the machine is switched off."""
    return kind_of(path) in IN_MEMORY


def _kind_at(place: str) -> str | None:
    try:
        device = os.stat(place).st_dev  # noqa: PTH116 - the database must not be opened here, and so is no Path
        mounts = list(_mounts())
    except OSError:
        return None
    # The number is exact. Some file systems (btrfs) give their parts numbers that no mount has: then the place decides.
    for mount in mounts:
        if mount.device == device:
            return mount.kind
    over = [mount for mount in mounts if _is_under(os.fsencode(place), mount.point)]
    # Of those at one place the last one hides the others.
    return max(reversed(over), key=lambda mount: len(mount.point)).kind if over else None


def _mounts() -> Iterator[_Mount]:
    with open(MOUNTS, "rb") as listed:  # noqa: PTH123 - not a file of ours
        for line in listed:
            # 36 35 98:0 /root /mount/point options [tags] - kind source options
            fields, _, rest = line.partition(b" - ")
            try:
                _, _, numbers, _, point, *_ = fields.split(b" ")
                major, minor = numbers.split(b":")
                yield _Mount(os.makedev(int(major), int(minor)), _unescaped(point), rest.split(b" ")[0].decode())
            except ValueError:
                continue


def _unescaped(point: bytes) -> bytes:
    return _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), point)


def _is_under(place: bytes, point: bytes) -> bool:
    return place == point or place.startswith(point.rstrip(b"/") + b"/")


@cache
def _warn_allowed(path: str, kind: str) -> None:
    """Once in a process, like the other one."""
    _log.warning(
        "%s is on a network file system (%s), and that was allowed: SQLite's locks may not hold there. "
        "Never use it from two machines",
        path,
        kind,
    )


@cache
def _warn_doubt(path: str, kind: str) -> None:
    _log.warning(
        "%s is on a file system (%s) of which redrive cannot tell whether SQLite's locks hold there. Use a local disk, "
        "or say ?network=allow if you know that they do",
        path,
        kind,
    )
