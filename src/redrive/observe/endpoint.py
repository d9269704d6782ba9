"""The HTTP endpoint of a worker or loop process, for probes and for Prometheus.

GET /health/live     200 as long as the process answers
GET /health/ready    200, or 503 if the status is "unhealthy": the process can take no work
GET /metrics         all of prometheus_client's default registry; 501 without prometheus_client
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from redrive.core.quantity import shown
from redrive.errors import InvalidParameterError, MissingExtra
from redrive.observe.metrics import Metrics, check_prometheus

HEALTHY, DEGRADED, UNHEALTHY = "healthy", "degraded", "unhealthy"
LOOPBACK = "127.0.0.1"
LAST_PORT = 65_535
REQUEST_TIMEOUT = 10.0
"""Seconds for a client to send its request."""
PATHS = "/health/live, /health/ready or /metrics"

Report = dict[str, Any]
logger = logging.getLogger("redrive.endpoint")


class HealthServer:
    """`readiness` gives the answer of /health/ready; its `status` decides: unhealthy is 503, all else 200.

    `metrics` are registered with prometheus_client's default registry by the first request for /metrics. Each request
    has a thread of its own. Port 0: any that is free; see `port`.
    """

    def __init__(
        self,
        readiness: Callable[[], Report],
        *,
        port: int = 0,
        host: str = LOOPBACK,
        metrics: Iterable[Metrics] = (),
    ) -> None:
        given: dict[str, object] = {"readiness": readiness, "port": port, "host": host}
        if not callable(given["readiness"]):
            hint = "give a function that returns the report"
            raise InvalidParameterError(f"{shown(readiness)} is no function", field="readiness", hint=hint)
        if type(given["port"]) is not int or not 0 <= port <= LAST_PORT:
            hint = f"use 1 to {LAST_PORT}; 0 takes any that is free"
            raise InvalidParameterError(f"{shown(port)} is no port", field="health_port", hint=hint)
        if not isinstance(given["host"], str):
            hint = f"give an address, such as {LOOPBACK}"
            raise InvalidParameterError(f"{shown(host)} is no text", field="health_host", hint=hint)
        self.host = host
        self._port = port
        self._readiness = readiness
        self._metrics = tuple(metrics)
        self._server: _Server | None = None

    def start(self) -> None:
        if self._server is not None:
            return
        try:
            self._server = _Server(self.host, self._port, self._readiness, self._metrics)
        except (OSError, OverflowError, TypeError) as error:
            said = f"{self._port} of {shown(self.host)} cannot be listened on: {error}"
            hint = "choose another; 0 takes any that is free"
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
        """On which it listens; None if it does not."""
        return None if self._server is None else int(self._server.server_address[1])


class _Server(ThreadingTCPServer):
    # Not http.server's own: that looks up the host's name, which may take seconds.
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int, readiness: Callable[[], Report], metrics: tuple[Metrics, ...]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.readiness = readiness
        self._unregistered = metrics
        super().__init__((host, port), _Handler)

    def exposition(self) -> tuple[str, bytes]:
        check_prometheus()
        from redrive.observe import prometheus

        for each in self._unregistered:
            each.register()
        self._unregistered = ()
        return prometheus.exposition()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's own
        logger.debug("a request from %s failed", client_address, exc_info=True)  # noqa: LOG014 - called in an except block


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT
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
        elif path == "/metrics":
            self._scrape()
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": f"no such path; ask for {PATHS}"})

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def _ready(self) -> Report:
        try:
            return self.server.readiness()
        except Exception:
            logger.exception("the readiness report of the probe on port %s failed", self.server.server_address[1])
            return {"status": UNHEALTHY}

    def _scrape(self) -> None:
        try:
            kind, text = self.server.exposition()
        except MissingExtra as error:
            self._answer(HTTPStatus.NOT_IMPLEMENTED, {"error": str(error)})
        except Exception as error:
            logger.exception("the metrics could not be collected")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"{type(error).__name__}, see the log"})
        else:
            self._send(HTTPStatus.OK, kind, text)

    def _answer(self, status: HTTPStatus, report: Report) -> None:
        self._send(status, "application/json", json.dumps(report).encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "redrive"

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds."""
        logger.debug("endpoint: %s", format % args)
