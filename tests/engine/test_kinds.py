"""Handlers by kind: which one runs an item, what they share, and what is said of kinds that no worker has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from redrive import Item, Policy, Redrive, constant, never
from redrive.core.item import Terms
from redrive.core.states import State
from redrive.core.verbs import LeaseRequest, Want
from redrive.errors import ConfigError
from redrive.office.health import health
from redrive.office.overview import overview
from tests.support.lab import Lab

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def _nothing() -> None:
    return


async def test_each_kind_is_run_by_its_handler(lab: Lab) -> None:
    app = await lab.app()
    ran: list[tuple[str, str]] = []

    @app.handler("orders")
    async def any_kind(item: Item) -> None:
        ran.append(("any", item.kind))

    @app.handler("orders", kind="refund")
    async def refund(item: Item) -> None:
        ran.append(("refund", item.kind))

    @app.handler("orders", kind="import")
    def load(item: Item) -> None:
        ran.append(("import", item.kind))

    for kind in (None, "refund", "other", "import"):
        await app.enqueue("orders", kind=kind)
    await lab.drain(app)
    assert sorted(ran) == [("any", ""), ("any", "other"), ("import", "import"), ("refund", "refund")]


async def test_what_no_handler_takes_stays_ready_and_is_told(lab: Lab) -> None:
    app = await lab.app()
    app.handler("orders", kind="refund")(_nothing)
    app.handler("orders", kind="order")(_nothing)
    plain, other, done = [await app.enqueue("orders", kind=kind) for kind in (None, "other", "refund")]
    async with lab.working(app):
        await lab.pass_time("10s")
        asked = lab.clock.verbs
        await lab.pass_time("20s")
        assert lab.clock.verbs - asked < 100, "the worker asks again and again for what it does not take"
        assert [(await lab.item(each)).state for each in (plain, other, done)] == [
            State.READY,
            State.READY,
            State.DONE,
        ]
        told = await app.explain(other)
        assert told.why[0].kind == "no_worker"
        assert "no worker for kind 'other'" in told.summary
        assert "items without a kind" in (await app.explain(plain)).summary
        (row,) = (await overview(lab.store)).queues
        assert row.unserved == ("", "other")
        (problem,) = (await health(lab.store)).problems
        assert problem.kind == "no_worker_for_kind"
        assert "no worker for kind none, 'other'" in problem.text
        (beat,) = await lab.store.workers()
        assert beat.facts.kinds_of("orders") == ("order", "refund")
    late = await lab.app()
    late.handler("orders")(_nothing)
    async with lab.working(late):
        await lab.pass_time("1s")
        assert (await overview(lab.store)).queues[0].unserved == ()
    assert (await lab.item(other)).state is State.DONE


async def test_until_idle_does_not_wait_for_other_kinds(lab: Lab) -> None:
    app = await lab.app()
    app.handler("orders", kind="refund")(_nothing)
    await app.enqueue("orders", kind="other")
    late = await app.enqueue("orders", kind="refund", delay="5s")
    await lab.drain(app, limit="1m")
    assert (await lab.item(late)).state is State.DONE


async def test_policy_and_timeout_differ_by_kind(lab: Lab) -> None:
    app = await lab.app()
    began: dict[str, int] = {}

    @app.handler("orders", kind="a", policy=Policy(never()))
    async def once(item: Item) -> None:
        raise ValueError("no")

    @app.handler("orders", kind="b", policy=Policy(constant("1s"), max_attempts=3))
    async def thrice(item: Item) -> None:
        raise ValueError("no")

    @app.handler("orders", kind="c", policy=Policy(never()), timeout="2s")
    async def slow(item: Item) -> None:
        began[item.id] = lab.clock.monotonic()
        await lab.clock.sleep(3_600_000)

    a, b, c = [await app.enqueue("orders", kind=kind) for kind in "abc"]
    told = (await app.explain(b)).policy
    assert told != (await app.explain(a)).policy
    assert "3" in told
    await lab.drain(app)
    assert [len((await lab.history(each)).attempts) for each in (a, b, c)] == [1, 3, 1]
    letter = (await lab.item(c)).letter
    assert letter is not None
    assert "timeout" in letter.failure.text


async def test_a_lost_item_of_another_kind_comes_back(lab: Lab) -> None:
    """A worker that takes only some kinds still reclaims for all."""
    app = await lab.app()
    app.handler("orders", kind="refund")(_nothing)
    other = await app.enqueue("orders", kind="other")
    want = Want("orders", 1, 1_000, max_crashes=3)
    await lab.store.lease(LeaseRequest("ghost", (want,), "nonce"))
    async with lab.working(app):
        await lab.pass_time("20s")
    item = await lab.item(other)
    assert (item.state, item.crashes) == (State.READY, 1)


async def test_the_release_is_on_items_attempts_and_beats(lab: Lab) -> None:
    app = await lab.app(release="1.4.2")

    @app.handler("orders", policy=Policy(never()))
    async def fail() -> None:
        raise ValueError("no")

    @app.handler("first")
    async def first() -> None:
        app.follow_up("orders", kind="refund", headers={"a": "b"})

    app.schedule("nightly", "orders", every="10s", kind="tick", schema=2, headers={"by": "cron"})
    await app.enqueue("first")
    dead = await app.enqueue("orders")
    async with lab.working(app):
        await lab.pass_time("11s")
        (beat,) = await lab.store.workers()
        assert beat.facts.release == "1.4.2"
    items = (await app.find("queue:orders release:1.4.2")).items
    assert sorted((item.kind, item.headers.get("a"), item.schema) for item in items) == [
        ("", None, 0),
        ("refund", "b", 0),
        ("tick", None, 2),
    ]
    (attempt,) = (await lab.history(dead)).attempts
    assert attempt.release == "1.4.2"
    assert len((await app.find("kind:tick")).items) == 1


async def test_what_describes_an_item_reaches_its_handler(lab: Lab) -> None:
    app = await lab.app()
    seen: list[Item] = []

    @app.handler("orders")
    async def see(item: Item) -> None:
        seen.append(item)

    await app.enqueue("orders", schema=3, trace=TRACE, headers={"tenant": "acme", "empty": ""})
    await app.enqueue_many("orders", [1], kind="refund", schema=1, order_key=lambda _: "k", headers={"x": "y"})
    await lab.drain(app)
    first, second = seen
    assert (first.schema, first.trace, first.headers) == (3, TRACE, {"tenant": "acme", "empty": ""})
    assert first.terms == Terms(schema=3, trace=TRACE, headers=(("tenant", "acme"), ("empty", "")))
    assert (second.kind, second.schema, second.headers) == ("refund", 1, {"x": "y"})
    assert second.terms is not None
    assert second.terms.order_key == "k"


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("kind", {"kind": ""}),
        ("kind", {"kind": "a b"}),
        ("kind", {"kind": 7}),
        ("kind", {"kind": "k" * 129}),
        ("schema", {"schema": -1}),
        ("schema", {"schema": True}),
        ("schema", {"schema": "1"}),
        ("trace", {"trace": 1}),
        ("trace", {"trace": f"{TRACE}\n"}),
        ("trace", {"trace": TRACE.upper()}),
        ("trace", {"trace": f"{TRACE}-more"}),
        ("trace", {"trace": f"ff{TRACE[2:]}"}),
        ("trace", {"trace": f"01{TRACE[2:]}-{'x' * 513}"}),
        ("trace", {"trace": f"00-{'0' * 32}-b7ad6b7169203331-01"}),
        ("trace", {"trace": f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01"}),
        ("headers", {"headers": [("a", "b")]}),
        ("headers", {"headers": {"a": 1}}),
        ("headers", {"headers": {1: "a"}}),
        ("headers", {"headers": {"": "a"}}),
        ("headers", {"headers": {str(number): "" for number in range(65)}}),
        ("headers", {"headers": {"a": "x" * 16_384}}),
    ],
)
async def test_what_is_wrong_is_refused_by_name(memory_lab: Lab, field: str, asked: Mapping[str, Any]) -> None:
    app = await memory_lab.app()
    app.handler("q")(_nothing)
    for enqueue in (lambda: app.enqueue("q", **asked), lambda: app.enqueue_many("q", [1], **asked)):
        with pytest.raises(ConfigError) as refused:
            await enqueue()
        assert refused.value.field == field
    assert (await app.find("queue:q")).items == ()


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        ("lease", {"lease": "10s"}, {"lease": "1m"}),
        ("concurrency", {"concurrency": 5}, {"concurrency": 7}),
        ("max_crashes", {"policy": Policy(max_crashes=5)}, {"policy": Policy(max_crashes=7)}),
    ],
)
async def test_what_is_the_queues_is_not_contradicted(
    memory_lab: Lab, field: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> None:
    app = await memory_lab.app()
    app.handler("q", kind="a", **first)(_nothing)
    app.handler("q")(_nothing)
    with pytest.raises(ConfigError) as refused:
        app.handler("q", kind="b", **second)(_nothing)
    said = str(refused.value)
    assert refused.value.field == field
    assert "kind 'a'" in said
    assert "kind 'b'" in said
    app.handler("q", kind="b", **first)(_nothing)


async def test_what_one_handler_gives_is_the_queues(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.handler("q", kind="a", lease="7s", concurrency=3, policy=Policy(never(), max_crashes=9))(_nothing)
    app.handler("q", kind="b", policy=Policy(max_attempts=4))(lambda: None)
    handler = app._parts.registry.handlers["q"]  # noqa: SLF001 - what a worker is given
    each = [handler.for_kind(kind) for kind in "ab"]
    assert {(one.lease, one.concurrency, one.policy.max_crashes) for one in each} == {(7_000, 3, 9)}
    assert [one.policy.max_attempts for one in each] == [25, 4]
    assert (handler.kinds, handler.all_async) == (("a", "b"), False)


async def test_two_handlers_of_one_kind_are_refused(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.handler("q", kind="a")(_nothing)
    with pytest.raises(ConfigError, match="has a handler for kind 'a' already"):
        app.handler("q", kind="a")(_nothing)
    with pytest.raises(ConfigError, match="is not a kind"):
        app.handler("q", kind="a b")


@pytest.mark.parametrize("release", ["", 7, "x" * 129, "a\nb"])
def test_a_release_that_cannot_be_shown_is_refused(release: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        Redrive("memory:", release=release)
    assert refused.value.field == "release"
