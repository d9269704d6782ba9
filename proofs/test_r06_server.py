"""R6 database dies. The server is killed under load, restarted, away or frozen: nothing accepted is lost, workers
neither exit nor spin, and go on by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from redrive.core.states import State
from redrive.stores.url import store_from_url
from tests.support.links.deaths import Report, server_dies
from tests.support.links.sizes import DEATHS, Deaths
from tests.support.links.works import Setting
from tests.support.rig.size import proof_size
from tests.support.servers.postgres import PostgresServer, private_postgres
from tests.support.servers.redis import RedisServer, private_redis

SIZE = f"{DEATHS[proof_size()].kills} kills, {DEATHS[proof_size()].outage:.0f} s outage"

KINDS = ("postgres", "redis")
DEADLINE = "2s"
CPU = 0.10
"""Of one core, for a worker that can do nothing but wait for its server."""
BACK_WITHIN = 10.0
MARGIN = 10.0
"""Seconds for a loaded machine."""

Server = PostgresServer | RedisServer


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One of the test's own: it will be killed."""
    made: AbstractContextManager[Server] = private_postgres() if request.param == "postgres" else private_redis()
    with made as started:
        store_from_url(started.url())  # reads its statements when it is first imported, which no loop should wait for
        yield started


async def outlive(folder: Path, server: Server, size: Deaths, *, frozen: bool = False) -> None:
    url = server.url(timeout=DEADLINE)
    setting = Setting(folder, url, url, size.workers, size.lease, size.limit)
    check(await server_dies(server, setting, size, frozen=frozen))


def check(report: Report) -> None:
    print(report)  # noqa: T201 - shown when it fails, and by -s
    assert not report.verdict.faults, str(report)
    for final in report.survey.finals.values():
        assert final.item.state is (State.DEAD if final.item.queue == "doomed" else State.DONE), final.item
    assert max(report.cpu) <= CPU, str(report)
    assert max(report.recoveries) <= BACK_WITHIN + MARGIN, str(report)
    if report.pace_back_after is not None:
        assert report.pace_back_after <= BACK_WITHIN + MARGIN, str(report)


@pytest.mark.timeout(3600)
async def test_r6_the_server_dies(tmp_path: Path, server: Server) -> None:
    await outlive(tmp_path, server, DEATHS[proof_size()])


@pytest.mark.timeout(3600)
async def test_r6_the_server_stands_still(tmp_path: Path, server: Server) -> None:
    """It is there and does not answer: no connection ends, and every call needs its deadline."""
    size = DEATHS[proof_size()]
    await outlive(tmp_path, server, replace(size, kills=0, outage=size.outage / 3, backlog=0), frozen=True)
