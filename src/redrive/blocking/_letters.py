"""The dead letter office without `await`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from redrive.blocking._bridge import Bridge
from redrive.core.acts import Amended
from redrive.core.durations import Duration
from redrive.core.item import History, Item
from redrive.core.rates import RateText
from redrive.core.verbs import (
    Entry,
    LetterChange,
    Page,
    PutResult,
)
from redrive.office import letters as office
from redrive.office.causes import CauseView
from redrive.office.facets import Facets
from redrive.office.in_place_job import Function, Progress, Worked
from redrive.office.letters import Which
from redrive.office.records import Record
from redrive.office.replay import DedupeBy, Replayed, Transform


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
        queue: str | None = None,
        pace: RateText | None = None,
        background: bool = False,
        dedupe_by: DedupeBy | None = None,
        transform: Transform | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        request_id: str | None = None,
    ) -> Replayed:
        """Send letters again, same id, history kept. `fresh`: all counters anew. `once`: one attempt, then dead.

        Each goes back to its place under its order key, or to the end if the others went on; with `queue`, to that one.
        One whose dedupe key a live item holds is skipped; with `force` it runs without the key.

        `pace` as in `100/min`, or `background`: the letters are reserved and stay letters until a worker sends them, no
        faster than that. `app.replays` pauses, cancels or undoes it, by the id that the answer has as `replay`.

        `dedupe_by`, a dotted path into the payload or a function of it: of letters with the same key only the first is
        replayed (of a filter, or with `pace`, the longest dead), now and for 90 days. `transform`, a function of the
        payload that gives the new one, or its name as `module:function`: the letter ends, and a new item is put in the
        same write. A letter whose function raises is kept. With `pace` or `background` workers import the functions.
        """
        return self._bridge.call(
            self._letters.replay,
            _in_hand(which),
            reason=reason,
            budget=budget,
            delay=delay,
            force=force,
            queue=queue,
            pace=pace,
            background=background,
            dedupe_by=dedupe_by,
            transform=transform,
            dry_run=dry_run,
            actor=actor,
            request_id=request_id,
        )

    def recall(
        self,
        which: Which | None = None,
        *,
        reason: str,
        request: str | None = None,
        actor: str | None = None,
        request_id: str | None = None,
    ) -> Amended:
        """Take a replay back: replayed items that no worker has leased since become the letters that they were.

        `which` is an item, ids or a filter, which selects replayed items that wait, unless it only names ids. `request`
        instead means all that the replay with that request id sent. What a worker has leased, or has ended since, is
        skipped.
        """
        chosen = None if which is None else _in_hand(which)
        return self._bridge.call(
            self._letters.recall, chosen, reason=reason, request=request, actor=actor, request_id=request_id
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

    def move(
        self, which: Which, to: str, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Give letters to another queue, where they lie as letters until somebody replays them."""
        return self._bridge.call(
            self._letters.move, _in_hand(which), to, reason=reason, actor=actor, request_id=request_id
        )

    def tag(
        self,
        which: Which,
        *,
        add: str | Iterable[str] = (),
        remove: str | Iterable[str] = (),
        reason: str = "tagged",
        actor: str | None = None,
        request_id: str | None = None,
    ) -> Amended:
        """Put labels on letters, or take them off. They stay whatever becomes of the letter; find them by `tag:`."""
        return self._bridge.call(
            self._letters.tag,
            _in_hand(which),
            add=add if isinstance(add, str) else list(add),
            remove=remove if isinstance(remove, str) else list(remove),
            reason=reason,
            actor=actor,
            request_id=request_id,
        )

    def note(self, which: Which, text: str, *, actor: str | None = None, request_id: str | None = None) -> Amended:
        """Write something into the history of letters. Nothing else changes."""
        return self._bridge.call(self._letters.note, _in_hand(which), text, actor=actor, request_id=request_id)

    def work(
        self,
        which: Which,
        function: Function,
        *,
        reason: str,
        ttl: Duration = "60s",
        concurrency: int = 1,
        pace: RateText | None = None,
        limit: int | None = None,
        on_progress: Progress | None = None,
        dry_run: bool = False,
        early: bool = False,
        actor: str | None = None,
    ) -> Worked:
        """Call `function(item)` for each letter where it lies: it stays a letter unless that succeeds.

        What it returns makes the item done; `Cancel` ends it, `Halt` ends the work early; any other error is one more
        attempt in its history. A filter is taken earliest died first. Each is lent to this call alone for `ttl`, and
        for as long as the function runs; after a crash it is a letter like before. One that `Snooze`, `Retry(after=…)`
        or a consumer put off is skipped until it is due, unless `early`. `pace` as in "10/s". `on_progress` is told how
        many were reached, of how many.
        """
        return self._bridge.call(
            self._letters.work,
            _in_hand(which),
            function,
            reason=reason,
            ttl=ttl,
            concurrency=concurrency,
            pace=pace,
            limit=limit,
            on_progress=on_progress,
            dry_run=dry_run,
            early=early,
            actor=actor,
        )

    def payload(self, item_id: str) -> Any:
        """What the handler was to get, by id or unique prefix: the JSON value, or bytes if it is none.

        Raises DecryptionFailed for one that is encrypted with a key that this process lacks, or does not decrypt.
        """
        return self._bridge.call(self._letters.payload, item_id)

    def count(self, filter: str = "") -> int:
        """How many letters match, however many they are."""
        return self._bridge.call(self._letters.count, filter)

    def facets(self, filter: str = "", *, by: str = "cause", limit: int = 20) -> Facets:
        """How the letters that match divide by cause, queue, error, category, route, reason, tag or disposition."""
        return self._bridge.call(self._letters.facets, filter, by=by, limit=limit)

    def causes(self, filter: str = "", *, limit: int = 20) -> tuple[CauseView, ...]:
        """Letters grouped by cause, most first, each with its trend, its queues and a sample."""
        return self._bridge.call(self._letters.causes, filter, limit=limit)

    def cause(self, name: str) -> CauseView:
        """One cause, by its name or the beginning of it. Raises NotFound."""
        return self._bridge.call(self._letters.cause, name)

    def export(self, filter: str = "", *, attempts: bool = False, decrypt: bool = False) -> Iterator[Record]:
        """Letters with all they have, one by one, last-died first; `attempts`: also what became of each attempt.

        Nothing is covered: what is a secret in a payload is one in the record. Encrypted payloads stay so, with the id
        of the key in `payload_key`, unless `decrypt`.
        """
        cursor: str | None = None
        while True:
            records, cursor = self.export_page(filter, attempts, cursor, decrypt=decrypt)
            yield from records
            if cursor is None:
                return

    def export_page(
        self,
        filter: str,
        attempts: bool,  # noqa: FBT001 - as the twin has it
        cursor: str | None,
        *,
        decrypt: bool = False,
    ) -> tuple[list[Record], str | None]:
        """One page of `export`, and where the next one begins."""
        return self._bridge.call(self._letters.export_page, filter, attempts, cursor, decrypt=decrypt)

    def import_(
        self,
        records: Iterable[Record | Mapping[str, Any]],
        *,
        reason: str,
        dry_run: bool = False,
        actor: str | None = None,
        request_id: str | None = None,
    ) -> PutResult:
        """Take in letters that `export` gave, here or elsewhere. Ids that are there already, or were, are left alone.

        All are looked at first: if one cannot be taken in, none is, and BadImport names every fault.
        """
        given = records if isinstance(records, str | bytes | Mapping) else list(records)
        return self._bridge.call(
            self._letters.import_, given, reason=reason, dry_run=dry_run, actor=actor, request_id=request_id
        )

    def audit(self, *, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """What was done by whom and why, in order; go on with `after=` the last position."""
        return self._bridge.call(self._letters.audit, after=after, limit=limit)

    def changes(self, *, after: int = 0, limit: int = 100) -> tuple[LetterChange, ...]:
        """Items that are or were letters, in the order of their last changes, each once and as it is now.

        Go on with `after=` the last number: no change is missed. `item` is None for one that was pruned.
        """
        return self._bridge.call(self._letters.changes, after=after, limit=limit)


def _in_hand(which: Which) -> Which:
    return which if isinstance(which, str | Page | Item | History) else list(which)
