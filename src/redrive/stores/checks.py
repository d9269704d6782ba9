"""What every engine refuses, in the same words."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.item import NewItem
from redrive.errors import ConfigError
from redrive.stores.base import PAGE_LIMIT


def check_new(items: Sequence[NewItem]) -> None:
    for new in items:
        if not new.id:
            raise ConfigError("must not be empty", field="id")
        if not new.queue:
            raise ConfigError(f"must not be empty (item {new.id})", field="queue")
        if new.delay < 0:
            raise ConfigError(f"must not be negative: {new.delay} ms (item {new.id})", field="delay")


def check_page(limit: int, most: int = PAGE_LIMIT) -> None:
    if not 1 <= limit <= most:
        raise ConfigError(f"must be between 1 and {most}, not {limit}", field="limit")
