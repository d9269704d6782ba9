"""The reader's mailboxes, on a Redis with a client of his own."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest
import redis as redis_py

from redrive.mailboxes import (
    DeadLetter,
    Mailbox,
    RedisMailbox,
)
from tests.mailboxes.seed.kit import (
    Adapter,
    MyMainLoop,
    MyRequest,
    Request,
    Result,
    fail_once,
    log,
    metrics,
    pagerduty,
    policies,
)
from tests.support.servers.redis import private_redis


@pytest.fixture(autouse=True)
def _silence() -> None:
    for each in (log, metrics, pagerduty):
        each.said.clear()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with private_redis() as server:
        yield server.url()


@pytest.fixture
def redis(server: str) -> Iterator[redis_py.Redis]:
    """The reader's own client, set up as many are."""
    client = redis_py.Redis.from_url(server, decode_responses=True)
    client.flushdb()
    yield client
    client.close()


@pytest.fixture
def adapter() -> Adapter:
    return Adapter()


@pytest.fixture
def requests(redis: redis_py.Redis) -> Iterator[Mailbox[Request, Result]]:
    mailbox: RedisMailbox[Request, Result] = RedisMailbox(name="requests", client=redis)
    with mailbox:
        yield mailbox


@pytest.fixture
def dead_letters(redis: redis_py.Redis) -> Iterator[Mailbox[DeadLetter[Request], None]]:
    mailbox: RedisMailbox[DeadLetter[Request], None] = RedisMailbox(name="requests-dlq", client=redis)
    with mailbox:
        yield mailbox


@pytest.fixture
def died(
    requests: Mailbox[Request, Result], dead_letters: Mailbox[DeadLetter[Request], None], adapter: Adapter
) -> list[UUID]:
    """Two requests that are dead letters; the second one is critical."""
    loop = MyMainLoop(adapter=adapter, requests=requests, dlq=policies(dead_letters)["immediate"])
    return fail_once(adapter, loop, requests, MyRequest("why?"), MyRequest("when?", critical=True))
