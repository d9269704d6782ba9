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
        """What was done by whom and why, in order; go on with `after=` the last position."""
        return self._bridge.call(self._audit.list, after=after, limit=limit)

    def last(self, limit: int = 100) -> tuple[Entry, ...]:
        """The newest entries, in order."""
        return self._bridge.call(self._audit.last, limit)

    def requests(
        self, limit: int = 100, *, actor: str | None = None, since: Duration | None = None
    ) -> tuple[AuditLine, ...]:
        """The newest requests in the order in which they began, one line each, however many entries they have.

        `actor`: only those of this one. `since`: only what began within this long. Reads back as far as the requests
        need, page by page: a request is whole when nothing of it stands in the hour before its first entry, and a
        replay in the background when its first window was read.
        """
        return self._bridge.call(self._audit.requests, limit, actor=actor, since=since)

    def seal(self) -> Seal | None:
        """Make what is new a part of the chain. Workers do it every minute, and commands when they have acted."""
        return self._bridge.call(self._audit.seal)

    def verify(self, *, known: str | None = None) -> AuditCheck:
        """Make every seal anew from the entries, and compare. `known`: a hash that was noted and must be among them."""
        return self._bridge.call(self._audit.verify, known=known)
