"""The seven schedules of the seeds, played through decide() to the limit and one past it."""

from __future__ import annotations

import msgspec
import pytest

from redrive.core.backoff import constant, exponential, immediate, linear, never
from redrive.core.decide import ToDead, ToReady, decide
from redrive.core.outcome import Fail
from redrive.core.policy import Policy
from tests.core.values import FAILURE, an_item

SECOND = 1000
MINUTE = 60 * SECOND


def play(policy: Policy, most: int = 100) -> tuple[list[int], str | None, int]:
    """An item that always fails: the waits, why it died (None if it lives on) and how often it ran."""
    item = an_item()
    waits: list[int] = []
    for run in range(1, most + 1):
        decision = decide(item, Fail(FAILURE), policy, roll=0.9, age=sum(waits))
        if isinstance(decision, ToDead):
            return waits, decision.reason, run
        assert isinstance(decision, ToReady)
        waits.append(decision.delay)
        item = msgspec.structs.replace(item, errors=item.errors + 1)
    return waits, None, most


def one_past(policy: Policy, errors: int) -> str:
    """What the next error says of an item that is over its limit already (the limit was lowered meanwhile)."""
    decision = decide(an_item(errors=errors), Fail(FAILURE), policy, roll=0.9, age=0)
    assert isinstance(decision, ToDead)
    return decision.reason


def test_schedule_receipt_r02() -> None:
    policy = Policy(backoff=exponential("2s", factor=2), max_attempts=5)
    assert play(policy) == ([2 * SECOND, 4 * SECOND, 8 * SECOND, 16 * SECOND], "max_attempts", 5)
    assert one_past(policy, errors=5) == "max_attempts"
    assert policy.simulate(9) == [2 * SECOND, 4 * SECOND, 8 * SECOND, 16 * SECOND, None]


def test_schedule_workflow_exponential_w06() -> None:
    backoff = exponential("1m", factor=2, cap="60m")
    # Three retries follow the original failure: four runs in all.
    policy = Policy(backoff=backoff, max_attempts=4)
    assert play(policy) == ([MINUTE, 2 * MINUTE, 4 * MINUTE], "max_attempts", 4)
    assert one_past(policy, errors=4) == "max_attempts"
    waits, reason, _ = play(Policy(backoff=backoff, max_attempts=None), most=8)
    assert [wait // MINUTE for wait in waits] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert reason is None


def test_schedule_workflow_linear() -> None:
    policy = Policy(backoff=linear("5m"), max_attempts=4)
    assert play(policy) == ([5 * MINUTE, 10 * MINUTE, 15 * MINUTE], "max_attempts", 4)
    assert one_past(policy, errors=4) == "max_attempts"


def test_schedule_workflow_immediate() -> None:
    assert play(Policy(backoff=immediate(), max_attempts=3)) == ([0, 0], "max_attempts", 3)


def test_schedule_workflow_never() -> None:
    assert play(Policy(backoff=never())) == ([], "no_retry", 1)


@pytest.mark.parametrize("attempts", [1, 2, 3, 10])
def test_schedule_queue_q09(attempts: int) -> None:
    policy = Policy(backoff=constant("30s"), max_attempts=attempts)
    assert play(policy) == ([30 * SECOND] * (attempts - 1), "max_attempts", attempts)
    assert one_past(policy, errors=attempts) == "max_attempts"


def test_schedule_webhook_h02() -> None:
    policy = Policy(backoff=exponential("1s", factor=2, cap=3600), max_attempts=None, max_age="7d")
    waits, reason, _ = play(policy, most=1000)
    assert waits[:14] == [2**n * SECOND for n in range(12)] + [3600 * SECOND] * 2
    assert max(waits) == 3600 * SECOND
    assert reason == "max_age"
    # The last error before the seven days are over is retried; the first at or after them is not.
    assert sum(waits[:-1]) < 7 * 86_400 * SECOND <= sum(waits)


def test_schedule_mailbox_m08() -> None:
    backoff = linear("60s", cap="900s")
    waits, reason, runs = play(Policy(backoff=backoff, max_attempts=5))
    assert [sum(waits[:n]) // SECOND for n in range(len(waits) + 1)] == [0, 60, 180, 360, 600]
    assert (reason, runs) == ("max_attempts", 5)
    assert one_past(Policy(backoff=backoff, max_attempts=5), errors=5) == "max_attempts"
    long, _, _ = play(Policy(backoff=backoff, max_attempts=None), most=17)
    assert [wait // SECOND for wait in long] == [*range(60, 901, 60), 900, 900]
