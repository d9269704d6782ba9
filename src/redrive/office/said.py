"""What callers of the office say of themselves and of what they mean, checked."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Mapping
from typing import Any

from redrive.core.quantity import shown
from redrive.engine.ids import new_id
from redrive.errors import ConfigError

NUMBER_MAX = 2**63 - 1
REQUEST_ID_LIMIT = 200


def default_actor() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def check_actor(actor: object) -> str:
    if not isinstance(actor, str) or not actor.strip():
        raise ConfigError(f"{actor!r} is not a name", field="actor", hint="use a short text, for the audit")
    return actor


def check_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigError(f"{limit!r} is not a number of rows", field="limit", hint="use 1 or more")


def check_number(number: object, field: str) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= NUMBER_MAX:
        words = f"must be 0 or more, and at most {NUMBER_MAX}, not {shown(number)}"
        raise ConfigError(words, field=field, hint="use the last number that was read")


def check_several(which: object, field: str) -> list[Any]:
    """One id or many."""
    if isinstance(which, str):
        return [which]
    if not isinstance(which, Iterable) or isinstance(which, bytes | Mapping):
        hint = "give an id, a list of ids, an item, a page or a filter text"
        raise ConfigError(f"{which!r} names no items", field=field, hint=hint)
    return list(which)


def request_named(request_id: object) -> str:
    """The request id, or a new one for None."""
    if request_id is None:
        return new_id()
    text = request_id if isinstance(request_id, str) else ""
    if not text.strip() or len(text) > REQUEST_ID_LIMIT or not text.isprintable():
        hint = f"use 1 to {REQUEST_ID_LIMIT} printable characters, or leave it out"
        raise ConfigError(f"{shown(request_id)} is not a request id", field="request_id", hint=hint)
    return text


def check_reason(reason: object) -> str:
    if not isinstance(reason, str) or not reason.strip():
        raise ConfigError("a reason is needed", field="reason", hint="say why; it is kept in the audit")
    return reason.strip()
