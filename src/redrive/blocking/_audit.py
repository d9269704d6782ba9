"""The audit without `await`."""

from __future__ import annotations

from redrive.blocking._bridge import Bridge
from redrive.core.chain import Seal
from redrive.core.durations import Duration
from redrive.core.verbs import Entry
from redrive.office import audit as office
from redrive.office.audit import AuditCheck, AuditLine


class Audit:
    def __init__(self, bridge: Bridge, audit: office.Audit) -> None:
        self._bridge = bridge
        self._audit = audit

    def list(self, *, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """Audit entries with actor and reason, in order; continue with `after=` the last position."""
        return self._bridge.call(self._audit.list, after=after, limit=limit)

    def last(self, limit: int = 100) -> tuple[Entry, ...]:
        """The newest entries, in order."""
        return self._bridge.call(self._audit.last, limit)

    def requests(
        self, limit: int = 100, *, actor: str | None = None, since: Duration | None = None
    ) -> tuple[AuditLine, ...]:
        """The newest requests in the order in which they began, one line each, however many entries they have.

        `actor`: only requests of this actor. `since`: only requests that began within this time. Reads back page by
        page as far as needed: a request is complete when it has no entry in the hour before its first one, and a
        background replay when its first window was read.
        """
        return self._bridge.call(self._audit.requests, limit, actor=actor, since=since)

    def seal(self) -> Seal | None:
        """Add a seal over the new entries to the chain. Workers do so every minute, and commands after their acts."""
        return self._bridge.call(self._audit.seal)

    def verify(self, *, known: str | None = None) -> AuditCheck:
        """Recompute every seal from the entries, and compare. `known`: a noted hash that must be among them."""
        return self._bridge.call(self._audit.verify, known=known)
