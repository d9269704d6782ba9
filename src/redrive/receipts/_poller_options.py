"""What a poller is told, checked: ConfigError names the option and the fix."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from typing import TypeVar

from redrive.core.durations import Duration, parse
from redrive.core.item import Millis
from redrive.core.quantity import shown
from redrive.errors import ConfigError
from redrive.receipts.model import NAME_LIMIT, is_name
from redrive.receipts.transports import is_async

F = TypeVar("F")


def check_handler(handler: object) -> None:
    if not callable(handler):
        hint = "use a function that takes a job"
        raise ConfigError(f"{shown(handler)} is not a function", field="handler", hint=hint)


def check_places(most: object) -> None:
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ConfigError(f"{shown(most)} cannot be used", field="max_concurrent_jobs", hint="use 1 or more")


def positive(value: Duration, field: str) -> Millis:
    millis = parse(value, field=field)
    if millis < 1:
        raise ConfigError(f"{shown(value)} is too short", field=field, hint="use a positive duration such as 30s")
    return millis


def own_or_usual(function: F | None, usual: F, field: str, takes: str) -> F:
    """`function`, or the usual one where none is given."""
    if function is None:
        return usual
    if not is_async(function):
        hint = f"make it an `async def` of ({takes}), or leave it out for the broker's tool"
        raise ConfigError(f"{shown(function)} is no async function", field=field, hint=hint)
    return function


def worker_name(given: object) -> str:
    """Host and process where nothing is given; an empty one is a mistake, and no default."""
    if given is None:
        return f"{platform.node()}-{os.getpid()}"
    if not isinstance(given, str) or not is_name(given):
        hint = f"use a printable text of at most {NAME_LIMIT} characters, or leave it out"
        raise ConfigError(f"{shown(given)} is no name", field="worker_id", hint=hint)
    return given


def words(given: object, field: str) -> list[str]:
    """A text alone would be taken for as many words as it has letters."""
    hint = 'use a list of texts, such as ["ocr"]'
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(f"{shown(given)} is no list", field=field, hint=hint)
    found = list(given)
    for each in found:
        if not isinstance(each, str) or not each.strip():
            raise ConfigError(f"{shown(each)} is no text with something in it", field=field, hint=hint)
    return found
