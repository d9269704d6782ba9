from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import durations
from redrive.core import outcome as o
from redrive.core.backoff import Backoff, constant, exponential, immediate, linear, never
from redrive.core.classify import dead_on, never_dead, retry_on
from redrive.core.decide import Charge, Decision, ToCancelled, ToDead, ToDone, ToReady, decide, decide_letter, ending
from redrive.core.item import Ending, Failure, Item, Letter
from redrive.core.policy import Policy
from redrive.core.states import Disposition, State
from redrive.errors import ConfigError
from tests.core.values import FAILURE, INTEGERS, an_item, of

HOUR = 3_600_000


def failing(action: str = "retry", rule: str = "default") -> Failure:
    return msgspec.structs.replace(FAILURE, action=action, rule=rule)


def judged(item: Item, outcome: o.Outcome, policy: Policy | None = None, *, age: int = 0) -> Decision:
    return decide(item, outcome, policy or Policy(backoff=constant("10s")), roll=0.5, age=age)


def test_done_keeps_the_result() -> None:
    assert judged(an_item(), o.Done(b"7")) == ToDone(b"7")


@pytest.mark.parametrize(("after", "delay"), [(5000, 5000), (0, 0), (-1, 0)])
def test_snooze_waits_and_charges_nothing(after: int, delay: int) -> None:
    assert judged(an_item(errors=99), o.Snooze(after)) == ToReady(delay, Charge.NOTHING)


def test_release_is_at_once_and_charges_nothing() -> None:
    item = an_item(errors=99, crashes=99, alone=True, last_chance=True)
    assert judged(item, o.Release(), age=10**15) == ToReady(0, Charge.NOTHING)


def test_dead_is_passed_through_with_its_reason() -> None:
    assert judged(an_item(), o.Dead(FAILURE, "door says so")) == ToDead("door says so", Charge.ERROR, FAILURE)


def test_expired_dies_of_age_and_charges_nothing() -> None:
    assert judged(an_item(), o.Expired(FAILURE)) == ToDead("max_age", Charge.NOTHING, FAILURE)


@pytest.mark.parametrize(
    ("errors", "limit", "dies"),
    [(0, 1, True), (0, 2, False), (3, 5, False), (4, 5, True), (5, 5, True), (10**9, None, False)],
)
def test_max_attempts_exactly(errors: int, limit: int | None, dies: bool) -> None:
    decision = judged(an_item(errors=errors), o.Fail(FAILURE), Policy(backoff=constant("10s"), max_attempts=limit))
    assert decision == (ToDead("max_attempts", Charge.ERROR, FAILURE) if dies else ToReady(10_000, Charge.ERROR))


def test_max_attempts_counts_errors_and_not_deliveries_or_crashes() -> None:
    item = an_item(deliveries=50, attempt=50, crashes=50, errors=1)
    assert judged(item, o.Fail(FAILURE), Policy(backoff=immediate(), max_attempts=3)) == ToReady(0, Charge.ERROR)


@pytest.mark.parametrize(("age", "dies"), [(HOUR - 1, False), (HOUR, True), (HOUR + 1, True), (-5, False)])
def test_max_age_exactly(age: int, dies: bool) -> None:
    decision = judged(an_item(), o.Fail(FAILURE), Policy(backoff=constant("10s"), max_age="1h"), age=age)
    assert decision == (ToDead("max_age", Charge.ERROR, FAILURE) if dies else ToReady(10_000, Charge.ERROR))


def test_the_backoff_counts_errors_from_one() -> None:
    policy = Policy(backoff=exponential("1s", factor=2))
    delays = [judged(an_item(errors=errors), o.Fail(FAILURE), policy) for errors in range(3)]
    assert delays == [ToReady(delay, Charge.ERROR) for delay in (1000, 2000, 4000)]


def test_never_dies_of_the_first_error() -> None:
    assert judged(an_item(), o.Fail(FAILURE), Policy(backoff=never())) == ToDead("no_retry", Charge.ERROR, FAILURE)


@pytest.mark.parametrize(
    ("after", "delay"), [(0, 0), (-5, 0), (7000, 7000), (86_400_000, 86_400_000), (10**15, 86_400_000)]
)
def test_r12_a_hint_replaces_the_backoff_and_is_clamped(after: int, delay: int) -> None:
    assert judged(an_item(), o.Fail(FAILURE, after)) == ToReady(delay, Charge.ERROR)


def test_a_hint_makes_no_retry_where_the_backoff_gives_none() -> None:
    assert judged(an_item(), o.Fail(FAILURE, 5), Policy(backoff=never())) == ToDead("no_retry", Charge.ERROR, FAILURE)


def test_the_handlers_own_retry_is_obeyed_within_the_limits() -> None:
    policy = Policy(backoff=never(), max_attempts=2)
    assert judged(an_item(), o.Retry(FAILURE, 5), policy) == ToReady(5, Charge.ERROR)
    assert judged(an_item(), o.Retry(FAILURE), policy) == ToReady(0, Charge.ERROR)
    assert judged(an_item(), o.Retry(FAILURE), Policy(backoff=constant("7s"))) == ToReady(7000, Charge.ERROR)
    assert judged(an_item(errors=1), o.Retry(FAILURE, 5), policy) == ToDead("max_attempts", Charge.ERROR, FAILURE)
    # A hint of the other side is clamped to max_hint; what the handler says is its own affair.
    assert judged(an_item(), o.Retry(FAILURE, 2 * 86_400_000), policy) == ToReady(2 * 86_400_000, Charge.ERROR)


def test_a_hint_lifts_no_limit() -> None:
    policy = Policy(max_attempts=1)
    assert judged(an_item(), o.Fail(FAILURE, 5), policy) == ToDead("max_attempts", Charge.ERROR, FAILURE)


def test_last_chance_is_final_on_error_but_not_on_release_or_snooze() -> None:
    item = an_item(last_chance=True)
    assert judged(item, o.Fail(FAILURE)) == ToDead("last_chance", Charge.ERROR, FAILURE)
    assert judged(item, o.Fail(FAILURE, 5)) == ToDead("last_chance", Charge.ERROR, FAILURE)
    assert judged(item, o.Snooze(5)) == ToReady(5, Charge.NOTHING)
    assert judged(item, o.Done()) == ToDone()


def test_a_dead_rule_ends_it_at_once() -> None:
    policy = Policy(rules=[dead_on(ValueError)])
    verdict = policy.classify(ValueError, None, "")
    failure = failing(verdict.action, verdict.rule)
    assert judged(an_item(), o.Fail(failure, 5), policy) == ToDead("rule", Charge.ERROR, failure)


@pytest.mark.parametrize(("errors", "dies"), [(0, False), (1, False), (2, True), (3, True)])
def test_never_dead_goes_to_its_ceiling_exactly(errors: int, dies: bool) -> None:
    rule = never_dead(ConnectionError, ceiling=3, backoff=constant("7s"))
    policy = Policy(max_attempts=1, max_age="1h", rules=[rule])
    failure = failing("keep", rule.name)
    decision = judged(an_item(errors=errors, last_chance=True), o.Fail(failure), policy, age=2 * HOUR)
    assert decision == (ToDead("ceiling", Charge.ERROR, failure) if dies else ToReady(7000, Charge.ERROR))


def test_a_retry_rule_has_its_own_backoff_within_the_policys_limits() -> None:
    rule = retry_on(TimeoutError, backoff=constant("7s"))
    policy = Policy(backoff=never(), max_attempts=2, rules=[rule])
    failure = failing(rule=rule.name)
    assert judged(an_item(), o.Fail(failure), policy) == ToReady(7000, Charge.ERROR)
    assert judged(an_item(errors=1), o.Fail(failure), policy) == ToDead("max_attempts", Charge.ERROR, failure)


@pytest.mark.parametrize(
    ("crashes", "alone", "dies"),
    [(0, True, False), (1, True, False), (2, True, True), (3, True, True), (2, False, False), (99, False, False)],
)
def test_only_a_lone_crash_can_kill(crashes: int, alone: bool, dies: bool) -> None:
    item = an_item(crashes=crashes, alone=alone)
    decision = judged(item, o.LeaseExpired(FAILURE), Policy(backoff=constant("10s"), max_crashes=3))
    assert decision == (ToDead("max_crashes", Charge.CRASH, FAILURE) if dies else ToReady(10_000, Charge.CRASH))


def test_a_crash_is_no_error() -> None:
    item = an_item(errors=99, last_chance=True, alone=True)
    policy = Policy(backoff=never(), max_attempts=1, max_age="1ms")
    assert judged(item, o.LeaseExpired(FAILURE), policy, age=HOUR) == ToReady(0, Charge.CRASH)


@pytest.mark.parametrize("after", [None, 5, 10**15])
def test_a_rate_limit_charges_nothing_and_never_kills(after: int | None) -> None:
    item = an_item(errors=99, crashes=99, alone=True, last_chance=True, attempt=200, deliveries=299)
    policy = Policy(backoff=never(), max_attempts=1, max_age="1ms", max_crashes=1)
    decision = judged(item, o.Limited(failing("limit"), after), policy, age=HOUR)
    assert isinstance(decision, ToReady)
    assert decision.charge is Charge.NOTHING
    assert decision.delay == {None: 1000, 5: 5, 10**15: 86_400_000}[after]


@pytest.mark.parametrize(
    ("deliveries", "attempt", "crashes", "delay"),
    [(1, 1, 0, 1000), (3, 1, 0, 4000), (5, 3, 0, 4000), (4, 2, 1, 2000), (2, 3, 0, 1000)],
)
def test_its_wait_grows_with_how_often_it_was_given_back(
    deliveries: int, attempt: int, crashes: int, delay: int
) -> None:
    """Not with errors, which have waits of their own, and not with crashes, which take a delivery for the takeover."""
    item = an_item(deliveries=deliveries, attempt=attempt, crashes=crashes, errors=7)
    decision = judged(item, o.Limited(failing("limit")), Policy(backoff=exponential("1s", factor=2)))
    assert decision == ToReady(delay, Charge.NOTHING)


def test_budgets_are_separate() -> None:
    """Twenty deploys and twenty rate limits leave the budget of errors alone: two of three are used, and it lives."""
    policy = Policy(backoff=constant("10s"), max_attempts=3, max_crashes=3)
    item = an_item()
    outcomes: list[o.Outcome] = [*[o.Release()] * 20, *[o.Limited(failing("limit"))] * 20, *[o.Fail(FAILURE)] * 2]
    for outcome in outcomes:
        item = msgspec.structs.replace(item, deliveries=item.deliveries + 1)
        decision = judged(item, outcome, policy)
        assert isinstance(decision, ToReady)
        if decision.charge is Charge.ERROR:
            item = msgspec.structs.replace(item, errors=item.errors + 1, attempt=item.attempt + 1)
    assert (item.errors, item.attempt, item.deliveries) == (2, 2, 42)
    assert judged(item, o.Fail(FAILURE), policy) == ToDead("max_attempts", Charge.ERROR, FAILURE)


def test_cancelled_says_who_asked() -> None:
    item = an_item(errors=99, last_chance=True)
    assert judged(item, o.Cancelled("ops: wrong list", FAILURE)) == ToCancelled("ops: wrong list")


@pytest.mark.parametrize(
    ("outcome", "reason", "charge"),
    [
        (o.Dead(FAILURE, "handler"), "handler", Charge.ERROR),
        (o.Expired(FAILURE), "max_age", Charge.NOTHING),
        (o.LeaseExpired(FAILURE), "max_crashes", Charge.CRASH),
        (o.Fail(FAILURE), "max_attempts", Charge.ERROR),
        (o.Retry(FAILURE), "max_attempts", Charge.ERROR),
    ],
)
def test_whatever_dies_has_its_route_and_what_to_do_where_that_is_full(
    outcome: o.Outcome, reason: str, charge: Charge
) -> None:
    policy = Policy(backoff=linear("2s"), max_attempts=1, max_crashes=1, routes={"Refused": "refused"}, route="rest")
    decision = judged(an_item(errors=4, alone=True), outcome, policy)
    assert decision == ToDead(reason, charge, FAILURE, "refused", otherwise=10_000)


@pytest.mark.parametrize(("backoff", "wait"), [(immediate(), 1000), (never(), 60_000), (constant("1h"), HOUR)])
def test_a_full_route_is_never_asked_in_a_tight_loop(backoff: Backoff, wait: int) -> None:
    decision = judged(an_item(), o.Dead(FAILURE, "handler"), Policy(backoff=backoff, route="dlq"))
    assert isinstance(decision, ToDead)
    assert (decision.route, decision.otherwise) == ("dlq", wait)


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (o.Done(), Ending.DONE),
        (o.Fail(FAILURE), Ending.FAILED),
        (o.Retry(FAILURE), Ending.FAILED),
        (o.Dead(FAILURE, "x"), Ending.DEAD),
        (o.Snooze(1), Ending.SNOOZED),
        (o.Release(), Ending.RELEASED),
        (o.Limited(FAILURE), Ending.LIMITED),
        (o.Cancelled("ops: stop"), Ending.CANCELLED),
        (o.LeaseExpired(FAILURE), Ending.CRASHED),
        (o.Expired(FAILURE), Ending.EXPIRED),
    ],
)
def test_every_outcome_has_its_word_in_the_history(outcome: o.Outcome, word: Ending) -> None:
    assert ending(outcome) is word


def broken(_failures: int) -> str:
    raise OSError("the table is gone")


POLICIES: list[Callable[[], Policy]] = [
    Policy,
    lambda: Policy(backoff=never(), max_attempts=1, max_crashes=1),
    lambda: Policy(backoff=broken, max_attempts=None, max_age="36500d"),
    lambda: Policy(backoff=exponential("1s", factor=1e9, jitter=1), max_attempts=None, max_hint="36500d"),
    lambda: Policy(max_attempts=None, rules=[never_dead(OSError, ceiling=10**18)]),
    lambda: Policy(backoff=broken, max_attempts=1, routes={Exception: "any", "error": "some"}, route="rest"),
]


@given(of(Item), of(o.Outcome), st.sampled_from(POLICIES), st.floats(0, 1), st.data())
def test_decide_is_total(
    item: Item, outcome: Any, make: Callable[[], Policy], roll: float, data: st.DataObject
) -> None:
    if getattr(outcome, "failure", None) is not None:
        action = data.draw(st.sampled_from(["retry", "dead", "keep", "limit"]))
        outcome = msgspec.structs.replace(outcome, failure=msgspec.structs.replace(outcome.failure, action=action))
    decision = decide(item, outcome, make(), roll=roll, age=data.draw(INTEGERS))
    if isinstance(decision, ToReady):
        assert 0 <= decision.delay <= durations.MAX
    else:
        assert isinstance(decision, ToDone) is isinstance(outcome, o.Done)
        assert isinstance(decision, ToCancelled) is isinstance(outcome, o.Cancelled)
        assert isinstance(decision, ToDone | ToDead | ToCancelled)
    if isinstance(outcome, o.Limited | o.Snooze | o.Release):
        assert isinstance(decision, ToReady)
        counted = isinstance(outcome, o.Release) and outcome.counted
        assert decision.charge is (Charge.ERROR if counted else Charge.NOTHING)
    if isinstance(decision, ToDead):
        assert 0 <= decision.otherwise <= durations.MAX


def test_who_gives_an_item_up_may_say_where_its_letter_goes() -> None:
    dead = o.Dead(FAILURE, "door says so", "theirs", 7_000, counted=False)
    assert judged(an_item(), dead, Policy(route="rest")) == ToDead(
        "door says so", Charge.NOTHING, FAILURE, "theirs", 7_000
    )
    usual = judged(an_item(errors=4), o.Dead(FAILURE, "door says so", "theirs"), Policy(backoff=linear("2s")))
    assert usual == ToDead("door says so", Charge.ERROR, FAILURE, "theirs", 10_000)


def test_a_receiver_may_give_back_after_a_delay_and_be_counted() -> None:
    assert judged(an_item(errors=99), o.Release("nack", 5_000, counted=True)) == ToReady(5_000, Charge.ERROR)


LETTER = Letter("rule", 5, Disposition.OPEN, FAILURE, "theirs")


@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        (o.Done(b"1"), ToDone(b"1")),
        (o.Cancelled("not wanted", FAILURE), ToCancelled("not wanted")),
        (o.Snooze(5_000), ToReady(5_000, Charge.NOTHING)),
        (o.Release("stopped"), ToReady(0, Charge.NOTHING)),
        (o.Release("nack", 5_000, counted=True), ToReady(5_000, Charge.NOTHING)),
        (o.Fail(FAILURE, 5_000), ToReady(5_000, Charge.NOTHING)),
        (o.Retry(FAILURE, 5_000), ToReady(5_000, Charge.NOTHING)),
        (o.Limited(FAILURE, 10**18), ToReady(durations.MAX, Charge.NOTHING)),
        (o.Fail(FAILURE), ToDead("rule", Charge.NOTHING, FAILURE, "theirs")),
        (o.Dead(FAILURE, "handler", "elsewhere"), ToDead("rule", Charge.NOTHING, FAILURE, "theirs")),
        (o.LeaseExpired(FAILURE), ToDead("rule", Charge.NOTHING, FAILURE, "theirs")),
    ],
)
def test_a_letter_is_done_or_cancelled_or_stays_what_it_was(outcome: o.Outcome, decision: object) -> None:
    assert decide_letter(an_item(state=State.DEAD, letter=LETTER, errors=99, last_chance=True), outcome) == decision


def test_only_a_letter_can_stay_one() -> None:
    with pytest.raises(ConfigError, match="i-1 is leased, not a dead letter"):
        decide_letter(an_item(id="i-1", state=State.LEASED), o.Fail(FAILURE))
