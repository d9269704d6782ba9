"""Bad input gets a typed error that names what to do, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Policy, Redrive, exponential
from redrive.errors import (
    AppClosed,
    BadDuration,
    BadStoreURL,
    ConfigError,
    Conflict,
    PayloadNotSerialisable,
    PayloadTooLarge,
    StoreCorrupt,
    UnknownQueue,
)
from tests.support.apps import Work, work

__all__ = ["work"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://localhost/x", "unknown scheme 'mysql'"),
        ("redrive.db", "it has no scheme"),
        ("", "it has no scheme"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite://host/file.db", "names no file"),
        ("sqlite:///x.db?durability=maybe", "store.durability: 'maybe' is not a durability"),
        ("sqlite:///x.db?speed=9", "unknown option 'speed'"),
        ("memory:somewhere", "memory takes no path"),
        ("sqlite:////tmp/c#d/a.db", "write %23"),
        ("sqlite:///x%00.db", "NUL"),
        ("sqlite:///:memory:", "use memory:"),
        ("sqlite:///x.db?durability=power-loss&durability=process-crash", "'durability' is there twice"),
        ("sqlite:///x.db?binding=mine", "store.binding: 'mine' is not a binding (use one of auto, stdlib, apsw)"),
        ("sqlite:///x.db?network=yes", "store.network: 'yes' is not a network"),
        ("sqlite:///x.db?ballast=big", "store.ballast"),
        ("sqlite:///x.db?compress_above=-1", "store.compress_above"),
    ],
)
def test_store_urls(url: str, says: str) -> None:
    with pytest.raises(BadStoreURL) as raised:
        Redrive(url)
    assert says in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize("url", ["sqlite://u:hunter2@h/db", "memory://u:hunter2@h", "sqlite://u:hunter2@h/:memory:"])
def test_a_password_in_a_url_of_the_wrong_kind_is_not_shown(url: str) -> None:
    with pytest.raises(BadStoreURL) as raised:
        Redrive(url)
    assert "hunter2" not in str(raised.value)


def test_a_password_in_libpq_s_own_words_is_not_shown() -> None:
    with pytest.raises(BadStoreURL, match="it has no scheme") as raised:
        Redrive("host=127.0.0.1 user=shop password=secret")
    assert "secret" not in str(raised.value)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(BadStoreURL) as raised:
        Redrive("mysql://ann:secret@localhost/x")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda app: app.handler("q", lease="soon"), "lease"),
        (lambda app: app.handler("q", lease="0s"), "lease"),
        (lambda app: app.handler("q", timeout="-1s"), "timeout"),
        (lambda app: app.handler("q", concurrency=0), "concurrency"),
        (lambda app: app.handler("q", concurrency=1.5), "concurrency"),
        (lambda app: app.handler("q", concurrency="3"), "concurrency"),
        (lambda app: app.handler("q", policy=exponential("1s")), "policy"),
        (lambda app: app.handler(5), "queue"),
        (lambda app: app.handler(""), "queue"),
        (lambda app: app.handler("two words"), "queue"),
        (lambda _: Policy(max_attempts=0), "max_attempts"),
        (lambda _: Policy(max_crashes=0), "max_crashes"),
        (lambda _: Policy(max_age="never"), "max_age"),
        (lambda _: exponential("1 lightyear"), "base"),
        (lambda _: Redrive("memory:", max_payload=0), "max_payload"),
    ],
)
def test_settings_name_their_field(make: Callable[[Redrive], Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make(Redrive("memory:"))
    assert field in str(raised.value)


def test_two_handlers_for_one_queue() -> None:
    app = Redrive("memory:")
    app.handler("q")(lambda: None)
    with pytest.raises(ConfigError, match="'q' has a handler already"):
        app.handler("q")(lambda: None)


async def test_enqueue_needs_an_open_app() -> None:
    app = Redrive("memory:")
    app.queue("q")
    with pytest.raises(AppClosed, match="is not open"):
        await app.enqueue("q")
    async with app:
        await app.enqueue("q")
    with pytest.raises(AppClosed, match="was closed; nothing was written"):
        await app.enqueue("q")
    with pytest.raises(AppClosed):
        await app.open()


async def test_unknown_queue_suggests_the_near_one(work: Work) -> None:
    with pytest.raises(UnknownQueue, match="did you mean 'emails'"):
        await work.app.enqueue("emials", {"to": "x"})
    with pytest.raises(UnknownQueue, match=r"app\.queue\('reports'\)"):
        await work.app.enqueue("reports")
    assert {row.queue: row.ready for row in (await work.app.tally()).queues} == {"emails": 0}


async def test_a_declared_queue_is_enough_for_a_producer(work: Work) -> None:
    work.app.queue("reports")
    item = await work.app.enqueue("reports", {"n": 1})
    assert (await work.app.get(item)).queue == "reports"


@pytest.mark.parametrize("payload", [object(), {"x": float("nan")}, {"x": {1, object()}}, "\ud800"])
async def test_payloads_that_json_cannot_say(work: Work, payload: object) -> None:
    with pytest.raises(PayloadNotSerialisable):
        await work.app.enqueue("emails", payload)
    with pytest.raises(PayloadNotSerialisable):
        await work.app.enqueue_many("emails", [{"to": "fine"}, payload])
    assert (await work.app.tally()).queues[0].ready == 0


async def test_a_payload_that_is_too_large(work: Work) -> None:
    with pytest.raises(PayloadTooLarge, match="limit is 1,048,576"):
        await work.app.enqueue("emails", b"x" * (1024 * 1024 + 1))


async def test_bytes_in_are_bytes_out(work: Work) -> None:
    body = bytes(range(256))
    item = await work.app.enqueue("emails", body)
    assert (await work.app.get(item)).payload == body


async def test_bad_durations(work: Work) -> None:
    for bad in ("", "5 parsecs", "-1s", float("nan"), "1h1h"):
        with pytest.raises(BadDuration, match="delay"):
            await work.app.enqueue("emails", {"to": "x"}, delay=bad)


async def test_own_ids_repeat_without_doubling(work: Work) -> None:
    first = await work.app.enqueue("emails", {"to": "x"}, id="order-7")
    again = await work.app.enqueue("emails", {"to": "x"}, id="order-7")
    assert (first, first.duplicate, again, again.duplicate) == ("order-7", False, "order-7", True)
    assert (await work.app.tally()).queues[0].ready == 1
    for queue, payload in (("emails", {"to": "y"}), (work.app.queue("other"), {"to": "x"})):
        with pytest.raises(Conflict, match="id 'order-7' is taken"):
            await work.app.enqueue(queue, payload, id="order-7")
    with pytest.raises(ConfigError, match="is not an item id"):
        await work.app.enqueue("emails", {"to": "x"}, id="two words")


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(b"these are my notes, not a database\n" * 200)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt):
        await Redrive(f"sqlite:///{path}").open()
    assert path.read_bytes() == before


async def test_running_without_or_with_the_wrong_handlers(work: Work) -> None:
    with pytest.raises(UnknownQueue, match="no queue 'emals'"):
        await work.app.run(queues=["emals"])
    async with Redrive("memory:") as empty:
        with pytest.raises(ConfigError, match="no handler is registered"):
            await empty.run()


async def test_our_own_ids_go_into_payloads_and_results(work: Work) -> None:
    parent = await work.app.enqueue("emails", {"to": "x"})
    child = await work.app.enqueue("emails", {"to": parent})
    assert (await work.app.get(child)).payload == f'{{"to":"{parent}"}}'.encode()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"store": None}, "store"),
        ({"store": 5}, "store"),
        ({"store": b"memory:"}, "store"),
        ({"store": "memory:", "clock": 5}, "clock"),
        ({"store": "memory:", "actor": 5}, "actor"),
        ({"store": "memory:", "actor": " "}, "actor"),
        ({"store": "memory:", "max_payload": "much"}, "max_payload"),
        ({"store": "memory:", "max_payload": 0}, "max_payload"),
    ],
)
def test_options_of_an_app(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Redrive(**options)
    assert raised.value.field == field
    assert raised.value.hint


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda app: app.run(queues=[], until_idle=True), "queues"),
        (lambda app: app.run(queues="emails", until_idle=True), "queues"),
        (lambda app: app.enqueue_many("emails", "abc"), "payloads"),
        (lambda app: app.enqueue_many("emails", b"abc"), "payloads"),
        (lambda app: app.enqueue_many("emails", {"to": "ada"}), "payloads"),
        (lambda app: app.enqueue_many("emails", None), "payloads"),
        (lambda app: app.letters.replay(None, reason="r"), "which"),
        (lambda app: app.letters.find(None), "filter"),
        (lambda app: app.cancel(None, reason="r"), "ids"),
        (lambda app: app.prune("", reason="r"), "filter"),
        (lambda app: app.prune(" ", reason="r"), "filter"),
        (lambda app: app.prune("state:done", reason="r", limit=0), "limit"),
        (lambda app: app.prune("state:done", reason="r", limit=-1), "limit"),
        (lambda app: app.backup(5), "path"),
    ],
)
async def test_values_that_name_nothing(work: Work, call: Callable[[Redrive], Any], field: str) -> None:
    done = await work.app.enqueue("emails", {"to": "ada"})
    with pytest.raises(ConfigError) as raised:
        await call(work.app)
    assert raised.value.field == field
    assert raised.value.hint
    (row,) = (await work.app.tally()).queues
    assert (row.ready, (await work.app.get(done)).id) == (1, done)


def test_a_handler_is_a_function() -> None:
    with pytest.raises(ConfigError, match="handler: 5 is not a function"):
        Redrive("memory:").handler("q")(5)  # type: ignore[type-var]
