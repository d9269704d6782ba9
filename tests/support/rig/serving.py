"""A fleet of `redrive worker run`: the very command that operators stop, with the app of `served`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.rig.fleet import Fleet


class Serving(Fleet):
    """`strike` is the store call in which the process sends SIGTERM to itself, such as `after lease`."""

    def __init__(
        self, url: str, logs: Path, *, grace: str, lease: float, handlers: str = "stopping", strike: str = ""
    ) -> None:
        super().__init__(url, logs, lease=lease)
        app = "tests.support.rig.served:app"
        self._command = [sys.executable, "-m", "redrive", "worker", "run", app, "--grace", grace]
        self._environment |= {
            "RIG_STORE": url,
            "RIG_LOGS": str(logs),
            "RIG_LEASE": str(lease),
            "RIG_SET": handlers,
            "RIG_STRIKE": strike,
        }
