"""Evaluations: samples in, scores out; row M-15."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from redrive.mailboxes import (
    DeadLetter,
    DLQPolicy,
    EvalLoop,
    EvalRequest,
    EvalResult,
    Experiment,
    InvalidParameterError,
    RunContext,
    Sample,
    Score,
    Session,
    StoreMailbox,
    session_evaluator,
)
from redrive.testing import FakeClock
from tests.mailboxes.bench import Adapter, Ask, Loop, Told
from tests.mailboxes.conftest import Opener, Openers

Request = EvalRequest[Ask, str]


def exactly(output: Told, expected: str) -> Score:
    return Score(float(output.text == expected), passed=output.text == expected, reason="compared")


class Evals:
    """An evaluation loop with its mailboxes."""

    def __init__(self, opened: Opener, evaluator: Any = exactly, adapter: Adapter | None = None, **policy: Any) -> None:
        self.adapter = Adapter() if adapter is None else adapter
        self.requests = opened("evals")
        self.letters = opened("evals-dlq")
        self.results: StoreMailbox[EvalResult, None] = opened("results", body_type=EvalResult)
        self.main = Loop(adapter=self.adapter, requests=opened("requests"))
        self.loop: EvalLoop[Ask, Told, str] = EvalLoop(
            loop=self.main, evaluator=evaluator, requests=self.requests, dlq=DLQPolicy(self.letters, **policy)
        )

    def send(self, expected: str = "why!", **options: Any) -> EvalRequest[Ask, str]:
        sample = Sample("s-1", Ask("why"), expected)
        request = EvalRequest(sample, Experiment("first"), **options)
        self.requests.send(request, reply_to=self.results)
        return request

    def run(self) -> None:
        self.loop.run(max_iterations=1, wait_time_seconds=0)

    def result(self) -> EvalResult:
        [message] = self.results.receive()
        message.acknowledge()
        return message.body


@pytest.mark.parametrize(("expected", "passed"), [("why!", True), ("because", False)])
def test_a_sample_is_judged(mailboxes: Openers, expected: str, passed: bool) -> None:
    evals = Evals(mailboxes("memory"))
    sent = evals.send(expected)
    evals.run()
    result = evals.result()
    assert (result.sample_id, result.experiment_name, result.request_id) == ("s-1", "first", sent.request_id)
    assert (result.score.passed, result.score.reason, result.error, result.success) == (passed, "compared", None, True)
    assert evals.adapter.asked == [Ask("why")], "typed by the main loop's generics"


def test_latency_is_that_of_the_work(mailboxes: Openers, clock: FakeClock) -> None:
    class Slow(Adapter):
        def evaluate(self, prompt: Ask) -> Told:
            clock.advance("250ms")
            return super().evaluate(prompt)

    evals = Evals(mailboxes("memory"), adapter=Slow())
    evals.send()
    evals.run()
    assert evals.result().latency_ms == 250


def test_m15_a_sample_that_is_given_up_scores_nothing(kind: str, mailboxes: Openers, clock: FakeClock) -> None:
    evals = Evals(mailboxes(kind), max_delivery_count=2)
    evals.adapter.error = ValueError("no such city")
    sent = evals.send(run_context=RunContext(trace_id="t-1"))
    evals.run()
    assert evals.results.approximate_count() == 0
    clock.advance("60s")
    evals.run()
    result = evals.result()
    assert (result.score.value, result.score.passed) == (0, False)
    assert result.error == "Dead-lettered after 2 attempts: no such city"
    assert (result.sample_id, result.experiment_name, result.request_id) == ("s-1", "first", sent.request_id)
    [message] = evals.letters.receive()
    letter = message.body
    assert isinstance(letter, DeadLetter)
    assert isinstance(letter.body, EvalRequest)
    assert (letter.body.request_id, letter.request_id, letter.trace_id) == (sent.request_id, sent.request_id, "t-1")
    assert evals.requests.approximate_count() == 0


def by_name(output: Told, expected: str, *, session: Session) -> Score:
    return Score(1, passed=session.run_context.attempt == 1 and output.text == expected)


def by_place(output: Told, expected: str, told: Session) -> Score:
    return by_name(output, expected, session=told)


@session_evaluator
def by_mark(*arguments: Any) -> Score:
    return by_place(*arguments)


async def in_a_loop(output: Told, expected: str) -> Score:
    return exactly(output, expected)


class Judge:
    def __call__(self, output: Told, expected: str, threshold: float = 1.0) -> Score:
        return Score(threshold, passed=output.text == expected)


@pytest.mark.parametrize("evaluator", [by_name, by_place, by_mark, in_a_loop, Judge()])
def test_evaluators_get_what_they_ask_for(mailboxes: Openers, evaluator: Any) -> None:
    evals = Evals(mailboxes("memory"), evaluator)
    evals.send()
    evals.run()
    assert evals.result().score.passed


def test_an_evaluator_that_gives_no_score_is_a_failure(mailboxes: Openers) -> None:
    evals = Evals(mailboxes("memory"), lambda _output, _expected: 0.5, max_delivery_count=1)
    evals.send()
    evals.run()
    assert evals.result().error == "Dead-lettered after 1 attempts: the evaluator gave 0.5, and not a Score"


def test_a_request_that_cannot_be_read_is_answered_with_what_it_told(mailboxes: Openers) -> None:
    evals = Evals(mailboxes("memory"))
    other = mailboxes("memory")("evals")
    key = "6f1e6a5e-0000-4000-8000-000000000000"
    broken = {"sample": {"id": "s-9"}, "experiment": {"name": "third"}, "request_id": key}
    other.send(broken, reply_to=evals.results)
    evals.run()
    result = evals.result()
    assert (result.sample_id, result.experiment_name, result.request_id) == ("s-9", "third", UUID(key))
    assert not result.success
    assert evals.letters.approximate_count() == 1


@pytest.mark.parametrize("value", [-0.1, 1.1, True, "1", float("nan")])
def test_a_score_is_from_nothing_to_one(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="value"):
        Score(value, passed=False)


def test_what_cannot_judge_is_refused(mailboxes: Openers) -> None:
    with pytest.raises(InvalidParameterError, match="evaluator"):
        Evals(mailboxes("memory"), 0.5)
