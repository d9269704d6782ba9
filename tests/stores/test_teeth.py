"""The suite has teeth: every planted bug is caught, and by the test that is about it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from redrive.stores.memory import MemoryStore
from redrive.testing.conformance import kinds, kit, wait
from redrive.testing.conformance.kit import DURABLE, HANDLES
from tests.stores import broken as b
from tests.stores import broken_acts as a
from tests.stores import broken_audit as q
from tests.stores import broken_changes as n
from tests.stores import broken_details as p
from tests.stores import broken_encryption as e
from tests.stores import broken_families as k
from tests.stores import broken_fields as d
from tests.stores import broken_lanes as f
from tests.stores import broken_letters as o
from tests.stores import broken_more as m
from tests.stores import broken_recall as r
from tests.stores import broken_reservations as v
from tests.stores import broken_terms as t
from tests.stores.teeth_kit import fails, world_by, world_of


class Tooth(NamedTuple):
    """A planted bug, the tests that must fail on it, and whether the state machine must find it as well.

    The machine hunts in proofs/stores/test_planted_bugs.py.
    """

    store: type[MemoryStore]
    caught_by: tuple[str, ...]
    machine: bool = False


TEETH = (
    Tooth(k.PutsUnseen, ("test_family_members_come_and_go_while_workers_run",)),
    Tooth(k.ResumesUnseen, ("test_family_member_that_is_paused_does_not_keep_others_back",)),
    Tooth(k.LooksTooLate, ("test_family_rate_gives_as_soon_as_it_may",)),
    Tooth(k.ServesTheFirstAgain, ("test_family_lease_takes_turns_one_item_at_a_time",)),
    Tooth(k.WaitsForOtherKinds, ("test_family_wait_does_not_return_for_other_kinds",)),
    Tooth(k.HidesTheRest, ("test_family_lease_that_puts_many_off_is_asked_again_at_once",)),
    Tooth(k.AsksForEver, ("test_family_members_of_other_kinds_are_no_reason_to_ask_again_at_once",)),
    Tooth(k.HasRoomForAll, ("test_family_capacity_counts_all_members",)),
    Tooth(
        b.SettlesByState,
        (
            "test_settle_by_a_stale_holder_is_refused_while_the_new_one_runs",
            "test_settle_by_a_stale_holder_is_refused_while_the_reaper_holds",
            "test_race_of_settles_by_two_holders_counts_the_current_one",
        ),
        machine=True,
    ),
    Tooth(
        b.SettlesById, ("test_settle_again_is_already", "test_settle_of_an_item_never_leased_is_refused"), machine=True
    ),
    Tooth(
        b.ExtendsById,
        (
            "test_extend_by_a_stale_holder_is_lost_while_the_new_one_runs",
            "test_extend_by_the_lost_holder_does_not_touch_the_reaper_s_lease",
        ),
        machine=True,
    ),
    Tooth(b.ExtendRevives, ("test_extend_never_revives",), machine=True),
    Tooth(b.ExtendShortens, ("test_extend_never_shortens",), machine=True),
    Tooth(
        b.ReplayResetsTheFence,
        ("test_amend_replay_never_resets_the_fence", "test_settle_by_a_stale_holder_is_refused_after_a_replay"),
        machine=True,
    ),
    Tooth(b.RefusalFailsTheBatch, ("test_settle_refuses_one_and_applies_the_others",), machine=True),
    Tooth(b.FollowsUpAlthoughRefused, ("test_settle_puts_no_follow_ups_of_the_refused",), machine=True),
    Tooth(b.RefusesWhatExpired, ("test_settle_after_expiry_counts_while_nobody_took_over",), machine=True),
    Tooth(
        b.LeasesWithoutExclusion,
        ("test_lease_is_exclusive", "test_race_of_eight_workers_partitions_the_queue"),
        machine=True,
    ),
    Tooth(b.PopsThenStores, ("test_lease_is_one_step_to_those_who_look", "test_lease_cut_off_loses_nothing")),
    Tooth(b.CountsOnFailureOnly, ("test_lease_counts_before_it_gives",), machine=True),
    Tooth(
        b.LeasesByTheWorkersClock,
        ("test_put_with_a_delay_is_not_leased_early", "test_lease_gives_a_retry_when_it_is_due_and_not_before"),
        machine=True,
    ),
    Tooth(p.AnswersAnyLane, ("test_lease_nonces_are_each_lane_s_own",)),
    Tooth(b.KnowsOneLane, ("test_lease_nonces_are_each_lane_s_own",)),
    Tooth(
        b.IgnoresTheNonce,
        (
            "test_lease_with_the_same_nonce_gives_the_same_leases",
            "test_settle_then_repeated_gives_the_same",
            "test_unknown_outcome_of_lease",
        ),
        machine=True,
    ),
    Tooth(
        b.GivesSuspectsInCompany,
        ("test_suspects_are_leased_first_and_alone", "test_suspects_are_not_given_in_company"),
        machine=True,
    ),
    Tooth(b.LeasesTheNewestFirst, ("test_lease_gives_the_earliest_due_first",), machine=True),
    Tooth(
        b.ReclaimsWithoutLookingAgain,
        ("test_race_of_two_reapers_has_one_winner_per_item", "test_race_of_settle_and_reclaim_has_one_winner"),
    ),
    Tooth(b.ReclaimsUnknownQueues, ("test_reclaim_leaves_queues_whose_policy_the_caller_lacks",), machine=True),
    Tooth(b.ReclaimStarves, ("test_reclaim_past_a_full_batch_of_others",)),
    Tooth(
        b.ReclaimKeepsTheDelivery,
        ("test_reclaim_takes_over_under_a_new_delivery", "test_reclaim_hands_over_the_right_to_settle"),
        machine=True,
    ),
    Tooth(m.DiesInTwoSteps, ("test_settle_is_one_step_to_those_who_look", "test_settle_cut_off_is_all_or_none")),
    Tooth(m.CopiesThenRemoves, ("test_settle_is_one_step_to_those_who_look", "test_settle_cut_off_is_all_or_none")),
    Tooth(m.ReleaseCharges, ("test_settle_release_gives_the_attempt_back",), machine=True),
    Tooth(m.EvictsLetters, ("test_settle_dead_evicts_no_letter",)),
    Tooth(m.TrimsTheWrongEnd, ("test_get_keeps_the_first_20_and_last_180_attempts",)),
    Tooth(m.ForgetsTheEvidence, ("test_get_keeps_the_history_through_replays",), machine=True),
    Tooth(
        m.ReplaysEveryTime,
        ("test_amend_changes_an_item_once_per_request", "test_unknown_outcome_of_amend"),
        machine=True,
    ),
    Tooth(m.KnowsARequestByItsBeginning, ("test_amend_knows_a_request_by_its_whole_id",)),
    Tooth(m.OneActForARequest, ("test_amend_under_one_request_makes_each_kind_of_change_once",)),
    Tooth(m.IgnoresExpect, ("test_amend_expects_of_ids_those_that_exist",), machine=True),
    Tooth(
        m.ReplaysAsACopy,
        ("test_amend_replay_brings_the_same_item_back", "test_amend_cut_off_changes_once"),
        machine=True,
    ),
    Tooth(m.AmendsWhatIsHeld, ("test_cancel_of_a_running_item_asks_its_holder",), machine=True),
    Tooth(m.AuditsNothing, ("test_amend_writes_who_did_it_into_item_and_audit",), machine=True),
    Tooth(m.PrunesLettersLikeDone, ("test_prune_takes_nothing_else",), machine=True),
    Tooth(m.PrunesWithoutATrace, ("test_prune_leaves_a_tombstone",), machine=True),
    Tooth(
        m.FindsByOffset,
        ("test_find_pages_stay_whole_while_letters_leave", "test_find_pages_stay_whole_while_others_die_and_leave"),
    ),
    Tooth(m.ReencodesPayloads, ("test_put_keeps_every_byte",)),
    Tooth(m.ShowsWhatItKeeps, ("test_large_payloads_are_the_same_wherever_they_are_read",)),
    Tooth(m.DigestsWhatItKeeps, ("test_large_payloads_come_back_from_a_replay_and_leave_their_digest",)),
    Tooth(m.PutsOneByOne, ("test_put_is_all_or_none_to_those_who_look", "test_put_cut_off_is_all_or_none")),
    Tooth(
        m.PutOverwrites,
        ("test_put_again_is_already_there", "test_put_again_leaves_an_item_that_moved_on"),
        machine=True,
    ),
    Tooth(
        m.SwallowsCommitErrors, ("test_put_makes_ready_items", "test_put_is_seen_through_every_handle"), machine=True
    ),
    Tooth(
        m.DriftsByTheRefused,
        ("test_tally_does_not_move_for_the_refused", "test_tally_equals_a_full_count_after_anything"),
        machine=True,
    ),
    Tooth(
        t.DeadHeadsAreForgotten,
        ("test_order_blocks_behind_a_dead_head", "test_order_parks_behind_a_dead_head"),
        machine=True,
    ),
    Tooth(t.ReplaysToTheTail, ("test_order_replay_of_a_dead_head_takes_its_place_again",), machine=True),
    Tooth(
        t.ReplaysBehindThoseWhoWait,
        ("test_after_a_passed_one_that_is_replayed_it_follows", "test_after_two_of_which_one_stands_before_it"),
    ),
    Tooth(t.NeverGivesWay, ("test_after_one_that_died_along_it_dies_and_both_are_replayed",)),
    Tooth(t.WaitsForTheCancelled, ("test_after_what_can_never_be_done_is_refused",)),
    Tooth(t.ForgetsTheGap, ("test_order_skips_a_dead_head_and_marks_the_gap",), machine=True),
    Tooth(
        t.RetriesLetOthersPass,
        ("test_order_head_that_comes_back_stays_the_head", "test_race_of_workers_over_keys_never_overtakes"),
    ),
    Tooth(t.NeverParks, ("test_order_parks_behind_a_dead_head",), machine=True),
    Tooth(
        t.LettersHoldTheirKeys,
        ("test_dedupe_key_is_free_when_it_is_dead", "test_dedupe_of_a_discarded_letter_is_free"),
        machine=True,
    ),
    Tooth(t.TwinsOverwrite, ("test_dedupe_tells_of_the_holder",), machine=True),
    Tooth(
        t.ReplaysBesideATwin,
        (
            "test_dedupe_replay_is_skipped_while_a_twin_lives",
            "test_race_of_a_replay_and_its_twin_has_one_winner",
        ),
    ),
    Tooth(t.ForgetsTheWindow, ("test_dedupe_window_keeps_the_key_of_what_is_done",), machine=True),
    Tooth(t.DeathSetsFree, ("test_after_a_dead_one_it_waits_and_says_so",), machine=True),
    Tooth(t.DeathStopsAtTheChildren, ("test_after_deaths_spread_over_queues_in_one_write",)),
    Tooth(t.WaitsForWhatIsDone, ("test_after_what_is_done_already_is_no_wait",), machine=True),
    Tooth(t.AnyIsEnough, ("test_after_waits_until_all_are_done",)),
    Tooth(
        t.LimitsByRequest,
        ("test_max_running_bounds_what_is_leased", "test_race_of_workers_never_passes_max_running"),
        machine=True,
    ),
    Tooth(
        t.SpendsNothing,
        (
            "test_rate_gives_a_burst_and_then_one_by_one",
            "test_gate_that_is_shut_gives_nothing_until_its_interval_is_over",
        ),
        machine=True,
    ),
    Tooth(t.NoBudgetForRetries, ("test_budget_gives_retries_by_the_share_of_first_attempts",)),
    Tooth(
        t.GatesByTheLastWriter,
        ("test_gate_of_another_version_is_a_conflict", "test_race_of_writers_of_a_gate_has_one_winner"),
        machine=True,
    ),
    Tooth(
        t.LeavesThemAside,
        ("test_max_per_key_frees_the_first_when_one_ends", "test_race_of_workers_never_passes_max_per_key"),
        machine=True,
    ),
    Tooth(t.LosesThePlace, ("test_max_per_key_place_that_nobody_takes_is_passed_on",)),
    Tooth(t.StarvesTheLow, ("test_priority_low_gets_one_lease_in_a_cycle",)),
    Tooth(t.RetriesTakeEverySlot, ("test_retries_take_no_more_than_their_share",)),
    Tooth(
        f.SharesSlotsOnly,
        (
            "test_fresh_work_goes_first_under_a_rate",
            "test_fresh_work_goes_first_through_a_breaker",
            "test_fresh_work_is_chosen_as_the_table_says",
        ),
    ),
    Tooth(f.LendsNothing, ("test_fresh_work_that_does_not_wait_lends_its_share",)),
    Tooth(
        f.GoesInStep,
        (
            "test_fresh_work_and_retries_of_every_priority_come_to_their_turn",
            "test_fresh_work_is_chosen_as_the_table_says",
        ),
    ),
    Tooth(f.PassesAHold, ("test_lease_item_never_passes_a_hold",), machine=True),
    Tooth(
        f.GivesWhatRuns,
        ("test_lease_item_gives_only_what_waits", "test_race_of_leases_of_one_item_has_one_winner"),
        machine=True,
    ),
    Tooth(f.IgnoresTheNonceOfTheNamed, ("test_lease_item_with_the_same_nonce_gives_the_same",), machine=True),
    Tooth(f.GivesMoreThanTheNamed, ("test_lease_item_gives_that_one_and_nothing_else",), machine=True),
    Tooth(f.SpendsNothingForTheNamed, ("test_lease_item_counts_under_limits_that_do_not_hold_it",), machine=True),
    Tooth(t.CountsOnlyTheReady, ("test_capacity_counts_what_waits_or_runs",)),
    Tooth(
        t.FullRoutesEvict,
        ("test_route_that_is_full_keeps_the_item_live",),
        machine=True,
    ),
    Tooth(
        t.RunsAgainThoughCancelled,
        ("test_cancel_that_was_asked_for_never_runs_again", "test_cancel_survives_a_takeover"),
        machine=True,
    ),
    Tooth(t.CancelsUnderTheHandler, ("test_cancel_of_a_running_item_asks_its_holder",), machine=True),
    Tooth(t.SweepsLettersToo, ("test_sweep_never_touches_letters_nor_what_lives",), machine=True),
    Tooth(o.MovesTheHeadAway, ("test_move_skips_a_head_that_others_wait_behind",)),
    Tooth(o.MovesIntoARing, ("test_move_skips_what_others_wait_for_under_an_order_key",)),
    Tooth(o.MovesWithoutLeaving, ("test_move_of_a_head_nobody_waits_behind_ends_its_line",)),
    Tooth(o.MovesWithoutAuditing, ("test_move_changes_the_queue_and_nothing_else",)),
    Tooth(o.ForgetsTagsOnReplay, ("test_tags_stay_whatever_becomes_of_the_item",)),
    Tooth(o.KeepsTheOldPolicy, ("test_amend_sets_a_policy_that_the_next_lease_has",), machine=True),
    Tooth(p.LosesTheOtherTerms, p.BUGS["LosesTheOtherTerms"].caught_by),
    Tooth(o.RunsLaterInstead, ("test_run_now_makes_a_waiting_item_due",), machine=True),
    Tooth(o.KeepsTheOldCounters, ("test_run_now_may_give_a_new_budget",), machine=True),
    Tooth(o.ExpiresWithoutItsLine, ("test_expire_of_a_head_is_the_death_of_a_head",), machine=True),
    Tooth(o.ExpiresAsCancelled, ("test_expire_makes_a_letter_of_what_was_never_tried",), machine=True),
    *(Tooth(getattr(a, name), bug.caught_by) for name, bug in a.ACTS.items()),
    *(Tooth(vars(r)[name], bug.caught_by, machine=bug.machine) for name, bug in r.BUGS.items()),
    *(Tooth(vars(v)[name], bug.caught_by) for name, bug in v.BUGS.items()),
    *(Tooth(vars(q)[name], bug.caught_by) for name, bug in q.BUGS.items()),
    Tooth(o.HoldsTrashFromItsDeath, ("test_trash_is_swept_when_its_time_is_over",), machine=True),
    Tooth(o.TakesInAsTheFileHasThem, ("test_taken_in_letters_wait_for_each_other_in_their_order",)),
    Tooth(o.TakesInOverWhatIsThere, ("test_take_in_of_what_is_there_changes_nothing",), machine=True),
    Tooth(o.GivesALetterTwice, ("test_letter_lease_that_ran_out_is_given_to_another",), machine=True),
    Tooth(o.TakesEarlyFromItsHolder, ("test_letter_lease_takes_nothing_early_from_its_holder",), machine=True),
    Tooth(o.SettlesLettersLikeItems, ("test_letter_is_not_ended_by_settle",), machine=True),
    Tooth(
        o.KeepsTheLineOfADoneLetter,
        ("test_letter_over_lets_its_order_key_go_on", "test_letter_done_frees_those_who_wait_for_it"),
        machine=True,
    ),
    Tooth(
        o.FollowsUpTheKept,
        ("test_route_that_is_full_puts_no_follow_ups", "test_route_with_room_again_puts_the_follow_up_then"),
        machine=True,
    ),
    Tooth(o.FollowsUpTheCancelled, ("test_cancel_instead_of_what_was_decided_puts_no_follow_ups",)),
    Tooth(o.FollowsUpOnlyTheDone, ("test_letter_over_puts_its_follow_ups",)),
    Tooth(o.AuditsALetterApart, ("test_letter_settle_cut_off_is_all_or_none",)),
    Tooth(o.AuditsWhatWasNotDone, ("test_letter_s_audit_says_nothing_of_what_was_not_done",), machine=True),
    Tooth(o.OldestByEnqueueing, ("test_oldest_gives_the_first_died_first",)),
    Tooth(o.TurnsRoundAtAnyPlace, ("test_oldest_and_latest_share_no_cursors",)),
    Tooth(
        o.GoesOnInAnySearch,
        (
            "test_cursors_are_good_for_one_search",
            "test_cursors_that_were_altered_are_refused",
            "test_cursors_that_were_made_up_are_refused",
        ),
    ),
    Tooth(
        e.ResultsInClear,
        (
            "test_encrypted_results_whether_the_caller_names_the_queue_or_not",
            "test_encrypted_results_of_items_that_were_put_in_clear",
        ),
    ),
    Tooth(e.FollowUpsInClear, ("test_encrypted_follow_ups",)),
    Tooth(
        e.GoesByWhatItKnew,
        (
            "test_encrypted_queues_take_nothing_from_a_process_without_keys",
            "test_encryption_is_in_force_for_every_process_with_the_next_write",
        ),
    ),
    Tooth(e.MakesLettersWithoutKeys, ("test_encrypted_items_stay_ready_in_a_process_without_any_keys",)),
    Tooth(e.TakesAMissingKeyForDamage, ("test_encrypted_items_whose_key_is_missing_go_back_and_wait_for_it",)),
    Tooth(e.GivesBackAtOnce, ("test_encrypted_items_whose_key_is_missing_go_back_and_wait_for_it",)),
    Tooth(e.EditsWhatItCannotRead, ("test_encrypted_payloads_are_edited_only_by_a_process_that_can_read_them",)),
    Tooth(e.EditsWithoutAnyKey, ("test_encrypted_payloads_are_edited_only_by_a_process_that_can_read_them",)),
    Tooth(e.TakesRevisionsInClear, ("test_encrypted_revisions_are_taken_in_as_they_are",)),
    Tooth(e.EncryptsWithAnyKey, ("test_encrypted_with_another_key_under_a_known_id_is_refused",)),
    Tooth(e.LeavesResultsUnderTheOldKey, ("test_reencrypt_replaces_old_keys_and_what_was_in_clear",)),
    Tooth(e.ReencryptsOverAnEdit, ("test_reencrypt_leaves_what_was_edited_since_it_was_read",)),
    Tooth(e.UsesANonceTwice, ("test_no_two_encrypted_bodies_have_the_same_nonce",)),
    Tooth(e.BindsNoBodyToItsItem, ("test_an_encrypted_payload_is_good_for_its_own_item_only",)),
    Tooth(n.NumbersNoCascade, ("test_changes_of_those_that_die_with_another",)),
    Tooth(n.NumbersNoReplay, ("test_changes_follow_a_letter_through_every_act",)),
    Tooth(n.NumbersNoPrune, ("test_changes_of_what_retention_removes", "test_changes_of_pruned_letters_show_nothing")),
    Tooth(n.ReusesTheNewest, ("test_changes_numbers_are_not_reused_after_a_prune_of_the_newest",)),
    Tooth(n.SharesANumber, ("test_changes_of_one_write_have_numbers_of_their_own",)),
    Tooth(n.CountsLeasesAsChanges, ("test_changes_are_not_made_by_leases",)),
    Tooth(t.DropsTermsOnRetry, ("test_put_terms_are_carried_through_an_item_s_life",), machine=True),
    Tooth(
        d.LeasesEveryKind,
        ("test_kinds_of_a_lease_leave_the_others_ready", "test_kinds_of_suspects", "test_kinds_within_limits"),
        machine=True,
    ),
    Tooth(d.LeasesKindByKind, ("test_kinds_are_one_order", "test_kinds_drain_each_once")),
    Tooth(d.SpinsForOtherKinds, ("test_kinds_of_a_wait", "test_kinds_of_a_wait_that_are_due")),
    Tooth(d.SleepsThroughItsKinds, ("test_kinds_of_a_wait", "test_kinds_of_a_wait_that_are_due")),
    Tooth(d.LosesTheReleaseOfAttempts, ("test_fields_release_of_an_attempt",)),
    Tooth(d.LosesHeadersInImports, ("test_fields_are_taken_in",)),
    Tooth(d.CountsHeldKinds, ("test_kinds_that_are_due_are_told",)),
    Tooth(m.DeafToPuts, ("test_wait_returns_on_a_put", "test_wait_returns_on_a_put_through_another_handle")),
)
BASES = {b.Bent, f.BentLeasing, n.BentNumbers, t.BentBonds, t.BentLimits, k.BentTurns, v.BentReservations}
CAUGHT = [
    pytest.param(tooth.store, name, id=f"{tooth.store.__name__}-{name}") for tooth in TEETH for name in tooth.caught_by
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that makes a test wait for ever is found sooner. Without a bug nobody is in a hurry."""
    monkeypatch.setattr(wait, "PATIENCE", 0.2)
    monkeypatch.setattr(wait, "BEGIN", 0.2)
    monkeypatch.setattr(kinds, "PATIENCE", 0.2)
    monkeypatch.setattr(kit, "PATIENCE", 5.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("store", "name"), CAUGHT)
async def test_a_planted_bug_is_caught_by_the_test_about_it(store: type[MemoryStore], name: str) -> None:
    assert await fails(name, world_of(store))


async def test_without_a_bug_the_same_tests_pass() -> None:
    for name in sorted({name for tooth in TEETH for name in tooth.caught_by}):
        assert not await fails(name, world_of(MemoryStore)), name


async def test_a_silent_fallback_to_memory_is_caught() -> None:
    """Every handle works, quickly and alone: nothing is kept and nothing is shared."""
    world = world_by(m.FallsBackToMemory.handle, DURABLE, HANDLES)
    for name in (
        "test_put_survives_reopening",
        "test_put_is_seen_through_every_handle",
        "test_info_names_the_engine_and_its_promise",
    ):
        assert await fails(name, world)


def test_every_planted_bug_is_in_the_table() -> None:
    """A broken store that nobody runs proves nothing."""
    planted = {
        thing
        for module in (a, b, d, e, f, k, m, n, o, p, q, r, t, v)
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, b.Bent) and thing not in BASES
    }
    assert planted == {tooth.store for tooth in TEETH} | {m.FallsBackToMemory}
