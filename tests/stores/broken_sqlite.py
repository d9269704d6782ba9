"""How some bugs of broken_servers come into the SQLite store: it has one writer, so those of races do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import pytest
from msgspec.structs import replace

from redrive.core import lanes
from redrive.core.decide import ToDead
from redrive.core.item import NewItem
from redrive.core.lanes import Waiting
from redrive.core.verbs import LeaseRequest, Leases, NewEntry, Settlement, Verdict
from redrive.engine.ids import new_id
from redrive.stores.sqlite import (
    SqliteStore,
    amend,
    bind,
    edges,
    families,
    in_place,
    keys,
    lease,
    lines,
    put,
    rebind,
    settle,
    take_in,
)
from redrive.stores.sqlite.amend import Place
from redrive.stores.sqlite.lines import Joining
from redrive.stores.sqlite.memo import BoundMemo
from redrive.stores.sqlite.rebind import Refusals
from redrive.stores.sqlite.settle import Lease
from redrive.stores.sqlite.shelf import append_act
from redrive.stores.sqlite.tied import ORDER, Tied
from redrive.stores.sqlite.tx import Kind, Tx
from redrive.stores.sqlite.writer import Writer
from tests.stores import broken_ways as ways
from tests.stores.broken_encryption import SHARED, takes_revisions_in_clear
from tests.stores.planting import Edit, Patch, Plant

_FENCE = "deliveries = ? and state = 'leased'"


def _commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writer, "commit", lambda _, connection: connection.execute("rollback"))


def _by_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(waiting: dict[int, Waiting], limit: int, **_: object) -> list[int]:
        return [level for level in sorted(waiting) for _ in waiting[level]][:limit]

    monkeypatch.setattr(lanes, "choose", choose)


def _reads_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(
        ranks: Sequence[Any], limit: int, read: Callable[[Any, int], Sequence[Any]], key: Any = itemgetter(0, 1)
    ) -> list[Any]:
        rows = [row for rank in ranks for row in read(rank, limit // len(ranks) + lanes.SPARE)]
        return sorted(rows, key=key)[:limit]

    monkeypatch.setattr(lanes, "merged", merged)


def _waits_for_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    right = families.next_change
    monkeypatch.setattr(families, "next_change", lambda tx, queue, _: right(tx, queue))


def _puts_without_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    right = put.put
    monkeypatch.setattr(
        settle, "put", lambda tx, items, **how: right(tx, [replace(new, kind="") for new in items], **how)
    )


def _believes_any_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    right = settle._verdict  # noqa: SLF001 - bent
    monkeypatch.setattr(
        settle, "_verdict", lambda row, delivery, ended: right(row, delivery if row is None else row.deliveries, ended)
    )


def _forgets_what_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    right = settle._verdict  # noqa: SLF001 - bent

    def verdict(row: Lease | None, delivery: int, ended: set[int]) -> tuple[Verdict, str]:
        said, reason = right(row, delivery, ended)
        return (Verdict.APPLIED if said is Verdict.ALREADY else said), reason

    monkeypatch.setattr(settle, "_verdict", verdict)


def _settles_by(condition: str) -> tuple[Edit, ...]:
    """In each of its statements. `condition` takes the delivery, too."""
    return (
        Edit("settle/to_done", "state = 'leased' and deliveries = ?", condition),
        Edit("settle/to_ready", _FENCE, condition),
        Edit("settle/to_end", _FENCE, condition),
    )


def _never_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    right = bind._placed  # noqa: SLF001 - bent

    def placed(joining: Joining, seq: int, new: NewItem, *, waits: bool) -> tuple[int, str, Kind]:
        hold, gap, kind = right(joining, seq, new, waits=waits)
        return (0, gap, "ready") if hold == ORDER else (hold, gap, kind)

    monkeypatch.setattr(bind, "_placed", placed)


def _goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_mode", lambda _, __: "skip")


def _knows_no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_until", lambda _, __: None)


def _sees_no_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refusals, "_twin", lambda *_, **__: None)


def _waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "_waits", lambda _, __: {})


def _admits_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tx, "admit", lambda *_: None)


def _knows_no_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_TURNS", {})


def _shares_slots_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "may_retry", lambda _turn, _share: True)


def _goes_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "may_retry", lambda turn, share: turn * share % lanes.WHOLE + share >= lanes.WHOLE)


def _lends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lanes.choose

    def choose(waiting: dict[int, Waiting], limit: int, *, turn: int, share: int | None, **lines: Any) -> list[int]:
        chosen = right(waiting, limit, turn=turn, share=share, **lines)
        turns = enumerate(chosen, turn)
        return [n for at, n in turns if share is None or not lanes.is_retry(n) or lanes.may_retry(at, share)]

    monkeypatch.setattr(lanes, "choose", choose)


def _ignores_the_nonce_of_the_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lease.lease

    def leased(tx: Tx, memo: BoundMemo, request: LeaseRequest) -> Leases:
        return right(tx, memo, replace(request, nonce=new_id()) if request.item else request)

    monkeypatch.setattr(lease, "lease", leased)


def _leaves_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    right = amend._move  # noqa: SLF001 - bent

    def move(tx: Tx, places: list[Place], bound: list[Tied], queue: str) -> tuple[list[Place], list[Tied]]:
        for place in places:
            tx.count(place.queue, place.kind, 1)
        return right(tx, places, bound, queue)

    monkeypatch.setattr(amend, "_move", move)


def _binds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refusals, "_tied", lambda *_: None)


def _asks_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Refusals._twin  # noqa: SLF001 - bent
    monkeypatch.setattr(Refusals, "_twin", lambda self, item, change: right(self, item, replace(change, queue="")))


def _finds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_in, "_there", lambda _, __: set())


def _follows_up(became: Kind) -> Patch:
    """What became something else than was decided."""
    right = settle._Plan.add  # noqa: SLF001 - bent

    def add(plan: Any, settlement: Settlement, *place: Any) -> None:
        right(plan, settlement, *place)
        if place[2] == became and isinstance(settlement.decision, ToDead):
            plan._follow_ups.extend(settlement.follow_ups)  # noqa: SLF001

    return lambda monkeypatch: monkeypatch.setattr(settle._Plan, "add", add)  # noqa: SLF001


def _leaves_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rebind.ended
    monkeypatch.setattr(rebind, "ended", lambda tx, items, state: None if state == "dead" else right(tx, items, state))


def _opens_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "_replace", lambda place, **_: place)


def _counts_no_body_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    right = put._add  # noqa: SLF001 - bent

    def add(tx: Tx, added: list[put.Numbered], last: int) -> None:
        right(tx, added, last)
        tx.in_clear.clear()

    monkeypatch.setattr(put, "_add", add)


def _counts_no_result_in_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (settle, in_place):
        monkeypatch.setattr(module, "is_sealed", lambda _: True)


def _audits_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(tx: Tx, entry: NewEntry, change: str) -> int:
        return append_act(tx, replace(entry, topic="nowhere"), change)

    monkeypatch.setattr(amend, "append_act", append)


def _unnumbered(module: Any, name: str, seqs_of: Callable[[Any], list[int]]) -> Patch:
    """What the function changes gets no number: of its arguments the second has them."""
    right = getattr(module, name)

    def bent(tx: Tx, things: Any, *rest: Any) -> None:
        right(tx, things, *rest)
        for seq in seqs_of(things):
            tx.changed.pop(seq, None)

    return lambda monkeypatch: monkeypatch.setattr(module, name, bent)


OFFICE: dict[str, Plant] = {
    "TakesRevisionsInClear": Plant(patches=(takes_revisions_in_clear(take_in),)),
    **SHARED,
    "ReencryptsOverAnEdit": Plant((Edit("put/rewrite_payload", "and body = ?", "and ? is not null"),)),
    "LeavesResultsUnderTheOldKey": Plant((Edit("put/rewrite_result", "and body = ?", "and body = ? and false"),)),
    "TakesBodiesInClear": Plant(patches=(_counts_no_body_in_clear,)),
    "TakesResultsInClear": Plant(patches=(_counts_no_result_in_clear,)),
    "NumbersNoCascade": Plant(patches=(_unnumbered(edges, "_die", lambda items: [item.seq for item in items]),)),
    "NumbersNoReplay": Plant(patches=(_unnumbered(amend, "_replay", lambda places: [place.seq for place in places]),)),
    "NumbersNoPrune": Plant((Edit("changes/gone", "where seq in", "where false and seq in"),)),
    "ReusesTheNewest": Plant(
        (Edit("changes/take", "n = n + ?", "n = (select ifnull(max(n), 0) from change where id is null) + ?"),),
        says="change.n",
    ),
    "SharesANumber": Plant((Edit("changes/number", "?1 + 1 + key", "?1 + 1"),), says="change.n"),
    "FollowsUpTheKept": Plant(patches=(_follows_up("ready"),)),
    "FollowsUpTheCancelled": Plant(patches=(_follows_up("cancelled"),)),
    "PassesOverThoseWhoDiedTogether": Plant(
        (Edit("find_oldest/letters", "(l.died_at, l.seq) > (?, ?)", "l.died_at > max(?, -1 + 0 * ?)"),)
    ),
    "MovesWithoutItsCounts": Plant(patches=(_leaves_its_count,)),
    "MovesTheHeadAway": Plant(patches=(_binds_nothing,)),
    "AsksForTwinsWhereItWas": Plant(patches=(_asks_where_it_was,)),
    "ForgetsTagsOnReplay": Plant(
        (Edit("amend/replay", "set state = 'ready',", "set state = 'ready', ties = ties & ~128,"),)
    ),
    "KeepsTheOldPolicy": Plant((Edit("amend/mark_terms", "ties | 64", "ties | 0"),)),
    "RunsLaterInstead": Plant((Edit("amend/run_now", "set due_at = ?", "set due_at = max(due_at, ?)"),)),
    "KeepsTheOldCounters": Plant((Edit("amend/run_now_anew", "errors = 0,", ""),)),
    "ExpiresWithoutItsLine": Plant(patches=(_leaves_no_line,)),
    "ExpiresWithoutItsCause": Plant(patches=(_opens_no_cause,)),
    "HoldsTrashFromItsDeath": Plant((Edit("amend/discarded", "ended_at = ?", "ended_at = coalesce(ended_at, ?)"),)),
    "TakesInOverWhatIsThere": Plant(
        (Edit("take_in/item", "insert into item", "insert or replace into item"),), (_finds_nobody,)
    ),
    "GivesALetterTwice": Plant(
        (Edit("lease_letters/free", "ifnull(i.lease_until, 0) <= ? or i.worker = ?", "? or ? <> ''"),)
    ),
    "TakesEarlyFromItsHolder": Plant((Edit("lease_letters/free", "or ? and i.worker = ''", "or ?"),)),
    "MovesWhatIsLeased": Plant((Edit("amend/leased_letters", "when lease_until > ? then", "when 0 > ? then"),)),
    "HearsTheLate": Plant((Edit("amend/take_away", "deliveries + 1", "deliveries"),)),
}
BONDS: dict[str, Plant] = {
    "LeasesFollowers": Plant(patches=(_never_behind,)),
    "PromotesNobody": Plant((Edit("order/free", "set hold = 0", "set hold = 2"),)),
    "GoesOnPastTheDead": Plant(patches=(_goes_on,)),
    "HidesTheGap": Plant((Edit("terms/gap", "set gap = ?", "set gap = substr(?, 1, 0)"),)),
    "KeepsTheKeysOfTheDead": Plant((Edit("dedupe/release", "and seq = ?", "and seq = ? and false"),)),
    "ForgetsTheWindow": Plant(patches=(_knows_no_window,)),
    "ReplaysBesideATwin": Plant(patches=(_sees_no_twin,)),
    "RunsBeforeItsTime": Plant(patches=(_waits_for_nobody,)),
    "WaitsForTheDone": Plant((Edit("after/fulfil", "awaited = ?", "awaited = ? and false"),)),
    "WaitsInARing": Plant((Edit("order/overtaken", "f.place < ht.place", "f.place < 0"),)),
    "DiesAlone": Plant((Edit("after/doomed", "die = 1", "die = 2"),)),
    "PassesMaxRunning": Plant((Edit("lease/queue", "settings, leased", "settings, 0"),)),
    "LeaksPlaces": Plant((Edit("limits/leave", "running - 1", "running"),)),
    "ForgetsWhoWasSetAside": Plant((Edit("limits/free", "set hold = 0", "set hold = 3"),)),
    "FillsBeyondCapacity": Plant(patches=(_admits_all,)),
    "BuriesInAFullRoute": Plant((Edit("settle/route", "capacity - open", "null"),)),
    "StarvesTheLow": Plant(patches=(_knows_no_turns,)),
    "MetersNothing": Plant((Edit("limits/spend_gate", "next_at = ?", "next_at = 0 * ?"),)),
    "RetriesOnCredit": Plant((Edit("limits/spend_gate", "credit = ?", "credit = credit + 0 * ?"),)),
    "DeafToCancels": Plant((Edit("terms/mark_asked", "ties | 96", "ties | 64"),)),
    "SweepsLetters": Plant((Edit("sweep/next", "l.disposition", "null"),)),
}
LANES: dict[str, Plant] = {
    "SharesSlotsOnly": Plant(patches=(_shares_slots_only,)),
    "LendsNothing": Plant(patches=(_lends_nothing,)),
    "GoesInStep": Plant(patches=(_goes_in_step,)),
    "PassesAHold": Plant((Edit("lease/one", "and i.hold = 0"),)),
    "GivesWhatRuns": Plant((Edit("lease/one", "i.state = 'ready'", "i.state in ('ready', 'leased')"),)),
    "IgnoresTheNonceOfTheNamed": Plant(patches=(_ignores_the_nonce_of_the_named,)),
}
PLANTS: dict[str, Plant] = {
    "SettlesByState": Plant(_settles_by("? is not null and state = 'leased'"), (_believes_any_delivery,)),
    "SettlesTwice": Plant(_settles_by("deliveries = ?"), (_forgets_what_ended,)),
    "ExtendsById": Plant((Edit("extend/prolong", "deliveries = ?", "? is not null"),)),
    "ExtendRevives": Plant((Edit("extend/prolong", "lease_until > ?", "? is not null"),)),
    "ExtendShortens": Plant((Edit("extend", "max(lease_until, ?)", "?"),)),
    "ReplayResetsTheFence": Plant((Edit("amend/replay", "attempt = 0,", "deliveries = 0, attempt = 0,"),)),
    "LeavesItReady": Plant((Edit("lease/mark", "set state = 'leased',", "set"),)),
    "CountsOnFailureOnly": Plant(
        (Edit("lease/mark", "attempt = attempt + 1,", ""), Edit("lease/pick", "i.attempt + 1", "i.attempt"))
    ),
    "LeasesByAnotherClock": Plant((Edit("lease/pick", "i.due_at <= ?", "i.due_at <= ? + 500"),)),
    "KnowsOneLane": Plant(
        (
            Edit("lease/last_nonce", "lane = ?", "lane = 0 * ?"),
            Edit("lease/keep_nonce", "values (?, ?, ?, ?, ?)", "values (?, 0 * ?, ?, ?, ?)"),
        )
    ),
    "AnswersAnyLane": Plant((Edit("lease/last_nonce", "lane = ?", "lane <> ? + 100"),)),
    "IgnoresTheNonce": Plant((Edit("lease", "lane = ? and nonce = ?", "lane = ? and nonce = ? and false"),)),
    "GivesMoreBesideASuspect": Plant((Edit("lease", "state = 'leased' and alone = 1", "false"),)),
    "LeasesFromThePaused": Plant((Edit("lease/queue", "select paused,", "select 0,"),)),
    "LeasesTheUnscathedFirst": Plant(patches=(_by_crashes,)),
    "ReclaimsTheUnexpired": Plant(
        (
            Edit("reclaim/expired", "lease_until <= ?", "? is not null"),
            Edit("reclaim/one", "lease_until <= ?", "? is not null"),
        )
    ),
    "ReclaimKeepsTheDelivery": Plant((Edit("reclaim", "set deliveries = deliveries + 1,", "set"),)),
    "ReplaysEveryTime": Plant((Edit("amend", "and j.change <> ''", "and j.change <> '' and false"),)),
    "KnowsARequestByItsBeginning": Plant(
        (Edit("amend", "where j.request_id = ? and", "where instr(j.request_id, ?) = 1 and"),)
    ),
    "OneActForARequest": Plant((Edit("amend", "and j.change = ?", "and ? <> ''"),)),
    "AuditsNothing": Plant(patches=(_audits_elsewhere,)),
    "PrunesWithoutATrace": Plant(
        (Edit("prune", "values (?, ?, ?, ?, ?, ?, ?)", "select ?, ?, ?, ?, ?, ?, ? where false"),)
    ),
    "PutsThePrunedAgain": Plant((Edit("put/any_tombstone", "limit 1", "limit 0"),)),
    "PutsOneByOne": Plant(patches=(ways.puts_one_by_one(SqliteStore),)),
    "SwallowsCommitErrors": Plant(patches=(_commits_nothing,)),
    "FindsByOffset": Plant(patches=(ways.finds_by_offset(SqliteStore),)),
    "LeasesEveryKind": Plant(
        (
            Edit(
                "lease/levels_of",
                "select value, -1 from json_each(?2)",
                "select distinct kind, -1 from item where ?2 is not null",
            ),
        )
    ),
    "ReadsAShareOfEachKind": Plant(patches=(_reads_a_share,)),
    "SpinsForOtherKinds": Plant(patches=(_waits_for_every_kind,)),
    "ForgetsTheKindOfFollowUps": Plant(patches=(_puts_without_kinds,)),
    "LosesHeadersInImports": Plant(patches=(ways.loses_headers(take_in),)),
}
