"""URLs of Redis stores: what they mean, and that a password in them is shown by nobody."""

from __future__ import annotations

import pytest

from redrive.errors import BadStoreURL, ConfigError
from redrive.stores.redis import RedisStore
from redrive.stores.redis.options import Address, Options
from redrive.stores.url import store_from_url


def options(url: str) -> Options:
    store = store_from_url(url)
    assert isinstance(store, RedisStore)
    return store._options  # noqa: SLF001 - what becomes of a URL


@pytest.mark.parametrize(
    ("url", "address", "location"),
    [
        ("redis://", Address(), "redis://localhost:6379/0?namespace=redrive"),
        ("redis://h", Address("h"), "redis://h:6379/0?namespace=redrive"),
        ("redis://ann:secret@h:7000/3", Address("h", 7000), "redis://h:7000/3?namespace=redrive"),
        ("redis://:s%40cret@h?namespace=jobs", Address("h"), "redis://h:6379/0?namespace=jobs"),
        ("valkey://h/1", Address("h"), "redis://h:6379/1?namespace=redrive"),
        ("rediss://[::1]:7000", Address("::1", 7000), "rediss://[::1]:7000/0?namespace=redrive"),
        ("valkeys://h", Address("h"), "rediss://h:6379/0?namespace=redrive"),
        ("unix:///run/a%20b.sock?db=2", Address(path="/run/a b.sock"), "unix:///run/a b.sock?db=2&namespace=redrive"),
    ],
)
def test_a_url_names_a_server(url: str, address: Address, location: str) -> None:
    assert options(url).address == address
    assert store_from_url(url).info().location == location


def test_user_and_password_are_decoded_and_hidden() -> None:
    found = options("redis://an%6E:s%2Fcr%40t@h")
    assert (found.username, found.password) == ("ann", "s/cr@t")
    assert "s/cr@t" not in repr(found)


def test_the_options_of_a_url() -> None:
    found = options("redis://h?timeout=3s&connect_timeout=500ms&poll=2s&pool=3&compress_above=off&namespace=a-b.c:d")
    assert (found.timeout, found.connect_timeout, found.poll, found.pool) == (3_000, 500, 2_000, 3)
    assert (found.compress_above, found.prefix) == (2**63 - 1, "{a-b.c:d}:")


def test_what_is_said_about_tls_is_passed_on() -> None:
    assert options("redis://h").tls is None
    said = options("rediss://h?ssl_ca_certs=/ca.pem&ssl_check_hostname=no&ssl_cert_reqs=optional").tls
    assert said == {"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False, "ssl_cert_reqs": "optional"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://h/jobs", "number of a database"),
        ("redis://h:port", "port is not a number"),
        ("redis://h:70000", "port is not a number"),
        ("redis://h?namespace=", "store.namespace: '' is not a namespace"),
        ("redis://h?namespace={x}", "without blanks and braces"),
        ("redis://h?namespace=a%20b", "without blanks and braces"),
        ("redis://h?timeout=0", "store.timeout: must not be zero"),
        ("redis://h?timeout=soon", "store.timeout"),
        ("redis://h?pool=0", "store.pool"),
        ("redis://h?pool=many", "store.pool: 'many' is not a number"),
        ("redis://h?speed=9", "unknown option 'speed'"),
        ("redis://h?ssl_ca_certs=x", "unknown option 'ssl_ca_certs'"),
        ("rediss://h?ssl_check_hostname=maybe", "neither yes nor no"),
        ("rediss://h?ssl_cert_reqs=maybe", "use one of required, optional, none"),
        ("unix://run/redis.sock", "names no socket"),
        ("redis+sentinel://h", "redis+sentinel:// is not supported (give the address of the primary"),
        ("sentinel://h", "sentinel:// is not supported (give the address of the primary"),
        ("redis+cluster://h", "redis+cluster:// is not supported (give the address of any node"),
    ],
)
def test_what_cannot_be_used_is_told_with_the_fix(url: str, says: str) -> None:
    with pytest.raises(BadStoreURL) as raised:
        store_from_url(url)
    assert says in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h/jobs",
        "redis://:hunter2/x@h",
        "redis://:hunter2[x@h",
        "redis://:x#hunter2@h",
        "redis://:hunter2@h#x",
        "redis://ann:hunter2@h:port",
        "redis+sentinel://:hunter2@h",
        "redsi://:hunter2@h",
        "redsi://h?ssl_password=hunter2",
        "rediss://h?ssl_password=hunter2&speed=9",
    ],
)
def test_a_password_is_not_shown_where_the_rest_is_wrong(url: str) -> None:
    with pytest.raises(BadStoreURL) as raised:
        store_from_url(url)
    assert "hunter2" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(("field", "value"), [("namespace", "a{b"), ("pool", 0), ("db", -1), ("timeout", "0s")])
def test_the_same_is_refused_without_a_url(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        RedisStore("h", **{field: value})  # type: ignore[arg-type]
