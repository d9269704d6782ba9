"""Whether the process lives and is ready, over HTTP, for those who supervise it.

GET /health/live     200 as long as it answers
GET /health/ready    200 {"status": "healthy"}, or "degraded" if there are too many dead letters; 503 "unhealthy"
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from redrive.core.quantity import shown
from redrive.errors import InvalidParameterError
from redrive.mailboxes.boxes import limits
from redrive.mailboxes.boxes.depth import Depth, Known, ask_all
from redrive.mailboxes.boxes.mailbox import Mailbox
from redrive.mailboxes.logs import logger

HEALTHY, DEGRADED, UNHEALTHY = "healthy", "degraded", "unhealthy"
LOOPBACK = "127.0.0.1"
LAST_PORT = 65_535
PATIENCE = 10.0
"""Seconds for a client to say what it wants."""

Report = dict[str, Any]


def dlq_health(mailbox: Mailbox[Any, Any], threshold: int = 100) -> Report:
    """`{"status": "healthy", "dlq": {"name": …, "depth": …, "threshold": …}}`; degraded from `threshold` on.

    Never raises: a store that does not answer is degraded, and `error` says why.
    """
    limits.kind(mailbox, Mailbox, field="mailbox", hint="use open_mailbox")
    (found,) = depth_reports([Depth(mailbox)], limits.threshold(threshold, field="threshold"))
    return {"status": found.pop("status"), "dlq": found}


def depth_reports(depths: Sequence[Depth], threshold: int) -> list[Report]:
    return [_report(depth, known, threshold) for depth, known in zip(depths, ask_all(depths), strict=True)]


def _report(depth: Depth, known: Known, threshold: int) -> Report:
    fine = not known.error and known.depth is not None and known.depth < threshold
    found: Report = {"name": depth.mailbox.name, "depth": known.depth, "threshold": threshold}
    if known.error:
        found["error"] = known.error
    return {"status": HEALTHY if fine else DEGRADED, **found}


class HealthServer:
    """`readiness` gives the answer of /health/ready; its `status` decides: unhealthy is 503, all else 200.

    Each request has a thread of its own, so a slow one holds up nobody. Port 0: any that is free; see `port`.
    """

    def __init__(self, readiness: Callable[[], Report], *, port: int = 0, host: str = LOOPBACK) -> None:
        given: object = port
        if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= LAST_PORT:
            hint = f"use 1 to {LAST_PORT}; 0 takes any that is free"
            raise InvalidParameterError(f"{shown(port)} is no port", field="health_port", hint=hint)
        limits.function(readiness, field="readiness", hint="give one that gives the report")
        limits.kind(host, str, field="health_host", hint=f"give an address, such as {LOOPBACK}")
        self._readiness = readiness
        self._wanted = (host, port)
        self._server: _Server | None = None

    def start(self) -> None:
        if self._server is not None:
            return
        host, port = self._wanted
        try:
            self._server = _Server(host, port, self._readiness)
        except (OSError, OverflowError, TypeError) as error:
            hint = "choose another; 0 takes any that is free"
            said = f"{shown(port)} of {shown(host)} cannot be listened to: {error}"
            raise InvalidParameterError(said, field="health_port", hint=hint) from error
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="redrive-health", daemon=True).start()

    def stop(self) -> None:
        """The port is free when it returns. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    @property
    def port(self) -> int | None:
        """Where it listens; None if it does not."""
        return None if self._server is None else int(self._server.server_address[1])

    @property
    def host(self) -> str:
        return self._wanted[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, readiness: Callable[[], Report]) -> None:
        self.readiness = readiness
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - http.server's own
        """A client that went away is nobody's trouble."""
        logger.debug("a health probe from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    error_content_type = "application/json"
    error_message_format = '{"error": "%(code)d"}'

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health/live":
            self._answer(HTTPStatus.OK, {"status": HEALTHY})
        elif path == "/health/ready":
            report = self._ready()
            down = report["status"] == UNHEALTHY
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if down else HTTPStatus.OK, report)
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "ask for /health/live or /health/ready"})

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def _ready(self) -> Report:
        try:
            return self.server.readiness()
        except Exception:  # noqa: BLE001 - a probe gets an answer in any case
            logger.exception(
                "readiness could not be told by the health probe on port %s", self.server.server_address[1]
            )
            return {"status": UNHEALTHY}

    def _answer(self, status: HTTPStatus, report: Report) -> None:
        body = json.dumps(report).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "redrive"

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: they are no news."""
        logger.debug("health: " + format, *args)
