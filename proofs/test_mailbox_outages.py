"""M-36 mailbox server outages. A server is killed, stopped or frozen under two loops; they wait, go on by themselves,
and every message ends once with one reply.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.errors import MailboxConnectionError
from redrive.mailboxes import DLQPolicy, MainLoopConfig, MainLoopRequest
from redrive.stores.clock import SystemClock
from tests.support.mailbox_fates import LIMIT, Report, faults, keys_of, look, request_id
from tests.support.mailbox_kills import Adapter, Ask, Barred, Boxes, Loop, Order, send_all
from tests.support.rig.size import OUTAGES, proof_size
from tests.support.servers.postgres import PostgresServer, private_postgres
from tests.support.servers.redis import RedisServer, private_redis
from tests.support.servers.server import wait_until

Server = PostgresServer | RedisServer
MESSAGES = 60

SIZE = f"{MESSAGES} messages, {OUTAGES[proof_size()]:.0f} s outage"
BEFORE = 10
"""So many are begun before the server goes."""
LATE = "good-late"
VISIBILITY = 10.0
LIMIT_SECONDS = 60.0
GONE, BACK = "Mailbox unreachable", "Mailbox reachable again"


@pytest.fixture(params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made: AbstractContextManager[Server] = private_postgres() if request.param == "postgres" else private_redis()
    with made as started:
        yield started


class Scene:
    """Two loops at work on a server that is to go."""

    def __init__(self, server: Server, folder: Path, stack: ExitStack) -> None:
        url = server.url(timeout="2s")
        self.order = Order(url, url, str(folder), MESSAGES, 0, 0, 0, LIMIT_SECONDS)
        self.order.ledger.touch()
        self.boxes = Boxes(self.order, SystemClock(), stack)
        send_all(self.order, self.boxes)
        null = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, null)
        config = MainLoopConfig(backoff_base=0.1)
        barred = frozenset({Barred})
        dlq: DLQPolicy[Any, Any] = DLQPolicy(self.boxes.dead, max_delivery_count=LIMIT, include_errors=barred)
        adapter = Adapter(self.order.ledger, null)
        stack.callback(adapter.close)
        self.loops = [Loop(adapter=adapter, requests=self.boxes.requests, config=config, dlq=dlq) for _ in range(2)]
        self.errors: list[BaseException] = []
        self.threads = [threading.Thread(target=self._run, args=(loop,), daemon=True) for loop in self.loops]

    def _run(self, loop: Loop) -> None:
        try:
            loop.run(visibility_timeout=VISIBILITY, wait_time_seconds=1)
        except BaseException as error:
            self.errors.append(error)
            raise

    def send_late(self) -> None:
        """While the server is away, and again when it is back: under the same id it is one message."""
        request = MainLoopRequest(Ask(LATE), request_id=request_id(LATE))
        self.boxes.requests.send(request, reply_to=self.boxes.replies, message_id=LATE)

    def is_sent(self) -> bool:
        try:
            self.send_late()
        except MailboxConnectionError:
            return False
        return True

    def is_over(self) -> bool:
        assert not self.errors
        return self.boxes.requests.approximate_count() == 0

    @property
    def begun(self) -> int:
        return len(self.order.ledger.read_text().splitlines())

    def report(self) -> Report:
        boxes = self.boxes
        seen = look([*keys_of(MESSAGES, 0), LATE], boxes.requests, boxes.dead, boxes.replies, self.order.ledger)
        return msgspec.convert(msgspec.to_builtins({**seen, "kills": 0, "died": 0}), Report)


def outlive(
    server: Server,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    *,
    go: Callable[[], None],
    come_back: Callable[[], None],
) -> None:
    caplog.set_level(logging.WARNING, "redrive.mailboxes")
    with ExitStack() as stack:
        scene = Scene(server, folder, stack)
        for thread in scene.threads:
            thread.start()
        wait_until(lambda: scene.begun >= BEFORE, "work that has begun")
        go()
        with pytest.raises(MailboxConnectionError):
            scene.send_late()
        threading.Event().wait(seconds)
        # A loop that had no turn until the server was back would have nothing to notice.
        wait_until(lambda: was_said(caplog, GONE), "a loop that finds the server gone", LIMIT_SECONDS)
        assert all(loop.running for loop in scene.loops), scene.errors
        come_back()
        wait_until(scene.is_sent, "a mailbox that takes messages again", LIMIT_SECONDS)
        wait_until(scene.is_over, "messages that have all ended", LIMIT_SECONDS)
        for loop, thread in zip(scene.loops, scene.threads, strict=True):
            assert loop.shutdown()
            thread.join(LIMIT_SECONDS)
        report = scene.report()
    assert faults(report, crossing=False) == []
    assert was_said(caplog, BACK)


def was_said(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return any(record.getMessage().startswith(words) for record in list(caplog.records))


def test_m36_the_server_is_killed(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outlive(server, tmp_path, caplog, OUTAGES[proof_size()], go=server.kill, come_back=server.start)


@pytest.mark.timeout(600)
def test_m36_the_server_is_stopped(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outlive(server, tmp_path, caplog, OUTAGES[proof_size()], go=server.stop, come_back=server.start)


@pytest.mark.timeout(600)
def test_m36_the_server_stands_still(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No connection ends, and nobody answers: every call needs its deadline."""
    outlive(server, tmp_path, caplog, OUTAGES[proof_size()], go=server.pause, come_back=server.resume)
