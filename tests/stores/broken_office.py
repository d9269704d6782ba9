"""The bugs of broken_servers that are about what people do with letters: tags, moves, trash, letters from elsewhere."""

from __future__ import annotations

from tests.stores.broken_servers import Bug

OFFICE: dict[str, Bug] = {
    "NumbersNoCascade": Bug(
        "those that die with another are letters that no reader of changes hears of",
        ("test_changes_of_those_that_die_with_another",),
    ),
    "NumbersNoReplay": Bug(
        "a replayed letter stays a letter in every mirror", ("test_changes_follow_a_letter_through_every_act",)
    ),
    "NumbersNoPrune": Bug("what was pruned stays in every mirror", ("test_changes_of_what_retention_removes",)),
    "ReusesTheNewest": Bug(
        "after a prune of the newest letter its change number is given again, and readers pass over it",
        ("test_changes_numbers_are_not_reused_after_a_prune_of_the_newest",),
    ),
    "SharesANumber": Bug(
        "all that one write changes have one number: a page that ends between them loses the rest",
        ("test_changes_of_one_write_have_numbers_of_their_own",),
    ),
    "MovesWithoutItsCounts": Bug(
        "the letter is in another queue, and the old one goes on counting it",
        ("test_move_takes_counters_causes_and_places_along",),
    ),
    "MovesTheHeadAway": Bug(
        "those behind it wait for one that is not in their line any more",
        ("test_move_skips_a_head_that_others_wait_behind",),
    ),
    "AsksForTwinsWhereItWas": Bug(
        "two of one dedupe key live in a queue, since one of them came from another",
        ("test_replay_to_another_queue_is_held_to_its_dedupe_key_there",),
    ),
    "ForgetsTagsOnReplay": Bug(
        "what people noted about it is gone when it runs again", ("test_tags_stay_whatever_becomes_of_the_item",)
    ),
    "KeepsTheOldPolicy": Bug(
        "the audit says that an operator replaced the policy of an item, and workers go by the old one",
        ("test_amend_sets_a_policy_that_the_next_lease_has",),
    ),
    "RunsLaterInstead": Bug(
        "the audit says that it was to run at once, and it waits as before",
        ("test_run_now_makes_a_waiting_item_due",),
    ),
    "KeepsTheOldCounters": Bug(
        "it was given a new budget, and its next error is the last one all the same",
        ("test_run_now_may_give_a_new_budget",),
    ),
    "ExpiresWithoutItsLine": Bug(
        "those behind an expired head wait for it, though the queue lets them past dead ones",
        ("test_expire_of_a_head_is_the_death_of_a_head",),
    ),
    "ExpiresWithoutItsCause": Bug(
        "nobody sees the expired among the causes of open letters",
        ("test_expire_makes_a_letter_of_what_was_never_tried",),
    ),
    "HoldsTrashFromItsDeath": Bug(
        "a letter that lay for long is removed for good as soon as it is discarded",
        ("test_trash_is_swept_when_its_time_is_over",),
    ),
    "TakesInOverWhatIsThere": Bug(
        "a letter from elsewhere takes the place of the item that has its id",
        ("test_take_in_of_what_is_there_changes_nothing",),
    ),
    "GivesALetterTwice": Bug(
        "two work on one letter where it lies, and both deliver it",
        (
            "test_letter_lease_that_ran_out_is_given_to_another",
            "test_letter_lease_race_gives_each_letter_to_one_worker",
        ),
    ),
    "TakesEarlyFromItsHolder": Bug(
        "whoever asks for what was put off is given what somebody works on, and both deliver it",
        ("test_letter_lease_takes_nothing_early_from_its_holder",),
    ),
    "MovesWhatIsLeased": Bug(
        "a letter is replayed under the hands of whoever works on it, and so done twice",
        ("test_letter_that_is_leased_is_not_moved",),
    ),
    "HearsTheLate": Bug(
        "whoever let the lease of a letter run out still ends it, after somebody else has moved it",
        ("test_letter_whose_lease_ran_out_is_taken_away_by_an_act",),
    ),
    "FollowsUpTheKept": Bug(
        "the sender is told that it died, and then it runs again, since its route was full",
        ("test_route_that_is_full_puts_no_follow_ups",),
    ),
    "FollowsUpTheCancelled": Bug(
        "the sender is told that it died, and it was cancelled",
        ("test_cancel_instead_of_what_was_decided_puts_no_follow_ups",),
    ),
    "PassesOverThoseWhoDiedTogether": Bug(
        "of many that died in one millisecond, those behind the end of a page are never seen",
        ("test_oldest_is_the_other_way_round",),
    ),
    "SettlesLettersLikeItems": Bug(
        "a worker that settles its items ends a letter with them, and counts it as one that ran",
        ("test_letter_is_not_ended_by_settle",),
    ),
}
