"""What is looked at when a connection is made: the server, and whether it keeps the promise.

A server that evicts, is too old, or is a replica is refused. What it survives is told as the durability, by what it
says of itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal, NamedTuple

from redrive.errors import ConfigError, StoreForbidden, StoreTooNew
from redrive.stores.migrate import Migration
from redrive.stores.redis.options import Address
from redrive.stores.redis.wire import Refused, Wire

SCHEMA = 1
LAYOUTS: tuple[Migration, ...] = ()
"""The layouts after the first, up to SCHEMA. Opening a namespace of an earlier one reconciles it (mend.py)."""
OLDEST = (7, 0)

Durability = Literal["power-loss", "process-crash", "none"]

_log = logging.getLogger("redrive.stores")


# What the scripts run, with arguments as they take them; the key is put in front where there is one.
_KEYLESS = (("TIME",), ("SCAN", "0"))
_KEYED = (
    *(("DEL",), ("EXISTS",), ("TYPE",)),
    *(("HDEL", "f"), ("HEXISTS", "f"), ("HGET", "f"), ("HGETALL",), ("HKEYS",), ("HLEN",), ("HMGET", "f")),
    *(("HRANDFIELD", "1", "WITHVALUES"), ("HSCAN", "0"), ("HSET", "f", "v")),
    *(("HINCRBY", "f", "1"), ("HSETNX", "f", "v"), ("ZINCRBY", "1", "m")),
    *(("LLEN",), ("LRANGE", "0", "1"), ("LREM", "1", "v"), ("LSET", "0", "v"), ("RPUSH", "v")),
    *(("SADD", "m"), ("SISMEMBER", "m"), ("SMEMBERS",), ("SREM", "m")),
    *(("ZADD", "1", "m"), ("ZCARD",), ("ZCOUNT", "1", "2"), ("ZRANGE", "0", "1"), ("ZRANGEBYSCORE", "1", "2")),
    *(
        ("ZMSCORE", "m"),
        ("ZLEXCOUNT", "-", "+"),
        ("ZREM", "m"),
        ("ZREVRANGE", "0", "1"),
        ("ZSCAN", "0"),
        ("ZSCORE", "m"),
    ),
)


def commands(prefix: str) -> list[tuple[str, ...]]:
    return [*_KEYLESS, *((name, f"{prefix}boot", *args) for name, *args in _KEYED)]


class Server(NamedTuple):
    """`trouble`: what it says it cannot do at the moment. `nodes`: of its cluster, if it is in one."""

    run_id: str = ""
    library: str = ""
    durability: Durability = "none"
    why: str = ""
    trouble: tuple[str, ...] = ()
    nodes: tuple[Address, ...] = ()


async def look(wire: Wire, where: str) -> Server:
    """Raises ConfigError or StoreForbidden for a server that must not be used."""
    facts = facts_of(await wire.ask("INFO"))
    version = facts.get("redis_version", "")
    name = "valkey" if "valkey_version" in facts else "redis"
    if _numbers(version) < OLDEST:
        raise ConfigError(
            f"the server is a Redis {version or 'of an unknown version'}, 7.0 is needed: {where}",
            field="store",
            hint="use a Redis from 7.0 on, or a Valkey",
        )
    nodes = await _nodes(wire) if facts.get("cluster_enabled") == "1" else ()
    # A replica in a cluster says by itself who its primary is, to the first who asks it for something.
    if facts.get("role") == "slave" and not nodes:
        raise StoreForbidden(f"the server is a read-only replica: {where}", hint="give the address of its primary")
    settings = await settings_of(wire)
    policy = settings.get("maxmemory-policy", facts.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        raise ConfigError(
            f"the server would evict work when its memory is full (maxmemory-policy {policy}): {where}",
            field="store",
            hint="CONFIG SET maxmemory-policy noeviction, and in its configuration file",
        )
    durability, why = _durability(settings, facts)
    library = f"{name} {facts.get('valkey_version', version)}"
    return Server(facts.get("run_id", ""), library, durability, why, _trouble(facts), nodes)


async def _nodes(wire: Wire) -> tuple[Address, ...]:
    """All that live, to turn to when this one is gone."""
    try:
        lines = (await wire.ask("CLUSTER", "NODES")).decode(errors="replace").splitlines()
    except Refused:
        return (wire.address,)
    found = []
    for line in lines:
        _, where, flags, *_ = line.split()
        host, _, port = where.partition("@")[0].rpartition(":")
        if not {"fail", "handshake", "noaddr"} & set(flags.split(",")):
            found.append(Address(host or wire.address.host, int(port)))
    return tuple(found)


def facts_of(info: bytes) -> dict[str, str]:
    lines = [line for line in info.decode(errors="replace").splitlines() if line and not line.startswith("#")]
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])


async def settings_of(wire: Wire) -> dict[str, str]:
    """Empty where a managed server does not show them."""
    try:
        flat = await wire.ask("CONFIG", "GET", "appendonly", "appendfsync", "maxmemory-policy")
    except Refused:
        return {}
    texts = [value.decode(errors="replace") for value in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _durability(settings: dict[str, str], facts: dict[str, str]) -> tuple[Durability, str]:
    if "appendonly" not in settings:
        # The lower of what it may be.
        if facts.get("aof_enabled") == "1":
            return "process-crash", "it has an append-only file and does not show how it syncs (CONFIG is forbidden)"
        return "none", "it has no append-only file (by INFO; CONFIG is forbidden)"
    if settings["appendonly"] != "yes":
        return "none", "appendonly is off"
    sync = settings.get("appendfsync", "")
    if sync == "always":
        return "power-loss", ""
    return "process-crash", f"appendfsync is {sync}"


def _trouble(facts: dict[str, str]) -> tuple[str, ...]:
    told = {
        "aof_last_write_status": "the last write to its append-only file failed",
        "aof_last_bgrewrite_status": "the last rewrite of its append-only file failed",
        "rdb_last_bgsave_status": "its last snapshot failed",
    }
    return tuple(text for name, text in told.items() if facts.get(name, "ok") != "ok")


def tell(server: Server, where: str) -> None:
    for trouble in server.trouble:
        _log.warning("%s: %s; see its log and its disk", where, trouble)
    if server.durability != "power-loss":
        _log.warning(
            "%s: what it accepts survives %s: %s; CONFIG SET appendonly yes and appendfsync always for power loss",
            where,
            "nothing" if server.durability == "none" else "a crash of the process, not of the machine",
            server.why,
        )


def check_rights(missing: Sequence[str], where: str) -> None:
    if missing:
        raise StoreForbidden(
            f"this user may not run {', '.join(missing)}: {where}",
            hint="grant it: ACL SETUSER <user> +@all -@admin ~{namespace}:* &{namespace}:wake",
        )


def check_schema(schema: int, where: str) -> None:
    if schema > SCHEMA:
        raise StoreTooNew(
            f"{where} was made by a newer redrive (schema {schema}, this one knows {SCHEMA})",
            hint="upgrade redrive in this process",
        )
