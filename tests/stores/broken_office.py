"""The bugs of broken_servers that are about what people do with letters: tags, moves, trash, letters from elsewhere."""

from __future__ import annotations

from tests.stores.broken_servers import Bug

OFFICE: dict[str, Bug] = {
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
    "HoldsTrashFromItsDeath": Bug(
        "a letter that lay for long is removed for good as soon as it is discarded",
        ("test_trash_is_swept_when_its_time_is_over",),
    ),
    "TakesInOverWhatIsThere": Bug(
        "a letter from elsewhere takes the place of the item that has its id",
        ("test_take_in_of_what_is_there_changes_nothing",),
    ),
}
