"""Metrics of an app's queues: from its events, and from the store's tally at scrape time."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from redrive import Policy, Redrive, Retry, constant
from redrive import events as ev
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.faults import Fault, FaultyStore


def app_on(clock: FakeClock, store: MemoryStore | FaultyStore | None = None) -> Redrive:
    app = Redrive(MemoryStore(clock) if store is None else store, clock=clock, log=False)

    @app.handler("emails", policy=Policy(constant("1s"), max_attempts=2))
    async def send(what: str) -> None:
        await clock.sleep(2_000)
        if what == "bad":
            raise ValueError("no")
        if what == "later":
            raise Retry("not yet")

    return app


async def scraped(registry: CollectorRegistry) -> list[str]:
    """Without the buckets of histograms, and what is zero."""
    text = (await asyncio.to_thread(generate_latest, registry)).decode()
    lines = [line for line in text.splitlines() if not line.startswith("#") and "_bucket" not in line]
    return sorted(line for line in lines if not line.endswith(" 0.0"))


async def test_every_queue_has_counters_durations_and_depths() -> None:
    clock = FakeClock(autoadvance=True)
    app, registry = app_on(clock), CollectorRegistry()
    app.metrics.register(registry)
    app.queue("later")
    async with app:
        await app.enqueue_many("emails", [{"what": what} for what in ("good", "good", "bad")])
        await app.run(until_idle=True)
        await app.enqueue("later")
        clock.advance("5s")
        assert await scraped(registry) == [
            'redrive_dead_letters_total{queue="emails",reason="max_attempts"} 1.0',
            'redrive_deliveries_total{ending="done",queue="emails",state="done"} 2.0',
            'redrive_deliveries_total{ending="failed",queue="emails",state="dead"} 1.0',
            'redrive_deliveries_total{ending="failed",queue="emails",state="ready"} 1.0',
            'redrive_delivery_duration_seconds_count{queue="emails"} 4.0',
            'redrive_delivery_duration_seconds_sum{queue="emails"} 8.0',
            'redrive_items_enqueued_total{queue="emails"} 3.0',
            'redrive_items_enqueued_total{queue="later"} 1.0',
            'redrive_open_letters{queue="emails"} 1.0',
            'redrive_queue_depth{queue="later",state="ready"} 1.0',
            'redrive_queue_oldest_due_seconds{queue="later"} 5.0',
            'redrive_retries_total{queue="emails"} 1.0',
        ]
    # The counters of an app that was closed stay; the depths of its store are no longer known.
    assert 'redrive_retries_total{queue="emails"} 1.0' in await scraped(registry)
    assert not [line for line in await scraped(registry) if "queue_depth" in line]


async def test_running_handlers_are_a_gauge() -> None:
    clock = FakeClock()
    app, registry = app_on(clock), CollectorRegistry()
    app.metrics.register(registry)
    started = asyncio.Event()
    app.events.subscribe(lambda event: started.set() if isinstance(event, ev.Started) else None)
    async with app:
        await app.enqueue("emails", {"what": "good"})
        working = asyncio.create_task(app.run())
        await started.wait()
        lines = await scraped(registry)
        assert 'redrive_items_running{queue="emails"} 1.0' in lines
        assert 'redrive_queue_depth{queue="emails",state="leased"} 1.0' in lines
        await app.stop(grace=0)
        await working
        assert not [line for line in await scraped(registry) if "running" in line]


def heard(*events: ev.Event) -> CollectorRegistry:
    """What an app that is not open has counted of these."""
    app, registry = app_on(FakeClock()), CollectorRegistry()
    app.metrics.register(registry)
    for event in events:
        app.events.emit(event)
    return registry


async def test_what_goes_wrong_is_counted_by_queue_and_part() -> None:
    started = ev.Started("w", "emails", "a", 1, 1)
    registry = heard(
        started,
        ev.LeaseLost("w", "emails", "a", 1),
        started,
        ev.SettleRefused("w", "emails", "a", 1, "lost"),
        ev.Reclaimed("w", "emails", "b", 1, "gone"),
        ev.Finished("gone", "emails", "b", 1, "crashed", "ready", 0, retry_in_ms=1000),
        ev.StoreFailed("pump", "away"),
        ev.TicksMissed("nightly", 3, 1, "down"),
        started,
        ev.Started("v", "emails", "c", 2, 1),
        ev.SettleRefused("w", "emails", "c", 1, "another worker has it"),
        ev.WorkerStopped("w", 0),
    )
    assert await scraped(registry) == [
        'redrive_deliveries_total{ending="crashed",queue="emails",state="ready"} 1.0',
        'redrive_items_running{queue="emails"} 1.0',
        'redrive_leases_lost_total{queue="emails"} 1.0',
        'redrive_leases_reclaimed_total{queue="emails"} 1.0',
        'redrive_retries_total{queue="emails"} 1.0',
        'redrive_schedule_ticks_missed_total{schedule="nightly"} 3.0',
        'redrive_settles_refused_total{queue="emails"} 2.0',
        'redrive_store_errors_total{part="pump"} 1.0',
    ]


async def test_apps_on_one_store_are_added_up_and_the_store_is_asked_once() -> None:
    clock = FakeClock(autoadvance=True)
    store = FaultyStore(MemoryStore(clock))
    one, two, registry = app_on(clock, store), app_on(clock, store), CollectorRegistry()
    async with one:
        for app in (one, two):
            app.metrics.register(registry)
        async with two:
            await one.enqueue("emails", {"what": "good"})
            await two.enqueue("emails", {"what": "good"})
            store.calls.clear()
            lines = await scraped(registry)
            assert [call.verb for call in store.calls] == ["tally"]
            assert 'redrive_items_enqueued_total{queue="emails"} 2.0' in lines
            assert 'redrive_queue_depth{queue="emails",state="ready"} 2.0' in lines
            store.fail("tally", Fault.UNAVAILABLE, times=1)
            assert await scraped(registry) == lines, "the last answer"


def test_an_app_whose_metrics_were_not_asked_for_has_no_subscriber() -> None:
    app = app_on(FakeClock())
    assert not app.events
    assert app.metrics is app.metrics
    assert app.events
