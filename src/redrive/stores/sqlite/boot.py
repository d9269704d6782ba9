"""Leases of before the last start of the machine: whoever held them is gone, whatever the clock says now."""

from __future__ import annotations

from pathlib import Path

from redrive.core.item import Instant
from redrive.stores.sqlite.binding import Connection
from redrive.stores.statements import load

_SQL = load("sqlite", "boot")


def boot_id() -> str | None:
    """Of the running system; None where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None


def expire_earlier_leases(connection: Connection, now: Instant) -> None:
    """Inside a transaction."""
    boot = boot_id()
    if boot is None or connection.execute(_SQL["same"], (boot.encode(),)).fetchone() is not None:
        return
    connection.execute(_SQL["expire"], (now, now))
    connection.execute(_SQL["keep"], (boot.encode(),))
