"""Find, read, count, replay, put away, move, tag, carry over. Every act is audited in the write that does it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeGuard

from msgspec.structs import replace

from redrive.core import codec, select
from redrive.core.acts import (
    Act,
    Amended,
    Archive,
    Change,
    Discard,
    Move,
    Note,
    Recall,
    Replay,
    Restore,
    Skip,
    Skipped,
    Tag,
    of_other_queue,
)
from redrive.core.durations import Duration, parse
from redrive.core.filters import parse as parse_filter
from redrive.core.item import History, Item
from redrive.core.meters import Rate
from redrive.core.rates import RateText
from redrive.core.rates import parse as parse_rate
from redrive.core.select import And, Ids, Match, Selection
from redrive.core.verbs import (
    Entry,
    LetterChange,
    Page,
    PutResult,
)
from redrive.engine.registry import check_queue_name
from redrive.engine.replays import ByPayload
from redrive.errors import ConfigError, DecryptionFailed, NotFound, PayloadError
from redrive.events import Amended as AmendedEvent
from redrive.events import Events
from redrive.office import causes as by_cause
from redrive.office import facets as division
from redrive.office import transfer
from redrive.office.bites import amend_in_bites, bites_of, ids_of, items_of
from redrive.office.causes import CauseView
from redrive.office.exporting import exported_items, exported_pages
from redrive.office.facets import Facets
from redrive.office.in_place_job import Function, Progress, Worked, job
from redrive.office.recall import replayed, replayed_by
from redrive.office.records import Record
from redrive.office.replay import DedupeBy, Replayed, Transform
from redrive.office.replays import start
from redrive.office.said import (
    check_actor,
    check_limit,
    check_number,
    check_reason,
    check_several,
    default_actor,
    request_named,
)
from redrive.stores.base import PAGE_LIMIT, Store
from redrive.stores.bodies import as_stored
from redrive.stores.clock import Clock, SystemClock

__all__ = [
    "Letters",
    "Which",
    "check_actor",
    "check_reason",
    "check_several",
    "default_actor",
    "exported_pages",
    "letters_matching",
]

Which = str | Page | Item | History | Iterable[str | Item]
BUDGETS = ("fresh", "once")
PREFIX_MIN = 4
MAX_RESULT = 1024 * 1024
BARE_ID = re.compile(r"[^\s:<>=()*\"-][^\s:<>=()*\"]*")
"""One word without any operator is taken for an id; to search for a word, put it in quotes."""


class Letters:
    """`which` is a page, an item, ids or a filter text; a text is frozen to the ids it matches before any move.

    Of a page and of a filter the longest dead goes first, ids go in the order given: replayed letters of an order key
    run in that order.
    """

    def __init__(
        self,
        store: Store,
        events: Events,
        *,
        actor: str | None = None,
        clock: Clock | None = None,
        frames: bool = True,
        max_result: int = MAX_RESULT,
    ) -> None:
        self._store = store
        self._events = events
        self._actor = actor or default_actor()
        self._clock = clock or SystemClock()
        self._frames = frames
        self._max_result = max_result

    async def find(self, filter: str = "", *, limit: int = 100, cursor: str | None = None) -> Page:
        """A page of letters, last-died first: open ones unless the filter names a disposition."""
        return await self._store.find(letters_matching(filter), limit, cursor)

    async def get(self, item_id: str) -> History:
        """The letter with every attempt and act, by id or unique prefix."""
        return await self._store.get(await self.resolve(item_id))

    async def resolve(self, item_id: str) -> str:
        """The full id of an id, or of a prefix of at least four characters that fits one letter (or else one item)."""
        if not str(item_id).isprintable():
            # Also half a character, which no store can be asked for.
            raise NotFound(f"no item {item_id!r}", hint="every character of an id can be printed")
        with suppress(NotFound):
            return (await self._store.get(str(item_id))).item.id
        if len(item_id) < PREFIX_MIN or "*" in item_id:
            hint = f"give the whole id or at least its first {PREFIX_MIN} characters"
            raise NotFound(f"no item {item_id!r}", hint=hint)
        begins = Match("id", "glob", f"{item_id}*")
        page = await self._store.find(And((Match("state", "=", "dead"), begins)), PAGE_LIMIT)
        page = page if page.items else await self._store.find(begins, PAGE_LIMIT)
        if not page.items:
            raise NotFound(f"no item {item_id!r}", hint="list them with redrive item list, or redrive letters list")
        if len(page.items) > 1:
            matches = f"{len(page.items)}{' or more' if page.next else ''} items"
            raise NotFound(f"{item_id!r} fits {matches}", hint="give more characters of the id")
        return page.items[0].id

    async def replay(
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
        if budget not in BUDGETS:
            raise ConfigError(f"{budget!r} is not a budget", field="budget", hint=f"use one of {', '.join(BUDGETS)}")
        to = "" if queue is None else check_queue_name(queue)
        change = Replay("once" if budget == "once" else "fresh", parse(delay, field="delay"), force, to)
        rate = None if pace is None else parse_rate(pace, field="pace")
        as_it_is = dedupe_by is None and transform is None
        if (rate is not None or background) and not dry_run:
            from redrive.office.replay.functions import named  # as in_place

            by_payload = None if as_it_is else named(dedupe_by, transform, change)
            return await self._start(which, change, rate, self._act(reason, actor, request_id), by_payload)
        if as_it_is and not dry_run:
            done = await self._amend(which, change, reason, actor, request_id)
            return Replayed(done.changed, done.already, done.skipped, done.changed)
        from redrive.office.replay.by_payload import replay_by_payload  # as in_place

        act, ids = self._act(reason, actor, request_id), await self._ids(which, change)
        replayed = await replay_by_payload(
            self._store,
            ids,
            act,
            change,
            clock=self._clock,
            dedupe_by=dedupe_by,
            transform=transform,
            dry_run=dry_run,
            max_payload=self._max_result,
        )
        if not dry_run:
            left = len(replayed.skipped) + len(replayed.duplicates) + len(replayed.kept)
            self._emit("replay", act, len(replayed.changed), left)
        return replayed

    async def recall(
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
        if (which is None) == (request is None):
            raise ConfigError("give which or request, one of the two", field="which")
        if request is not None:
            which = await replayed_by(self._store, request)
        return await self._amend(() if which is None else which, Recall(), reason, actor, request_id)

    async def archive(
        self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Put letters away: kept, out of the open list, replayable."""
        return await self._amend(which, Archive(), reason, actor, request_id)

    async def discard(
        self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """To the trash, from where `restore` brings them back until they are pruned."""
        return await self._amend(which, Discard(), reason, actor, request_id)

    async def restore(
        self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Out of the archive or the trash: open again."""
        return await self._amend(which, Restore(), reason, actor, request_id)

    async def skip(
        self, which: Which, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Let go on what waits behind dead heads of order keys. The letters stay; whoever goes on is told the gap."""
        return await self._amend(which, Skip(), reason, actor, request_id)

    async def move(
        self, which: Which, to: str, *, reason: str, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Give letters to another queue, where they lie as letters until somebody replays them."""
        return await self._amend(which, Move(check_queue_name(to)), reason, actor, request_id)

    async def tag(
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
        change = Tag(tuple(check_several(add, "add")), tuple(check_several(remove, "remove")))
        return await self._amend(which, change, reason, actor, request_id)

    async def note(
        self, which: Which, text: str, *, actor: str | None = None, request_id: str | None = None
    ) -> Amended:
        """Write something into the history of letters. Nothing else changes."""
        return await self._amend(which, Note(), text, actor, request_id)

    async def work(
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
        from redrive.office.in_place import Shift, would_work  # most processes only look, and start sooner without it

        if limit is not None:
            check_limit(limit)
        act = self._act(reason, actor, None)
        asked = job(
            function,
            act,
            ttl=ttl,
            concurrency=concurrency,
            early=early,
            pace=pace,
            on_progress=on_progress,
            frames=self._frames,
            max_result=self._max_result,
        )
        ids = (await self._ids(which, Note()))[:limit]
        if dry_run:
            return await would_work(self._store, ids, early=early)
        return await Shift(self._store, asked, events=self._events, clock=self._clock).work(ids)

    async def payload(self, item_id: str) -> Any:
        """What the handler was to get, by id or unique prefix: the JSON value, or bytes if it is none.

        Raises DecryptionFailed for one that is encrypted with a key that this process lacks, or does not decrypt.
        """
        item = (await self.get(item_id)).item
        if item.sealed:
            hint = "give this process the key; app.letters.get(id).item.payload has the encrypted bytes"
            why = f"letter {item.id} of queue {item.queue!r}: {item.flaw.partition(' (')[0]}"
            raise DecryptionFailed(why, key=item.sealed, hint=hint)
        try:
            return codec.load_payload(item.payload)
        except PayloadError:
            return item.payload

    async def count(self, filter: str = "") -> int:
        """How many letters match, however many they are."""
        if not filter.strip():
            return sum(row.open for row in (await self._store.tally(members=False)).queues)
        return len(await ids_of(self._store, letters_matching(filter)))

    async def facets(self, filter: str = "", *, by: str = "cause", limit: int = 20) -> Facets:
        """How the letters that match divide by cause, queue, error, category, route, reason, tag or disposition."""
        word = division.check_by(by)
        check_limit(limit)
        selection = letters_matching(filter, everywhere=word == "disposition")
        kept = None if filter.strip() else division.kept_facets(await self._store.tally(), word, limit)
        return kept or await division.facets_of(self._store, selection, word, limit)

    async def causes(self, filter: str = "", *, limit: int = 20) -> tuple[CauseView, ...]:
        """Letters grouped by cause, most first, each with its trend, its queues and a sample."""
        check_limit(limit)
        selection = letters_matching(filter)
        queue = by_cause.queue_named(parse_filter(filter))
        if queue is not None or not filter.strip():
            groups = await by_cause.causes_kept(self._store, queue)
        else:
            groups = await by_cause.causes_found(self._store, selection)
        return await by_cause.described(self._store, groups[:limit], selection)

    async def cause(self, name: str) -> CauseView:
        """One cause, by its name or the beginning of it. Raises NotFound."""
        whole = await by_cause.resolve_cause(self._store, str(name))
        groups = [group for group in await by_cause.causes_kept(self._store, None) if group.cause == whole]
        where = letters_matching("", everywhere=not groups)
        # None of them is open, or there are more causes than the counters give at once.
        groups = groups or await by_cause.causes_found(self._store, And((where, Match("cause", "=", whole))))
        if not groups:
            raise NotFound(f"no cause {name!r}", hint="its letters are gone")
        return (await by_cause.described(self._store, groups, where))[0]

    async def export(self, filter: str = "", *, attempts: bool = False, decrypt: bool = False) -> AsyncIterator[Record]:
        """Letters with all they have, one by one, last-died first; `attempts`: also what became of each attempt.

        Nothing is covered: what is a secret in a payload is one in the record. Encrypted payloads stay so, with the id
        of the key in `payload_key`, unless `decrypt`.
        """
        selection = letters_matching(filter)
        async for records in exported_pages(self._store, selection, attempts=attempts, decrypt=decrypt):
            for record in records:
                yield record

    async def export_page(
        self,
        filter: str,
        attempts: bool,  # noqa: FBT001 - a cursor comes last
        cursor: str | None,
        *,
        decrypt: bool = False,
    ) -> tuple[list[Record], str | None]:
        """One page of `export`, and where the next one begins."""
        found = self.find(filter, limit=PAGE_LIMIT, cursor=cursor)
        page = await (found if decrypt else as_stored(found))
        return await exported_items(self._store, page.items, attempts=attempts, decrypt=decrypt), page.next

    async def import_(
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
        act = self._act(reason, actor, request_id)
        customs = transfer.Customs()
        passed = [customs.look(f"letter {at}", each) for at, each in enumerate(check_several(records, "records"), 1)]
        customs.stamp()
        ready = [record for record in passed if record is not None]
        if dry_run:
            return await transfer.would_take_in(self._store, ready)
        done = await transfer.take_in(self._store, ready, act)
        if done.added:
            self._events.emit(AmendedEvent("import", act.actor, act.reason, act.request_id, len(done.added), 0))
        return done

    async def audit(self, *, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """What was done by whom and why, in order; go on with `after=` the last position."""
        return await self._store.journal("audit", after, limit)

    async def changes(self, *, after: int = 0, limit: int = 100) -> tuple[LetterChange, ...]:
        """Items that are or were letters, in the order of their last changes, each once and as it is now.

        Go on with `after=` the last number: no change is missed. `item` is None for one that was pruned.
        """
        check_number(after, "after")
        return await self._store.changes(after, limit)

    async def _amend(
        self,
        which: Which,
        change: Change,
        reason: str,
        actor: str | None,
        request_id: str | None,
    ) -> Amended:
        act = self._act(reason, actor, request_id)
        done = await amend_in_bites(self._store, bites_of(await self._ids(which, change), change), act)
        self._emit(type(change).__name__.lower(), act, len(done.changed), len(done.skipped))
        return done

    async def _start(
        self, which: Which, change: Replay, rate: Rate | None, act: Act, by_payload: ByPayload | None
    ) -> Replayed:
        ids = await self._ids(which, change)
        done = await start(self._store, ids, change, rate, act, by_payload=by_payload)
        self._emit("reserve", act, len(done.changed), len(done.skipped))
        name = act.request_id if ids else ""
        return Replayed((), done.already, done.skipped, replay=name, reserved=done.changed)

    def _emit(self, name: str, act: Act, changed: int, left: int) -> None:
        if self._events:
            self._events.emit(AmendedEvent(name, act.actor, act.reason, act.request_id, changed, left))

    def _act(self, reason: str, actor: str | None, request_id: str | None) -> Act:
        who = self._actor if actor is None else check_actor(actor)
        return Act(who, check_reason(reason), request_named(request_id))

    async def _ids(self, which: Which, change: Change) -> list[str]:
        return await self._matching(which, change) if is_filter(which) else ids_named(which)

    async def _matching(self, text: str, change: Change) -> list[str]:
        if not text.strip():
            raise ConfigError("it is empty", field="filter", hint="to mean every open letter, say disposition:open")
        if isinstance(change, Recall):
            return await ids_of(self._store, replayed(text), oldest=True)
        return await ids_of(self._store, letters_matching(text, put_away=isinstance(change, Restore)), oldest=True)


def is_filter(which: Which) -> TypeGuard[str]:
    return isinstance(which, str) and not BARE_ID.fullmatch(which)


def ids_named(which: Which) -> list[str]:
    """The ids of anything but a filter, in the order given; those of a page the longest dead first, as of a filter."""
    if isinstance(which, History):
        which = which.item
    several = [which] if isinstance(which, str | Item) else check_several(which, "which")
    ids = [str(each) if isinstance(each, str) else each.id for each in several]
    return ids[::-1] if isinstance(which, Page) else ids


async def replay_within(
    letters: Letters, store: Store, within: str, noun: str, which: Which, *, reason: str
) -> Replayed:
    """Replay letters that match the filter `within`, the longest dead first, also of ids; of ids, others are skipped:
    they are not of this `noun`.
    """
    if is_filter(which):
        return await letters.replay(which.strip() and f"{within} ({which})", reason=reason)
    named = ids_named(which)
    dead = await ids_of(store, And((Ids(tuple(named)), Match("state", "=", "dead"))), oldest=True)
    others = {item.id: item.queue for item in await items_of(store, named, select.Not(parse_filter(within)))}
    meant = [each for each in dict.fromkeys([*dead, *named]) if each not in others]
    done = await letters.replay(meant, reason=reason)
    skipped = [Skipped(each, *of_other_queue(queue, noun)) for each, queue in others.items()]
    return replace(done, skipped=(*done.skipped, *skipped))


def letters_matching(text: str, *, put_away: bool = False, everywhere: bool = False) -> Selection:
    """Letters only, and those on the table unless the text says where to look."""
    selection = parse_filter(text)
    parts: tuple[Selection, ...] = (Match("state", "=", "dead"), selection)
    if "disposition" not in select.fields_of(selection) and not everywhere:
        where = Match("disposition", "=", "open")
        parts += (select.Not(where),) if put_away else (where,)
    return And(parts)
