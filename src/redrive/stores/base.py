"""What a store is: a dozen queue verbs with their atomicity written down, and two small things beside the queue.

Rules for every engine. Durations go in, never timestamps: the store owns the clock. Every argument and result is a
frozen value of `core`, so a store can be used over a wire. A verb either happened completely or raised:
StoreUnavailable means it did not happen, OutcomeUnknown that nobody can tell (every mutating verb may then be repeated
with the same ids, nonce or request id without doubling). No verb falls back to anything else. Before `open` and after
`close` every verb raises StoreUnavailable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, Self

from redrive.core.acts import (
    Act,
    Amended,
    Change,
)
from redrive.core.item import History, Item, Millis, NewItem
from redrive.core.select import Selection
from redrive.core.verbs import (
    Answer,
    Backup,
    CauseTally,
    Checkup,
    Document,
    DocumentWrite,
    Entry,
    Extended,
    Gate,
    GateWrite,
    Held,
    IdPage,
    LeaseRequest,
    Leases,
    LetterChange,
    NewEntry,
    Page,
    PutResult,
    QueueChange,
    QueueSettings,
    Reencrypted,
    Settled,
    Settlement,
    StoreInfo,
    Swept,
    Tally,
    Tombstone,
    WorkerBeat,
    WorkerFacts,
)
from redrive.stores.keyring import Keyring

PAGE_LIMIT = 1000
IDS_LIMIT = 10_000
HEADERS_LIMIT = 64
HEADERS_SIZE = 16_384
TRACE_LIMIT = 512
NAME_LIMIT = 128


class Store(Protocol):
    """One engine. Open before use; all verbs are coroutines and may be called concurrently."""

    async def open(self) -> Self:
        """Connect, check, migrate. Refuses a newer schema (StoreTooNew) and damaged data (StoreCorrupt)."""

    async def close(self) -> None:
        """Finish what was accepted, then let go. May be called twice."""

    def info(self) -> StoreInfo: ...

    def use_keys(self, keyring: Keyring | None) -> None:
        """The encryption keys of this process, for payloads and results of queues that are encrypted.

        `put`, `settle`, `settle_letters`, `amend` and `take_in` never store a body of an encrypted queue in clear:
        without keys they raise EncryptionKeyMissing and change nothing, also if the queue was configured by another
        process a moment ago. What cannot be decrypted is shown with its `flaw` and `sealed`. If it is damaged, `lease`
        and `reclaim` give it to nobody and make a letter of it (reason `unreadable`). If this process lacks its key,
        `lease` makes it ready again instead, uncharged, and names its queue in `Leases.locked`; where the process has
        other keys, it is due after a pause that grows (damage.PAUSES), and `info().missing_keys` has the key.
        `reclaim` gives it with its flaw, since a takeover needs no payload. An edit of such an item is refused with
        EncryptionKeyMissing. Bodies that are stored already stay as they are.

        Before a key encrypts anything, a check value of it is kept as a document (stores/key_checks.py). What would
        encrypt refuses other bytes under the id of such a key with ConfigError, and writes nothing.
        """

    def keyring(self) -> Keyring | None:
        """What `use_keys` was given last."""

    async def put(
        self, items: Sequence[NewItem], within: object | None = None, *, audit: NewEntry | None = None
    ) -> PutResult:
        """All or none. An id that exists is left as it is and reported in `already`.

        When it returns, the items are durable to the level of `info().durability`. Puts declare their queues. The id of
        a pruned item stays taken. An empty id, an empty queue or a negative delay raises ConfigError.

        A queue at its capacity refuses with QueueFull, which counts what is ready, held, parked or leased; follow-ups
        and replays are let in. An item whose dedupe key a live item holds (ready or leased; or done, and put less than
        its window ago) is not added and told in `duplicates`, also within one call; ids come first: a repeat is
        `already`. Headers: at most HEADERS_LIMIT, HEADERS_SIZE bytes in all, each name once; `trace` has at most
        TRACE_LIMIT characters, and kind and release at most NAME_LIMIT; else ConfigError.
        `after` may name items of the same call, in any order that does not contradict their order keys, and counts what
        is done, also if pruned since, as fulfilled; any other unknown id raises BadDependency. Whoever waits for a
        letter is held; for what can never be done (cancelled, or pruned without being done), BadDependency. With
        `on_dead="die"` it enters as a letter in both cases.

        Items of one order key are numbered in the order in which their puts commit, those of one put in its order. Only
        the head of a key can be leased; the others have the hold `order`.

        `within` is the caller's own connection to the same database: the items become real when its transaction
        commits, and were never there if it does not. ConfigError where the engine has no transactions to join.

        `audit`: the journal entry of an operator's put, in the same write, and only if an item is added. ConfigError
        together with `within`.
        """

    async def lease(self, request: LeaseRequest) -> Leases:
        """Give due items of unpaused queues to one worker, exclusively, in one atomic write, as core.lanes orders them.

        Only what has no hold, and no more than the queue's max_running, rate and gate give room for: an expired lease
        still counts as running. An item whose limit key has no room is set aside with the hold `limit` until one of
        its key ends, so that nobody passes over it twice. What lies behind a shut gate or beyond a limit is simply not
        given, and costs it nothing. First attempts fill the gate's retry credit, retries draw on it.

        A want with `kinds` is given items of these alone; those of others stay as they are, and neither limits nor
        suspects of them count for it. Items of several kinds are one order: kinds share levels and turns.

        Counts before it gives: deliveries + 1, attempt + 1. An item with at least `want.max_crashes - 1` crashes is
        given only as the sole lease of a worker with `holding == 0` (then `alone` is set and nothing else is given);
        it goes before plain items, and a worker that holds it gets nothing more. The wants are served in their order.
        Repeating the last nonce of the worker's lane gives the same leases, as far as the worker still holds them, and
        leases nothing new.

        With `request.item` that one item is given and nothing else: if it is ready, in the queue of the want and has no
        hold, due or not, also of a paused queue and beyond max_running, rate and gate, which count it as any other, and
        whatever its kind. Its limit key must have room. The rules for suspects and nonces are the same. ConfigError
        unless there is one want.

        A want of a family (`webhook:*`) declares it, and gives items of its members by the same rules, no more than
        the family's max_running leaves room for and nothing while the family is paused. It looks at members that may
        have something to give now, VISITS of core.families at most, in turns: each gets an equal portion, then what is
        left is shared in the same order. A member that is paused, full or held back by its rate or gate is not looked
        at again before that can have changed; one that waits for the retry budget of a shared gate, LOOK_AGAIN later.
        `more` in the answer: it looked at VISITS members and put some of them off, so ask again at once for the rest.
        `kinds` does not matter for which members are looked at: those that have only others are looked at in vain, and
        go behind the others.
        """

    async def settle(self, settlements: Sequence[Settlement], then: LeaseRequest | None = None) -> Settled:
        """End leases; the only verb that does. One atomic write: attempts, letters, counters, follow-ups and `then`.

        Each settlement is applied only if its delivery is still the current one of a leased item (an expired lease
        that nobody took over still counts as held). `already`: that delivery, still the last one given, has ended.
        `refused`: the item was given out again since, or does not exist; nothing changes and no follow-up is put.
        One refusal never fails the batch. Answers come in the order of the settlements.

        What ends moves those that wait for it in the same write. Done and cancelled: the next of its order key becomes
        the head; done: whoever waited for it alone is free. Dead: by the queue's `order` its key stays blocked or
        parked, or goes on past the gap; dependents with `on_dead="die"` die too, and theirs, with the reason
        `dependency` and core.terms.DEPENDENCY_FAILURE. Ready again: it stays the head of its key. Whatever ends gives
        its dedupe key and its place under its limit key back. `kept`: to die, but its route has a capacity and no
        room: ready again after `otherwise`, charged alike. An item that was asked to cancel never becomes ready again:
        it is cancelled instead (the answer's reason says `cancelled`). Follow-ups go with what was decided: where
        something else became of the item, with `kept` and with `cancelled` as the reason, none is put.
        """

    async def extend(self, held: Sequence[Held], ttl: Millis) -> Extended:
        """Prolong leases to `ttl` from now. `lost`: expired or no longer held. Never revives, never shortens.

        `cancel_requested`: those of them that somebody wants cancelled. Leases of letters are prolonged by the same
        rules.
        """

    async def reclaim(
        self,
        worker: str,
        queues: Sequence[str],
        ttl: Millis,
        limit: int,
        ids: Sequence[str] | None = None,
        *,
        force: bool = False,
    ) -> tuple[Item, ...]:
        """Take over expired leases of these queues under a new delivery number, at most `limit`, longest expired first.

        `worker` is the new holder and must settle; `item.worker`, `leased_at` and `attempt` still name the lost
        delivery. With `ids` only those; with `force` also leases that have not expired. Two callers never get the
        same item. A family among the queues stands for all of its members.
        """

    async def lease_letters(
        self, ids: Sequence[str], worker: str, ttl: Millis, *, early: bool = False, reserved: str = ""
    ) -> tuple[Item, ...]:
        """Give letters to one worker where they lie: they stay letters, and stay so if it is never heard of again.

        Those that could be had, each once, in the order of `ids`: open or archived, and held by nobody (no lease, or
        it ran out); with `early` also those that were put off (settled ToReady with a delay) and whose time has not
        come: nobody has them, and whoever has a reason need not wait. Counts before it gives: deliveries + 1, which is
        the fence; all else of the letter stays as it is, and so do the counters. One that the same `worker` still holds
        is given again with the same delivery and the lease prolonged: so the call may be repeated. Two workers never
        hold one letter. `reserved`: only letters that are reserved for this replay; else only those that are not
        reserved. More than PAGE_LIMIT ids, no worker or a ttl below 1 raise ConfigError.
        """

    async def settle_letters(self, settlements: Sequence[Settlement]) -> tuple[Answer, ...]:
        """End leases of letters, in one atomic write with attempts, follow-ups and audit entries, as `settle` does.

        Each is applied only if its delivery is the current one of a leased letter (an expired lease that nobody took
        over still counts as held). `already`: that delivery, still the last one given, has ended. `refused`: given out
        again since, taken away by an act, moved on, or does not exist.

        ToDone and ToCancelled: the letter is over, for its counters, its cause and all that wait for it as if it had
        been replayed and ended so at once; it keeps its numbers, and a dedupe key that is free is taken for what is
        left of the window. What is set aside under a limit key stays so: nothing of it has run. ToDead: it stays the
        letter it is, free again at once, whatever the decision says of reason, failure and charge. ToReady: likewise,
        but nobody gets it before the delay has passed, unless `early`. Follow-ups are put with ToDone and ToCancelled;
        with others, ConfigError.
        """

    async def amend(self, selection: Selection, change: Change, by: Act, expect: int | None = None) -> Amended:
        """Move items nobody holds, as far as legal, in one atomic write with its audit entry (journal topic `audit`).

        An item is changed at most once per `by.request_id` by each kind of change; a repeat reports it in `already`.
        Illegal moves and ids that do not exist are `skipped` with the reason and its code. With `expect`, raises
        Conflict and changes nothing unless exactly so many items match. At most PAGE_LIMIT items for a selection that
        is not Ids: earliest first. Only what still matches can be reported, so an act that may have to be repeated
        names its items by Ids.

        Replay: back at its place if it still is the (dead) head of its order key or others were ever put to wait for
        it, else at the tail; held again if an item of `after` is not done, and then behind those with a place before
        its own: so nobody waits in a ring. Skipped while a live twin holds its dedupe key, or if one of `after` can
        never be done, unless forced. Discard and Skip let go on what is blocked or parked behind a letter (Skip with a
        gap; skipped for one that blocks nothing). Cancel ends a ready item and moves those that wait for it as `settle`
        would; a leased one is marked. Move gives a letter another queue (counters, causes and indexes with it); skipped
        for the dead head of an order key, behind which others wait, for one with an order key that others were put to
        wait for, and for a letter that is there already. Replay with another `queue` is Move and Replay in one. Tag and
        Note are legal in every state, held or not; a Tag that changes nothing counts as changed. SetPolicy replaces the
        policy of a ready item and leaves its other terms. RunNow makes a ready item due now, whatever it waits for
        besides, and with `reset` its counters begin anew (attempt, errors and crashes 0, no last chance, `renewed_at`
        now); skipped for a parked one. Expire makes a ready item a letter, without an attempt, and moves those that
        wait for it as `settle` would. Park gives a ready item the hold `parked:<label>`, whatever it waits for: it is
        not leased, counts as `parked`, keeps its place, its dedupe key and what it waits for, and blocks its order key
        as a delayed head does; a place under its limit key that it was promised goes to the next. Only Unpark, Cancel,
        Expire and the death of what it waits for (`on_dead="die"`) end that. Unpark gives it the hold that it would
        have now; skipped for what is not parked. Edit replaces the payload of a ready item, or of a letter that is not
        in the trash, and keeps the one before, byte for byte even if it is damaged, as a revision with actor, reason
        and time; all else stays as it is. Skipped for another revision than the expected one, and after EDITS_LIMIT
        edits. Recall makes a replayed item that no worker has leased since the letter that it was (reason, failure,
        times, disposition, route, counters, `replays` one less, queue and place under its order key: its dead head
        again, if the key has no other), however full its route is, and moves those that wait for it likewise; its
        payload and revision stay as they are. Reserve keeps a letter that is not in the trash for one replay: until
        that sends it (Replay with its id as `reserved`, skipped for letters that are not reserved for it) or Unreserve,
        every other act than Tag and Note is skipped, and `lease_letters` gives it to that replay alone. Unreserve takes
        its lease away. Anything else is skipped for a letter that somebody works on where it lies; once the lease ran
        out, it takes it away for good (deliveries + 1, no lease).
        """

    async def take_in(self, histories: Sequence[History], by: Act) -> PutResult:
        """Letters of another store, with their evidence, all or none and audited as `import`. Ids that exist, or did,
        are `already`.

        Each enters dead, with its disposition, route, tags, attempts, revisions, counters and times (none of them later
        than now).
        `seq` begins anew, and `deliveries` goes on after all that its evidence tells of. In the order of enqueue, and
        what is waited for first. What it was bound to is kept as its terms and binds when it is replayed: at
        the tail of its order key, and skipped for an `after` that is unknown here, unless forced. ConfigError for an
        item that is no letter, and for one that is damaged. Queues are declared; no capacity refuses.
        """

    async def get(self, item_id: str) -> History:
        """The item with every attempt and act, earlier payloads, and what it waits for. Raises NotFound."""

    async def find(
        self, selection: Selection, limit: int = 100, cursor: str | None = None, *, oldest: bool = False
    ) -> Page:
        """A page of matching items. Letters, when the selection pins `state` to dead, come last-died first; else
        items come last-enqueued first. With `oldest` the other way round: what died, or was enqueued, first. Limits
        above PAGE_LIMIT and foreign cursors, also those of another selection or the other way, raise ConfigError.

        Texts and payloads are judged in Python, at most SCAN_LIMIT candidates a page: it may come short, even empty,
        with `next` set. Not among all items there are: without an indexed companion BadFilter, unless for letters.
        `amend` and `prune` take no such selection (ConfigError). Nor is it taken where a queue that it may match is
        encrypted (BadFilter).
        """

    async def ids(
        self, selection: Selection, limit: int = IDS_LIMIT, cursor: str | None = None, *, oldest: bool = False
    ) -> IdPage:
        """What `find` would give, in the same order, as ids only and in larger pages: the set an act is about."""

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        """Counts per declared queue, kept in the writes that change them, never scanned; ordered by queue name.

        Without `members`, the row of a declared family stands in `queues` in place of those of its members; with some
        names, beside those of these members.
        """

    async def causes(self, queue: str | None = None, limit: int = 100) -> tuple[CauseTally, ...]:
        """Open letters by cause and queue, most first, described by those that are still open."""

    async def changes(self, after: int = 0, limit: int = 100) -> tuple[LetterChange, ...]:
        """Items whose last change has a number greater than `after`, in the order of these numbers, each once.

        Every write that makes, changes or ends a letter gives the item the next number of the store: the end of a
        lease that makes it a letter, also for a damaged payload; the death of what it waits for; a put of an item that
        enters dead; every act on a letter, and every act that makes one; the end of a letter's lease; `take_in`. The
        removal of an item that has a number, by `prune` or `sweep`, gives it the next one. A lease of a letter and
        `extend` are no change. An item that never was a letter has no number.

        Numbers grow and are never reused, also not after a restart or for an item that was pruned. A reader that goes
        on from the last number it saw misses no change, whatever was committed meanwhile: an item that changes again
        gets a higher number. Limits above PAGE_LIMIT raise ConfigError.
        """

    async def prune(self, selection: Selection, limit: int, by: Act) -> tuple[Tombstone, ...]:
        """Remove resolved items for good: done, cancelled, and letters in the trash. Never anything else.

        Each leaves a tombstone, and the act an audit entry, in the same write. Earliest enqueued first; repeating it
        goes on with the next.
        """

    async def tombstone(self, item_id: str) -> Tombstone | None: ...

    async def configure(self, queue: str, change: QueueChange, audit: NewEntry | None = None) -> None:
        """Declare a queue and change its settings, visible to every worker at its next lease.

        ConfigError for a limit below 1, a capacity below what the queue holds, an unknown order. A new rate begins
        full. A new limit per key frees those that the old one held.

        A pattern (`webhook:*`) declares a family, to which every queue with such a name belongs, before and after.
        ConfigError for another name that ends in `:*`, and for the gate `*` of a queue that is no family. `put` refuses
        items for a pattern, and QueueFull names the family when its capacity is reached.

        `audit`, here and where else it is a parameter: a journal entry that is written with the change, in the same
        write. What is refused leaves none.
        """

    async def configure_route(self, route: str, capacity: int | None, audit: NewEntry | None = None) -> None:
        """How many open letters a route has room for; None for no limit. ConfigError if it has more already."""

    async def settings(self, queue: str) -> QueueSettings:
        """Of one queue; those of a new one if it is not declared. Cheap: read whenever a policy is asked for.

        Of a member of a declared family, as core.families.member_settings gives them; `tally` has its own.
        """

    async def set_gate(self, write: GateWrite, audit: NewEntry | None = None) -> Gate:
        """Compare and set: Conflict if the version is not the expected one. What leases spent goes on, unless `shut`
        empties the meter. Wakes those who wait for queues behind it.
        """

    async def gates(self) -> tuple[Gate, ...]:
        """All gates, by name."""

    async def gate(self, name: str) -> Gate | None: ...

    async def sweep(self, limit: int, by: Act, cursor: int = 0) -> Swept:
        """One bite of retention: of the next `limit` items in the order of enqueue, prune those finished (done or
        cancelled) longer ago than their queue's `keep`, and drop results older than `keep_results`. Tombstones and
        audit entry as with `prune`. Letters are never touched, but for those that were discarded longer ago than
        their queue's `keep_trash`. Looks at no more than `limit` items, so that it may be
        called for ever. Also forgets dedupe keys whose window is over.
        """

    async def reencrypt(
        self,
        limit: int = 100,
        cursor: str | None = None,
        *,
        queue: str | None = None,
        dry_run: bool = False,
        by: Act | None = None,
    ) -> Reencrypted:
        """Of the next `limit` items in the order of enqueue, encrypt payloads and results anew with the current key:
        those with another key, and those in clear of a queue that is encrypted. What they say never changes.

        Each body is replaced only if it is still what was read. Those of items that run are left, and so are those that
        do not decrypt. `queue`: of that one only. `dry_run`: counts, and needs no keys. ConfigError without keys.
        `by`: who does it; the items that have a new body are in an audit entry `reencrypt`, in the same write.
        """

    async def beat(self, worker: str, facts: WorkerFacts, ttl: Millis) -> None:
        """Say that a worker is alive for `ttl`; one that says it stopped is not. Leases do not depend on it."""

    async def workers(self) -> tuple[WorkerBeat, ...]:
        """Workers heard of within the last day, alive ones first."""

    async def elect(self, name: str, owner: str, ttl: Millis) -> bool:
        """True if `owner` leads `name` for `ttl` from now. At most one owner at a time; asking again prolongs."""

    async def kinds(self, queue: str) -> tuple[str, ...]:
        """The kinds among the due items of a queue that have no hold, in alphabetical order. Costs a step for each."""

    async def wait(
        self, queues: Sequence[str], timeout: Millis, kinds: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """Return when an item of these queues may be leased, at the latest after `timeout`. May return for nothing.
        A family among them stands for its members.

        `kinds`: of the queues in it, only items of these kinds count, as in `Want.kinds`. For a family that costs a
        step for each member that has anything due.

        What a rate or a gate keeps back is waited for until they let it go; what `max_running` keeps back until
        something of the queue ends.
        """

    async def document(self, kind: str, key: str) -> Document | None: ...

    async def documents(self, kind: str) -> tuple[Document, ...]:
        """All of a kind, ordered by key."""

    async def write_documents(
        self, writes: Sequence[DocumentWrite], audit: NewEntry | None = None
    ) -> tuple[Document, ...]:
        """All or none; Conflict if an expected version is not the current one. Versions count from 1 and never repeat.

        Returns the documents as they are now, without the deleted ones.
        """

    async def append(self, entries: Sequence[NewEntry]) -> tuple[int, ...]:
        """Add to the journal, all or none. Positions grow and are never reused."""

    async def journal(self, topic: str, after: int = 0, limit: int = 100) -> tuple[Entry, ...]:
        """Entries of a topic with a position greater than `after`, in order."""

    # --- upkeep ---

    async def check(self, *, quick: bool = False) -> Checkup:
        """Whether all is whole and agrees with itself, told as findings and never raised. Work goes on meanwhile.

        Changes nothing. `quick` does not read payloads and evidence.
        """

    async def backup(self, path: str, *, force: bool = False) -> Backup:
        """Copy everything committed when it begins into a new file, all or nothing, while work goes on.

        Conflict if there is a file already and not `force`; ConfigError if the path or the store is none to copy.
        """
