"""The few system calls that Python does not have: mounting, namespaces of our own, and dying with a parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

LINUX = sys.platform.startswith("linux")

_NOSUID, _NODEV, _PRIVATE, _RECURSIVE = 0x2, 0x4, 1 << 18, 1 << 14
_DETACH = 0x2
_NEW_MOUNTS, _NEW_USER = 0x0002_0000, 0x1000_0000
_PARENT_DEATH_SIGNAL = 1
_CAPABILITIES_3 = 0x2008_0522
_DAC_OVERRIDE = 1 << 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(what: str, answer: int) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def private_mounts() -> None:
    """From here on, what this process and its children mount is seen by nobody else and goes away with them.

    And they with whoever started us.
    """
    user, group = os.getuid(), os.getgid()
    flags = _NEW_MOUNTS if user == 0 else _NEW_MOUNTS | _NEW_USER
    _checked("a mount namespace", _libc.unshare(flags))
    if user != 0:
        here = Path("/proc/self")
        (here / "setgroups").write_text("deny")
        (here / "uid_map").write_text(f"0 {user} 1")
        (here / "gid_map").write_text(f"0 {group} 1")
    _checked("keeping mounts to ourselves", _libc.mount(b"none", b"/", None, _PRIVATE | _RECURSIVE, None))
    die_with(os.getppid())


def mount_fuse(folder: Path, device: int) -> None:
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},max_read=131072"
    _mount("redrive-disk", folder, "fuse", options)


def mount_memory(folder: Path, size: int) -> None:
    _mount("redrive-memory", folder, "tmpfs", f"size={size}")


def _mount(source: str, folder: Path, kind: str, options: str) -> None:
    names = source.encode(), os.fsencode(folder), kind.encode()
    _checked(f"mounting {kind}", _libc.mount(*names, _NOSUID | _NODEV, options.encode()))


def unmount(folder: Path) -> None:
    """At once, whoever still uses it."""
    _libc.umount2(os.fsencode(folder), _DETACH)


def die_with(parent: int) -> None:
    """`parent` is the process that started us: if it ends in whatever way, so do we."""
    _checked("dying with the parent", _libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def obey_permissions() -> None:
    """As everybody but root must: from here on a file that may not be written is not. Reading goes on as before."""
    if os.getuid() != 0:
        return
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    _checked("reading capabilities", _libc.capget(header, words))
    for place in range(3):
        words[place] &= ~_DAC_OVERRIDE
    _checked("dropping a capability", _libc.capset(header, words))
