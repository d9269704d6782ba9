"""The policy that judges an item of a worker: its handler's, under its queue's, under its own (core/policy_data).

Resolved when it is needed: an operator can change the policy of a queue, and a deploy the meaning of a name, while
items wait for retries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from redrive.core.item import Item
from redrive.core.policy import Policy
from redrive.core.policy_data import resolve
from redrive.engine.registry import Handler
from redrive.engine.settings import Settings

KEPT = 1024
"""Policies that are kept resolved."""


class Choice(NamedTuple):
    """`note` tells of names that are not known here and were passed over."""

    policy: Policy
    note: str = ""


class Policies:
    def __init__(self, named: Mapping[str, Policy], settings: Settings) -> None:
        self._named = named
        self.settings = settings
        self._resolved: dict[tuple[int, str, str], tuple[Policy, Choice]] = {}

    def plain(self, item: Item, handler: Handler) -> Policy:
        """As `of`, for each item before it runs: nearly all are judged by their handler's."""
        if item.terms is None and not self.settings.known(item.queue).policy:
            return handler.policy
        return self.of(item, handler).policy

    def of(self, item: Item, handler: Handler) -> Choice:
        """By the settings that are known now."""
        own = "" if item.terms is None else item.terms.policy
        queues = self.settings.known(item.queue).policy
        if not own and not queues:
            return Choice(handler.policy)
        # Many items have the same: it is kept beside the handler's policy, whose id is part of the key.
        kept = self._resolved.get((id(handler.policy), queues, own))
        if kept is None:
            choice = Choice(*resolve(handler.policy, self._named, queues, own))
            if choice.note:  # the name may be declared later
                return choice
            if len(self._resolved) >= KEPT:
                self._resolved.clear()
            kept = self._resolved[id(handler.policy), queues, own] = handler.policy, choice
        return kept[1]

    async def at_failure(self, item: Item, handler: Handler) -> Choice:
        """By the settings as they are, or were a second ago."""
        await self.settings.fresh(item.queue)
        return self.of(item, handler)

    def max_crashes(self, handler: Handler) -> int:
        """Of the queue; items with a policy of their own are asked for under the same line."""
        return self._named.get(self.settings.known(handler.queue).policy, handler.policy).max_crashes
