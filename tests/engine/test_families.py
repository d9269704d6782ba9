"""One handler for a family of queues: members that come and go, each with a policy, a breaker and limits of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from redrive import Item, Policy, Redrive, constant, never
from redrive.core.item import NewItem
from redrive.core.meters import Rate
from redrive.core.states import State
from redrive.core.verbs import QueueChange, WorkerFacts
from redrive.errors import ConfigError, QueueFull, UnknownQueue
from tests.support.lab import Lab


def recording(app: Redrive, *, fails: str = "", policy: Policy | None = None, **settings: object) -> list[str]:
    ran: list[str] = []
    if settings:
        app.queue("hook:*", **settings)  # type: ignore[arg-type] # any of QueueOptions

    @app.handler("hook:*", policy=policy or Policy(never()))
    async def deliver(item: Item) -> None:
        ran.append(item.queue)
        if fails and item.queue.endswith(fails):
            raise ConnectionError("no")

    return ran


async def _nothing() -> None:
    pass


async def test_one_handler_serves_all_members(lab: Lab) -> None:
    app = await lab.app()
    ran = recording(app)
    for name in ("hook:a", "hook:b"):
        await app.enqueue(name, None)
    await lab.drain(app)
    await app.enqueue("hook:c", None)
    await lab.drain(app)
    assert sorted(ran) == ["hook:a", "hook:b", "hook:c"]


async def test_policies_are_those_of_item_member_family_and_handler(lab: Lab) -> None:
    app = await lab.app()
    for word, attempts in (("two", 2), ("three", 3), ("four", 4)):
        app.policy(word, Policy(constant("1s"), attempts))
    recording(app, fails="x")
    plain = await app.enqueue("hook:1x", None)
    await lab.drain(app)
    await lab.store.configure("hook:*", QueueChange(policy="two"))
    familys = await app.enqueue("hook:2x", None)
    await lab.store.configure("hook:3x", QueueChange(policy="three"))
    members = await app.enqueue("hook:3x", None)
    own = await app.enqueue("hook:3x", None, policy="four")
    await lab.drain(app)
    assert [(await lab.item(each)).errors for each in (plain, familys, members, own)] == [1, 2, 3, 4]


async def test_each_member_has_a_breaker_of_its_own(lab: Lab) -> None:
    app = await lab.app()
    ran = recording(app, fails="bad", policy=Policy(constant("1h"), 9), gate="*")
    app.gate("hook:*", consecutive=3)
    await app.enqueue_many("hook:bad", [None] * 10)
    await app.enqueue_many("hook:good", [None] * 10)
    async with lab.working(app):
        await lab.pass_time("5s")
    assert ran.count("hook:good") == 10
    gates = {view.name: view.state for view in await app.gates()}
    assert gates["hook:bad"] == "open"
    assert gates.get("hook:good", "closed") == "closed"


async def test_idle_is_when_no_member_has_anything_to_do(lab: Lab) -> None:
    app = await lab.app()
    ran = recording(app)
    await app.enqueue("hook:a", None)
    await app.enqueue("hook:b", None)
    await lab.store.configure("hook:b", QueueChange(paused=True))
    await lab.drain(app)
    assert ran == ["hook:a"]


async def test_idle_does_not_wait_for_other_kinds_of_members(lab: Lab) -> None:
    app = await lab.app()
    ran: list[str] = []

    @app.handler("hook:*", kind="refund")
    async def refund(item: Item) -> None:
        ran.append(item.queue)

    for name in ("hook:a", "hook:b"):
        await app.enqueue(name, kind="other")
    await app.enqueue("hook:b", kind="refund", delay="5s")
    await lab.drain(app, limit="1m")
    assert ran == ["hook:b"]


async def test_a_worker_without_the_kinds_that_wait_looks_for_new_work(lab: Lab) -> None:
    app = await lab.app()
    app.handler("hook:*", kind="refund")(_nothing)
    await app.enqueue("hook:a", kind="other")
    async with lab.working(app):
        await lab.pass_time("10s")
        late = await app.enqueue("hook:a", kind="refund")
        await lab.pass_time("1s")
        assert (await lab.item(late)).state is State.DONE


async def test_a_worker_goes_on_behind_many_paused_members_without_a_pause(lab: Lab) -> None:
    app = await lab.app()
    ran = recording(app)
    names = [f"hook:{number}" for number in range(1_000)]
    await lab.store.configure("hook:*", QueueChange())
    await lab.store.put([NewItem(name, name, b"null") for name in names])
    await asyncio.gather(*(lab.store.configure(name, QueueChange(paused=True)) for name in names))
    await app.enqueue("hook:live", None)
    before = lab.clock.monotonic()
    async with lab.working(app):
        assert (ran, lab.clock.monotonic()) == (["hook:live"], before)


async def test_what_a_lost_worker_had_of_a_member_comes_back(lab: Lab) -> None:
    app = await lab.app()
    ran = recording(app, policy=Policy(constant("1s"), 3))
    item_id = await app.enqueue("hook:a", None)
    assert len(await lab.ghost("hook:*")) == 1
    await lab.drain(app)
    assert ran == ["hook:a"]
    assert (await lab.item(item_id)).state is State.DONE


async def test_capacity_of_the_family_refuses(lab: Lab) -> None:
    app = await lab.app()
    recording(app, capacity=2)
    await app.enqueue_many("hook:a", [None, None])
    with pytest.raises(QueueFull, match=r"family 'hook:\*' holds 2 of at most 2; 1 item of 'hook:b' refused"):
        await app.enqueue("hook:b", None)


async def test_what_the_store_has_once_is_read_without_a_row_for_each_member(
    memory_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await memory_lab.app()
    recording(app, gate="api")
    app.gate("api")
    app.schedule("tick", "hook:a", every="1m")
    await app.enqueue("hook:a", None)
    memory_lab.refuse_members(monkeypatch)
    async with memory_lab.working(app):
        await memory_lab.pass_time("5m")
    assert [view.name for view in await app.gates()] == ["api"]
    assert [view.name for view in await app.schedules.list()] == ["tick"]
    assert (await app.letters.count(), await app.letters.causes()) == (0, ())
    assert (await app.tally(members=["hook:a"])).row("hook:a").done > 1


async def test_what_no_queue_can_have_is_refused_where_it_is_declared(lab: Lab) -> None:
    app = await lab.app()
    app.queue("late:a", retry_share=0.5)
    wrong: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: app.queue("*"), "'\\*' is not a queue name"),
        (lambda: app.queue("safe:*", encrypt=True), "a family is not encrypted"),
        (lambda: app.queue("plain", gate="*"), "'\\*' is not a name"),
        (lambda: app.queue("late:*"), "'late:a' is a member of a family"),
    )
    for declare, what in wrong:
        with pytest.raises(ConfigError, match=what):
            declare()
    app.handler("late:*")(lambda: None)  # checked when the declarations are written, before any of them is
    with pytest.raises(ConfigError, match="has no share of its own"):
        await app.enqueue("late:a")
    assert {row.queue for row in (await lab.store.tally()).queues} == set()


async def test_names_that_are_no_members_are_refused(lab: Lab) -> None:
    app = await lab.app()
    recording(app)
    with pytest.raises(UnknownQueue):
        await app.enqueue("hooks:a", None)
    with pytest.raises(ConfigError, match="is a pattern"):
        await app.enqueue("hook:*", None)
    await app.configure("hook:*", capacity=1, reason="x")
    await app.enqueue("hook:a")
    with pytest.raises(ConfigError, match="'hook: b' is not a queue name"):
        await app.enqueue("hook: b")
    with pytest.raises(ConfigError, match="is not the pattern of a family"):
        app.handler("a:b:*")
    with pytest.raises(ConfigError, match="are of one family"):
        app.handler("hook:a")(lambda: None)


async def test_a_member_is_followed_up_to(lab: Lab) -> None:
    app = await lab.app()
    ran = recording(app)

    @app.handler("source")
    async def source() -> None:
        app.follow_up("hook:a", {"n": 1})
        with pytest.raises(ConfigError, match="a pattern, not a queue"):
            app.follow_up("hook:*")
        with pytest.raises(ConfigError, match="not declared here"):
            app.follow_up("other:a")

    await app.enqueue("source")
    await lab.drain(app)
    assert ran == ["hook:a"]


async def test_an_item_of_a_member_is_run_by_the_handler_of_the_family(lab: Lab) -> None:
    app = await lab.app()
    ran = recording(app)
    late, other = await app.enqueue("hook:a", delay="1h"), await app.enqueue("hook:b")
    assert (await lab.drive(app.run_item(late))).state is State.DONE
    assert ran == ["hook:a"]
    assert (await app.get(other)).state is State.READY


async def test_a_worker_of_a_member_that_does_not_exist_makes_none(lab: Lab) -> None:
    app = await lab.app()
    ran = recording(app)
    await lab.drive(app.run(queues=["hook:zzz"], until_idle=True))
    assert [row.queue for row in (await app.tally()).queues] == []
    await app.enqueue("hook:zzz")
    await lab.drive(app.run(queues=["hook:zzz"], until_idle=True))
    assert ran == ["hook:zzz"]


async def test_a_worker_can_serve_one_member_alone(lab: Lab) -> None:
    """With one handler for each of several kinds, as with one for all."""
    app = await lab.app()
    ran: list[str] = []
    for kind in ("paid", "sent"):

        @app.handler("hook:*", kind=kind)
        async def deliver(item: Item) -> None:
            ran.append(f"{item.queue} {item.kind}")

    for queue in ("hook:a", "hook:b"):
        await app.enqueue(queue, kind="paid")
        await app.enqueue(queue, kind="sent")
    await lab.drive(app.run(queues=["hook:a"], until_idle=True))
    assert sorted(ran) == ["hook:a paid", "hook:a sent"]
    await lab.drive(app.run(queues=["hook:a", "hook:*"], until_idle=True))
    assert len(ran) == 4
    with pytest.raises(UnknownQueue):
        await app.run(queues=["hooks:a"], until_idle=True)


async def test_a_family_that_is_not_known_is_not_paused(lab: Lab) -> None:
    app = await lab.app()
    recording(app)
    await app.enqueue("hook:a")
    with pytest.raises(UnknownQueue, match=r"did you mean 'hook:\*'"):
        await app.pause("hok:*", reason="a slip")
    await lab.store.configure("late:a", QueueChange())
    await app.pause("late:*", reason="it has a member")
    assert [row.queue for row in (await app.tally()).families] == ["late:*"]


# --- what operators see ---


async def test_a_waiting_member_has_a_worker(lab: Lab) -> None:
    app = await lab.app()
    recording(app)
    async with lab.working(app):
        await app.pause("hook:a", reason="the test")
        waits = await app.enqueue("hook:a")
        await lab.pass_time("1s")
        assert [why.kind for why in (await app.explain(waits)).why] == ["paused"]


async def test_a_kind_of_a_member_that_no_worker_has_is_told(lab: Lab) -> None:
    app = await lab.app()
    app.handler("hook:*", kind="paid")(_nothing)
    async with lab.working(app):
        other = await app.enqueue("hook:a", kind="other")
        quiet = await app.enqueue("hook:b", kind="quiet")
        await app.pause("hook:b", reason="the test")
        await lab.pass_time("20s")
        assert "no worker for kind 'other'" in (await app.explain(other)).summary
        assert "no_worker" in [why.kind for why in (await app.explain(quiet)).why]
        (row,) = (await app.overview()).queues
        assert (row.name, row.unserved, row.unattended) == ("hook:*", ("other",), False)
        assert row.oldest == 20_000
        shown = {each.name: each.unserved for each in (await app.overview(members=True)).queues}
        assert shown == {"hook:a": ("other",), "hook:b": ("quiet",)}
        problems = {problem.kind: problem.what for problem in (await app.health(oldest="10s")).problems}
        assert problems["no_worker_for_kind"] == "hook:*"
        assert problems["too_old"] == "hook:*"


async def test_a_family_of_which_only_some_members_are_served_is_unattended(lab: Lab) -> None:
    app = await lab.app()
    recording(app)
    await lab.store.beat("w1", WorkerFacts(("hook:a",)), 3_600_000)
    await lab.store.configure("hook:*", QueueChange())
    await app.enqueue("hook:a")
    assert [(row.workers, row.unattended) for row in (await app.overview()).queues] == [(1, False)]
    await app.enqueue("hook:b")
    assert [(row.workers, row.unattended) for row in (await app.overview()).queues] == [(1, True)]
    assert [problem.kind for problem in (await app.health()).problems] == ["no_worker"]


async def test_explain_names_the_family_that_keeps_an_item(lab: Lab) -> None:
    app = await lab.app()
    recording(app)
    await lab.store.beat("w1", WorkerFacts(("hook:*",)), 3_600_000)
    await lab.store.configure("hook:*", QueueChange(max_running=1))
    await app.enqueue("hook:a")
    assert len(await lab.ghost("hook:*", ttl="1h")) == 1
    item = await app.enqueue("hook:b")
    told = await app.explain(item)
    assert told.summary == "1 of family hook:* run, and 1 may at once"
    assert told.advice == ("redrive queue set 'hook:*' --max-running N --reason …",)
    await lab.store.configure("hook:*", QueueChange(max_running=None, rate=Rate(1, 3_600_000)))
    await lab.ghost("hook:*", ttl="1h")
    told = await app.explain(await app.enqueue("hook:b"))
    assert [why.kind for why in told.why] == ["rate"]
    await app.pause("hook:*", reason="all stop")
    told = await app.explain(await app.enqueue("hook:c"))
    assert told.summary.startswith("family hook:* is paused by ")
    assert told.next == "it runs when somebody resumes the family"
    assert told.advice == ("redrive queue resume 'hook:*'",)


async def test_a_member_has_no_retry_share_of_its_own(lab: Lab) -> None:
    app = await lab.app()
    recording(app, retry_share=0.2)
    await app.enqueue("hook:a")
    with pytest.raises(ConfigError, match="has no share of its own") as refused:
        await app.configure("hook:a", retry_share=0.5, reason="fresh first")
    assert refused.value.field == "retry_share"
    with pytest.raises(ConfigError, match="has no share of its own"):
        app.queue("hook:b", retry_share=0.5)
    assert (await lab.store.settings("hook:a")).retry_share == 0.2


async def test_what_is_said_for_a_member_is_its_own_until_it_is_none(lab: Lab) -> None:
    app = await lab.app()
    recording(app, order="skip", keep_trash="1d")
    await app.configure("hook:a", order="block", keep_trash="30d", reason="the customer asked")
    held = await lab.store.settings("hook:a")
    assert (held.order, held.keep_trash) == ("block", 30 * 86_400_000)
    await app.configure("hook:a", order=None, keep_trash=None, reason="as the others")
    held = await lab.store.settings("hook:a")
    assert (held.order, held.keep_trash) == ("skip", 86_400_000)
    with pytest.raises(ConfigError):
        await app.configure("hook:*", order=None, reason="a queue has one")
