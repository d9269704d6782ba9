"""A receipt is checked when it is made, comes back as it was given, and has one id however it is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from redrive.errors import ConfigError, InvalidReceipt, PayloadNotSerialisable, PayloadUndecodable
from redrive.receipts import Receipt
from redrive.receipts.model import Envelope, content_id, final_id, item_id, order_key
from tests.receipts.target import receipt

SEED = receipt("abc-123")


def test_the_seeds_json_comes_back_unchanged() -> None:
    assert Receipt.of(SEED).to_dict() == SEED
    assert Receipt.of(SEED).timestamp == datetime(2024, 1, 15, 10, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "more",
    [
        {"error_metadata": None, "artifact_pointers": None},
        {"timestamp": "2024-01-15T10:30:00.123456+02:00"},
        {"trace_id": "unknown to us", "nested": {"a": [1, None]}},
        {"status": "failed", "error_metadata": {"code": "HANDLER_ERROR", "message": "boom", "retryable": True}},
    ],
)
def test_what_was_given_comes_back_also_through_an_envelope(more: dict[str, Any]) -> None:
    given = SEED | more
    stored = Envelope(receipt=Receipt.of(given).to_dict(), tenant_id="t").encode()
    assert Envelope.decode(stored).open().to_dict() == given
    assert Envelope.decode(stored).open() == Receipt.of(given)


def test_one_that_is_made_by_hand_is_written_as_the_seed_writes_it() -> None:
    made = Receipt(
        lease_id="abc-123",
        task_id="task-456",
        worker_id="cognigate-0",
        status="complete",
        timestamp=datetime(2024, 1, 15, 10, 30, tzinfo=UTC),
        summary="Task completed successfully",
        artifact_pointers=["s3://bucket/results.json"],
    )
    assert made.to_dict() == SEED
    assert made == Receipt.of(SEED)


def test_the_time_is_now_if_it_is_left_out_and_stays_so() -> None:
    before = datetime.now(UTC)
    made = Receipt.of({name: value for name, value in SEED.items() if name != "timestamp"})
    assert before <= made.timestamp <= datetime.now(UTC)
    assert Receipt.of(made.to_dict()).timestamp == made.timestamp


def test_a_time_without_a_zone_is_utc() -> None:
    assert Receipt.of(SEED | {"timestamp": "2024-01-15T10:30:00"}).at == "2024-01-15T10:30:00Z"


@pytest.mark.parametrize(
    ("field", "wrong", "said"),
    [
        ("lease_id", None, "lease_id is missing"),
        ("lease_id", "", "lease_id is empty: use the one that the broker gave"),
        ("lease_id", " ", "lease_id is blank"),
        ("task_id", 5, "task_id 5 is not a string"),
        ("worker_id", "w" * 513, "worker_id has 513 characters"),
        ("lease_id", "a\0b", "lease_id"),
        ("lease_id", "half \ud800", "lease_id"),
        ("summary", "half \ud800", "summary contains an unpaired surrogate"),
        ("artifact_pointers", [{"a": ["half \ud800"]}], "artifact_pointers contains an unpaired surrogate"),
        ("error_metadata", {"half \ud800": 1}, "error_metadata contains an unpaired surrogate"),
        ("extra", "half \ud800", "extra contains an unpaired surrogate"),
        ("status", "finished", "status 'finished' is not one of pending, running, complete, failed"),
        ("timestamp", "yesterday", "timestamp 'yesterday' is not a time"),
        ("timestamp", 5, "timestamp 5 is not a time"),
        ("summary", "x" * 1001, "summary has 1,001 characters: use at most 1,000"),
        ("summary", 5, "summary 5 is not a string"),
        ("artifact_pointers", "s3://one", "artifact_pointers"),
        ("artifact_pointers", [1], "artifact_pointers"),
        ("error_metadata", "boom", "error_metadata"),
        ("error_metadata", {"a": [b"x"]}, "error_metadata.a[0] is bytes or a set, which JSON does not have"),
        ("artifact_pointers", [{"a": {1}}], "artifact_pointers[0].a is bytes or a set"),
        ("extra", frozenset(), "extra is bytes or a set"),
    ],
)
def test_a_fault_is_named_with_its_field(field: str, wrong: object, said: str) -> None:
    with pytest.raises(InvalidReceipt) as error:
        Receipt.of(SEED | {field: wrong})
    (fault,) = error.value.faults
    assert said in fault
    assert isinstance(error.value, ConfigError)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(InvalidReceipt) as error:
        Receipt.of({"lease_id": "", "status": "done", "summary": 5})
    said = str(error.value)
    assert [name in said for name in ("lease_id", "task_id", "worker_id", "status", "summary")] == [True] * 5


@pytest.mark.parametrize("wrong", [None, "text", ["list"], 5])
def test_what_is_no_receipt_at_all_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidReceipt, match="is not a receipt"):
        Receipt.of(wrong)


def test_the_same_receipt_has_one_id_however_it_is_written() -> None:
    there = timezone(timedelta(hours=2))
    again = SEED | {"timestamp": datetime(2024, 1, 15, 12, 30, tzinfo=there), "error_metadata": None}
    ids = {content_id("receipts", None, Receipt.of(each)) for each in (SEED, dict(reversed(SEED.items())), again)}
    assert len(ids) == 1


def test_ids_tell_queue_tenant_and_content_apart_and_the_final_one_of_a_lease_is_one() -> None:
    running, done = Receipt.of(receipt("a", "running")), Receipt.of(receipt("a"))
    other = Receipt.of(receipt("a", "failed", summary="no"))
    assert item_id("q", None, done) == item_id("q", None, other) == final_id("q", None, "a")
    ids = [
        item_id("q", None, running),
        item_id("q", None, Receipt.of(receipt("a", "running", summary="half"))),
        item_id("q", "t", running),
        item_id("p", None, running),
        item_id("q", None, done),
        item_id("q", "t", done),
        item_id("q", None, Receipt.of(receipt("b"))),
        content_id("q", None, done),
        content_id("q", None, other),
    ]
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {24}


def test_a_long_lease_is_still_an_order_key() -> None:
    assert order_key("t", "a") != order_key("u", "a")
    assert len(order_key("t" * 400, "a" * 512)) <= 512


@pytest.mark.parametrize("wrong", [float("nan"), {1, 2}.__class__])
def test_what_json_cannot_say_is_named(wrong: object) -> None:
    with pytest.raises(PayloadNotSerialisable, match="extra"):
        Envelope(receipt=Receipt.of(SEED | {"extra": wrong}).to_dict()).encode()


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"{}", b'{"receipt": {}}', b'{"receipt": {"lease_id": "a"}, "max_attempts": 0}', b"\xff"]
)
def test_an_envelope_that_cannot_be_read_says_so(payload: bytes) -> None:
    with pytest.raises(PayloadUndecodable):
        Envelope.decode(payload).open()
