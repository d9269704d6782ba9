"""How the bugs of broken_servers come into the PostgreSQL store: nearly all of them live in its SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from redrive.core import codec
from redrive.core.acts import Act
from redrive.core.decide import ToDead
from redrive.core.select import Match, Or
from redrive.core.states import State
from redrive.core.verbs import (
    LeaseRequest,
    NewEntry,
    Settlement,
)
from redrive.errors import StoreUnavailable
from redrive.stores.postgres import PostgresStore, amend, bonds, faults, lease, prune, settle, take_in
from redrive.stores.postgres.rows import short
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.shelf import append_acts
from redrive.stores.postgres.tx import Tx
from redrive.stores.postgres.wake import Ear
from redrive.stores.postgres.wire import Row, Wire
from redrive.testing.conformance.kit import sha256
from tests.stores import broken_ways as ways
from tests.stores.broken_encryption import SHARED, takes_revisions_in_clear
from tests.stores.planting import Edit, Patch, Plant

_DUE = "c.due_at <= now_at"
_BREATH = "(select pg_sleep(0.02)) is not null"
"""A place where another caller can come in between."""

_FENCE = "c.deliveries = o.delivery and c.lease_until is not null and c.state <> 'dead'"
_EXPIRED = "c.queue = any (queues) and c.lease_until <= latest"
_ENDED = "count(*) filter (where m.ending = 4)"
_ASKED = (
    "select c.queue, o.kind as ending from unnest(seqs, kinds) as o (seq, kind) join {schema}.course c on c.seq = o.seq"
)
_PICKED = "from picked p where c.seq = any (array[p.seq])"
# That it names the outer row makes every planner run it once per row, as others do when it suits them.
_LIMITED = (
    "select n.seq from {schema}.course n "
    "where n.state = 'ready' and n.hold = 0 and n.queue = c.queue and n.level = 0 and n.due_at <= now_at + 0 * c.seq "
    "order by n.due_at, n.seq limit most for no key update skip locked"
)
_BURIED = "select d.cause, d.queue, d.route, count(*) from died d group by d.cause, d.queue, d.route;"
_EVICT = (
    "delete from {schema}.letter l where l.seq in (select n.seq from {schema}.letter n order by n.seq desc offset 100);"
)


def _settles_by(condition: str) -> tuple[Edit, Edit]:
    """In both of its statements."""
    return (
        Edit("settle", f"{_FENCE} returning c.queue, o.place", f"{condition} returning c.queue, o.place"),
        Edit("settle", f"{_FENCE} and o.kind < 9", f"{condition} and o.kind < 9"),
    )


# --- patches ----------------------------------------------------------------------------------------------------------


def _amends_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    right = amend._cancel  # noqa: SLF001 - the bug sits there

    async def cancel(session: Session, tx: Tx, places: list[amend.Place], by: Act) -> None:
        await right(session, tx, [place._replace(state=State.READY) for place in places], by)

    monkeypatch.setattr(amend, "_cancel", cancel)


def _learns_from_the_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lease.given

    def given(session: Session, request: LeaseRequest, look: lease.Look, answer: lease.Answer) -> None:
        right(session, structs.replace(request, item=""), look, answer)

    monkeypatch.setattr(lease, "given", given)


def _expects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amend, "_expect", lambda _count, _expect: None)


def _audits_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async def append(session: Session, tx: Tx, entries: Sequence[NewEntry], change: str) -> tuple[int, ...]:
        return await append_acts(session, tx, [structs.replace(entry, topic="nowhere") for entry in entries], change)

    for module in (amend, prune, take_in):
        monkeypatch.setattr(module, "append_acts", append)


def _knows_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lease.wanted
    monkeypatch.setattr(lease, "wanted", lambda request, look: right(structs.replace(request, lane=0), look))


def _leaves_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bonds.untied

    async def untied(session: Session, tx: Tx, places: Sequence[amend.Place], ending: int) -> None:
        if ending != bonds.DEAD:
            await right(session, tx, places, ending)

    monkeypatch.setattr(bonds, "untied", untied)


def _opens_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amend.Place, "_replace", lambda place, **_: place)


def _counts_no_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amend, "_MOVABLE", ())


def _sees_no_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amend.Place, "holder", lambda *_: "")


def _takes_dead_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = Or((Match("state", "=", "done"), Match("state", "=", "cancelled"), Match("state", "=", "dead")))
    monkeypatch.setattr(prune, "_RESOLVED", resolved)


def _digests_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "_digest", lambda how, found: sha256(found) if how else found.hex())


def _counts_causes_only_up(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Tx.count_cause

    def only_up(tx: Tx, cause: str, queue: str, route: str, by: int) -> None:
        right(tx, cause, queue, route, max(0, by))

    monkeypatch.setattr(Tx, "count_cause", only_up)


def _commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Wire.rows

    async def rows(wire: Wire, statement: str, params: Sequence[Any] = ()) -> list[Row]:
        if ".put(" not in statement:
            return await right(wire, statement, params)
        await right(wire, "begin")
        answer = await right(wire, statement, params)
        await right(wire, "rollback")
        return answer

    monkeypatch.setattr(Wire, "rows", rows)


def tells_unknown_as_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "unknown", lambda _error, options: StoreUnavailable(f"not done: {options.location}"))


def _hears_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ear, "_heard", lambda _ear, _note: None)


def _wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "wake", lambda _session, _queues: None)


_LETTER = """
with died as (
    insert into {schema}.letter (
        seq, queue, reason, died_at, disposition, cause, error, error_short, category, rule, failure
    )
    select c.seq, c.queue, %b, {schema}.now_ms(%b::bigint), 'open', %b, %b, %b, %b, %b, %b
    from {schema}.item i join {schema}.course c on c.seq = i.seq
    where i.id = %b
    on conflict (seq) do nothing
    returning cause, queue
)
insert into {schema}.cause (cause, queue, n) select cause, queue, 1 from died
"""


def _in_two_writes(*, letter_first: bool) -> Patch:
    """The letter in a write of its own, before or after the one in which the item dies."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = settle.settle

        async def settled(
            session: Session, settlements: Sequence[Settlement], then: LeaseRequest | None
        ) -> settle.Outcome:
            if letter_first:
                await _write_letters(session, settlements)
                return await right(session, settlements, then)
            outcome = await right(session, settlements, then)
            await _write_letters(session, ways.applied(settlements, outcome[0]))
            return outcome

        monkeypatch.setattr("redrive.stores.postgres.settle._Plan._add_letter", lambda *_: None)
        monkeypatch.setattr(settle, "settle", settled)

    return patch


async def _write_letters(session: Session, settlements: Sequence[Settlement]) -> None:
    for one in settlements:
        if isinstance(one.decision, ToDead):
            why = one.decision.failure
            names = (why.cause, why.type, short(why.type), why.category, why.rule)
            values = (one.decision.reason, session.pinned(), *names, codec.encode(why), one.id)
            await session.call(_LETTER.replace("{schema}", session.schema), values)


# --- the table --------------------------------------------------------------------------------------------------------

PLANTS: dict[str, Plant] = {
    "SettlesByState": Plant(_settles_by("c.lease_until is not null")),
    "FinishesByState": Plant(_settles_by("c.lease_until is not null")[:1]),
    "SettlesById": Plant(_settles_by("true")),
    "SettlesTwice": Plant(_settles_by("c.deliveries = o.delivery")),
    "FinishesTwice": Plant(_settles_by("c.deliveries = o.delivery")[:1]),
    "RefusesWhatExpired": Plant(_settles_by("c.deliveries = o.delivery and c.lease_until > now_at")),
    "RefusalFailsTheBatch": Plant(
        (Edit("settle", "< count_of then", "< count_of then raise exception 'given away';"),), says="given away"
    ),
    "FollowsUpAlthoughRefused": Plant((Edit("settle", "where o.place = any (applied) order by o.nth", ""),)),
    "ExtendsById": Plant((Edit("extend", "c.deliveries = o.delivery and", ""),)),
    "ExtendRevives": Plant((Edit("extend", "c.lease_until > now_at", "c.lease_until is not null"),)),
    "ExtendShortens": Plant((Edit("extend", "greatest(c.lease_until, now_at + ttl)", "now_at + ttl"),)),
    "ReplayResetsTheFence": Plant((Edit("amend/replay", "attempt = 0,", "deliveries = 0, attempt = 0,"),)),
    "LeasesWithoutExclusion": Plant(
        (
            Edit("lease", "for no key update of c skip locked", ""),
            Edit("lease", _PICKED, f"{_PICKED} and {_BREATH}"),
        )
    ),
    "LeavesItReady": Plant((Edit("lease", "set state = 'leased',", "set"),)),
    "LimitsInASubquery": Plant((Edit("lease", _PICKED, f"where c.state = 'ready' and c.seq in ({_LIMITED})"),)),
    "CountsOnFailureOnly": Plant((Edit("lease", "attempt = c.attempt + 1,", ""),)),
    "LeasesByAnotherClock": Plant(
        (
            Edit("lease", f"0 and {_DUE}", f"0 and {_DUE} + 500"),
            Edit("lanes/choose", f"c.level = 0 and {_DUE}", f"c.level = 0 and {_DUE} + 500"),
            Edit("lanes/choose", f"c.level = l.level and {_DUE}", f"c.level = l.level and {_DUE} + 500"),
        )
    ),
    "KnowsOneLane": Plant(patches=(_knows_one_lane,)),
    "AnswersAnyLane": Plant(
        (
            Edit(
                "lease",
                "n.lane = split_part(request, ':', 1) and n.nonce = request",
                "split_part(n.nonce, ':', 2) = split_part(request, ':', 2)",
            ),
            Edit(
                "lease",
                "n.lane = split_part(request, ':', 1) and c.deliveries",
                "split_part(n.nonce, ':', 2) = split_part(request, ':', 2) and c.deliveries",
            ),
        )
    ),
    "IgnoresTheNonce": Plant((Edit("lease", "n.nonce = request", "false"),)),
    "GivesSuspectsInCompany": Plant(
        (
            Edit("lease", "if suspect_waits or not is_open or", "if true or"),
            Edit("lanes/choose", "where n.level < below_level", ""),
        )
    ),
    "GivesMoreBesideASuspect": Plant((Edit("lease", "c.worker = who and c.alone = 1", "false"),)),
    "LeasesFromThePaused": Plant((Edit("lease", "q.name = queues[want] and q.paused", "false"),)),
    "LeasesTheNewestFirst": Plant(
        (Edit("lease", "order by c.due_at, c.seq limit most", "order by c.due_at desc, c.seq desc limit most"),)
    ),
    "LeasesTheUnscathedFirst": Plant(
        (
            Edit(
                "lanes/choose",
                "or (dues[heads[other]], numbers[heads[other]]) < (dues[heads[lane]], numbers[heads[lane]])",
                "",
            ),
        )
    ),
    "ReclaimsTheUnexpired": Plant(
        (
            Edit("reclaim", f"c.state = 'leased' and {_EXPIRED}", "c.state = 'leased' and c.queue = any (queues)"),
            Edit("reclaim", ") and c.lease_until <= latest and c.state", ") and c.lease_until is not null and c.state"),
        )
    ),
    "ReclaimsWithoutLookingAgain": Plant(
        (
            Edit("reclaim", "for no key update of c skip locked", ""),
            Edit("reclaim", "return query", "perform pg_sleep(0.02); return query"),
        )
    ),
    "ReclaimsUnknownQueues": Plant(
        (
            Edit("reclaim", "c.state = 'leased' and c.queue = any (queues)", "c.state = 'leased'"),
            Edit("reclaim", "i.id = any (ids) and ( c.queue = any (queues)", "i.id = any (ids) and (true"),
        )
    ),
    "ReclaimStarves": Plant(
        (
            Edit("reclaim", f"where c.state = 'leased' and {_EXPIRED}", "where c.lease_until <= latest"),
            Edit(
                "reclaim",
                "for no key update of c skip locked ) p",
                ") p where exists (select 1 from {schema}.course q where q.seq = p.seq and q.queue = any (queues))",
            ),
        )
    ),
    "ReclaimKeepsTheDelivery": Plant((Edit("reclaim", "set deliveries = c.deliveries + 1,", "set"),)),
    "DiesBeforeItsLetter": Plant(patches=(_in_two_writes(letter_first=False),)),
    "WritesTheLetterFirst": Plant(patches=(_in_two_writes(letter_first=True),)),
    "ReleaseCharges": Plant((Edit("settle", "attempt = c.attempt - case o.charge when 3 then 1 else 0 end,", ""),)),
    "EvictsLetters": Plant((Edit("settle", _BURIED, f"{_BURIED} {_EVICT}"),)),
    "TrimsTheWrongEnd": Plant((Edit("settle", "o.nth > 20 and o.nth <= o.all_of - 180", "o.nth > 200"),)),
    "ForgetsTheEvidence": Plant(
        (
            Edit(
                "amend/replay",
                ") update",
                "returning seq), trail as (delete from {schema}.attempt a using gone g where a.seq = g.seq) update",
            ),
        )
    ),
    "ReplaysEveryTime": Plant((Edit("amend", "and j.change <> ''", "and false"),)),
    "KnowsARequestByItsBeginning": Plant(
        (Edit("amend/done_before", "where j.request_id = %b", "where starts_with(j.request_id, %b)"),)
    ),
    "OneActForARequest": Plant((Edit("amend/done_before", "and j.change = %b", "and %b <> ''"),)),
    "IgnoresExpect": Plant(patches=(_expects_nothing,)),
    "AmendsWhatIsHeld": Plant(patches=(_amends_what_is_held,)),
    "AmendsWithoutTheLock": Plant(
        (
            Edit("amend", "order by n.seq for update of c", "order by n.seq"),
            Edit("amend/done_before", "where d.seq", f"where {_BREATH} and d.seq"),
        )
    ),
    "AuditsNothing": Plant(patches=(_audits_elsewhere,)),
    "PrunesLettersLikeDone": Plant(patches=(_takes_dead_for_done,)),
    "PrunesWithoutATrace": Plant((Edit("prune", "on conflict (id) do nothing", "where false"),)),
    "PrunesWithoutLookingAgain": Plant(
        (
            Edit("amend/lock", "for update", ""),
            Edit("prune/digests", "where", f"where {_BREATH} and"),
        )
    ),
    "DigestsWhatItKeeps": Plant(patches=(_digests_what_it_keeps,)),
    "PutsOneByOne": Plant(patches=(ways.puts_one_by_one(PostgresStore),)),
    "PutOverwrites": Plant(
        (
            Edit(
                "put",
                "on conflict (id) do nothing returning seq )",
                "on conflict (id) do update set body = excluded.body, crc = excluded.crc, packing = excluded.packing "
                "returning case when xmax = 0 then seq end as seq )",
            ),
            Edit("put", "coalesce(array_agg(seq), '{}')", "coalesce(array_agg(seq) filter (where seq > 0), '{}')"),
        )
    ),
    "PutsThePrunedAgain": Plant((Edit("put", "if any_buried then", "if false then"),)),
    "ReencodesPayloads": Plant(patches=(ways.reencodes_payloads(PostgresStore),)),
    "SwallowsCommitErrors": Plant(patches=(_commits_nothing,)),
    "DriftsByTheRefused": Plant((Edit("settle", f"{_ENDED} from moved m", f"{_ENDED} from ({_ASKED}) m"),)),
    "CausesNeverShrink": Plant(patches=(_counts_causes_only_up,)),
    "ShowsWhatItKeeps": Plant(patches=(ways.shows_what_it_keeps,)),
    "FindsByOffset": Plant(patches=(ways.finds_by_offset(PostgresStore),)),
    "DeafToPuts": Plant(patches=(_wakes_nobody,)),
    "DeafToOthers": Plant(patches=(_hears_nobody,)),
    "LeasesEveryKind": Plant((Edit("lease/kinds_in", "case when list <> '' then", "case when false then"),)),
    "ReadsAShareOfEachKind": Plant(
        (
            Edit("lanes/choose", "exit when of_each = most or", "exit when true or"),
            Edit("lanes/choose", "exit when is_enough or", "exit when true or"),
        )
    ),
    "SpinsForOtherKinds": Plant((Edit("tally/patience", "{schema}.kinds_in(asked.kinds)", "null"),)),
    "ForgetsTheKindOfFollowUps": Plant(
        (Edit("settle/follow_up", "array(select kinds[n] from unnest(meant) as n)", "null"),)
    ),
    "LosesHeadersInImports": Plant(patches=(ways.loses_headers(take_in),)),
}

_FINISHED = "state in ('done', 'cancelled')"
_LETTERS_TOO = "state in ('done', 'cancelled', 'dead')"

BONDS: dict[str, Plant] = {
    "LeasesFollowers": Plant((Edit("put/enter_bound", "when n.follows then 2 else 0 end", "else 0 end"),)),
    "PromotesNobody": Plant(
        (
            Edit("bonds/move_lines", "set hold = 0 from stepped s", "set hold = 2 from stepped s"),
            Edit("bonds/end_heads", "set hold = 0 from step s", "set hold = 2 from step s"),
        )
    ),
    "GoesOnPastTheDead": Plant((Edit("bonds/move_lines", "<> 'skip' as stops", "= 'never' as stops"),)),
    "HidesTheGap": Plant((Edit("bonds/move_lines", "terms t set gap = s.gap", "terms t set gap = ''"),)),
    "KeepsTheKeysOfTheDead": Plant((Edit("bonds/free_keys", "o.ending > 1 or", "false or"),)),
    "ForgetsTheWindow": Plant((Edit("bonds/free_keys", "coalesce(d.until, 0) <= now_at", "true"),)),
    "ReplaysBesideATwin": Plant((Edit("amend/retake", "where a.seqs is not null", "where false"),)),
    "RunsBeforeItsTime": Plant(
        (
            Edit(
                "put/enter_bound",
                "case when exists (select 1 from {schema}.edge e where e.waiting = n.seq offset 0) then 1",
                "case when false then 1",
            ),
        )
    ),
    "WaitsForTheDone": Plant((Edit("bonds/untie", "where e.awaited = any (done) returning", "where false returning"),)),
    "WaitsInARing": Plant((Edit("amend/give_way", "and f.place < its_place", "and false"),)),
    "DiesAlone": Plant((Edit("bonds/untie", "t.seq = e.waiting and t.dies", "false"),)),
    "PassesMaxRunning": Plant((Edit("lease/room", "{schema}.running_of(s.name)", "0 * {schema}.running_of(s.name)"),)),
    "LeaksPlaces": Plant((Edit("bonds/give_back", "e.key, -e.leases", "e.key, 0 * e.leases"),)),
    "ForgetsWhoWasSetAside": Plant((Edit("bonds/give_back", "set hold = 0 from next n", "set hold = 3 from next n"),)),
    "FillsBeyondCapacity": Plant((Edit("put/crowded", "where k.fill + n.more > q.capacity", "where false"),)),
    "BuriesInAFullRoute": Plant((Edit("settle/keep_from_routes", "> r.capacity", "> r.capacity + 1"),)),
    "StarvesTheLow": Plant((Edit("lanes/choose", "when 9 then 2 when 19 then 3 else 1", "when 9 then 1 else 1"),)),
    "MetersNothing": Plant(
        (Edit("lease/spend", "greatest(g.next_at, at_us) + (firsts + retries) * g.interval", "g.next_at"),)
    ),
    "RetriesOnCredit": Plant((Edit("lease/spend", "g.credit - 1000 * least(retries, g.credit / 1000)", "g.credit"),)),
    "DeafToCancels": Plant((Edit("amend/ask", "c.ties | 96", "c.ties | 64"),)),
    "SweepsLetters": Plant(
        (
            Edit("sweep/look", _FINISHED, _LETTERS_TOO),
            Edit("sweep/finished", _FINISHED, _LETTERS_TOO),
        )
    ),
}

LANES: dict[str, Plant] = {
    "SharesSlotsOnly": Plant((Edit("lanes/choose", "(share is null or", "(true or"),)),
    "LendsNothing": Plant((Edit("lanes/choose", "share := null;"),)),
    "GoesInStep": Plant((Edit("lanes/choose", "of_its_own * share", "lease_no * share"),)),
    "PassesAHold": Plant((Edit("lanes/give_one", "and c.hold = 0"),)),
    "GivesWhatRuns": Plant((Edit("lanes/give_one", "c.state = 'ready'", "c.state in ('ready', 'leased')"),)),
    "IgnoresTheNonceOfTheNamed": Plant(
        (
            Edit(
                "lease/function",
                "if not again and exists (select 1 from {schema}.nonce n",
                "if coalesce(only_item, '') = '' and exists (select 1 from {schema}.nonce n",
            ),
        )
    ),
    "LearnsFromTheNamed": Plant(patches=(_learns_from_the_named,)),
}

_AS_SAID = "where not array[a.place, -a.place] &&"
OFFICE: dict[str, Plant] = {
    "TakesRevisionsInClear": Plant(patches=(takes_revisions_in_clear(take_in),)),
    **SHARED,
    "ReencryptsOverAnEdit": Plant((Edit("put/rewrite_payload", "and i.body = o.old", ""),)),
    "LeavesResultsUnderTheOldKey": Plant((Edit("put/rewrite_result", "and r.body = o.old", "and false"),)),
    "TakesBodiesInClear": Plant((Edit("put/in_clear", "o.packing <> 2", "false"),)),
    "TakesResultsInClear": Plant((Edit("settle/keep_evidence", "and o.packing <> 2", "and false"),)),
    "NumbersNoCascade": Plant(
        (Edit("bonds/die", "select d.seq from died d )", "select d.seq from died d where false )"),)
    ),
    "NumbersNoReplay": Plant(
        (
            Edit(
                "amend/record_deeds",
                "select unnest(%b::bigint[]) as seq union",
                "select n.seq from unnest(%b::bigint[]) as n (seq) where false union",
            ),
        )
    ),
    "NumbersNoPrune": Plant((Edit("prune/remove", "order by i.seq", "limit 0"),)),
    "ReusesTheNewest": Plant(
        (
            Edit(
                "changes/number",
                "from {schema}.change c) + o.nth",
                "from {schema}.change c where c.id is null) + o.nth",
            ),
        ),
        says="change_n",
    ),
    "SharesANumber": Plant((Edit("changes/number", "+ o.nth, o.id", "+ 1, o.id"),), says="change_n"),
    "FollowsUpTheKept": Plant((Edit("settle/function", _AS_SAID, "where not array[-a.place] &&"),)),
    "FollowsUpTheCancelled": Plant((Edit("settle/function", _AS_SAID, "where not array[a.place] &&"),)),
    "PassesOverThoseWhoDiedTogether": Plant(
        (
            Edit(
                "find/first_letters",
                "(l.died_at, l.seq) > (%b::bigint, %b::bigint)",
                "l.died_at > %b::bigint and %b::bigint is not null",
            ),
        )
    ),
    "MovesWithoutItsCounts": Plant(patches=(_counts_no_moves,)),
    "MovesTheHeadAway": Plant((Edit("amend/keeping_back", "and l.waiting > 0", "and false"),)),
    "AsksForTwinsWhereItWas": Plant((Edit("amend/retake", "coalesce(q.other, t.scope)", "t.scope"),)),
    "ForgetsTagsOnReplay": Plant((Edit("amend/replay", "ended_at = null", "ended_at = null, ties = ties & ~128"),)),
    "KeepsTheOldPolicy": Plant((Edit("amend/set_policy", "c.ties | 64", "c.ties | 0"),)),
    "RunsLaterInstead": Plant((Edit("amend/run_now", "set due_at = o.now_at", "set due_at = c.due_at"),)),
    "KeepsTheOldCounters": Plant(
        (Edit("amend/run_now", "when o.reset then 0 else c.errors", "when false then 0 else c.errors"),)
    ),
    "ExpiresWithoutItsLine": Plant(patches=(_leaves_no_line,)),
    "ExpiresWithoutItsCause": Plant(patches=(_opens_no_cause,)),
    "HoldsTrashFromItsDeath": Plant(
        (Edit("amend/lay", "then %b::bigint else", "then least(%b::bigint, l.died_at) else"),)
    ),
    "TakesInOverWhatIsThere": Plant(
        (
            Edit("take_in/enter", ") insert into {schema}.item", "), entered as ( insert into {schema}.item"),
            Edit(
                "take_in/enter",
                "on conflict (id) do nothing returning id, seq",
                "on conflict (id) do update set body = excluded.body, crc = excluded.crc, packing = excluded.packing "
                "returning id, seq, xmax ) select id, seq from entered where xmax = 0",
            ),
        )
    ),
    "GivesALetterTwice": Plant(
        (Edit("lease_letters/give", "coalesce(c.lease_until, 0) <= a.now or c.worker = a.worker", "true"),)
    ),
    "TakesEarlyFromItsHolder": Plant((Edit("lease_letters/give", "a.early and c.worker = ''", "a.early"),)),
    "MovesWhatIsLeased": Plant(patches=(_sees_no_holder,)),
    "HearsTheLate": Plant((Edit("amend/take_away", "deliveries = deliveries + 1,"),)),
    "SettlesLettersLikeItems": Plant(_settles_by("c.deliveries = o.delivery and c.lease_until is not null")),
}
