"""A namespace in a cluster is followed to the node that has it. Behind the played nodes is a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit

import pytest

from redrive.errors import StoreError, StoreUnavailable
from redrive.stores.base import Store
from redrive.stores.url import store_from_url
from redrive.testing.conformance.kit import PATIENCE, asking, ids, new, news
from tests.stores.redis_office_kit import *  # noqa: F403 - the fixtures are meant
from tests.support.listening import HOST, listening


class Node:
    """Passes on what it is asked, unless another node has the namespace."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.port = 0
        self.moved_to: Node | None = None
        self.all: list[Node] = []
        self.served = 0
        self._upstream = upstream
        self._open = AsyncExitStack()

    async def start(self) -> None:
        self.port = await self._open.enter_async_context(listening(self._talk))

    async def stop(self) -> None:
        await self._open.aclose()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection(*self._upstream)
        passing = asyncio.ensure_future(_pass_on(answers, writer))
        try:
            while command := await _command(reader):
                if command[0] == b"EVALSHA" and self.moved_to is not None:
                    writer.write(b"-MOVED 1 %s:%d\r\n" % (HOST.encode(), self.moved_to.port))
                elif command[:2] == [b"CLUSTER", b"NODES"]:
                    lines = [b"%040d %s:%d@1 master - 0 0 0 connected" % each for each in self._listed()]
                    said = b"\n".join(lines)
                    writer.write(b"$%d\r\n%s\r\n" % (len(said), said))
                else:
                    self.served += command[0] == b"EVALSHA"
                    questions.write(_encoded(command))
        finally:
            passing.cancel()
            questions.close()
            writer.close()
            with suppress(OSError):
                await questions.wait_closed()

    def _listed(self) -> list[tuple[int, bytes, int]]:
        return [(number, HOST.encode(), each.port) for number, each in enumerate(self.all)]


async def _pass_on(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while said := await answers.read(65_536):
        writer.write(said.replace(b"cluster_enabled:0", b"cluster_enabled:1"))


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    """Empty when there are no more."""
    try:
        count = int((await reader.readuntil(b"\r\n"))[1:])
        parts = []
        for _ in range(count):
            size = int((await reader.readuntil(b"\r\n"))[1:])
            parts.append((await reader.readexactly(size + 2))[:-2])
    except (asyncio.IncompleteReadError, ConnectionError):
        return []
    return parts


def _encoded(command: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in command)


@pytest.fixture
async def nodes(address: str) -> AsyncIterator[tuple[Node, Node]]:
    parts = urlsplit(address)
    upstream = (parts.hostname or HOST, parts.port or 0)
    one, two = Node(upstream), Node(upstream)
    for node in (one, two):
        node.all = [one, two]
        await node.start()
    yield one, two
    for node in (one, two):
        await node.stop()


@pytest.fixture
async def store(address: str, nodes: tuple[Node, Node]) -> AsyncIterator[Store]:
    """By the address of the first node."""
    there = urlsplit(address)
    store = store_from_url(there._replace(netloc=f"{HOST}:{nodes[0].port}").geturl())
    yield store
    await store.close()


async def test_a_namespace_is_found_on_whichever_node_has_it_and_followed_when_it_moves(
    store: Store, nodes: tuple[Node, Node]
) -> None:
    one, two = nodes
    one.moved_to = two
    await store.open()
    made = news(2)
    await store.put(made)
    assert one.served == 0
    assert two.served > 0
    one.moved_to, two.moved_to = None, one
    assert (await store.put(made)).already == ids(made)
    assert one.served > 0


async def test_nodes_that_do_not_agree_are_not_followed_for_ever(store: Store, nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await store.open()
    one.moved_to, two.moved_to = two, one
    with pytest.raises(StoreUnavailable, match="round in circles"):
        await store.put([new()])


async def test_when_the_named_node_is_gone_the_others_are_asked(store: Store, nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    await store.open()
    made = news(2)
    await store.put(made)
    await one.stop()
    async with asyncio.timeout(PATIENCE):
        while not two.served:
            # The first to use a connection learns that it is gone.
            with suppress(StoreError):
                await store.put(made)
    assert ids((await store.lease(asking(5))).items) == ids(made)
