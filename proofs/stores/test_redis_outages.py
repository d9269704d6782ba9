"""A Redis store goes on by itself when its server is killed, restarted, or moved to another node of a cluster."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from redrive.core.states import State
from redrive.core.verbs import QueueChange, Verdict
from redrive.errors import StoreUnavailable
from redrive.testing.conformance.kit import asking, dead, failed, finished, ids, new, news
from tests.stores.test_redis_servers import Open, _lose, _persist, _reconciled, _until, opened, server
from tests.support.servers.redis import RedisServer, private_redis

__all__ = ["opened", "server"]


async def test_a_store_goes_on_by_itself_after_the_server_was_killed(server: RedisServer, opened: Open) -> None:
    store = await opened(server.url())
    made = news(3)
    await store.put(made)
    (held,) = (await store.lease(asking())).items
    server.kill()
    with pytest.raises(StoreUnavailable):
        await store.put([new()])
    with pytest.raises(StoreUnavailable):
        await store.tally()
    server.start()
    assert (await store.settle([finished(held)])).answers[0].verdict is Verdict.APPLIED
    assert ids((await store.lease(asking(5))).items) == ids(made[1:])


@pytest.mark.parametrize("live", [True, False], ids=["live", "opened"])
async def test_after_a_restart_every_item_is_where_it_belongs(
    server: RedisServer, opened: Open, caplog: pytest.LogCaptureFixture, live: bool
) -> None:
    """By a handle that notices the restart, and by one that is opened after it."""
    store = await opened(server.url())
    made = news(5)
    await store.put(made)
    with redis.Redis.from_url(server.url()) as admin:
        await _lose(admin, made)
    server.kill()
    server.start()
    if live:
        # The first to use the connection learns that it is gone.
        with contextlib.suppress(StoreUnavailable):
            await store.tally()
        await store.tally()
    else:
        store = await opened(server.url())
    await _reconciled(store)
    assert "4 places of items did not agree" in caplog.text
    assert not (await store.check()).findings
    assert sorted(ids((await store.lease(asking(9))).items)) == sorted(ids(made))
    caplog.clear()
    await _reconciled(await opened(server.url()))
    assert "did not agree" not in caplog.text


# --- clusters ---


async def test_a_cluster_is_used_by_the_address_of_a_node(opened: Open) -> None:
    """And refuses scripts that use keys of several slots: there are none."""
    with private_redis(cluster_enabled=True) as server:
        store = await opened(server.url(namespace="anything"))
        made = news(5)
        await store.put(made)
        done, dying, retried, *_ = (await store.lease(asking(5))).items
        await store.settle([finished(done), dead(dying), failed(retried)], asking(5))
        await store.configure("other", QueueChange(paused=True))
        assert not (await store.check()).findings
        assert (await store.get(dying.id)).item.state is State.DEAD


async def test_a_namespace_is_found_on_whichever_node_has_it_and_followed_when_it_moves(opened: Open) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(private_redis(cluster_enabled=True)) for _ in range(2))
        first, second = (stack.enter_context(redis.Redis.from_url(each.url())) for each in (one, two))
        slot = first.execute_command("CLUSTER KEYSLOT", "{redrive}:")
        second.execute_command("CLUSTER", "RESET", "HARD")
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", two.port)
        here, there = (client.execute_command("CLUSTER", "MYID") for client in (first, second))
        await _until(lambda: _has_met(first, there) and _has_met(second, here))

        def give(owner: Any, old: Any, *slots: int) -> None:
            """As who moves slots does it: the new owner's word is then the newer one, whatever is still on its way."""
            nodes = {here: first, there: second}
            for each in slots:
                nodes[owner].execute_command("CLUSTER", "SETSLOT", each, "IMPORTING", old)
                nodes[old].execute_command("CLUSTER", "SETSLOT", each, "MIGRATING", owner)
                for node in (owner, old):
                    nodes[node].execute_command("CLUSTER", "SETSLOT", each, "NODE", owner)

        # One more, which it keeps: who has lost all becomes a replica.
        give(there, here, slot, (slot + 1) % 16384)
        await _until(lambda: all(_is_well(client) for client in (first, second)))
        store = await opened(one.url())
        made = news(2)
        await store.put(made)
        assert second.exists("{redrive}:item")
        second.flushall()
        give(here, there, slot)
        await store.put(made)
        assert first.exists("{redrive}:item")


async def test_a_failover_of_the_named_node_and_its_return_as_a_replica_are_followed(opened: Open) -> None:
    """Three primaries, so that two can agree; the named one has the namespace, and a replica."""
    settings: dict[str, Any] = {"cluster_enabled": True, "cluster_node_timeout": 500}
    with ExitStack() as stack:
        nodes = [stack.enter_context(private_redis(**settings)) for _ in range(4)]
        clients = [stack.enter_context(redis.Redis.from_url(node.url())) for node in nodes]
        for client in clients:
            client.execute_command("CLUSTER", "RESET", "HARD")
        for node in nodes[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        await _until(lambda: all(_knows(client, 4) for client in clients))
        slot = clients[0].execute_command("CLUSTER KEYSLOT", "{redrive}:")
        clients[0].execute_command("CLUSTER", "ADDSLOTS", slot)
        if slot:
            clients[1].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, slot - 1)
        clients[2].execute_command("CLUSTER", "ADDSLOTSRANGE", slot + 1, 16383)
        await _until(lambda: all(_is_well(client) for client in clients))
        clients[3].execute_command("CLUSTER", "REPLICATE", clients[0].execute_command("CLUSTER", "MYID"))
        await _until(lambda: clients[3].info("replication")["master_link_status"] == "up")
        store = await opened(nodes[0].url())
        first, second, third = news(3)
        await store.put([first])
        await _until(lambda: clients[3].info("replication")["slave_repl_offset"] > 0)
        clients[0].execute_command("WAIT", 1, 5_000)
        nodes[0].kill()
        await _until(lambda: clients[3].info("replication")["role"] == "master")
        await _persist(store, second)
        assert (await store.get(first.id)).item.id == first.id
        nodes[0].start()
        await _until(lambda: clients[0].info("replication")["role"] == "slave")
        await store.put([third])
        again = await opened(nodes[0].url())
        assert (await again.tally()).queues[0].ready == 3


def _has_met(client: Any, node: bytes) -> bool:
    """Knows it by its name: it has another one until they have shaken hands."""
    return node in client.execute_command("CLUSTER", "NODES")


def _knows(client: Any, count: int) -> bool:
    return f"cluster_known_nodes:{count}" in client.execute_command("CLUSTER", "INFO").decode()


def _is_well(client: Any) -> bool:
    return "cluster_state:ok" in client.execute_command("CLUSTER", "INFO").decode()
