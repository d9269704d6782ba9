"""The bugs that are planted in the texts and modules of stores: what each is, and the tests that must find it.

How a bug comes into an engine is in the table of that engine (broken_sqlite, broken_postgres, broken_redis). Peers that
have the bug are named.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """`machine`: the state machine must find it as well."""

    why: str
    caught_by: tuple[str, ...]
    machine: bool = False


_FENCING = {
    "SettlesByState": Bug(
        "River: whoever comes with the id ends the lease, if only somebody holds it",
        (
            "test_settle_by_a_stale_holder_is_refused_while_the_new_one_runs",
            "test_settle_by_a_stale_holder_is_refused_while_the_reaper_holds",
            "test_race_of_settles_by_two_holders_counts_the_current_one",
        ),
        machine=True,
    ),
    "FinishesByState": Bug(
        "the same only where all are simply done, which has a statement of its own",
        ("test_settle_of_the_unknown_is_refused", "test_reclaim_hands_over_the_right_to_settle"),
    ),
    "SettlesById": Bug(
        "Oban: not even the state is asked", ("test_settle_of_an_item_never_leased_is_refused",), machine=True
    ),
    "SettlesTwice": Bug(
        "the delivery is asked, and not whether it has ended",
        ("test_settle_puts_no_follow_ups_twice", "test_race_of_the_same_settle_is_applied_once"),
        machine=True,
    ),
    "FinishesTwice": Bug(
        "the same only where all are simply done",
        ("test_settle_again_as_plainly_done_is_already",),
    ),
    "RefusesWhatExpired": Bug(
        "the holder was late, nobody had taken over, and its good result is thrown away",
        ("test_settle_after_expiry_counts_while_nobody_took_over",),
    ),
    "RefusalFailsTheBatch": Bug("one late holder fails them all", ("test_settle_refuses_one_and_applies_the_others",)),
    "FollowsUpAlthoughRefused": Bug(
        "what follows is put, whatever becomes of the settlement", ("test_settle_puts_no_follow_ups_of_the_refused",)
    ),
    "ExtendsById": Bug(
        "Faktory, asynq: a heartbeat names the item, not the delivery",
        (
            "test_extend_by_a_stale_holder_is_lost_while_the_new_one_runs",
            "test_extend_by_the_lost_holder_does_not_touch_the_reaper_s_lease",
        ),
    ),
    "ExtendRevives": Bug("an expired lease is prolonged", ("test_extend_never_revives",), machine=True),
    "ExtendShortens": Bug("a shorter time replaces a longer one", ("test_extend_never_shortens",), machine=True),
    "ExtendMovesNoEntry": Bug(
        "the index of the leased keeps the old end, and hides those that expired behind it",
        ("test_reclaim_past_a_full_batch_of_prolonged_ones",),
    ),
    "ReplayResetsTheFence": Bug(
        "a new life counts its deliveries from one: what the old one's holder says then counts",
        ("test_amend_replay_never_resets_the_fence", "test_settle_by_a_stale_holder_is_refused_after_a_replay"),
        machine=True,
    ),
}
_LEASING = {
    "LeasesWithoutExclusion": Bug(
        "two who ask at the same time get the same",
        ("test_race_of_eight_workers_partitions_the_queue",),
    ),
    "LeavesItReady": Bug("given, and still in the line for the next", ("test_lease_is_exclusive",), machine=True),
    "LimitsInASubquery": Bug(
        "`where id in (select … limit)`: a nested loop runs it once per row, and all are taken",
        ("test_lease_keeps_to_the_limit",),
    ),
    "CountsOnFailureOnly": Bug(
        "Dramatiq: the attempt is counted by the code that the crash took along",
        ("test_lease_counts_before_it_gives",),
        machine=True,
    ),
    "LeasesByAnotherClock": Bug(
        "by the worker's, which is half a second fast",
        ("test_put_with_a_delay_is_not_leased_early", "test_lease_gives_a_retry_when_it_is_due_and_not_before"),
    ),
    "KnowsOneLane": Bug(
        "a second request of a worker makes it forget the first, whose leases nobody holds then",
        ("test_lease_nonces_are_each_lane_s_own",),
    ),
    "AnswersAnyLane": Bug(
        "a request is taken for the repeat of one of another lane",
        ("test_lease_nonces_are_each_lane_s_own",),
    ),
    "IgnoresTheNonce": Bug(
        "what was given in an answer that got lost is held by nobody, and more is given",
        (
            "test_lease_with_the_same_nonce_gives_the_same_leases",
            "test_settle_then_repeated_gives_the_same",
            "test_unknown_outcome_of_lease",
        ),
        machine=True,
    ),
    "GivesSuspectsInCompany": Bug(
        "RabbitMQ with a prefetch: who shares a worker with a poison item is charged with it",
        ("test_suspects_are_leased_first_and_alone", "test_suspects_are_not_given_in_company"),
        machine=True,
    ),
    "GivesMoreBesideASuspect": Bug(
        "a worker that says that it holds nothing is believed", ("test_suspects_keep_their_worker_to_themselves",)
    ),
    "LosesSightOfTheCrashed": Bug(
        "nobody notes that there are ready items with a crash", ("test_suspects_begin_one_crash_before_the_last",)
    ),
    "LeasesFromThePaused": Bug("a pause that nobody keeps to", ("test_lease_passes_over_paused_queues",)),
    "LeasesTheNewestFirst": Bug(
        "a stack: what waits longest waits for ever", ("test_lease_keeps_to_the_limit",), machine=True
    ),
    "LeasesTheUnscathedFirst": Bug(
        "whoever crashed once waits for all who did not, however long it is due",
        ("test_lease_gives_the_earliest_due_first_however_often_it_crashed",),
    ),
    "ReclaimsTheUnexpired": Bug(
        "a worker that is alive and well loses what it works on",
        ("test_reclaim_leaves_leases_that_have_not_expired", "test_reclaim_with_ids_does_not_force"),
        machine=True,
    ),
    "ReclaimsWithoutLookingAgain": Bug(
        "River #1302: what was expired at the scan is taken, whatever happened since",
        ("test_race_of_two_reapers_has_one_winner_per_item", "test_race_of_settle_and_reclaim_has_one_winner"),
    ),
    "ReclaimsUnknownQueues": Bug(
        "River #1105: a reaper that does not know the queue judges its items all the same",
        ("test_reclaim_leaves_queues_whose_policy_the_caller_lacks",),
        machine=True,
    ),
    "ReclaimStarves": Bug(
        "River #1318: a full batch of leases it may not take hides those it may",
        ("test_reclaim_past_a_full_batch_of_others",),
    ),
    "ReclaimKeepsTheDelivery": Bug(
        "the new holder has the old one's number: the zombie's writes count",
        ("test_reclaim_takes_over_under_a_new_delivery", "test_reclaim_hands_over_the_right_to_settle"),
        machine=True,
    ),
}
_LETTERS = {
    "DiesBeforeItsLetter": Bug(
        "dead in one write, and its letter in the next: in between, and after a crash for good, nobody knows why",
        ("test_settle_cut_off_is_all_or_none", "test_settle_is_one_step_to_those_who_look"),
    ),
    "WritesTheLetterFirst": Bug(
        "the letter in one write and the death in the next, which may be refused",
        (
            "test_settle_by_a_stale_holder_is_refused_while_the_reaper_holds",
            "test_settle_is_one_step_to_those_who_look",
        ),
    ),
    "DiesBeforeItsEvidence": Bug(
        "the evidence comes in a write of its own, and may never come", ("test_settle_cut_off_is_all_or_none",)
    ),
    "ReleaseCharges": Bug(
        "every deploy costs each running item an attempt",
        ("test_settle_release_gives_the_attempt_back",),
    ),
    "EvictsLetters": Bug("Sidekiq, asynq: the dead set is trimmed by rank", ("test_settle_dead_evicts_no_letter",)),
    "TrimsTheWrongEnd": Bug(
        "of a long history the last failures go: the ones that say why it does not work now",
        ("test_get_keeps_the_first_20_and_last_180_attempts",),
    ),
    "ForgetsTheEvidence": Bug(
        "BullMQ: sending it back wipes why it failed", ("test_get_keeps_the_history_through_replays",)
    ),
    "ReplaysEveryTime": Bug(
        "the same request again sends the letter back again",
        ("test_amend_changes_an_item_once_per_request", "test_unknown_outcome_of_amend"),
        machine=True,
    ),
    "KnowsARequestByItsBeginning": Bug(
        "ticket 1 is taken for a repeat of ticket 10", ("test_amend_knows_a_request_by_its_whole_id",)
    ),
    "OneActForARequest": Bug(
        "the second act under a ticket's number is dropped, as if it had been done",
        ("test_amend_under_one_request_makes_each_kind_of_change_once",),
    ),
    "IgnoresExpect": Bug(
        "what the operator saw is not what is changed", ("test_amend_expects_of_ids_those_that_exist",), machine=True
    ),
    "AmendsWhatIsHeld": Bug(
        "cancelling a running item under its holder's hands",
        ("test_cancel_of_a_running_item_asks_its_holder",),
        machine=True,
    ),
    "AmendsWithoutTheLock": Bug(
        "what was judged is changed, whatever happened since",
        (
            "test_race_of_replays_under_one_request_changes_once",
            "test_race_of_two_operators_moves_each_letter_once",
        ),
    ),
    "AuditsNothing": Bug(
        "nobody can tell afterwards who did it", ("test_amend_writes_who_did_it_into_item_and_audit",), machine=True
    ),
    "PrunesLettersLikeDone": Bug(
        "Oban, GoodJob: the pruner takes dead for done", ("test_prune_takes_nothing_else",), machine=True
    ),
    "PrunesWithoutATrace": Bug(
        "gone, as if it had never been", ("test_prune_leaves_a_tombstone", "test_prune_is_for_good"), machine=True
    ),
    "PrunesWithoutLookingAgain": Bug(
        "what was resolved at the scan goes, whatever happened since",
        ("test_race_of_prune_and_restore_loses_no_letter",),
    ),
    "DigestsWhatItKeeps": Bug(
        "the tombstone names a digest that nobody who has the payload can find",
        ("test_large_payloads_come_back_from_a_replay_and_leave_their_digest",),
    ),
}
_WRITING = {
    "PutsOneByOne": Bug(
        "a batch of which a part is there, and may stay the only one",
        ("test_put_is_all_or_none_to_those_who_look", "test_put_cut_off_is_all_or_none"),
    ),
    "PutOverwrites": Bug(
        "a late repeat replaces what is already at work",
        ("test_put_again_is_already_there", "test_put_again_leaves_an_item_that_moved_on"),
    ),
    "PutsThePrunedAgain": Bug("the late repeat of an old put runs the work a second time", ("test_prune_is_for_good",)),
    "ReencodesPayloads": Bug(
        "JSON in, JSON out: the same for people, not for a signature", ("test_put_keeps_every_byte",)
    ),
    "SwallowsCommitErrors": Bug(
        "the write failed, the caller was told that it is safe",
        (
            "test_put_survives_reopening",
            "test_put_is_seen_through_every_handle",
            "test_close_keeps_what_was_accepted",
        ),
    ),
    "DriftsByTheRefused": Bug(
        "counters that count what was asked, not what was done",
        ("test_tally_does_not_move_for_the_refused", "test_tally_equals_a_full_count_after_anything"),
        machine=True,
    ),
    "CausesNeverShrink": Bug(
        "a cause goes on counting letters that were sent back long ago",
        ("test_causes_lose_what_is_no_longer_open",),
        machine=True,
    ),
    "ShowsWhatItKeeps": Bug(
        "large payloads are packed, and those who look get them so",
        ("test_large_payloads_are_the_same_wherever_they_are_read",),
    ),
    "FindsByOffset": Bug(
        "Sidekiq < 8.1.2: going through a set while others take from it skips entries",
        ("test_find_pages_stay_whole_while_letters_leave", "test_find_pages_stay_whole_while_others_die_and_leave"),
    ),
    "DeafToPuts": Bug(
        "waits out its time, whatever comes",
        ("test_wait_returns_on_a_put_through_another_handle", "test_wait_returns_on_a_put"),
    ),
    "DeafToOthers": Bug(
        "hears only what is put through itself", ("test_wait_returns_on_a_put_through_another_handle",)
    ),
}

_FIELDS = {
    "LeasesEveryKind": Bug(
        "a worker gets items that it has no handler for",
        ("test_kinds_of_a_lease_leave_the_others_ready", "test_kinds_of_suspects"),
        machine=True,
    ),
    "ReadsAShareOfEachKind": Bug(
        "what was due first is passed over, because its kind has so many",
        ("test_kinds_are_one_order_however_few_are_read_of_each",),
    ),
    "SpinsForOtherKinds": Bug(
        "the wait returns for items that the worker does not take",
        ("test_kinds_of_a_wait", "test_kinds_of_a_wait_that_are_due"),
    ),
    "ForgetsTheKindOfFollowUps": Bug("they wait for a handler that is not theirs", ("test_kinds_of_followups",)),
    "LosesHeadersInImports": Bug("a letter comes without what describes it", ("test_fields_are_taken_in",)),
}

BUGS: dict[str, Bug] = {**_FENCING, **_LEASING, **_LETTERS, **_WRITING, **_FIELDS}
