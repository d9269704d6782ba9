"""PgBouncer in front of a PostgreSQL, in transaction mode: each transaction gets another of the server's sessions."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.servers import binaries, guard, run
from tests.support.servers.absent import absent
from tests.support.servers.server import HOST, Server, Setting, running

ELSEWHERE = "/usr/sbin:/usr/local/sbin"
"""Not on the path of every user."""
PREPARING = (1, 21)
"""Since this version it can keep the prepared statements of its clients apart (max_prepared_statements)."""

SETTINGS: dict[str, Setting] = {
    "listen_addr": HOST,
    "unix_socket_dir": "",
    "pool_mode": "transaction",
    "auth_type": "trust",
    # Few enough that every session of the server serves many clients.
    "default_pool_size": 4,
    "max_client_conn": 100,
}


class Pooler(Server):
    """Lets in every user of the server, without a password. `settings` may be changed while it does not run."""

    kind = "PgBouncer"
    stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, program: Path, server: str, settings: Mapping[str, Setting]) -> None:
        super().__init__(folder)
        self.settings = {**SETTINGS, **settings}
        self._program = program
        self._server = urlsplit(server)

    def url(self, of_server: str | None = None, **options: str) -> str:
        """The same database through the pooler, by a URL of its server."""
        parts = self._server if of_server is None else urlsplit(of_server)
        user = parts.netloc.rpartition("@")[0]
        extra = "".join(f"&{name}={value}" for name, value in options.items())
        query = f"{parts.query}{extra}".lstrip("&")
        return parts._replace(netloc=f"{user}@{HOST}:{self.port}", query=query).geturl()

    def stop(self) -> None:
        """As an administrator would for an upgrade: transactions end, then all clients are sent away."""
        self._signal_and_wait(signal.SIGINT)

    def _order(self) -> guard.Order:
        user = binaries.postgres_user()
        users = self.folder / "users"
        users.write_text(f'"{self._server.username}" ""\n"postgres" ""\n')
        config = self.folder / "pgbouncer.ini"
        lines = {**self.settings, "listen_port": self.port, "auth_file": users}
        config.write_text(
            f"[databases]\n* = host={self._server.hostname} port={self._server.port}\n[pgbouncer]\n"
            + "".join(f"{name} = {int(value) if isinstance(value, bool) else value}\n" for name, value in lines.items())
        )
        for path in (users, config):
            path.chmod(0o644)  # the pooler is another user, if we are root
        return guard.Order(
            self._life,
            (str(self._program), str(config)),
            str(self._log),
            user.id,
            user.group,
            self.stop_signal,
        )

    def _ready(self) -> bool:
        # Not asked over the network, where somebody else might answer.
        return "process up" in self._said()


@contextlib.contextmanager
def private_pooler(server: str, **settings: Setting) -> Iterator[Pooler]:
    """A started pooler of the test's own, in front of the server of this URL."""
    found = program()
    where = run.current().room("pooler")
    pooler = Pooler(where, found, server, settings)
    try:
        with running(pooler):
            yield pooler
    finally:
        shutil.rmtree(where, ignore_errors=True)


@functools.cache
def program() -> Path:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path=ELSEWHERE)
    if found is None:
        raise absent("PgBouncer", "install pgbouncer (apt-get install pgbouncer)")
    return Path(found)


@functools.cache
def version() -> tuple[int, int]:
    """From `PgBouncer 1.18.0`."""
    said = subprocess.run([program(), "--version"], check=True, capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    assert found is not None, f"pgbouncer --version says no number: {said}"
    return int(found[1]), int(found[2])
