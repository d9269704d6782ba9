"""The bugs of broken_servers that are about what binds items to others and what bounds queues."""

from __future__ import annotations

from tests.stores.broken_servers import Bug

_ORDER = {
    "LeasesFollowers": Bug(
        "the order of a key is that of the puts, and who comes second runs beside who came first",
        ("test_order_only_the_head_of_a_key_is_leased", "test_race_of_workers_over_keys_never_overtakes"),
        machine=True,
    ),
    "PromotesNobody": Bug(
        "the head has ended, and nobody takes its place", ("test_order_next_is_the_head_when_the_head_is_done",)
    ),
    "GoesOnPastTheDead": Bug(
        "what was to wait for a dead head overtakes it",
        ("test_order_blocks_behind_a_dead_head", "test_order_parks_behind_a_dead_head"),
    ),
    "HidesTheGap": Bug(
        "who was let past a dead head is not told of it", ("test_order_skips_a_dead_head_and_marks_the_gap",)
    ),
}
_DEDUPE = {
    "KeepsTheKeysOfTheDead": Bug(
        "a letter that waits for a person keeps new work out", ("test_dedupe_key_is_free_when_it_is_dead",)
    ),
    "ForgetsTheWindow": Bug(
        "the key is free when its holder is done", ("test_dedupe_window_keeps_the_key_of_what_is_done",)
    ),
    "ReplaysBesideATwin": Bug(
        "two of one key live at once", ("test_dedupe_replay_is_skipped_while_a_twin_lives",), machine=True
    ),
}
_AFTER = {
    "RunsBeforeItsTime": Bug("nobody waits for anybody", ("test_after_waits_until_all_are_done",), machine=True),
    "WaitsForTheDone": Bug(
        "what it waits for is done, and it waits on", ("test_after_is_freed_in_the_settle_that_ends_the_wait",)
    ),
    "WaitsInARing": Bug(
        "who is waited for stands behind who waits, and neither ever runs",
        (
            "test_after_a_passed_one_that_is_replayed_it_follows",
            "test_after_one_that_died_along_it_dies_and_both_are_replayed",
        ),
    ),
    "DiesAlone": Bug(
        "those who were to die with it wait for ever", ("test_after_deaths_spread_over_queues_in_one_write",)
    ),
}
_LIMITS = {
    "PassesMaxRunning": Bug("more run than may", ("test_max_running_bounds_what_is_leased",)),
    "LeaksPlaces": Bug(
        "what ended still counts under its limit key", ("test_max_per_key_frees_the_first_when_one_ends",)
    ),
    "ForgetsWhoWasSetAside": Bug(
        "a place is free, and who was set aside for it is not told",
        ("test_max_per_key_frees_the_first_when_one_ends", "test_max_per_key_place_that_nobody_takes_is_passed_on"),
    ),
    "FillsBeyondCapacity": Bug(
        "the queue takes more than it said it would", ("test_capacity_refuses_what_is_too_much",)
    ),
    "BuriesInAFullRoute": Bug("a full route takes one more", ("test_route_that_is_full_keeps_the_item_live",)),
    "StarvesTheLow": Bug("high goes first, always", ("test_priority_low_gets_one_lease_in_a_cycle",)),
    "MetersNothing": Bug("what passed the gate is not counted", ("test_gate_is_one_for_all_its_queues_and_workers",)),
    "RetriesOnCredit": Bug("retries are given and not paid for", ("test_budget_is_paid_from_credit_before_the_floor",)),
}
_ENDS = {
    "DeafToCancels": Bug(
        "the request is written down, and its holder never hears of it",
        ("test_cancel_is_heard_with_the_next_extend", "test_cancel_that_was_asked_for_never_runs_again"),
    ),
    "SweepsLetters": Bug(
        "RabbitMQ: letters go when their time is up, read or not", ("test_sweep_never_touches_letters_nor_what_lives",)
    ),
}
BONDS: dict[str, Bug] = {**_ORDER, **_DEDUPE, **_AFTER, **_LIMITS, **_ENDS}
