"""Replay of dead letters with idempotency claims, transformation and rules, on any store and for every queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redrive.core.acts import Amended, Skipped

DedupeBy = str | Callable[[Any], object]
"""A dotted path into the JSON payload, such as "order.id"; or a function of the payload that gives the key or None."""
Transform = str | Callable[[Any], object]
"""A function of the payload that gives the new payload; or its name, such as "repairs:new_form"."""


class Replayed(Amended, frozen=True):
    """Result of a replay. `changed` are the letters that were sent and `replayed` the items they are now, in the same
    order: the same ids, unless a transformation made new items.

    All others are still letters, each with its reason: `duplicates`, because another letter has the same dedupe key;
    `kept`, because a function failed on them; `skipped`, because they are leased, or are not letters any more.
    With `pace` or `background` none is sent yet: `reserved` are the letters that are kept for the replay `replay`; ""
    if there was nothing to replay.
    """

    replayed: tuple[str, ...] = ()
    duplicates: tuple[Skipped, ...] = ()
    kept: tuple[Skipped, ...] = ()
    replay: str = ""
    reserved: tuple[str, ...] = ()
