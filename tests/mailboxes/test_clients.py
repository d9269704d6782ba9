"""`RedisMailbox(client=)`: the user's own client says where the server is, and is not used for anything else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import redis
import redis.asyncio
import redis.cluster
import redis.sentinel

from redrive.errors import BadStoreURL
from redrive.mailboxes import DeadLetter, InvalidParameterError, RedisMailbox
from redrive.stores.redis.client_url import client_url
from redrive.stores.url import store_from_url
from redrive.testing import FakeClock
from tests.support.stores import StoreUrl


@pytest.mark.parametrize(
    ("client", "url"),
    [
        (redis.Redis(), "redis://localhost:6379/0"),
        (redis.Redis(host="::1", port=7000, db=3), "redis://[::1]:7000/3"),
        (redis.Redis(decode_responses=True), "redis://localhost:6379/0"),
        (redis.Redis(password="p@ss/?#:"), "redis://:p%40ss%2F%3F%23%3A@localhost:6379/0"),  # noqa: S106
        (redis.Redis(username="me", password="x"), "redis://me:x@localhost:6379/0"),  # noqa: S106
        (redis.Redis(unix_socket_path="/run/my redis.sock", db=2), "unix:///run/my%20redis.sock?db=2"),
        (redis.Redis.from_url("redis://u:p@host:1234/5"), "redis://u:p@host:1234/5"),
        (redis.Redis(ssl=True), "rediss://localhost:6379/0?ssl_cert_reqs=required&ssl_check_hostname=yes"),
        (redis.Redis(ssl=True, ssl_cert_reqs="none", ssl_check_hostname=False),
         "rediss://localhost:6379/0?ssl_cert_reqs=none&ssl_check_hostname=no"),
        (redis.asyncio.Redis(host="there"), "redis://there:6379/0"),
    ],
)  # fmt: skip
def test_the_address_is_that_of_the_client(client: Any, url: str) -> None:
    assert client_url(client) == url
    store_from_url(url)


def test_a_provider_of_credentials_is_asked() -> None:
    client = redis.Redis(credential_provider=redis.UsernamePasswordCredentialProvider("me", "secret"))
    assert client_url(client) == "redis://me:secret@localhost:6379/0"


def test_any_node_of_a_cluster_will_do() -> None:
    """Made without asking the cluster, as which its clients cannot be."""
    nodes = {"a:7001": SimpleNamespace(host="a", port=7001), "b:7002": SimpleNamespace(host="b", port=7002)}
    manager = SimpleNamespace(startup_nodes=nodes, connection_kwargs={"username": "me", "password": "x"})
    client = redis.cluster.RedisCluster.__new__(redis.cluster.RedisCluster)
    client.nodes_manager = manager  # type: ignore[assignment]
    assert client_url(client, "mine") == "redis://me:x@a:7001/0?namespace=mine"


def test_clients_that_ask_sentinel_are_refused_by_name() -> None:
    sentinel: Any = redis.sentinel.Sentinel
    client = sentinel([("localhost", 26379)]).master_for("primary")
    with pytest.raises(InvalidParameterError, match="Sentinel") as caught:
        RedisMailbox("requests", client)
    assert "redis://" in caught.value.hint


@pytest.mark.parametrize(
    "client", [object(), "redis://localhost", 3, SimpleNamespace(connection_pool=None), MagicMock()]
)
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(InvalidParameterError, match="not a client of redis-py"):
        RedisMailbox("requests", client=client)


def test_a_client_or_a_url_and_not_both() -> None:
    both: dict[str, Any] = {"client": redis.Redis(), "url": "redis://localhost"}
    for given in ({}, both):
        with pytest.raises(InvalidParameterError, match="a client or a url"):
            RedisMailbox("requests", **given)
    with pytest.raises(BadStoreURL):
        RedisMailbox("requests", url="redis://localhost?nonsense=1")


@pytest.mark.slow
def test_the_mailbox_is_on_the_server_of_the_client(store_url: StoreUrl) -> None:
    """Two mailboxes, one by the user's client and one by its URL, are the same."""
    url = store_url("redis")
    address, _, options = url.partition("?")
    namespace = dict(option.split("=") for option in options.split("&"))["namespace"]
    clock = FakeClock()
    with (
        redis.Redis.from_url(address, decode_responses=True) as client,
        RedisMailbox[dict[str, int], Any](name="requests", client=client, namespace=namespace, clock=clock) as one,
        RedisMailbox[dict[str, int], Any]("requests", url=url, clock=clock, default_ttl=0) as other,
    ):
        assert (one.default_ttl, other.default_ttl) == (259_200_000, 0)
        one.send({"n": 1})
        [message] = other.receive()
        assert message.body == {"n": 1}
        message.acknowledge()
        assert one.approximate_count() == 0
        # Letters are never trimmed by a default.
        other.mark_dead_letters()
        other.send({"n": 2})
        clock.advance("4d")
        assert one.expire() == 0
        assert [cast("DeadLetter[Any]", message.body).body for message in one.receive()] == [{"n": 2}]
