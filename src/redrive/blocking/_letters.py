"""The dead letter office without `await`."""

from __future__ import annotations

from redrive.blocking._bridge import Bridge
from redrive.core.durations import Duration
from redrive.core.item import History, Item
from redrive.core.verbs import Amended, Entry, Page
from redrive.office import letters as office
from redrive.office.letters import Which


class Letters:
    """`which` is a page, an item, ids or a filter text; a text is frozen to the ids it matches before any move."""

    def __init__(self, bridge: Bridge, letters: office.Letters) -> None:
        self._bridge = bridge
        self._letters = letters

    def find(self, filter: str = "", *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of letters, last-died first: open ones unless the filter names a disposition."""
        return self._bridge.call(self._letters.find, filter, limit=limit, cursor=cursor)

    def get(self, item_id: str) -> History:
        """The letter with every attempt and act, by id or unique prefix."""
        return self._bridge.call(self._letters.get, item_id)

    def resolve(self, item_id: str) -> str:
        """The full id of an id, or of a prefix of at least four characters that fits one letter (or else one item)."""
        return self._bridge.call(self._letters.resolve, item_id)

    def replay(
        self,
        which: Which,
        *,
        reason: str,
        budget: str = "fresh",
        delay: Duration = 0,
        force: bool = False,
        actor: str | None = None,
        request_id: str | None = None,
    ) -> Amended:
        """Send letters again, same id, history kept. `fresh`: all counters anew. `once`: one attempt, then dead.

        Each goes back to its place under its order key, or to the end if the others went on. One whose dedupe key a
        live item holds is skipped; with `force` it runs without the key.
        """
        return self._bridge.call(
            self._letters.replay,
            _in_hand(which),
            reason=reason,
            budget=budget,
            delay=delay,
            force=force,
            actor=actor,
            request_id=request_id,
        )

    def archive(self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None) -> Amended:
        """Put letters away: kept, out of the open list, replayable."""
        return self._bridge.call(
            self._letters.archive, _in_hand(which), reason=reason, actor=actor, request_id=request_id
        )

    def discard(self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None) -> Amended:
        """To the trash, from where `restore` brings them back until they are pruned."""
        return self._bridge.call(
            self._letters.discard, _in_hand(which), reason=reason, actor=actor, request_id=request_id
        )

    def restore(self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None) -> Amended:
        """Out of the archive or the trash: open again."""
        return self._bridge.call(
            self._letters.restore, _in_hand(which), reason=reason, actor=actor, request_id=request_id
        )

    def skip(self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None) -> Amended:
        """Let go on what waits behind dead heads of order keys. The letters stay; whoever goes on is told the gap."""
        return self._bridge.call(self._letters.skip, _in_hand(which), reason=reason, actor=actor, request_id=request_id)

    def audit(self, *, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """What was done by whom and why, in order; go on with `after=` the last position."""
        return self._bridge.call(self._letters.audit, after=after, limit=limit)


def _in_hand(which: Which) -> Which:
    return which if isinstance(which, str | Page | Item | History) else list(which)
