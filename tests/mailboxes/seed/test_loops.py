"""Every code example of the dead letter specification, in its order, as a reader would try them; on in test_letters.

Adapted only in imports and in generics, which Python 3.11 spells with `Generic`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic

import pytest
import redis as redis_py

from redrive.mailboxes import (
    ContentPolicyViolation,
    DeadLetter,
    DLQPolicy,
    EvalLoop,
    EvalRequest,
    EvalResult,
    Experiment,
    Mailbox,
    MailboxConnectionError,
    MainLoop,
    MainLoopRequest,
    MainLoopResult,
    Message,
    MessageFinalizedError,
    ProviderError,
    RateLimitError,
    RedisMailbox,
    ReplyNotAvailableError,
    Sample,
    ValidationError,
    open_mailbox,
)
from redrive.testing import FakeClock
from tests.mailboxes.seed.kit import (
    Adapter,
    MyMainLoop,
    MyOutput,
    MyRequest,
    R,
    Request,
    Result,
    T,
    exactly,
    get_error_rate,
    log,
    policies,
)

pytestmark = pytest.mark.slow


# --- Purpose --------------------------------------------------------------------------------------------------------


def test_purpose_messages_that_fail_five_times_are_dead_letters(adapter: Adapter, tmp_path: Any) -> None:
    clock = FakeClock()
    url = f"sqlite:///{tmp_path / 'redrive.db'}"
    with (
        open_mailbox("requests", url, clock=clock) as requests,
        open_mailbox("requests-dlq", url, clock=clock) as dead_letters,
    ):
        main_loop = MainLoop(
            adapter=adapter,
            requests=requests,
            dlq=DLQPolicy(
                mailbox=dead_letters,
                max_delivery_count=5,
            ),
        )
        adapter.error = ProviderError("overloaded")
        requests.send(MainLoopRequest(request="why?"))
        for wait in (0, 60, 120, 180, 240):
            assert dead_letters.approximate_count() == 0
            clock.advance(f"{wait}s")
            main_loop.run(max_iterations=1, wait_time_seconds=0)
        assert (requests.approximate_count(), dead_letters.approximate_count()) == (0, 1)


# --- Core types -----------------------------------------------------------------------------------------------------


def test_policy_has_the_fields_and_the_decision_of_the_text(dead_letters: Mailbox[DeadLetter[Request], None]) -> None:
    policy: DLQPolicy[Request, Result] = DLQPolicy(mailbox=dead_letters)
    assert (policy.max_delivery_count, policy.include_errors, policy.exclude_errors) == (5, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_delivery_count = 6  # type: ignore[misc]


def test_dead_letter_has_the_fields_of_the_text() -> None:
    letter = DeadLetter(
        message_id="m-1",
        body={"any": "body"},
        source_mailbox="requests",
        delivery_count=5,
        last_error="boom",
        last_error_type="builtins.ValueError",
        dead_lettered_at=datetime(2026, 1, 2, tzinfo=UTC),
        first_received_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert (letter.request_id, letter.reply_to, letter.trace_id) == (None, None, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        letter.delivery_count = 6  # type: ignore[misc]


# --- MainLoop integration: the implementation of the text, as somebody would write it by hand -------------------------


class ByHand:
    """`_handle_failure` and `_dead_letter` as the text has them, on public calls only."""

    def __init__(self, requests: Mailbox[Request, Result], dlq: DLQPolicy[Request, Result] | None) -> None:
        self._requests = requests
        self._dlq = dlq

    def _handle_failure(self, msg: Message[Request, Result], error: Exception) -> None:
        if self._dlq and self._dlq.should_dead_letter(msg, error):
            self._dead_letter(msg, error)
            return
        backoff = min(60 * msg.delivery_count, 900)
        msg.nack(visibility_timeout=backoff)

    def _dead_letter(self, msg: Message[Request, Result], error: Exception) -> None:
        assert self._dlq is not None
        dead_letter = DeadLetter(
            message_id=msg.id,
            body=msg.body,
            source_mailbox=self._requests.name,
            delivery_count=msg.delivery_count,
            last_error=str(error),
            last_error_type=f"{type(error).__module__}.{type(error).__qualname__}",
            dead_lettered_at=datetime.now(UTC),
            first_received_at=msg.enqueued_at,
            request_id=msg.body.request_id,
            reply_to=msg.reply_to.name if msg.reply_to else None,
        )
        try:
            if msg.reply_to:
                msg.reply(
                    MainLoopResult(
                        request_id=msg.body.request_id,
                        error=f"Dead-lettered after {msg.delivery_count} attempts: {error}",
                    )
                )
        except (ReplyNotAvailableError, MessageFinalizedError):
            pass
        self._dlq.mailbox.send(dead_letter)
        log.warning(
            "Message dead-lettered",
            message_id=msg.id,
            request_id=str(msg.body.request_id),
            delivery_count=msg.delivery_count,
            error_type=dead_letter.last_error_type,
        )
        msg.acknowledge()


def test_the_implementation_of_the_text_works_by_hand(redis: redis_py.Redis) -> None:
    requests: Mailbox[Request, Result] = RedisMailbox(name="requests", client=redis, body_type=Request)
    dead_letters: Mailbox[DeadLetter[Request], None] = RedisMailbox(
        name="requests-dlq", client=redis, body_type=DeadLetter[Request]
    )
    replies: Mailbox[Result, None] = RedisMailbox(name="replies", client=redis, body_type=Result)
    with requests, dead_letters, replies:
        by_hand = ByHand(requests, DLQPolicy(mailbox=dead_letters, max_delivery_count=2))
        request = Request(request=MyRequest("why?"))
        requests.send(request, reply_to=replies)
        (msg,) = requests.receive()
        by_hand._handle_failure(msg, ProviderError("busy"))  # noqa: SLF001 - as the text names it
        assert requests.receive() == []
        requests.purge()
        requests.send(request, reply_to=replies)
        (msg,) = requests.receive()
        by_hand._dead_letter(msg, ProviderError("busy"))  # noqa: SLF001 - as the text names it

        (answer,) = replies.receive()
        assert answer.body.error == "Dead-lettered after 1 attempts: busy"
        (letter,) = dead_letters.receive()
        assert (letter.body.message_id, letter.body.body, letter.body.reply_to) == (msg.id, request, "replies")
        assert letter.body.last_error_type.endswith(".ProviderError")
        assert log.of("Message dead-lettered")[0]["request_id"] == str(request.request_id)
        assert requests.approximate_count() == 0


# --- EvalLoop integration -------------------------------------------------------------------------------------------


def test_eval_loop_follows_the_same_pattern(redis: redis_py.Redis, adapter: Adapter) -> None:
    evals: Mailbox[EvalRequest[MyRequest, str], EvalResult] = RedisMailbox(name="eval-requests", client=redis)
    eval_dlq: Mailbox[DeadLetter[EvalRequest[MyRequest, str]], None] = RedisMailbox(
        name="eval-requests-dlq", client=redis
    )
    results: Mailbox[EvalResult, None] = RedisMailbox(name="results", client=redis, body_type=EvalResult)
    unused: Mailbox[Request, Result] = RedisMailbox(name="requests", client=redis)
    with evals, eval_dlq, results, unused:
        loop = EvalLoop(
            loop=MyMainLoop(adapter=adapter, requests=unused),
            evaluator=exactly,
            requests=evals,
            dlq=DLQPolicy(mailbox=eval_dlq, include_errors=frozenset({ValidationError})),
        )
        sample = Sample(id="s-1", input=MyRequest("why?"), expected="why?!")
        evals.send(EvalRequest(sample=sample, experiment=Experiment(name="first")), reply_to=results)
        loop.run(max_iterations=1, wait_time_seconds=0)
        (good,) = results.receive()
        assert (good.body.sample_id, good.body.score.passed, good.body.error) == ("s-1", True, None)

        adapter.error = ValidationError("no such field")
        evals.send(EvalRequest(sample=sample, experiment=Experiment(name="first")), reply_to=results)
        loop.run(max_iterations=1, wait_time_seconds=0)
        (bad,) = results.receive()
        assert (bad.body.score.value, bad.body.score.passed) == (0.0, False)
        (letter,) = eval_dlq.receive()
        assert letter.body.last_error == "no such field"


# --- Usage examples -------------------------------------------------------------------------------------------------


def test_basic_setup(redis: redis_py.Redis, adapter: Adapter) -> None:
    # Create mailboxes
    requests: Mailbox[MainLoopRequest[MyRequest], MainLoopResult[MyOutput]] = RedisMailbox(
        name="requests",
        client=redis,
    )
    dead_letters: Mailbox[DeadLetter[MainLoopRequest[MyRequest]], None] = RedisMailbox(
        name="requests-dlq",
        client=redis,
    )
    # Configure MainLoop with DLQ
    main_loop = MyMainLoop(
        adapter=adapter,
        requests=requests,
        dlq=DLQPolicy(
            mailbox=dead_letters,
            max_delivery_count=5,  # Dead-letter after 5 attempts
        ),
    )
    replies: Mailbox[Result, None] = RedisMailbox(name="replies", client=redis, body_type=Result)
    with requests, dead_letters, replies:
        requests.send(MainLoopRequest(request=MyRequest("why?")), reply_to=replies)
        main_loop.run(max_iterations=1, wait_time_seconds=0)
        (answer,) = replies.receive()
        assert answer.body.output == MyOutput("why?!")
        assert adapter.asked == [MyRequest("why?")], "typed by the loop's own generics"


@pytest.mark.parametrize(
    ("name", "error", "dies"),
    [
        ("immediate", ValidationError("bad"), True),
        ("immediate", ContentPolicyViolation("no"), True),
        ("immediate", ProviderError("busy"), False),
        ("transient", MailboxConnectionError("gone"), False),
        ("transient", RateLimitError("slow"), False),
        ("transient", TimeoutError("late"), False),
        ("combined", ValidationError("bad"), True),
        ("combined", RateLimitError("slow"), False),
    ],
)
def test_policies_of_the_text_at_the_first_failure(  # noqa: PLR0917 - fixtures and cases
    requests: Mailbox[Request, Result],
    dead_letters: Mailbox[DeadLetter[Request], None],
    adapter: Adapter,
    name: str,
    error: Exception,
    dies: bool,
) -> None:
    loop = MyMainLoop(adapter=adapter, requests=requests, dlq=policies(dead_letters)[name])
    adapter.error = error
    requests.send(Request(request=MyRequest("why?")))
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert dead_letters.approximate_count() == int(dies)
    assert requests.approximate_count() == int(not dies)


@dataclass(frozen=True)
class ErrorBudgetPolicy(DLQPolicy[T, R], Generic[T, R]):
    """Dead-letter based on error rate, not just count."""

    error_budget: float = 0.5

    def should_dead_letter(self, message: Message[T, Any], error: Exception) -> bool:
        # Fall back to default behavior for threshold
        if message.delivery_count >= self.max_delivery_count:
            return True
        # Custom logic: dead-letter if error rate exceeds budget
        error_rate = get_error_rate(message.body)  # type: ignore[arg-type]  # of any request
        return error_rate > self.error_budget


def test_custom_policy(
    requests: Mailbox[Request, Result], dead_letters: Mailbox[DeadLetter[Request], None], adapter: Adapter
) -> None:
    main_loop = MyMainLoop(
        adapter=adapter,
        requests=requests,
        dlq=ErrorBudgetPolicy(
            mailbox=dead_letters,
            max_delivery_count=10,
            error_budget=0.3,
        ),
    )
    adapter.error = ProviderError("busy")
    for question in ("easy", "hard"):
        requests.send(Request(request=MyRequest(question)))
        main_loop.run(max_iterations=1, wait_time_seconds=0)
    (letter,) = dead_letters.receive(max_messages=10)
    assert letter.body.body.request == MyRequest("hard")
