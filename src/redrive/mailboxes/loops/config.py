"""How a loop works, apart from what it works on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime
from os import PathLike

from redrive.blocking.loops.lease_extender import LeaseExtenderConfig
from redrive.core import durations
from redrive.core.durations import Duration
from redrive.core.validation import check_optional, check_path, check_range
from redrive.mailboxes.loops.requests import BUDGET, Budget, Deadline, check_resources
from redrive.mailboxes.loops.runs import ResourceRegistry
from redrive.mailboxes.validation import LONGEST_VISIBILITY, MAX_MESSAGES


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
        check_range(self.backoff_base, field="backoff_base", least=0, most=LONGEST_VISIBILITY)
        check_range(self.backoff_max, field="backoff_max", least=0, most=LONGEST_VISIBILITY)
        check_range(self.jitter, field="jitter", least=0, most=1)
        check_range(self.max_messages, field="max_messages", least=1, most=MAX_MESSAGES, whole=True)
        check_range(self.max_expansions, field="max_expansions", least=0, most=1000, whole=True)
        if self.deadline is not None and not isinstance(self.deadline, Deadline):
            durations.parse(self.deadline, field="deadline")
        check_optional(
            budget=(self.budget, Budget, BUDGET),
            lease_extender=(self.lease_extender, LeaseExtenderConfig, "use LeaseExtenderConfig"),
        )
        check_resources(self.resources)
        if self.debug_bundles is not None:
            check_path(self.debug_bundles, field="debug_bundles", hint="give the name of a folder")

    def backoff(self, delivery_count: int) -> float:
        """Seconds until a message that failed at this delivery is visible again."""
        longest = min(self.backoff_base * delivery_count, self.backoff_max)
        return longest * (1 - self.jitter * random.random())  # noqa: S311 - to spread, not to hide

    def deadline_of(self, created_at: datetime) -> Deadline | None:
        if self.deadline is None or isinstance(self.deadline, Deadline):
            return self.deadline
        return Deadline.after(self.deadline, since=created_at)
