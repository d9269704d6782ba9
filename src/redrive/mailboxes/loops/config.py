"""How a loop works, apart from what it works on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime
from os import PathLike

from redrive.blocking.loops.lease_extender import LeaseExtenderConfig
from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.quantity import shown
from redrive.core.validation import check_optional
from redrive.errors import InvalidParameterError
from redrive.mailboxes.loops.requests import BUDGET, Budget, Deadline, check_resources
from redrive.mailboxes.loops.runs import ResourceRegistry

MOST_MESSAGES = 10
LONGEST_WAIT = 43_200.0
"""Seconds: nothing is made invisible for longer."""


@dataclass(frozen=True, slots=True)
class MainLoopConfig:
    """`deadline` and `budget` are for requests that bring none; a deadline given as a duration counts from when the
    request was created. `resources` are for all; what the loop or the request calls by the same name goes before.

    `lease_extender`: how messages that take long are kept. A failed message comes back after
    `min(backoff_base * delivery_count, backoff_max)` seconds, less a random part of up to `jitter` (0.2 is a fifth); an
    error that says `retry_after` is believed instead. `max_messages` are received at a time, and worked on one after
    the other. A prompt is made anew at most `max_expansions` times in one delivery. `debug_bundles`: the folder for
    bundles of requests that ask for one; without it none is written.
    """

    deadline: Deadline | Duration | None = None
    budget: Budget | None = None
    resources: ResourceRegistry | None = None
    lease_extender: LeaseExtenderConfig | None = None
    backoff_base: float = 60
    backoff_max: float = 900
    jitter: float = 0.0
    max_messages: int = 1
    max_expansions: int = 10
    debug_bundles: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        _check("backoff_base", self.backoff_base, 0, LONGEST_WAIT)
        _check("backoff_max", self.backoff_max, 0, LONGEST_WAIT)
        _check("jitter", self.jitter, 0, 1)
        _check("max_messages", self.max_messages, 1, MOST_MESSAGES, whole=True)
        _check("max_expansions", self.max_expansions, 0, 1000, whole=True)
        if self.deadline is not None and not isinstance(self.deadline, Deadline):
            durations.parse(self.deadline, field="deadline")
        check_optional(
            budget=(self.budget, Budget, BUDGET),
            lease_extender=(self.lease_extender, LeaseExtenderConfig, "use LeaseExtenderConfig"),
        )
        check_resources(self.resources)
        folder: object = self.debug_bundles
        if folder is not None and not isinstance(folder, str | PathLike):
            hint = "give the name of a folder"
            raise InvalidParameterError(f"{shown(folder)} is no path", field="debug_bundles", hint=hint)

    def backoff(self, delivery_count: int) -> float:
        """Seconds until a message that failed at this delivery is visible again."""
        longest = min(self.backoff_base * delivery_count, self.backoff_max)
        return longest * (1 - self.jitter * random.random())  # noqa: S311 - to spread, not to hide

    def deadline_of(self, created_at: datetime) -> Deadline | None:
        if self.deadline is None or isinstance(self.deadline, Deadline):
            return self.deadline
        return Deadline.after(self.deadline, since=created_at)


def _check(field: str, value: object, least: float, most: float, *, whole: bool = False) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        hint = f"use a {'whole ' if whole else ''}number from {least:g} to {most:g}"
        raise InvalidParameterError(f"{shown(value)} cannot be used", field=field, hint=hint)
