"""Code declares, operators override, and a restart undoes neither."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from redrive import Policy, Rate, Redrive
from redrive.core.decide import Charge, ToDead
from redrive.core.item import Attempt, Ending, Failure
from redrive.core.verbs import QueueChange, QueueSettings, Settlement
from redrive.errors import BadSchedule, ConfigError, QueueFull, UnknownQueue
from redrive.office.policies import declared_policies
from redrive.testing import sandbox
from redrive.testing.faults import Fault, FaultyStore
from tests.support.lab import Lab, Shared

FAILURE = Failure("ValueError", "no", "data", "default:data", "cause")


async def _nothing() -> None:
    return


def release(lab: Lab, declare: Callable[[Redrive], object]) -> Redrive:
    """A program with this code, not yet started."""
    app = Redrive(Shared(lab.store, lab.clock), clock=lab.clock, log=False, actor="release")
    lab.apps.append(app)
    declare(app)
    return app


async def started(lab: Lab, **settings: Any) -> Redrive:
    return await release(lab, lambda app: app.queue("q", **settings)).open()


async def test_all_that_is_declared_is_in_force_when_the_app_is_open(lab: Lab) -> None:
    def declare(app: Redrive) -> None:
        app.policy("gentle", Policy())
        app.queue(
            "q",
            max_running=10,
            max_per_key=2,
            rate="100/min",
            capacity=1000,
            order="park",
            policy="gentle",
            gate="smtp",
            keep="7d",
            keep_results="1h",
            retry_share=0.25,
            keep_trash="45d",
        )

    await release(lab, declare).open()
    assert await lab.store.settings("q") == QueueSettings(
        max_running=10,
        max_per_key=2,
        rate=Rate(100, 60_000),
        capacity=1000,
        order="park",
        policy="gentle",
        gate="smtp",
        keep=7 * 86_400_000,
        keep_results=3_600_000,
        retry_share=0.25,
        keep_trash=45 * 86_400_000,
    )


async def test_a_restart_leaves_an_operator_s_change_alone(lab: Lab) -> None:
    app = await started(lab, max_running=10, rate="5/s")
    await app.configure("q", reason="slow day", max_running=2)
    await started(lab, max_running=10, rate="5/s")
    settings = await lab.store.settings("q")
    assert (settings.max_running, settings.rate) == (2, Rate(5))


async def test_a_release_with_another_value_wins_for_that_value_only(lab: Lab) -> None:
    app = await started(lab, max_running=10, rate="5/s", keep="1d")
    await app.configure("q", reason="slow day", max_running=2, rate="1/s")
    await started(lab, max_running=20, rate="5/s", keep="1d")
    settings = await lab.store.settings("q")
    assert (settings.max_running, settings.rate, settings.keep) == (20, Rate(1), 86_400_000)


async def test_what_the_code_no_longer_says_stays_and_none_lifts_it(lab: Lab) -> None:
    await started(lab, max_running=10)
    await started(lab)
    assert (await lab.store.settings("q")).max_running == 10
    await started(lab, max_running=None)
    assert (await lab.store.settings("q")).max_running is None


async def test_two_apps_may_declare_different_things_of_one_queue(lab: Lab) -> None:
    await started(lab, capacity=100)
    await started(lab, max_running=3)
    settings = await lab.store.settings("q")
    assert (settings.capacity, settings.max_running) == (100, 3)


async def test_a_fleet_that_starts_at_once_declares_in_peace(lab: Lab) -> None:
    fleet = [
        release(lab, lambda app: (app.queue("q", max_running=7, rate="9/s"), app.route("r", capacity=3), app.gate("g")))
        for _ in range(8)
    ]
    await lab.drive(asyncio.gather(*(app.open() for app in fleet)))
    settings = await lab.store.settings("q")
    assert (settings.max_running, settings.rate) == (7, Rate(9))
    assert [(document.key, document.version) for document in await lab.store.documents("declared")] == [
        ("queue:q", 1),
        ("route:r", 1),
    ]


async def test_the_names_of_policies_are_left_in_the_store_once(lab: Lab) -> None:
    def declare(app: Redrive) -> None:
        app.policy("gentle", Policy())
        app.policy("harsh", Policy(max_attempts=1))

    fleet = [release(lab, declare) for _ in range(4)]
    await lab.drive(asyncio.gather(*(app.open() for app in fleet)))
    await release(lab, declare).open()
    later = await release(lab, lambda app: (app.policy("late", Policy()), app.queue("q"))).open()
    assert await declared_policies(lab.store) == ("gentle", "harsh", "late")
    before = [(document.key, document.version) for document in await lab.store.documents("policy")]
    later.policy("latest", Policy())
    await later.enqueue("q")
    after = {document.key: document.version for document in await lab.store.documents("policy")}
    assert after == dict(before) | {"latest": 1}


async def test_an_app_that_could_not_be_opened_can_be_opened_later(lab: Lab) -> None:
    app = release(lab, lambda app: app.queue("q", policy="gentle"))
    with pytest.raises(ConfigError, match="no policy 'gentle'"):
        await app.open()
    app.policy("gentle", Policy())
    await app.open()
    assert (await lab.store.settings("q")).policy == "gentle"


async def test_whoever_dies_between_the_setting_and_the_note_says_it_again(lab: Lab) -> None:
    faulty = FaultyStore(Shared(lab.store, lab.clock))
    app = Redrive(faulty, clock=lab.clock, log=False)
    app.queue("q", max_running=4)
    faulty.next("write_documents", Fault.UNAVAILABLE)
    with pytest.raises(Exception, match="write_documents"):
        await app.open()
    await lab.store.configure("q", QueueChange(max_running=None))
    await started(lab, max_running=4)
    assert (await lab.store.settings("q")).max_running == 4


async def test_a_capacity_below_the_fill_does_not_keep_the_workers_from_starting(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    app = await started(lab)
    await app.enqueue_many("q", range(5))
    with caplog.at_level(logging.WARNING, "redrive"):
        await started(lab, capacity=2, max_running=1)
    assert "the declared capacity of queue 'q' is left as it was" in caplog.text
    settings = await lab.store.settings("q")
    assert (settings.capacity, settings.max_running) == (None, 1)
    app.handler("q")(_nothing_of)
    await lab.drain(app)
    await started(lab, capacity=2, max_running=1)
    assert (await lab.store.settings("q")).capacity == 2


async def _nothing_of(number: int) -> None:
    assert number >= 0


async def test_what_is_declared_on_an_open_app_is_in_force_before_the_next_item(lab: Lab) -> None:
    app = await lab.app()
    app.queue("q", capacity=1)
    await app.enqueue("q")
    assert (await lab.store.settings("q")).capacity == 1
    app.handler("w", gate="smtp")(_nothing)
    await lab.drain(app)
    assert (await lab.store.settings("w")).gate == "smtp"
    assert [gate.name for gate in await app.gates()] == ["smtp"]


async def test_a_route_is_declared_alike(lab: Lab) -> None:
    app = await release(lab, lambda app: app.route("network", capacity=3)).open()
    assert [(row.route, row.capacity) for row in (await app.tally()).routes] == [("network", 3)]
    await app.configure_route("network", capacity=9, reason="more room")
    await release(lab, lambda app: app.route("network", capacity=3)).open()
    assert [(row.route, row.capacity) for row in (await app.tally()).routes] == [("network", 9)]
    await release(lab, lambda app: app.route("network", capacity=4)).open()
    assert [(row.route, row.capacity) for row in (await app.tally()).routes] == [("network", 4)]


async def test_a_route_with_more_letters_than_declared_is_left_as_it_was(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    app = await lab.app()
    app.queue("q")
    await app.enqueue_many("q", [1, 2])
    for item in await lab.ghost("q"):
        dead = ToDead("rule", Charge.ERROR, FAILURE, "network")
        attempt = Attempt(item.deliveries, item.attempt, "ghost", 0, 0, Ending.DEAD, FAILURE)
        await lab.store.settle([Settlement(item.id, item.deliveries, dead, attempt)])
    with caplog.at_level(logging.WARNING, "redrive"):
        await release(lab, lambda app: app.route("network", capacity=1)).open()
    assert "route 'network'" in caplog.text
    assert [(row.route, row.capacity) for row in (await app.tally()).routes] == [("network", None)]


async def test_an_unknown_policy_is_said_when_the_app_opens_and_nothing_is_written(lab: Lab) -> None:
    def declare(app: Redrive) -> None:
        app.policy("gentle", Policy())
        app.queue("q", policy="gentel", max_running=3)

    with pytest.raises(ConfigError, match=r"did you mean 'gentle'\?") as raised:
        await release(lab, declare).open()
    assert raised.value.field == "policy"
    assert (await lab.store.settings("q")) == QueueSettings()


async def test_schedules_are_declared_and_their_queues_must_be_known(lab: Lab) -> None:
    def declare(app: Redrive) -> None:
        app.queue("reports")
        app.schedule("nightly", "reports", {"kind": "daily"}, cron="0 2 * * *", timezone="Europe/Berlin")

    # In a thread, since it reads the zone's file.
    app = await (await asyncio.to_thread(release, lab, declare)).open()
    (view,) = await app.schedules.list()
    assert (view.name, view.queue, view.paused) == ("nightly", "reports", False)
    with pytest.raises(UnknownQueue, match="did you mean 'reports'"):
        await release(lab, lambda app: app.schedule("hourly", "report", every="1h")).open()


@pytest.mark.parametrize(
    ("declare", "field"),
    [
        (lambda app: app.queue("q", max_running=0), "max_running"),
        (lambda app: app.queue("q", max_running=True), "max_running"),
        (lambda app: app.queue("q", max_running="3"), "max_running"),
        (lambda app: app.queue("q", max_per_key=-1), "max_per_key"),
        (lambda app: app.queue("q", capacity=0), "capacity"),
        (lambda app: app.queue("q", capacity=1.5), "capacity"),
        (lambda app: app.queue("q", rate="quick"), "rate"),
        (lambda app: app.queue("q", rate=Rate(0)), "rate"),
        (lambda app: app.queue("q", order="blok"), "order"),
        (lambda app: app.queue("q", order=None), "order"),
        (lambda app: app.queue("q", policy=5), "policy"),
        (lambda app: app.queue("q", gate="a b"), "gate"),
        (lambda app: app.queue("q", keep="-1d"), "keep"),
        (lambda app: app.queue("q", keep_results="long"), "keep_results"),
        (lambda app: app.queue("q", keep_trash=None), "keep_trash"),
        (lambda app: app.queue("q", retry_share=0), "retry_share"),
        (lambda app: app.queue("q", retry_share=1.1), "retry_share"),
        (lambda app: app.queue("q", retry_share=float("nan")), "retry_share"),
        (lambda app: app.queue("q", max_runing=3), "max_runing"),
        (lambda app: (app.queue("q", max_running=3), app.queue("q", max_running=4)), "max_running"),
        (lambda app: app.route("", capacity=3), "route"),
        (lambda app: app.route("r", capacity=0), "capacity"),
        (lambda app: app.policy("", Policy()), "policy"),
        (lambda app: app.policy("p", 3), "policy"),
        (lambda app: (app.policy("p", Policy()), app.policy("p", Policy(max_attempts=2))), "policy"),
        (lambda app: app.gate("g", failure_rate=2), "failure_rate"),
        (lambda app: app.gate("g", failurerate=0.5), "failurerate"),
        (lambda app: (app.gate("g"), app.gate("g", probes=3)), "gate"),
        (lambda app: app.handler("q", gate=""), "gate"),
        (lambda app: app.handler("q", max_result="huge"), "max_result"),
    ],
)
def test_what_cannot_be_declared_is_refused_by_name(declare: Callable[[Any], object], field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        declare(Redrive("memory:"))
    assert raised.value.field == field
    assert raised.value.hint


def test_the_same_may_be_said_twice() -> None:
    app = Redrive("memory:")
    for _ in range(2):
        app.queue("q", max_running=3)
        app.policy("p", Policy())
        app.gate("g", probes=2)
        app.schedule("s", "q", every="1h")
    with pytest.raises(BadSchedule) as raised:
        app.schedule("s", "q", every="2h")
    assert raised.value.field == "name"


def test_a_sandbox_has_what_the_code_declares_and_takes_its_own_away() -> None:
    app = Redrive("memory:", log=False)
    app.policy("gentle", Policy())
    app.queue("q", capacity=1, policy="gentle", gate="smtp")

    async def work() -> None:
        await app.enqueue("q", policy="gentle")
        with pytest.raises(QueueFull):
            await app.enqueue("q")
        app.queue("other", capacity=5)
        app.policy("hasty", Policy(max_attempts=1))
        await app.enqueue("other", policy="hasty")

    for _ in range(2):
        with sandbox(app):
            asyncio.run(work())
