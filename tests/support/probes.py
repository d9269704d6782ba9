"""A probe: GET over HTTP on the loopback."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from redrive.observe import prometheus

SOON = 30.0


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """Instead of prometheus_client's default registry."""
    made = CollectorRegistry()
    monkeypatch.setattr(prometheus, "REGISTRY", made)
    return made


def fetch(port: int | None, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, content type and text."""
    assert port is not None
    connection = HTTPConnection("127.0.0.1", port, timeout=SOON)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def ask(port: int | None, path: str, method: str = "GET") -> tuple[int, Any]:
    """Status and JSON."""
    status, _, text = fetch(port, path, method)
    return status, json.loads(text) if text else None
