"""What the probes are told."""

from __future__ import annotations

import socket
import threading

import pytest

from redrive.errors import InvalidParameterError, MailboxConnectionError
from redrive.mailboxes.loops.group import LoopGroup, dlq_health
from redrive.testing import FakeClock
from tests.mailboxes.conftest import Openers
from tests.mailboxes.foreign import Deep
from tests.mailboxes.threads import SOON, Loop, running, until
from tests.support.probes import ask

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


def test_a_port_that_is_taken_is_told_and_no_loop_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        loop = Loop()
        with pytest.raises(InvalidParameterError, match=f"^health_port: {port} "):
            LoopGroup([loop], health_port=port).run(install_signals=False)
    assert not loop.runs
