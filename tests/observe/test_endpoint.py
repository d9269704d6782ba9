"""The HTTP endpoint of a process, over real sockets."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from redrive.observe.endpoint import HealthServer
from redrive.observe.metrics import Family, Metrics
from tests.support.probes import SOON, ask, fetch, registry

__all__ = ["registry"]


class Visits(Metrics):
    families = (Family("counter", "visits", "Visits."),)

    def __init__(self) -> None:
        super().__init__()
        self._count("visits")


@contextmanager
def served(readiness: Callable[[], dict[str, Any]] = dict, **options: Any) -> Iterator[HealthServer]:
    server = HealthServer(readiness, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def test_metrics_are_all_of_the_registry_with_those_that_were_given(registry: CollectorRegistry) -> None:
    Counter("mine", "A metric of the user's own.", registry=registry).inc(3)
    with served(metrics=[Visits()]) as server:
        for _ in range(2):
            status, kind, text = fetch(server.port, "/metrics")
            assert (status, kind.partition(";")[0]) == (200, "text/plain")
            assert "redrive_visits_total 1.0\n" in text
            assert "mine_total 3.0\n" in text
        assert fetch(server.port, "/metrics", "HEAD")[::2] == (200, "")
        assert ask(server.port, "/metrics", "POST")[0] == 501


def test_without_prometheus_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with served(metrics=[Visits()]) as server:
        status, report = ask(server.port, "/metrics")
        assert (status, "redrive[metrics]" in report["error"]) == (501, True)
        assert ask(server.port, "/health/live")[0] == 200


def test_a_name_that_is_taken_is_told_in_each_answer(registry: CollectorRegistry) -> None:
    Gauge("redrive_visits_total", "The user's own.", registry=registry)
    with served(metrics=[Visits()]) as server:
        for _ in range(2):
            assert ask(server.port, "/metrics") == (500, {"error": "ConfigError, see the log"})


def test_m_b22_a_slow_probe_holds_up_nobody_and_the_port_is_free_after() -> None:
    asked, release = threading.Event(), threading.Event()

    def slow() -> dict[str, Any]:
        asked.set()
        assert release.wait(SOON)
        return {"status": "healthy"}

    server = HealthServer(slow)
    server.start()
    port = server.port
    waits = threading.Thread(target=ask, args=(port, "/health/ready"))
    waits.start()
    assert asked.wait(SOON)
    assert ask(port, "/health/live")[0] == 200
    release.set()
    waits.join(SOON)
    server.stop()
    server.stop()
    assert port is not None
    again = HealthServer(dict, port=port)
    again.start()
    assert again.port == port
    again.stop()


def test_it_listens_to_this_machine_alone_unless_told_otherwise() -> None:
    server = HealthServer(dict)
    server.start()
    try:
        assert server.host == "127.0.0.1"
    finally:
        server.stop()


def test_readiness_that_cannot_be_told_is_503() -> None:
    def broken() -> dict[str, Any]:
        raise ValueError("boom")

    server = HealthServer(broken)
    server.start()
    try:
        assert ask(server.port, "/health/ready") == (503, {"status": "unhealthy"})
    finally:
        server.stop()
