"""Making a connection: the limits that every session gets, in the one round trip that connecting takes anyway."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from redrive.stores.postgres.faults import not_connected
from redrive.stores.postgres.options import Options
from redrive.stores.postgres.wire import Wire, teach

_KEPT_ALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""A peer that is gone without a word is found out within half a minute, also by whoever only listens."""


def settings(options: Options) -> dict[str, int | str]:
    """A little less than our own limit: so the server is the first to give up, and says that nothing was written."""
    statement = max(1, options.timeout * 9 // 10)
    return {
        "statement_timeout": statement,
        "lock_timeout": max(1, statement * 9 // 10),
        "idle_in_transaction_session_timeout": 2 * options.timeout,
        "default_transaction_isolation": r"read\ committed",
        "timezone": "UTC",
        # Each question gets a plan of its own; the verbs' functions say for themselves what they need.
        "plan_cache_mode": "force_custom_plan",
        "jit": "off",
        # Whether they arrived: a pooler may be told to take such settings and to forget them.
        "redrive.settings": "taken",
    }


def parameters(options: Options) -> dict[str, Any]:
    """For libpq. What the URL says goes before what we would say."""
    given = conninfo_to_dict(options.url)
    made: dict[str, Any] = {
        "application_name": "redrive",
        **_KEPT_ALIVE,
        "tcp_user_timeout": max(1_000, options.timeout),
        **given,
        "connect_timeout": _for_each_host(options, given),
        "client_encoding": "UTF8",
    }
    if options.notify:
        ours = " ".join([f"-c {name}={value}" for name, value in settings(options).items()])
        made["options"] = f"{ours} {given.get('options') or ''}".strip()
    return made


def _for_each_host(options: Options, given: dict[str, Any]) -> int:
    """In seconds, and libpq takes no less than two. A host that does not answer must leave time for the others."""
    hosts = 1 + max(str(given.get(name) or "").count(",") for name in ("host", "hostaddr"))
    return max(2, -(-options.connect_timeout // 1000) // hosts)


async def connect(options: Options) -> Wire:
    """Raises what `faults` makes of it. A pooler between us and the server allows neither settings nor preparing."""
    try:
        async with asyncio.timeout(min(options.connect_timeout, options.timeout) / 1000):
            wire = await Wire.connect(
                autocommit=True,
                prepare_threshold=2 if options.notify else None,
                **parameters(options),
            )
    except Exception as error:  # noqa: BLE001 - it is told
        # Its traceback has the URL in it.
        raise not_connected(error, options) from None
    wire.pid = os.getpid()
    teach(wire)
    return wire
