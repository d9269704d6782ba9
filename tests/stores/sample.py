"""The conformance tests that run again where only the driver, the binding, the server or the wire differs.

One for each way in which a verb speaks to the engine: a function, a transaction, a look, a wait.
"""

from redrive.testing.conformance import (
    clock,
    test_amend_writes_who_did_it_into_item_and_audit,
    test_causes_lose_what_is_no_longer_open,
    test_documents_are_written_all_or_none,
    test_find_cursors_hold_on_another_handle,
    test_lease_gives_equally_due_in_the_order_of_put,
    test_lease_with_the_same_nonce_leaves_out_what_is_no_longer_held,
    test_prune_takes_done_cancelled_and_trash,
    test_put_takes_any_text_as_id_and_queue,
    test_race_of_the_same_settle_is_applied_once,
    test_settle_refuses_one_and_applies_the_others,
    test_suspects_of_any_want_come_before_plain_items,
    test_wait_returns_on_a_put,
    world,
)

__all__ = [
    "clock",
    "test_amend_writes_who_did_it_into_item_and_audit",
    "test_causes_lose_what_is_no_longer_open",
    "test_documents_are_written_all_or_none",
    "test_find_cursors_hold_on_another_handle",
    "test_lease_gives_equally_due_in_the_order_of_put",
    "test_lease_with_the_same_nonce_leaves_out_what_is_no_longer_held",
    "test_prune_takes_done_cancelled_and_trash",
    "test_put_takes_any_text_as_id_and_queue",
    "test_race_of_the_same_settle_is_applied_once",
    "test_settle_refuses_one_and_applies_the_others",
    "test_suspects_of_any_want_come_before_plain_items",
    "test_wait_returns_on_a_put",
    "world",
]
