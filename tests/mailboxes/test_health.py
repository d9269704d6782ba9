"""What the probes are told."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from http.client import HTTPConnection
from typing import Any

import pytest

from redrive.errors import InvalidParameterError, MailboxConnectionError
from redrive.mailboxes.life.group import LoopGroup
from redrive.mailboxes.life.health import dlq_health
from redrive.observe.endpoint import HealthServer
from redrive.observe.metrics import AskedInThread, ask_all
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Openers
from tests.mailboxes.foreign import Deep
from tests.mailboxes.threads import SOON, Loop, running, until


def ask(port: int | None, path: str, method: str = "GET") -> tuple[int, Any]:
    assert port is not None
    connection = HTTPConnection("127.0.0.1", port, timeout=SOON)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if body else None
    finally:
        connection.close()


# --- dead letters ---


@pytest.mark.parametrize(("depth", "status"), [(0, "healthy"), (99, "healthy"), (100, "degraded"), (101, "degraded")])
def test_m21_dead_letters_are_healthy_below_the_threshold(depth: int, status: str) -> None:
    assert dlq_health(Deep(lambda: depth)) == {
        "status": status,
        "dlq": {"name": "requests-dlq", "depth": depth, "threshold": 100},
    }


def test_m21_on_every_store(kind: str, mailboxes: Openers) -> None:
    dead = mailboxes(kind)("requests-dlq", dead_letters=True)
    for number in range(99):
        dead.send(number)
    assert dlq_health(dead)["status"] == "healthy"
    dead.send(99)
    assert dlq_health(dead) == {
        "status": "degraded",
        "dlq": {"name": "requests-dlq", "depth": 100, "threshold": 100},
    }


def test_m21_the_threshold_can_be_another() -> None:
    assert dlq_health(Deep(lambda: 3), threshold=3)["status"] == "degraded"


def test_m21_a_store_that_does_not_answer_is_degraded_and_raises_nothing() -> None:
    def down() -> int:
        raise MailboxConnectionError("postgresql://me:secret@host does not answer")

    found = dlq_health(Deep(down))
    assert found["status"] == "degraded"
    assert found["dlq"]["depth"] is None
    assert "does not answer" in found["dlq"]["error"]
    assert "secret" not in found["dlq"]["error"]


def test_a_store_that_hangs_is_asked_once_and_the_last_depth_is_told() -> None:
    release, asked = threading.Event(), []

    def hangs() -> int:
        asked.append(threading.current_thread())
        if len(asked) > 1:
            release.wait(SOON)
        return 7

    depth = AskedInThread(hangs)
    assert (depth.ask(SOON).value, depth.ask(0.01).value) == (7, 7)
    until(lambda: len(asked) == 2)  # its thread may begin after we gave up
    assert depth.ask(0.01).error == "no answer within 0.01 s"
    assert len(asked) == 2
    release.set()
    asked[1].join(SOON)
    assert depth.ask(SOON).error == ""


def test_several_that_hang_have_one_timeout_together() -> None:
    together, release, numbers = threading.Barrier(3), threading.Event(), itertools.count()

    def hangs() -> int:
        if next(numbers) < 3:
            # Asked one after the other they would never meet.
            together.wait(SOON)
        release.wait(SOON)
        return 1

    depths = [AskedInThread(hangs) for _ in range(3)]
    assert {known.error for known in ask_all(depths, 0.05)} == {"no answer within 0.05 s"}
    release.set()
    assert [known.value for known in ask_all(depths, SOON)] == [1, 1, 1]


# --- over HTTP ---


def test_m31_live_is_200_while_serving_ready_follows_the_loops() -> None:
    clock = FakeClock()
    go = threading.Event()
    loops = [Loop(name="a", clock=clock), Loop(lambda _: go.wait(SOON), name="b", clock=clock)]
    group = LoopGroup(loops, health_port=0, watchdog_threshold=None, clock=clock)
    with running(group, *loops):
        port = group.health_port
        assert ask(port, "/health/live") == (200, {"status": "healthy"})
        status, report = ask(port, "/health/ready")
        assert (status, report["status"], report["dlq"]) == (200, "healthy", [])
        assert [loop["name"] for loop in report["loops"]] == ["a", "b"]

        clock.advance("721s")
        loops[0].heartbeat.beat()
        status, report = ask(port, "/health/ready")
        assert (status, report["status"]) == (503, "unhealthy")
        assert [loop["status"] for loop in report["loops"]] == ["healthy", "unhealthy"]
        assert report["loops"][1]["heartbeat_age_seconds"] == 721
        assert ask(port, "/health/live") == (200, {"status": "healthy"})

        loops[1].heartbeat.beat()
        assert ask(port, "/health/ready")[0] == 200
        go.set()
        until(lambda: not loops[1].running)
        status, report = ask(port, "/health/ready")
        assert (status, report["loops"][1]["running"]) == (503, False)
        assert ask(port, "/health/live")[0] == 200
    assert group.health_port is None


def test_m31_a_group_that_stops_is_not_ready_but_lives() -> None:
    release = threading.Event()
    loop = Loop(lambda _: release.wait(SOON))
    group = LoopGroup([loop], health_port=0)
    with running(group, loop):
        port = group.health_port
        assert ask(port, "/health/ready")[0] == 200
        group.trigger_shutdown()
        until(lambda: ask(port, "/health/ready")[0] == 503)
        assert ask(port, "/health/live")[0] == 200
        release.set()


def test_m21_ready_tells_the_depths_and_stays_200_when_degraded() -> None:
    class Fills(Loop):
        dead_letters = (Deep(lambda: 100, "a-dlq"),)

    loop = Fills()
    more = [Deep(lambda: 2, "b-dlq"), Deep(lambda: 100, "a-dlq")]
    group = LoopGroup([loop], health_port=0, dead_letters=more)
    with running(group, loop):
        status, report = ask(group.health_port, "/health/ready")
    assert (status, report["status"]) == (200, "degraded")
    assert report["dlq"] == [
        {"status": "degraded", "name": "a-dlq", "depth": 100, "threshold": 100},
        {"status": "healthy", "name": "b-dlq", "depth": 2, "threshold": 100},
    ]


def test_other_paths_are_not_found_and_queries_do_not_matter() -> None:
    with running(group := LoopGroup([loop := Loop()], health_port=0), loop):
        assert ask(group.health_port, "/")[0] == 404
        assert ask(group.health_port, "/health/live/")[0] == 404
        assert ask(group.health_port, "/health/live?probe=1")[0] == 200
        assert ask(group.health_port, "/health/live", "HEAD") == (200, None)
        assert ask(group.health_port, "/health/live", "POST")[0] == 501


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


def test_a_port_that_is_taken_is_told_and_no_loop_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        loop = Loop()
        with pytest.raises(InvalidParameterError, match=f"^health_port: {port} "):
            LoopGroup([loop], health_port=port).run(install_signals=False)
    assert not loop.runs


def test_readiness_that_cannot_be_told_is_503() -> None:
    def broken() -> dict[str, Any]:
        raise ValueError("boom")

    server = HealthServer(broken)
    server.start()
    try:
        assert ask(server.port, "/health/ready") == (503, {"status": "unhealthy"})
    finally:
        server.stop()
