"""How the bugs of broken_servers come into the Redis store: nearly all of them live in its scripts.

A script is one step, whatever it does. What others do in two steps is two scripts here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from redrive.core import codec
from redrive.core.decide import ToDead
from redrive.core.item import Item, Millis
from redrive.core.select import Match, Selection
from redrive.core.verbs import Answer, Settlement
from redrive.errors import StoreUnavailable
from redrive.stores.redis import RedisStore, amend, faults, lease, settle, take_in
from redrive.stores.redis.rows import payload_of
from redrive.stores.redis.search import oldest
from redrive.stores.redis.session import Session
from redrive.stores.redis.texts import packed
from redrive.testing.conformance.kit import sha256
from tests.stores import broken_ways as ways
from tests.stores.broken_encryption import SHARED
from tests.stores.planting import Edit, Patch, Plant

Outcome = tuple[tuple[Answer, ...], Any, int]

_FENCE, _DONE_FENCE = "elseif m[DELIVERIES] ~= one[2] then", "if deliveries ~= delivery then"
_HELD, _DONE_HELD = "elseif m[STATE] ~= 'leased' then", "if state ~= 'leased' or again then"
_GIVEN_AWAY = "otherwise(index, GIVEN_AWAY, m[DELIVERIES])"
_LETTER = "m[LETTER] = {one[6], time, 'open', one[9], one[10], one[11], one[12]}"
_EVIDENCE = "set(P .. 'failure', id, body(one[8]))"

_RELEASE = "local function release_key(id, m, time)"

# --- second steps -----------------------------------------------------------------------------------------------------

_BURY = """
for _, one in ipairs(cmsgpack.unpack(ARGV[2])) do
  local m = load(one[1])
  if m then
    lift(one[1], m)
    m[LETTER] = {one[2], now(), 'open', one[3], one[4], one[5], ''}
    lay(one[1], m)
  end
end
write()
return 0
"""
_PROVE = """
for _, one in ipairs(cmsgpack.unpack(ARGV[2])) do
  set(P .. 'failure', one[1], one[2])
end
write()
return 0
"""


def _bury(session: Session, settlements: Sequence[Settlement]) -> Awaitable[Any]:
    letters = []
    for one in settlements:
        if isinstance(one.decision, ToDead):
            why = one.decision.failure
            letters.append((one.id, one.decision.reason, why.cause, why.type.rpartition(".")[2], why.category))
    return session.run("bury", [packed(letters)])


def _prove(session: Session, settlements: Sequence[Settlement]) -> Awaitable[Any]:
    proofs = [
        (one.id, codec.encode(one.decision.failure).decode()) for one in settlements if isinstance(one.decision, ToDead)
    ]
    return session.run("prove", [packed(proofs)])


Second = Callable[[Session, Sequence[Settlement]], Awaitable[Any]]


def _settles_in_two(step: Second, *, it_first: bool = False) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        right = settle.settle

        async def settled(session: Session, settlements: Sequence[Settlement], then: bytes = b"") -> Outcome:
            if it_first:
                await step(session, settlements)
                return await right(session, settlements, then)
            outcome = await right(session, settlements, then)
            await step(session, ways.applied(settlements, outcome[0]))
            return outcome

        monkeypatch.setattr(settle, "settle", settled)

    return patch


# --- patches ----------------------------------------------------------------------------------------------------------


def _reclaims_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lease.reclaim

    async def reclaim(
        session: Session, queues: Sequence[str], ttl: Millis, limit: int, ids: Sequence[str] | None, *, force: bool
    ) -> tuple[Item, ...]:
        if ids is None:
            found = await oldest(session, Match("state", "=", "leased"), limit)
            seen = [one.item for one in found.candidates]
            ids = [item.id for item in seen if (item.lease_until or 0) <= int(session.pinned())]
            force = True
            await asyncio.sleep(0)  # noqa: TID251 - not a wait for time: it only lets the others run
        return await right(session, queues, ttl, limit, ids, force=force)

    monkeypatch.setattr(lease, "reclaim", reclaim)


def tells_unknown_as_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "unanswered", lambda _error, where: StoreUnavailable(f"not done: {where}"))


def _takes_open_for_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    right = amend._kinds  # noqa: SLF001 - bent

    def kinds(selection: Selection) -> list[Match]:
        return [*right(selection), Match("disposition", "=", "open")]

    monkeypatch.setattr(amend, "_kinds", kinds)


def _digests_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amend, "_digests", lambda kept: [sha256(bytes(payload_of(body)[0])) for body in kept])


# --- the table --------------------------------------------------------------------------------------------------------

PLANTS: dict[str, Plant] = {
    "SettlesByState": Plant(
        (Edit("ending", _FENCE, "elseif false then"), Edit("settle", _DONE_FENCE, "if false then"))
    ),
    "FinishesByState": Plant((Edit("settle", _DONE_FENCE, "if false then"),)),
    "SettlesById": Plant(
        (
            Edit("ending", _FENCE, "elseif false then"),
            Edit("settle", _DONE_FENCE, "if false then"),
            Edit("ending", _HELD, "elseif false then"),
            Edit("settle", _DONE_HELD, "if false then"),
        )
    ),
    "SettlesTwice": Plant((Edit("ending", _HELD, "elseif false then"), Edit("settle", _DONE_HELD, "if false then"))),
    "FinishesTwice": Plant((Edit("settle", _DONE_HELD, "if again then"),)),
    "RefusesWhatExpired": Plant(
        (
            Edit("settle", "leased_at, _, _, omitted, _, priority", "leased_at, lease_until, _, omitted, _, priority"),
            Edit("settle", _DONE_HELD, "if state ~= 'leased' or lease_until <= time then"),
            Edit("ending", _HELD, "elseif m[STATE] ~= 'leased' or m[LEASE_UNTIL] <= time then"),
        )
    ),
    "RefusalFailsTheBatch": Plant((Edit("ending", _GIVEN_AWAY, "refuse('given away')"),), says="given away"),
    "FollowsUpAlthoughRefused": Plant((Edit("ending", _GIVEN_AWAY, f"{_GIVEN_AWAY} follow(one[5] or {{}})"),)),
    "ExtendsById": Plant((Edit("extend", "m[DELIVERIES] ~= held[2] or", ""),)),
    "ExtendRevives": Plant((Edit("extend", "and m[LEASE_UNTIL] and m[LEASE_UNTIL] > time", "and m[LEASE_UNTIL]"),)),
    "ExtendShortens": Plant((Edit("extend", "if until_then > m[LEASE_UNTIL] then", "if true then"),)),
    "ExtendMovesNoEntry": Plant((Edit("extend", "lay(id, m)", "set(ITEM, id, packed(m))"),)),
    "ReplayResetsTheFence": Plant(
        (Edit("amend", "m[STATE], m[DUE_AT], m[REPLAYS]", "m[DELIVERIES] = 0 m[STATE], m[DUE_AT], m[REPLAYS]"),)
    ),
    "LeavesItReady": Plant(
        (
            Edit("leasing", "remove(spot.key, member)", ""),
            Edit("leasing", "or state ~= 'ready' or its_queue", "or its_queue"),
        )
    ),
    "CountsOnFailureOnly": Plant(
        (Edit("leasing", "deliveries = deliveries + 1", "deliveries, attempt = deliveries + 1, attempt - 1"),)
    ),
    "LeasesByAnotherClock": Plant(
        (Edit("leasing", "'-inf', time, 'LIMIT', 0, most)", "'-inf', time + 500, 'LIMIT', 0, most)"),)
    ),
    "KnowsOneLane": Plant(
        (
            Edit("leasing", "set(P .. 'nonce', request[5],", "set(P .. 'nonce', request[1],"),
            Edit("leasing", "call('HGET', P .. 'nonce', request[5])", "call('HGET', P .. 'nonce', request[1])"),
        )
    ),
    "AnswersAnyLane": Plant(
        (
            Edit(
                "leasing",
                "local before = list_of(call('HGET', P .. 'nonce', request[5]))",
                "local before for _, kept in ipairs(call('HVALS', P .. 'nonce')) do local found = list_of(kept) "
                "if found and found[1] == request[2] then before = found end end",
            ),
        )
    ),
    "IgnoresTheNonce": Plant((Edit("leasing", "if before and before[1] == request[2] then", "if false then"),)),
    "GivesSuspectsInCompany": Plant(
        (Edit("leasing", "math.floor(number / 6) < line and made.plain or made.suspect", "made.plain"),)
    ),
    "GivesMoreBesideASuspect": Plant((Edit("leasing", "if holds_a_suspect(request[1]) then", "if false then"),)),
    "LosesSightOfTheCrashed": Plant((Edit("prelude", "filled[key] = listed", ""),)),
    "LeasesFromThePaused": Plant(
        (Edit("leasing", "if not declared or declared[1] and not is_named then", "if not declared then"),)
    ),
    "LeasesTheNewestFirst": Plant(
        (
            Edit(
                "leasing",
                "call('ZRANGEBYSCORE', ready_key(queue, only), '-inf', time, 'LIMIT', 0, most)",
                "call('ZREVRANGEBYSCORE', ready_key(queue, only), time, '-inf', 'LIMIT', 0, most)",
            ),
        )
    ),
    "LeasesTheUnscathedFirst": Plant((Edit("choosing", "comes_first(row, best[best.at])", "rows.level < best.level"),)),
    "ReclaimsTheUnexpired": Plant(
        (
            Edit("reclaim", "ARGV[6] == '1' and math.huge or time", "math.huge"),
            Edit("reclaim", "ARGV[6] == '1' and '+inf' or time", "'+inf'"),
        )
    ),
    "ReclaimsWithoutLookingAgain": Plant(
        (
            Edit("reclaim", "if named and m[STATE] == 'leased' and m[LEASE_UNTIL] <= horizon", "if named"),
            Edit("reclaim", "{m[LEASE_UNTIL], m[SEQ], id, m}", "{0, m[SEQ], id, m}"),
        ),
        (_reclaims_what_it_saw,),
    ),
    "ReclaimsUnknownQueues": Plant(
        (
            Edit(
                "reclaim",
                "if ARGV[5] ~= '' then",
                "for _, name in ipairs(call('HKEYS', P .. 'queues')) do queues[name] = true end if ARGV[5] ~= '' then",
            ),
        )
    ),
    "ReclaimKeepsTheDelivery": Plant((Edit("reclaim", "m[DELIVERIES] = m[DELIVERIES] + 1", ""),)),
    "DiesBeforeItsLetter": Plant((Edit("ending", _LETTER, ""),), (_settles_in_two(_bury),), {"bury": _BURY}),
    "WritesTheLetterFirst": Plant(
        (Edit("ending", _LETTER, ""),), (_settles_in_two(_bury, it_first=True),), {"bury": _BURY}
    ),
    "DiesBeforeItsEvidence": Plant((Edit("ending", _EVIDENCE, ""),), (_settles_in_two(_prove),), {"prove": _PROVE}),
    "ReleaseCharges": Plant((Edit("ending", "m[-at] = m[-at] - 1", ""),)),
    "EvictsLetters": Plant(
        (
            Edit(
                "settle",
                "write() for",
                "write() for _, queue in ipairs(call('HKEYS', P .. 'queues')) do "
                "call('ZREMRANGEBYRANK', P .. 'letters:q:open:' .. queue, 0, -101) end for",
            ),
        )
    ),
    "TrimsTheWrongEnd": Plant((Edit("settle", "call('LSET', key, FIRST_ATTEMPTS, '')", "call('LSET', key, -1, '')"),)),
    "ForgetsTheEvidence": Plant(
        (Edit("amend", "unset(P .. 'result', id)", "unset(P .. 'result', id) delete(P .. 'attempts:' .. id, 'list')"),)
    ),
    "ReplaysEveryTime": Plant((Edit("amend", "return deed[5] == request", "return false and deed[5]"),)),
    "KnowsARequestByItsBeginning": Plant(
        (Edit("amend", "return deed[5] == request and", "return string.sub(deed[5], 1, #request) == request and"),)
    ),
    "OneActForARequest": Plant((Edit("amend", "and deed[2] == change", ""),)),
    "IgnoresExpect": Plant((Edit("amend", "if expect ~= '' and tonumber(expect) ~= there then", "if false then"),)),
    "AmendsWhatIsHeld": Plant(
        (Edit("amend", "if m[STATE] == 'leased' then terms_of(m)", "if false then terms_of(m)"),)
    ),
    "AuditsNothing": Plant((Edit("amend", "enter('audit', meta, head .. table.concat(names, ',') .. tail, at)", ""),)),
    "PrunesLettersLikeDone": Plant(patches=(_takes_open_for_resolved,)),
    "PrunesWithoutATrace": Plant(
        (Edit("prune", "set(P .. 'tombstones', id, string.format('%016d', at) .. ARGV[first + 3])", ""),)
    ),
    "PrunesWithoutLookingAgain": Plant(
        (Edit("prune", "if m and records[index] == ARGV[first + 2] then", "if m then"),)
    ),
    "DigestsWhatItKeeps": Plant(patches=(_digests_what_it_keeps,)),
    "PutsOneByOne": Plant(patches=(ways.puts_one_by_one(RedisStore),)),
    "PutOverwrites": Plant(
        (
            Edit(
                "putting",
                "already[#already + 1] = index",
                "already[#already + 1] = index set(P .. 'body', id, entry[4])",
            ),
        )
    ),
    "PutsThePrunedAgain": Plant(
        (Edit("putting", "if call('EXISTS', sound(P .. 'tombstones', 'hash')) == 1 then", "if false then"),)
    ),
    "ReencodesPayloads": Plant(
        (
            Edit(
                "putting",
                "set(P .. 'body', id, entry[4])",
                "local head, text = string.sub(entry[4], 1, 5), string.sub(entry[4], 6) "
                "local read, value = pcall(cjson.decode, text) "
                "local written, again = pcall(cjson.encode, value) "
                "set(P .. 'body', id, head .. (read and written and again or text))",
            ),
        )
    ),
    "SwallowsCommitErrors": Plant((Edit("put", "write()", ""),)),
    "DriftsByTheRefused": Plant(
        (Edit("ending", "otherwise(index, ALREADY, 0) else", "otherwise(index, ALREADY, 0) lift(id, m) else"),)
    ),
    "CausesNeverShrink": Plant(
        (Edit("prelude", "if lies == 'open' then", "if lies == 'open' and note ~= remove_share then"),)
    ),
    "ShowsWhatItKeeps": Plant(patches=(ways.shows_what_it_keeps,)),
    "FindsByOffset": Plant(patches=(ways.finds_by_offset(RedisStore),)),
    "DeafToPuts": Plant((Edit("prelude", "redis.pcall('PUBLISH', P .. 'wake', table.concat(queues, '\\0'))", ""),)),
    "LeasesEveryKind": Plant((Edit("leasing", "not want[8] or in_list(want[8], kind)", "true"),)),
    "ReadsAShareOfEachKind": Plant((Edit("choosing", "and #rows == 2 * share then", "and false then"),)),
    "SpinsForOtherKinds": Plant((Edit("opening", "not of_kinds or of_kinds[kind_in(rank)]", "true"),)),
    "ForgetsTheKindOfFollowUps": Plant(
        (Edit("ending", "entry[4] = body(entry[4])", "entry[4] = body(entry[4]) entry[9] = entry[9] and ''"),)
    ),
    "LosesHeadersInImports": Plant(patches=(ways.loses_headers(take_in),)),
}

BONDS: dict[str, Plant] = {
    "LeasesFollowers": Plant((Edit("ties", "m[HOLD] = HELD_ORDER", "m[HOLD] = 0"),)),
    "PromotesNobody": Plant(
        (
            Edit("lines", "local id = first_in(line.followers)", "local id = nil"),
            Edit("heads", "followers and first_in(followers)", "nil"),
        )
    ),
    "GoesOnPastTheDead": Plant(
        (Edit("ties", "m[STATE] == 'dead' and not one[4] and dead_order(m[QUEUE]) or 'go'", "'go'"),)
    ),
    "HidesTheGap": Plant((Edit("lines", "m[TERMS][GAP] = line.gap", ""),)),
    "KeepsTheKeysOfTheDead": Plant(
        (Edit("ties", "local function release_key(id, m, time)", f"{_RELEASE} if m[STATE] == 'dead' then return end"),)
    ),
    "ForgetsTheWindow": Plant((Edit("ties", "ends > time and {id, ends} or false", "false"),)),
    "ReplaysBesideATwin": Plant((Edit("amend", "holder and not force and {'twin', holder} or nil", "nil"),)),
    "RunsBeforeItsTime": Plant((Edit("ties", "m[HOLD] = HELD_AFTER", "m[HOLD] = 0"),)),
    "WaitsForTheDone": Plant(
        (Edit("ties", "if one[2][STATE] == 'done' and tied(one[2], AWAITED) then", "if false then"),)
    ),
    "WaitsInARing": Plant((Edit("amend", "its[TERMS][PLACE] < head[TERMS][PLACE]", "false"),)),
    "DiesAlone": Plant((Edit("ties", "its[TERMS][ON_DEAD] == 'die'", "false"),)),
    "PassesMaxRunning": Plant((Edit("limits", "limits[MOST_RUNNING] - call('ZCARD', leased_key(queue))", "most"),)),
    "LeaksPlaces": Plant((Edit("ending", "bonds.leave_slot(id, m[QUEUE], m[TERMS][LIMIT_KEY])", ""),)),
    "ForgetsWhoWasSetAside": Plant((Edit("ties", "let_next(m[QUEUE], m[TERMS][LIMIT_KEY])", ""),)),
    "FillsBeyondCapacity": Plant((Edit("binding", "if fill + added[queue] > capacity then", "if false then"),)),
    "BuriesInAFullRoute": Plant((Edit("ending", "return rooms[route] >= 0", "return true"),)),
    "StarvesTheLow": Plant((Edit("choosing", "TURNS[turn % CYCLE] or USUAL", "USUAL"),)),
    "MetersNothing": Plant(
        (Edit("limits", "gate[G_NEXT_AT] = spent(gate[G_INTERVAL], gate[G_NEXT_AT], micros, given)", ""),)
    ),
    "RetriesOnCredit": Plant((Edit("limits", "gate[G_CREDIT] - ONE_RETRY * paid +", "gate[G_CREDIT] +"),)),
    "DeafToCancels": Plant((Edit("amend", "m[TIES] = bor(m[TIES], CANCEL)", ""),)),
    "SweepsLetters": Plant((Edit("sweep", "(m[STATE] == 'done' or m[STATE] == 'cancelled') and", "m[ENDED_AT] and"),)),
}

_NAMED = (
    "if not m or m[STATE] ~= 'ready' or m[QUEUE] ~= lane.queue or (m[HOLD] or 0) > 0 then return nil end local rank"
)
LANES: dict[str, Plant] = {
    "SharesSlotsOnly": Plant((Edit("choosing", "(not share or may_retry(nth, share))", "true"),)),
    "LendsNothing": Plant((Edit("choosing", "share = false"),)),
    "GoesInStep": Plant((Edit("choosing", "count * share", "turn * share"),)),
    "PassesAHold": Plant(
        (
            Edit("lending", _NAMED, _NAMED.replace(" or (m[HOLD] or 0) > 0", "")),
            Edit("leasing", "or (hold or 0) > 0 then", "then"),
        )
    ),
    "GivesWhatRuns": Plant(
        (
            Edit("lending", _NAMED, _NAMED.replace("m[STATE] ~= 'ready' or ", "")),
            Edit("leasing", "or state ~= 'ready' or its_queue", "or its_queue"),
        )
    ),
    "IgnoresTheNonceOfTheNamed": Plant(
        (Edit("leasing", "before[1] == request[2] then", "before[1] == request[2] and request[6] == '' then"),)
    ),
}

_SAID = "if one[5] and not verdict then"
OFFICE: dict[str, Plant] = {
    "TakesRevisionsInClear": Plant(
        (Edit("take_in", "check_sealed(m[QUEUE], string.sub(ARGV[at], 9 + tonumber(string.sub(ARGV[at], 1, 8))))", ""),)
    ),
    **SHARED,
    "ReencryptsOverAnEdit": Plant((Edit("rewrite", "if call('HGET', key, id) == old then", "if true then"),)),
    "LeavesResultsUnderTheOldKey": Plant(
        (Edit("rewrite", "== old then set(key, id, new)", "== old and ARGV[at] == 'body' then set(key, id, new)"),)
    ),
    "TakesBodiesInClear": Plant((Edit("putting", "check_sealed(entry[2], entry[4])", ""),)),
    "TakesResultsInClear": Plant((Edit("ending", "check_sealed(m[QUEUE], body(one[6]))", ""),)),
    "NumbersNoCascade": Plant(
        (
            Edit(
                "prelude",
                "elseif m[LETTER] then change_letter(id)",
                "elseif m[LETTER] and m[LETTER][REASON] ~= 'dependency' then change_letter(id)",
            ),
        )
    ),
    "NumbersNoReplay": Plant(
        (Edit("prelude", "shares(id, m, remove_share) if m[LETTER] then", "shares(id, m, remove_share) if false then"),)
    ),
    "NumbersNoPrune": Plant(
        (Edit("prune", "if call('ZSCORE', sound(P .. 'changes', 'zset'), id) then", "if false then"),)
    ),
    "ReusesTheNewest": Plant(
        (
            Edit(
                "prelude",
                "call('HGET', sound(P .. 'sequence', 'hash'), 'change')",
                "call('ZREVRANGE', P .. 'changes', 0, 0, 'WITHSCORES')[2]",
            ),
            Edit("prune", "change_letter(id)", "changed_letters = {} remove(P .. 'changes', id)"),
        )
    ),
    "SharesANumber": Plant((Edit("prelude", "last + index", "last + 1"),)),
    "FollowsUpTheKept": Plant((Edit("ending", _SAID, "if one[5] and verdict ~= CANCELLED_INSTEAD then"),)),
    "FollowsUpTheCancelled": Plant((Edit("ending", _SAID, "if one[5] and verdict ~= KEPT then"),)),
    "PassesOverThoseWhoDiedTogether": Plant(
        (Edit("find", "if found == number or", "if not backwards or found == number or"),)
    ),
    "MovesWithoutItsCounts": Plant(
        (
            Edit(
                "amend",
                "m = touched[id] or adopt(id, m) if m[LETTER]",
                "m = (how.queue ~= '' and touch or adopt)(id, m) if m[LETTER]",
            ),
        )
    ),
    "MovesTheHeadAway": Plant((Edit("amend", "return KEEPS_OTHERS_BACK", "return nil"),)),
    "AsksForTwinsWhereItWas": Plant((Edit("amend", "m[QUEUE] = how.queue ~= '' and how.queue or own", ""),)),
    "ForgetsTagsOnReplay": Plant(
        (
            Edit(
                "amend",
                "m[ENDED_AT], m[LETTER] = false, false",
                "m[ENDED_AT], m[LETTER] = false, false "
                "if tied(m, TAGGED) then m[TERMS][TAGS], m[TIES] = nil, m[TIES] - TAGGED end",
            ),
        )
    ),
    "KeepsTheOldPolicy": Plant((Edit("amend", "terms[POLICY] = how.policy", ""),)),
    "RunsLaterInstead": Plant((Edit("amend", "m[DUE_AT] = at\n", "\n"),)),
    "KeepsTheOldCounters": Plant((Edit("amend", "if how.reset then", "if false then"),)),
    "ExpiresWithoutItsLine": Plant(
        (Edit("amend", "end_waiting(id, m, 'dead')", "m[STATE], m[ENDED_AT], m[HOLD] = 'dead', at, 0"),)
    ),
    "ExpiresWithoutItsCause": Plant((Edit("amend", "{why, at, 'open', cause,", "{why, at, 'open', '?',"),)),
    "HoldsTrashFromItsDeath": Plant(
        (
            Edit(
                "sweep",
                "'trash' and m[ENDED_AT] + keep <= time",
                "'trash' and m[LETTER][DIED_AT] + keep <= time",
            ),
        )
    ),
    "TakesInOverWhatIsThere": Plant((Edit("take_in", "if taken[id] then", "if false then"),)),
    "GivesALetterTwice": Plant((Edit("lease_letters", "or m[LEASE_UNTIL] <= time or m[WORKER] == worker", "or true"),)),
    "TakesEarlyFromItsHolder": Plant((Edit("lease_letters", "early and m[WORKER] == ''", "early"),)),
    "MovesWhatIsLeased": Plant((Edit("amend", "return is_leased and refusals.held == 1", "return false"),)),
    "HearsTheLate": Plant(
        (Edit("amend", "m[DELIVERIES], m[LEASE_UNTIL] = m[DELIVERIES] + 1, false", "m[LEASE_UNTIL] = false"),)
    ),
}
