"""A receiver of webhooks in a thread, for commands that have the loop for themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ALERTS = """
[alerts]
every = "50ms"

[alerts.channels.ops]
kind = "webhook"
url = "{url}/alerts"

[alerts.rules.letters]
when = "letters"
more_than = 0
to = "ops"
"""


class Got(NamedTuple):
    path: str
    body: bytes
    headers: dict[str, str]


class Target(ThreadingHTTPServer):
    """Answers with the status that the path ends with, 200 if it is no number; `answers` go first, then `body`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers: list[int] = []
        self.body = b"an answer"
        self.got: list[Got] = []
        self.came = threading.Semaphore(0)

    def alerts(self, folder: Path) -> None:
        """Be the channel `ops` of the commands in this folder, to which a rule sends that fires for any letter."""
        (folder / "redrive.toml").write_text(ALERTS.format(url=self.url))


class _Handler(BaseHTTPRequestHandler):
    server: Target

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        self.server.got.append(Got(self.path, body, {name.lower(): value for name, value in self.headers.items()}))
        last = self.path.partition("?")[0].rpartition("/")[2]
        status = self.server.answers.pop(0) if self.server.answers else int(last) if last.isdecimal() else 200
        self.send_response(status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(self.server.body)
        self.server.came.release()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.shutdown()
        serving.join()
