from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime
from textwrap import dedent
from unittest.mock import ANY

import pytest

from redrive import Dead, Policy, Redrive, constant, never
from redrive.errors import ConfigError, UnknownQueue
from redrive.testing import (
    FakeClock,
    _expect,
    assert_dead,
    assert_done,
    assert_enqueued,
    assert_not_enqueued,
    drain,
)


@dataclasses.dataclass
class Mail:
    to: str
    at: datetime


class MailError(ConnectionError):
    pass


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def message_of(error: pytest.ExceptionInfo[AssertionError]) -> str:
    """Ids differ from run to run."""
    return re.sub(r"\b[a-z2-7]{8}\b(?= of queue|  )", "xxxxxxxx", str(error.value))


def expected(text: str) -> str:
    return dedent(text).strip("\n")


@pytest.fixture
def emails(app: Redrive) -> Redrive:
    @app.handler("emails", policy=Policy(never()))
    async def send(**mail: object) -> str:
        if mail.get("to") == "nobody":
            raise MailError("no such mailbox: nobody")
        if mail.get("to") == "spam":
            raise Dead("spam is not sent")
        return f"sent to {mail.get('to')}"

    app.queue("reports")
    return app


# -- what is enqueued --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        (None, None),
        ({"to": "ada", "n": [1, 2]}, {"n": [1, 2], "to": "ada"}),
        ({"n": (1, 2)}, {"n": (1, 2)}),
        ({"to": "ada", "id": 7}, {"to": "ada", "id": ANY}),
        ({"rate": 0.1 + 0.2}, {"rate": pytest.approx(0.3)}),
        (Mail("ada", NEW_YEAR), Mail("ada", NEW_YEAR)),
        (Mail("ada", NEW_YEAR), {"to": "ada", "at": NEW_YEAR}),
        (b"\x89PNG", b"\x89PNG"),
        ("text", "text"),
    ],
)
async def test_a_payload_is_compared_as_a_handler_would_get_it(emails: Redrive, sent: object, wanted: object) -> None:
    item_id = await emails.enqueue("emails", sent)
    (item,) = await assert_enqueued(emails, "emails", wanted)
    assert item.id == item_id


@pytest.mark.parametrize(
    ("sent", "other"),
    [
        (None, {}),
        ({"to": "ada"}, {"to": "ada", "cc": None}),
        ({"to": "ada", "cc": None}, {"to": "ada"}),
        ({"n": 1}, {"n": "1"}),
        (b"\x89PNG", b"\x89PN"),
        (b'{"to":"ada"}', b'{"to": "ada"}'),
        ({"to": "ada"}, object()),
    ],
)
async def test_a_payload_is_compared_as_a_whole(emails: Redrive, sent: object, other: object) -> None:
    await emails.enqueue("emails", sent)
    with pytest.raises(AssertionError):
        await assert_enqueued(emails, "emails", other)
    await assert_not_enqueued(emails, "emails", other)


async def test_a_part_of_a_payload_at_any_depth(emails: Redrive) -> None:
    await emails.enqueue("emails", {"to": {"name": "ada", "tags": ["a", "b"]}, "at": NEW_YEAR, "subject": "hi"})
    await assert_enqueued(emails, containing={"subject": "hi"})
    await assert_enqueued(emails, containing={"to": {"name": "ada"}, "at": NEW_YEAR})
    await assert_enqueued(emails, containing={"to": {"tags": ["a", ANY]}})
    await assert_enqueued(emails, containing={})
    for other in ({"to": {"tags": ["a"]}}, {"to": "ada"}, {"cc": None}, {"subject": {"hi": 1}}):
        await assert_not_enqueued(emails, containing=other)
    await emails.enqueue("reports", b"not json")
    await assert_not_enqueued(emails, "reports", containing={})


async def test_by_id_by_delay_by_count_and_by_nothing(emails: Redrive, clock: FakeClock) -> None:
    await assert_not_enqueued(emails)
    first = await emails.enqueue("emails", {"n": 1}, id="order-1")
    second = await emails.enqueue("emails", {"n": 2}, delay="5m")
    other = await emails.enqueue("reports", {"n": 3})
    clock.advance("1m")

    assert [item.id for item in await assert_enqueued(emails)] == [first, second, other], "first enqueued first"
    assert [item.id for item in await assert_enqueued(emails, delay="5m")] == [second]
    assert [item.id for item in await assert_enqueued(emails, id="order-1", count=1)] == [first]
    assert [item.id for item in await assert_enqueued(emails, delay=0, count=2)] == [first, other]
    assert await assert_enqueued(emails, "emails", {"n": 3}, count=0) == ()
    await assert_not_enqueued(emails, "reports", delay="5m")
    await assert_not_enqueued(emails, id="order-2")


async def test_items_between_retries_wait_and_those_that_ended_do_not(app: Redrive) -> None:
    seen: list[int] = []

    @app.handler("emails", policy=Policy(constant("1h"), max_attempts=2))
    async def send(n: int) -> None:
        seen.append(len(await assert_enqueued(app, "emails")))
        raise ValueError

    await app.enqueue("emails", {"n": 1})
    await drain(app, within=0)
    (item,) = await assert_enqueued(app, "emails")
    assert (item.errors, seen) == (1, [1]), "an item in the hands of its handler is there as well"
    await assert_not_enqueued(app, delay="1h")
    await drain(app)
    await assert_not_enqueued(app)


async def test_what_handlers_put_is_seen(app: Redrive) -> None:
    app.queue("emails")

    @app.handler("orders")
    async def order(n: int) -> None:
        app.follow_up("emails", {"order": n}, delay="1h")
        await app.enqueue("emails", {"copy of": n})

    await app.enqueue("orders", {"n": 7})
    await drain(app)
    await assert_enqueued(app, "emails", {"order": 7}, delay="1h", count=1)
    await assert_enqueued(app, "emails", {"copy of": 7}, count=1)


async def test_there_may_be_more_than_a_page(app: Redrive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_expect, "PAGE_LIMIT", 10)

    @app.handler("numbers", policy=Policy(never()))
    async def count(n: int) -> int:
        if n % 2:
            raise ValueError(n)
        return n

    await app.enqueue_many("numbers", [{"n": n} for n in range(50)])
    await assert_enqueued(app, "numbers", count=50)
    assert (await assert_enqueued(app, "numbers", {"n": 3}, count=1))[0].payload == b'{"n":3}'
    await drain(app)
    await assert_done(app, "numbers", count=25)
    await assert_dead(app, "numbers", count=25)
    await assert_done(app, result=6, count=1)
    await assert_dead(app, containing={"n": 1}, count=1)


# -- what is done, what is dead ----------------------------------------------------------------------------------------


async def test_what_is_done(emails: Redrive) -> None:
    item_id = await emails.enqueue("emails", {"to": "ada"})
    with pytest.raises(AssertionError, match="assert_done"):
        await assert_done(emails, "emails")
    await drain(emails)
    for found in (
        await assert_done(emails),
        await assert_done(emails, "emails", {"to": "ada"}, result="sent to ada", count=1),
        await assert_done(emails, id=item_id, containing={"to": "ada"}),
    ):
        assert [item.id for item in found] == [item_id]
    await assert_done(emails, result="sent to bob", count=0)
    await assert_done(emails, result=None, count=0)


async def test_none_is_a_result(app: Redrive) -> None:
    @app.handler("emails")
    async def send() -> None: ...

    await app.enqueue("emails")
    await drain(app)
    await assert_done(app, "emails", result=None)


@pytest.mark.parametrize(
    "by",
    [
        {},
        {"error": MailError},
        {"error": ConnectionError},
        {"error": OSError},
        {"error": "MailError"},
        {"error": f"{__name__}.MailError"},
        {"reason": "no_retry"},
        {"text": "no such mailbox"},
        {"payload": {"to": "nobody"}},
        {"containing": {"to": "nobody"}},
        {"error": MailError, "reason": "no_retry", "text": "nobody", "count": 1},
    ],
)
async def test_what_is_dead(emails: Redrive, by: dict[str, object]) -> None:
    item_id = await emails.enqueue("emails", {"to": "nobody"})
    await emails.enqueue("emails", {"to": "ada"})
    await drain(emails)
    found = await assert_dead(emails, "emails", **by)  # type: ignore[arg-type]
    assert [item.id for item in found] == [item_id]
    assert found[0].letter is not None
    await emails.letters.archive(item_id, reason="a test")
    assert await assert_dead(emails, id=item_id), "wherever the letter lies"


@pytest.mark.parametrize(
    "by",
    [
        {"error": TimeoutError},
        {"error": "mail"},
        {"error": "redrive.MailError"},
        {"reason": "max_attempts"},
        {"text": "somebody"},
        {"queue": "reports"},
        {"payload": {}},
        {"id": "order-1"},
        {"count": 2},
    ],
)
async def test_what_is_not_dead(emails: Redrive, by: dict[str, object]) -> None:
    await emails.enqueue("emails", {"to": "nobody"})
    await drain(emails)
    with pytest.raises(AssertionError, match="assert_dead"):
        await assert_dead(emails, **by)  # type: ignore[arg-type]


async def test_signals_are_known_by_the_names_that_users_import(emails: Redrive) -> None:
    await emails.enqueue("emails", {"to": "spam"})
    await drain(emails)
    await assert_dead(emails, error=Dead, reason="handler", text="spam is not sent")


# -- the words of a failure --------------------------------------------------------------------------------------------


async def test_a_failure_shows_what_is_there(emails: Redrive) -> None:
    await emails.enqueue("emails", {"to": "ada"})
    await emails.enqueue("emails", {"to": "nobody"})
    await drain(emails)
    await emails.enqueue("emails", {"subject": "Hello", "to": "bob"}, delay="5m")
    await emails.enqueue("reports", b"\x89PNG")
    with pytest.raises(AssertionError) as caught:
        await assert_enqueued(emails, "emails", {"to": "bob", "subject": "Hi"}, delay="10m")
    assert message_of(caught) == expected("""
        assert_enqueued: expected at least 1 item, found none
          queue    emails
          state    ready or leased
          payload  {"subject":"Hi","to":"bob"}
          delay    10m

        closest: item xxxxxxxx of queue emails
        - payload  {"subject":"Hi","to":"bob"}
        + payload  {"subject":"Hello","to":"bob"}
        - delay    10m
        + delay    5m

        4 items in the store:
          done   emails   xxxxxxxx  {"to":"ada"}  (result "sent to ada")
          dead   emails   xxxxxxxx  {"to":"nobody"}  (no_retry: tests.testing.test_kit_asserts.MailError: no such mailbox: nobody)
          ready  emails   xxxxxxxx  {"subject":"Hello","to":"bob"}  (due in 5m)
          ready  reports  xxxxxxxx  b'\\x89PNG'
    """)  # noqa: E501 - as long as it is shown


async def test_a_failure_of_the_number_shows_what_was_found(emails: Redrive) -> None:
    await emails.enqueue_many("emails", [{"n": 1}, {"n": 1}])
    await emails.enqueue("reports")
    with pytest.raises(AssertionError) as caught:
        await assert_enqueued(emails, "emails", count=1)
    assert message_of(caught) == expected("""
        assert_enqueued: expected 1 item, found 2
          queue  emails
          state  ready or leased

        found:
          ready  emails  xxxxxxxx  {"n":1}
          ready  emails  xxxxxxxx  {"n":1}
    """)
    with pytest.raises(AssertionError, match="assert_not_enqueued: expected 0 items, found 2"):
        await assert_not_enqueued(emails, "emails")


async def test_a_near_miss_of_a_letter(emails: Redrive) -> None:
    await emails.enqueue("emails", {"to": "nobody"})
    await drain(emails)
    await emails.letters.archive("queue:emails", reason="a test")
    with pytest.raises(AssertionError) as caught:
        await assert_dead(emails, "emails", error=TimeoutError, reason="no_retry", text="too late")
    assert expected("""
        closest: item xxxxxxxx of queue emails
        - error  TimeoutError
        + error  tests.testing.test_kit_asserts.MailError
        - text   …too late…
        + text   no such mailbox: nobody
    """) in message_of(caught)
    assert "no such mailbox: nobody, archived)" in message_of(caught)


async def test_a_queue_that_does_not_exist_is_named(emails: Redrive) -> None:
    with pytest.raises(AssertionError) as caught:
        await assert_enqueued(emails, "email")
    assert "there is no queue 'email'; did you mean 'emails'?" in str(caught.value)
    assert str(caught.value).endswith("the store is empty")


async def test_the_closest_is_the_one_that_looks_most_alike(emails: Redrive) -> None:
    await emails.enqueue_many("emails", [{"to": "someone", "n": n} for n in range(40)])
    with pytest.raises(AssertionError) as caught:
        await assert_enqueued(emails, "emails", {"to": "someone", "n": 177})
    text = str(caught.value)
    assert '+ payload  {"n":17,"to":"someone"}' in text
    assert "40 items in the store:\n  … and 20 before these\n" in text
    assert text.count('"someone"') == 1 + 2 + 20


async def test_long_things_are_cut(emails: Redrive) -> None:
    await emails.enqueue("emails", {"text": "x" * 5000})
    with pytest.raises(AssertionError) as caught:
        await assert_enqueued(emails, "emails", {"text": "y" * 5000})
    assert max(map(len, str(caught.value).splitlines())) < 250


# -- misuse ------------------------------------------------------------------------------------------------------------


async def test_arguments_that_make_no_sense(emails: Redrive) -> None:
    with pytest.raises(ConfigError, match="count: -1 is not a number of items"):
        await assert_enqueued(emails, count=-1)
    with pytest.raises(ConfigError, match="containing: 'to' is not a mapping"):
        await assert_enqueued(emails, containing="to")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="app: 'emails' is not an app"):
        await assert_enqueued("emails")  # type: ignore[arg-type]


async def test_a_typo_in_a_queue_s_name_does_not_make_a_test_that_never_fails() -> None:
    app = Redrive("memory:", clock=FakeClock(), log=False)
    app.queue("emails")
    async with app:
        await assert_not_enqueued(app, "emails")
        await assert_dead(app, "emails", count=0)
        with pytest.raises(UnknownQueue, match="emails"):
            await assert_not_enqueued(app, "emials")
        with pytest.raises(UnknownQueue, match="emails"):
            await assert_dead(app, "emials", count=0)
        with pytest.raises(ConfigError, match="is not a number of items"):
            await assert_enqueued(app, "emails", count="2")  # type: ignore[arg-type]
