"""What a program without an event loop sees, on every store."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import weakref
from collections.abc import Collection, Iterator

import pytest

from redrive.blocking import Policy, Redrive, constant, never
from redrive.core.verbs import Tally
from redrive.errors import AppClosed, ConfigError, ItemFailed, NotFound, RedriveError, WaitTimeout
from redrive.events import Enqueued, Event
from redrive.stores.memory import MemoryStore
from tests.blocking.kit import done, in_thread, loop_threads, working
from tests.support.cli import PATIENCE
from tests.support.stores import STORES


def test_everything_works_without_await(app: Redrive) -> None:
    broken = True

    @app.handler("emails", policy=Policy(constant("1ms"), max_attempts=2))
    def send(to: str) -> str:
        if broken:
            raise ConnectionError("no server")
        return f"sent to {to}"

    with app:
        first = app.enqueue("emails", {"to": "ada"}, id="one")
        assert app.enqueue("emails", {"to": "ada"}, id="one").duplicate
        more = app.enqueue_many("emails", [{"to": "bob"}, {"to": "eve"}], delay="1ms")
        app.run(until_idle=True)
        with pytest.raises(ItemFailed):
            app.wait(first)
        page = app.letters.find("error:ConnectionError")
        assert {item.id for item in page} == {first, *more}
        assert [cause.count for cause in app.causes()] == [3]
        broken = False
        assert len(app.letters.replay(page, reason="it is back").changed) == 3
        app.run(until_idle=True, queues=["emails"])
        assert app.wait(first) == "sent to ada"
        assert app.get(first).state == "done"
        assert [attempt.ending for attempt in app.history(first).attempts] == ["failed", "failed", "done"]
        assert [entry.reason for entry in app.letters.audit()] == ["it is back"]
        app.pause("emails", reason="lunch")
        waiting = app.enqueue("emails", {"to": "zoe"})
        assert app.cancel(waiting, reason="she left").changed == (waiting,)
        app.resume("emails")
        assert app.prune("state:cancelled", reason="tidy")[0].id == waiting
        (row,) = app.tally().queues
        assert (row.done, row.ready) == (3, 0)
        assert app.workers()
        assert app.info().engine in STORES


def test_letters_are_steered_without_await(app: Redrive) -> None:
    @app.handler("emails", policy=Policy(never()))
    def send(to: str) -> None:
        raise ValueError(to)

    with app:
        letter = app.enqueue("emails", {"to": "ada"})
        app.run(until_idle=True)
        office = app.letters
        assert office.resolve(letter[:8]) == letter
        history = office.get(letter[:8])
        assert office.archive(history, reason="later").changed == (letter,)
        assert office.restore(history.item, reason="now").changed == (letter,)
        assert office.discard([letter], reason="never").changed == (letter,)
        assert office.restore(str(letter), reason="after all").changed == (letter,)
        assert len(office.find()) == 1


# -- life ------------------------------------------------------------------------------------------------------------


def test_before_open_and_after_close_it_says_so(app: Redrive) -> None:
    app.queue("q")
    with pytest.raises(AppClosed, match=r"is not open; nothing was written \(use it inside `with app:`\)"):
        app.enqueue("q")
    with pytest.raises(AppClosed, match="inside `with app:`"):
        _ = app.letters
    app.stop()
    assert not loop_threads()
    with app:
        app.enqueue("q")
    for call in (app.tally, app.run, app.info, lambda: app.enqueue("q"), lambda: app.letters):
        with pytest.raises(AppClosed, match=r"was closed; nothing was written \(use it inside `with app:`\)"):
            call()
    with pytest.raises(AppClosed, match="make a new Redrive"), app:
        pass
    app.close()
    app.stop()
    assert not loop_threads()


def test_opening_twice_is_opening_once(app: Redrive) -> None:
    app.queue("q")
    with app as first, app.open() as second:
        assert first is second is app
        app.enqueue("q")
    with pytest.raises(AppClosed):
        app.enqueue("q")


def test_the_loop_ends_with_the_last_app(app: Redrive) -> None:
    other = Redrive("memory:")
    with app:
        (thread,) = loop_threads()
        assert thread.daemon
        with other:
            other.queue("q")
            other.enqueue("q")
            assert loop_threads() == [thread]
        app.tally()
        assert loop_threads() == [thread]
    assert not loop_threads()


def test_an_app_that_cannot_be_opened_leaves_no_thread() -> None:
    app = Redrive("sqlite:///no/such/folder/redrive.db")
    with pytest.raises(RedriveError):
        app.open()
    assert not loop_threads()


def test_closing_cuts_off_calls_of_other_threads(app: Redrive) -> None:
    app.queue("q")
    with app:
        waiting = app.enqueue("q")
        asked = in_thread(lambda: app.wait(waiting))
    with pytest.raises(RedriveError):
        done(asked)


def test_wrong_arguments_are_refused_alike() -> None:
    with pytest.raises(ConfigError, match="max_payload"):
        Redrive("memory:", max_payload=0)
    with Redrive("memory:") as app:
        with pytest.raises(ConfigError, match="grace"):
            app.stop(grace="soon")
        with pytest.raises(ConfigError, match="no handler is registered"):
            app.run()
        with pytest.raises(ConfigError, match="not inside a handler"):
            app.follow_up("q")


# -- threads ---------------------------------------------------------------------------------------------------------


def test_sixteen_threads_share_one_loop(app: Redrive) -> None:
    app.queue("q")
    with app:
        start = threading.Barrier(16)

        def put() -> list[str]:
            start.wait(PATIENCE)
            return [app.enqueue("q", {"n": n}) for n in range(20)]

        answers = [done(future) for future in [in_thread(put) for _ in range(16)]]
        assert len({each for ids in answers for each in ids}) == 320
        assert app.tally().queues[0].ready == 320
        assert len(loop_threads()) == 1


class CountedStore(MemoryStore):
    opened = 0

    async def open(self) -> CountedStore:
        self.opened += 1
        await asyncio.sleep(0)  # noqa: TID251 - no time passes: the others get their turn
        return await super().open()


def test_threads_that_open_together_open_once() -> None:
    store = CountedStore()
    app = Redrive(store)
    app.queue("q")
    start = threading.Barrier(16)

    def open_and_put() -> str:
        start.wait(PATIENCE)
        return app.open().enqueue("q")

    ids = {done(future) for future in [in_thread(open_and_put) for _ in range(16)]}
    assert len(ids) == 16
    assert store.opened == 1
    assert len(loop_threads()) == 1
    app.close()


def test_a_worker_is_stopped_from_another_thread(app: Redrive) -> None:
    begun = threading.Event()
    go_on = threading.Event()

    @app.handler("q")
    def handle() -> str:
        begun.set()
        assert go_on.wait(PATIENCE)
        return "finished"

    with app:
        running = in_thread(app.run)
        item = app.enqueue("q")
        assert begun.wait(PATIENCE)
        stopping = in_thread(app.stop)
        go_on.set()
        done(stopping)
        assert done(running) is None
        assert app.wait(item) == "finished"


# -- what travels between the threads --------------------------------------------------------------------------------

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="none")


def test_the_context_of_the_caller_travels_along(app: Redrive) -> None:
    seen: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Enqueued):
            seen.append(request_id.get())
            request_id.set("changed in the loop")

    app.events.subscribe(listen)
    app.queue("q")
    with app:
        token = request_id.set("from the caller")
        app.enqueue("q")
        assert request_id.get() == "from the caller"
        request_id.reset(token)
    assert seen == ["from the caller"]


def test_what_is_iterated_is_iterated_by_the_caller(app: Redrive) -> None:
    threads: set[str] = set()

    def each(*values: str) -> Iterator[str]:
        for value in values:
            threads.add(threading.current_thread().name)
            yield value

    @app.handler("q", policy=Policy(never()))
    def fail(name: str) -> None:
        raise ValueError(name)

    with app:
        ids = app.enqueue_many("q", each("a", "b", "c"))
        app.cancel(each(ids[0]), reason="one less")
        app.run(until_idle=True, queues=each("q"))
        assert len(app.letters.archive(each(*ids[1:]), reason="away").changed) == 2
    assert threads == {threading.current_thread().name}


class FailingStore(MemoryStore):
    error: BaseException = TimeoutError("from inside")

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        raise self.error


@pytest.mark.parametrize("error", [TimeoutError("from inside"), SystemExit(3), KeyboardInterrupt("from inside")])
def test_what_is_raised_inside_is_raised_outside_and_the_loop_lives(error: BaseException) -> None:
    store = FailingStore()
    store.error = error
    with Redrive(store) as app:
        app.queue("q")
        with pytest.raises(type(error)) as caught:
            app.tally()
        assert caught.value is error
        assert app.enqueue("q")


def test_a_timeout_of_redrive_is_its_own(app: Redrive) -> None:
    app.queue("q")
    with app:
        item = app.enqueue("q")
        with pytest.raises(WaitTimeout, match="still ready"):
            app.wait(item, timeout="1ms")


def test_an_error_is_gone_when_it_was_handled() -> None:
    with Redrive("memory:") as app:
        gc.collect()
        gc.disable()
        try:
            errors = weakref.WeakSet[NotFound]()
            try:
                app.get("no-such-item")
            except NotFound as error:
                errors.add(error)
            app.tally()  # the loop has had a turn since
            assert not errors
        finally:
            gc.enable()


def test_the_loop_outlives_an_attempt_to_end_it(app: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    @app.handler("q")
    async def leave() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)

    with app:
        item = app.enqueue("q")
        app.run(until_idle=True)
        assert app.get(item).state == "done"
        assert len(loop_threads()) == 1
    assert "tried to end the event loop" in caplog.text


def test_a_worker_in_another_thread_serves_this_one(app: Redrive) -> None:
    @app.handler("double")
    async def double(n: int) -> int:
        return 2 * n

    with app, working(app):
        assert [app.wait(app.enqueue("double", {"n": n}), timeout="2m") for n in range(5)] == [0, 2, 4, 6, 8]


def test_items_queues_gates_and_schedules_without_await(app: Redrive) -> None:
    ran: list[int] = []
    app.policy("once", Policy(never()))
    app.queue("orders", order="park", max_running=5, rate="1000/s", capacity=100, gate="shop")
    app.gate("shop", consecutive=50)
    app.route("lost", capacity=10)
    app.schedule("hourly", "orders", 7, every="1h")

    @app.handler("orders", max_result="1KiB")
    def handle(number: int) -> None:
        ran.append(number)
        if number == 0:
            raise LookupError("no such order")

    with app:
        ids = app.enqueue_many("orders", iter(range(3)), order_key=lambda _: "ada", policy="once")
        assert app.enqueue("orders", 9, dedupe_key="k") == app.enqueue("orders", 9, dedupe_key="k")
        late = app.enqueue("orders", 10, after=(each for each in ids), priority="high", on_dead="wait")
        assert app.get(late).hold == "after"
        app.run(until_idle=True)
        assert (sorted(ran), app.get(ids[1]).hold) == ([0, 9], "parked:order")
        assert app.letters.skip(ids[0], reason="go on").changed == (ids[0],)
        app.run(until_idle=True)
        assert ran[-2:] == [1, 2]
        app.configure("orders", max_running=None, reason="enough")
        app.configure_route("lost", capacity=None, reason="enough")
        assert app.tally().queues[0].settings.max_running is None
        assert app.open_gate("shop", reason="closed").state == "open"
        assert app.close_gate("shop", reason="open again").name == "shop"
        assert [gate.name for gate in app.gates()] == ["shop"]
        assert [view.name for view in app.schedules.list()] == ["hourly"]
        assert app.schedules.pause("hourly", reason="r").paused
        assert not app.schedules.resume("hourly", reason="r").paused
        assert app.get(app.schedules.run("hourly", reason="r")).queue == "orders"
        app.schedules.remove("hourly", reason="r")
        with pytest.raises(NotFound):
            app.schedules.get("hourly")
        assert app.cancel(late, reason="enough", force=True).changed == (late,)


def test_an_app_that_could_not_be_opened_can_be_opened_later(app: Redrive) -> None:
    app.queue("q", policy="gentle")
    with pytest.raises(ConfigError, match="no policy 'gentle'"):
        app.open()
    assert not loop_threads()
    app.policy("gentle", Policy())
    with app:
        assert app.tally().queues[0].settings.policy == "gentle"
