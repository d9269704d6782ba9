"""The second half of the walk: what becomes of dead letters, and how to watch and replay them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis as redis_py

from redrive.mailboxes import (
    AuthenticationError,
    ContentPolicyViolation,
    DeadLetter,
    DLQConsumer,
    DLQPolicy,
    EvalLoop,
    EvalRequest,
    EvalResult,
    Heartbeat,
    LoopGroup,
    Mailbox,
    MailboxConnectionError,
    MailboxResolver,
    MainLoopRequest,
    MainLoopResult,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    RedisMailbox,
    ResourceNotFoundError,
    SerializationError,
    ValidationError,
    VisibilityExpansionRequired,
)
from tests.mailboxes.seed.kit import (
    Adapter,
    MyMainLoop,
    MyOutput,
    MyRequest,
    Request,
    Result,
    T,
    exactly,
    is_critical_request,
    log,
    metrics,
    pagerduty,
    policies,
)

pytestmark = pytest.mark.slow


# --- Processing dead letters ----------------------------------------------------------------------------------------


def process_dead_letters(
    dlq: Mailbox[DeadLetter[MainLoopRequest[MyRequest]], None],
    *,
    handler: Callable[[DeadLetter[MainLoopRequest[MyRequest]]], None],
) -> None:
    """Process dead letters with custom handler."""
    while not dlq.closed:  # the text says True; a test wants an end
        for msg in dlq.receive(wait_time_seconds=20):
            try:
                handler(msg.body)
                msg.acknowledge()
            except Exception as e:  # noqa: BLE001 - as the text has it
                log.error("DLQ handler failed", error=str(e))
                msg.nack(visibility_timeout=3600)  # 1 hour backoff


def alert_handler(dead_letter: DeadLetter[MainLoopRequest[MyRequest]]) -> None:
    """Alert on dead-lettered messages."""
    log.error(
        "Request dead-lettered",
        message_id=dead_letter.message_id,
        request_id=str(dead_letter.request_id),
        error_type=dead_letter.last_error_type,
        error=dead_letter.last_error,
        delivery_count=dead_letter.delivery_count,
        source=dead_letter.source_mailbox,
    )
    metrics.increment(
        "dlq.messages",
        tags={
            "source": dead_letter.source_mailbox,
            "error_type": dead_letter.last_error_type,
        },
    )
    if is_critical_request(dead_letter.body):
        pagerduty.alert(
            summary=f"Critical request dead-lettered: {dead_letter.request_id}",
            severity="high",
        )


def test_a_loop_of_ones_own_alerts_and_logs(died: list[UUID], dead_letters: Mailbox[DeadLetter[Request], None]) -> None:
    def handler(dead_letter: DeadLetter[Request]) -> None:
        alert_handler(dead_letter)
        if len(log.of("Request dead-lettered")) == len(died):
            dead_letters.close()

    process_dead_letters(dead_letters, handler=handler)
    assert [said["request_id"] for said in log.of("Request dead-lettered")] == [str(one) for one in died]
    assert [said["source"] for said in log.of("Request dead-lettered")] == ["requests", "requests"]
    assert len(metrics.of("dlq.messages")) == 2
    assert [fields["severity"] for _, _, fields in pagerduty.said] == ["high"]


def replay_handler(
    dead_letter: DeadLetter[MainLoopRequest[MyRequest]],
    *,
    source: Mailbox[MainLoopRequest[MyRequest], MainLoopResult[MyOutput]],
    reply_resolver: MailboxResolver,
) -> None:
    """Replay dead letter back to source queue."""
    # Reconstruct reply_to if present
    reply_to = None
    if dead_letter.reply_to:
        reply_to = reply_resolver.resolve(dead_letter.reply_to)

    # Re-send to source queue
    source.send(dead_letter.body, reply_to=reply_to)

    log.info(
        "Replayed dead letter",
        message_id=dead_letter.message_id,
        request_id=str(dead_letter.request_id),
    )


def selective_replay(
    dlq: Mailbox[DeadLetter[MainLoopRequest[MyRequest]], None],
    source: Mailbox[MainLoopRequest[MyRequest], MainLoopResult[MyOutput]],
    *,
    predicate: Callable[[DeadLetter[MainLoopRequest[MyRequest]]], bool],
    reply_resolver: MailboxResolver,
) -> int:
    """Replay dead letters matching predicate.

    Returns:
        Count of replayed messages.
    """
    replayed = 0
    for msg in dlq.receive(max_messages=10, visibility_timeout=60):
        if predicate(msg.body):
            replay_handler(msg.body, source=source, reply_resolver=reply_resolver)
            msg.acknowledge()
            replayed += 1
        else:
            # Leave non-matching messages
            msg.nack(visibility_timeout=0)
    return replayed


def test_filtered_replay_as_the_text_has_it(
    redis: redis_py.Redis,
    requests: Mailbox[Request, Result],
    dead_letters: Mailbox[DeadLetter[Request], None],
    adapter: Adapter,
) -> None:
    replies: Mailbox[Result, None] = RedisMailbox(name="replies", client=redis, body_type=Result)
    resolver = MailboxResolver({"replies": replies})
    errors = frozenset({TimeoutError, ValidationError})
    policy: DLQPolicy[Request, Result] = DLQPolicy(mailbox=dead_letters, include_errors=errors)
    loop = MyMainLoop(adapter=adapter, requests=requests, dlq=policy)
    with replies:
        for error in (TimeoutError("late"), ValidationError("bad")):
            adapter.error = error
            requests.send(Request(request=MyRequest(str(error))), reply_to=replies)
            loop.run(max_iterations=1, wait_time_seconds=0)
        assert replies.purge() == 2
        adapter.error = None

        # Replay only timeout errors (transient, likely to succeed now)
        count = selective_replay(
            dlq=dead_letters,
            source=requests,
            predicate=lambda dl: "TimeoutError" in dl.last_error_type,
            reply_resolver=resolver,
        )
        assert count == 1
        loop.run(max_iterations=1, wait_time_seconds=0)
        (answer,) = replies.receive(max_messages=10)
        assert answer.body.output == MyOutput("late!")
        (left,) = dead_letters.receive(max_messages=10)
        assert left.body.last_error == "bad"


# --- Observability --------------------------------------------------------------------------------------------------


def test_structured_logging(died: list[UUID], caplog: pytest.LogCaptureFixture) -> None:
    """What the loop says by itself has the fields of the text."""
    assert died
    records = caplog.get_records("setup")
    said = [record for record in records if record.getMessage().startswith("Message dead-lettered")]
    assert len(said) == len(died)
    fields = said[0].redrive  # type: ignore[attr-defined]  # by `extra`
    wanted = {"message_id", "request_id", "source_mailbox", "delivery_count", "error_type", "error_message"}
    assert wanted <= set(fields)
    assert (fields["source_mailbox"], fields["delivery_count"]) == ("requests", 1)


def test_health_check(died: list[UUID], dead_letters: Mailbox[DeadLetter[Request], None]) -> None:
    def health_check() -> dict[str, Any]:
        """Health check including DLQ status."""
        dlq_count = dead_letters.approximate_count()
        return {
            "status": "healthy" if dlq_count < 100 else "degraded",
            "dlq": {
                "name": dead_letters.name,
                "depth": dlq_count,
                "threshold": 100,
            },
        }

    assert health_check() == {
        "status": "healthy",
        "dlq": {"name": "requests-dlq", "depth": len(died), "threshold": 100},
    }


# --- LoopGroup integration ------------------------------------------------------------------------------------------


def test_loop_group_runs_a_consumer_beside_main_loops(
    redis: redis_py.Redis,
    requests: Mailbox[Request, Result],
    dead_letters: Mailbox[DeadLetter[Request], None],
    adapter: Adapter,
) -> None:
    main_loop = MyMainLoop(adapter=adapter, requests=requests, dlq=policies(dead_letters)["immediate"])
    evals: Mailbox[EvalRequest[MyRequest, str], EvalResult] = RedisMailbox(name="eval-requests", client=redis)
    eval_loop = EvalLoop(loop=main_loop, evaluator=exactly, requests=evals)
    request = Request(request=MyRequest("why?", critical=True))

    def handler(dead_letter: DeadLetter[Request]) -> None:
        alert_handler(dead_letter)
        group.trigger_shutdown()

    # Create DLQ consumer as a Runnable
    dlq_consumer = DLQConsumer(
        mailbox=dead_letters,
        handler=handler,
    )
    # Run alongside main loops
    group = LoopGroup(
        loops=[main_loop, eval_loop, dlq_consumer],
        health_port=0,
        watchdog_threshold=720.0,
    )
    adapter.error = ValidationError("bad")
    with evals:
        requests.send(request)
        group.run(install_signals=False, wait_time_seconds=1)
    assert [said["request_id"] for said in log.of("Request dead-lettered")] == [str(request.request_id)]
    assert not dlq_consumer.running
    assert isinstance(dlq_consumer.heartbeat, Heartbeat)


def test_consumer_by_itself(died: list[UUID], dead_letters: Mailbox[DeadLetter[Request], None]) -> None:
    consumer: DLQConsumer[Request] = DLQConsumer(
        mailbox=dead_letters,
        handler=alert_handler,
        visibility_timeout=300,
    )
    consumer.run(max_iterations=len(died), visibility_timeout=None, wait_time_seconds=0)
    assert len(log.of("Request dead-lettered")) == len(died)
    assert consumer.shutdown(timeout=30.0) is True
    assert dead_letters.approximate_count() == 0


# --- Error classification -------------------------------------------------------------------------------------------


def test_errors_of_the_text_exist_and_are_errors() -> None:
    retriable = (MailboxConnectionError, RateLimitError, TimeoutError, VisibilityExpansionRequired)
    permanent = (ValidationError, ContentPolicyViolation, AuthenticationError, QuotaExceededError)
    ambiguous = (ProviderError, SerializationError, ResourceNotFoundError)
    for kind in (*retriable, *permanent, *ambiguous):
        assert issubclass(kind, Exception)


# --- Best practices -------------------------------------------------------------------------------------------------


def test_naming_and_retention(redis: redis_py.Redis) -> None:
    # Pattern: {source}-dlq. Source queue: 3-day TTL (default)
    requests: Mailbox[Any, Any] = RedisMailbox(name="requests", client=redis, default_ttl=259200)
    # DLQ: 30-day TTL for forensics
    dead_letters: Mailbox[Any, Any] = RedisMailbox(name="requests-dlq", client=redis, default_ttl=2592000)
    # For multiple queues
    eval_requests: Mailbox[Any, Any] = RedisMailbox(name="eval-requests", client=redis)
    eval_dlq: Mailbox[Any, Any] = RedisMailbox(name="eval-requests-dlq", client=redis)
    with requests, dead_letters, eval_requests, eval_dlq:
        requests.send("one")
        counts = [each.approximate_count() for each in (requests, dead_letters, eval_requests, eval_dlq)]
        assert counts == [1, 0, 0, 0]


def test_a_safe_handler_never_raises(died: list[UUID], dead_letters: Mailbox[DeadLetter[Request], None]) -> None:
    def process_dead_letter(dead_letter: DeadLetter[T]) -> None:
        raise ProviderError("pager is down")

    def safe_dlq_handler(dead_letter: DeadLetter[T]) -> None:
        """Handler that never raises (logs and discards on failure)."""
        try:
            process_dead_letter(dead_letter)
        except Exception as e:  # noqa: BLE001 - as the text has it
            # Log but don't re-raise - prevents DLQ loops
            log.error(
                "Failed to process dead letter, discarding",
                message_id=dead_letter.message_id,
                error=str(e),
            )
            metrics.increment("dlq.messages.discarded")

    DLQConsumer(mailbox=dead_letters, handler=safe_dlq_handler).run(max_iterations=len(died), wait_time_seconds=0)
    assert len(metrics.of("dlq.messages.discarded")) == len(died)
    assert dead_letters.approximate_count() == 0


def test_idempotent_replay(
    died: list[UUID], requests: Mailbox[Request, Result], dead_letters: Mailbox[DeadLetter[Request], None]
) -> None:
    def replay_with_dedup(
        dead_letter: DeadLetter[MainLoopRequest[MyRequest]],
        source: Mailbox[MainLoopRequest[MyRequest], MainLoopResult[MyOutput]],
        seen: set[UUID],
    ) -> bool:
        """Replay with deduplication."""
        request_id = dead_letter.request_id
        if request_id in seen:
            log.info("Skipping duplicate replay", request_id=str(request_id))
            return False

        assert request_id is not None
        seen.add(request_id)
        source.send(dead_letter.body)
        return True

    seen: set[UUID] = {uuid4()}
    (first,) = dead_letters.receive()
    assert replay_with_dedup(first.body, requests, seen)
    assert not replay_with_dedup(first.body, requests, seen)
    assert log.of("Skipping duplicate replay") == [{"request_id": str(died[0])}]
    (again,) = requests.receive(max_messages=10)
    assert again.body.request_id == died[0]
