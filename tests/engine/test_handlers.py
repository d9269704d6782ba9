"""What a handler gets, where it runs, and what becomes of what it returns."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from redrive import Item, Redrive
from redrive.core.states import State
from redrive.errors import ConfigError
from tests.support.lab import Lab

label: contextvars.ContextVar[str] = contextvars.ContextVar("label", default="unset")


async def test_an_async_handler_runs_in_the_loop_and_its_result_is_kept(lab: Lab) -> None:
    app = await lab.app()
    ran_in: list[str] = []

    @app.handler("add")
    async def add(a: int, b: int) -> int:
        ran_in.append(threading.current_thread().name)
        return a + b

    item_id = await app.enqueue("add", {"a": 2, "b": 3})
    await lab.drain(app)
    assert await app.wait(item_id) == 5
    assert ran_in == [threading.current_thread().name]


async def test_a_sync_handler_runs_in_a_thread_and_its_result_is_kept(lab: Lab) -> None:
    app = await lab.app()
    ran_in: list[str] = []

    @app.handler("add")
    def add(a: int, b: int) -> int:
        ran_in.append(threading.current_thread().name)
        return a + b

    item_id = await app.enqueue("add", {"a": 2, "b": 3})
    await lab.drain(app)
    assert await app.wait(item_id) == 5
    assert ran_in[0].startswith("redrive-handler")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_context_variables_of_whoever_runs_the_worker_reach_the_handler(memory_lab: Lab, kind: str) -> None:
    app = await memory_lab.app()
    seen: list[str] = []
    if kind == "async":

        @app.handler("look")
        async def look() -> None:
            seen.append(label.get())
    else:

        @app.handler("look")
        def look_in_thread() -> None:
            seen.append(label.get())

    label.set("mine")
    await app.enqueue("look")
    await memory_lab.drain(app)
    assert seen == ["mine"]


async def test_what_a_handler_sets_in_its_context_stays_its_own(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    seen: list[str] = []

    @app.handler("set", concurrency=1)
    async def set_label(value: str) -> None:
        seen.append(label.get())
        label.set(value)

    label.set("outside")
    await app.enqueue_many("set", [{"value": "one"}, {"value": "two"}])
    await memory_lab.drain(app)
    assert seen == ["outside", "outside"]
    assert label.get() == "outside"


def bind(app: Redrive, shape: str, got: list[Any]) -> None:
    """One handler per way to take a payload."""

    async def names(a: int, b: int = 7) -> None:
        got.append((a, b))

    async def one(value: object) -> None:
        got.append(value)

    async def anything(**rest: object) -> None:
        got.append(rest)

    async def with_item(a: int, item: Item) -> None:
        got.append((a, item.queue, item.attempt))

    async def anything_with_item(item: Item, **rest: object) -> None:
        got.append((rest, item.queue))

    async def only_item(item: Item) -> None:
        got.append(item.payload)

    async def raw(body: bytes) -> None:
        got.append(body)

    async def nothing() -> None:
        got.append("called")

    shapes: dict[str, Callable[..., Any]] = {"names": names, "one": one, "anything": anything, "with_item": with_item}
    shapes |= {"only_item": only_item, "raw": raw, "nothing": nothing, "anything_with_item": anything_with_item}
    app.handler("q")(shapes[shape])


@pytest.mark.parametrize(
    ("shape", "payload", "expected"),
    [
        ("names", {"a": 1, "b": 2}, (1, 2)),
        ("names", {"a": 1}, (1, 7)),
        ("names", 5, (5, 7)),
        ("one", [1, 2], [1, 2]),
        ("one", "text", "text"),
        ("one", {"value": 3}, 3),
        ("anything", {"x": 1, "y y": 2}, {"x": 1, "y y": 2}),
        ("anything", None, {}),
        ("with_item", {"a": 1}, (1, "q", 1)),
        ("anything_with_item", {"a": 1}, ({"a": 1}, "q")),
        ("only_item", {"a": 1}, b'{"a":1}'),
        ("only_item", b"\xff\x00", b"\xff\x00"),
        ("raw", b"\xff\x00", b"\xff\x00"),
        ("nothing", None, "called"),
        ("nothing", {"ignored": True}, "called"),
    ],
)
async def test_a_payload_becomes_arguments(memory_lab: Lab, shape: str, payload: object, expected: object) -> None:
    app = await memory_lab.app()
    got: list[Any] = []
    bind(app, shape, got)
    item_id = await app.enqueue("q", payload)
    await memory_lab.drain(app)
    assert got == [expected]
    assert (await app.get(item_id)).state is State.DONE


@pytest.mark.parametrize(
    ("shape", "payload"),
    [
        ("names", {"b": 1}),
        ("names", {"a": 1, "c": 2}),
        ("names", b"\xff not json"),
        ("one", b"{"),
        ("with_item", {"a": 1, "b": 2}),
        ("with_item", {"a": 1, "item": 2}),
        ("anything_with_item", {"item": 2}),
    ],
)
async def test_a_payload_that_does_not_fit_dies_at_once_with_its_bytes(lab: Lab, shape: str, payload: object) -> None:
    app = await lab.app()
    got: list[Any] = []
    bind(app, shape, got)
    item_id = await app.enqueue("q", payload)
    before = (await app.get(item_id)).payload
    await lab.drain(app)
    item = await app.get(item_id)
    assert got == []
    assert item.state is State.DEAD
    assert item.letter is not None
    assert item.letter.reason == "payload"
    assert item.letter.failure.type == "redrive.errors.PayloadUndecodable"
    assert item.payload == before
    if isinstance(payload, bytes):
        assert item.payload == payload


async def test_a_handler_object_with_an_async_call_runs_in_the_loop(memory_lab: Lab) -> None:
    app = await memory_lab.app()

    class Sender:
        async def __call__(self, a: int) -> int:
            return a + 1

    app.handler("q")(Sender())
    item_id = await app.enqueue("q", {"a": 1})
    await memory_lab.drain(app)
    assert await app.wait(item_id) == 2


async def test_a_sync_function_that_returns_a_coroutine_is_awaited(memory_lab: Lab) -> None:
    app = await memory_lab.app()

    async def really() -> str:
        return "done"

    app.handler("q")(lambda: really())  # noqa: PLW0108 - the wrapper is what is tested
    item_id = await app.enqueue("q")
    await memory_lab.drain(app)
    assert await app.wait(item_id) == "done"


async def test_a_handler_that_cannot_be_called_by_name_is_refused_at_once(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    with pytest.raises(ConfigError, match="by name"):
        app.handler("q")(lambda *args: args)


async def test_two_handlers_for_one_queue_are_refused(memory_lab: Lab) -> None:
    app = await memory_lab.app()
    app.handler("q")(lambda: None)
    with pytest.raises(ConfigError, match="already"):
        app.handler("q")(lambda: None)


@pytest.mark.parametrize("result", [None, 0, False, "", [], {}, {"a": [1, None]}, "text"])
async def test_results_come_back_as_they_were(lab: Lab, result: object) -> None:
    app = await lab.app()

    @app.handler("q")
    async def give() -> object:
        return result

    item_id = await app.enqueue("q")
    await lab.drain(app)
    assert await app.wait(item_id) == result


@pytest.mark.parametrize(("size", "kept"), [(98, True), (99, False)], ids=["fits", "one byte too many"])
async def test_a_handler_can_have_a_limit_of_its_own_for_results(lab: Lab, size: int, kept: bool) -> None:
    app = await lab.app(max_payload=10)

    @app.handler("q", max_result=100)
    async def handle() -> str:
        return "x" * size

    item_id = await app.enqueue("q")
    await lab.drain(app)
    item = await lab.item(item_id)
    assert (item.state, item.letter is None) == ((State.DONE, True) if kept else (State.DEAD, False))
    assert (len(item.result) == 100) if item.result is not None else not kept


@pytest.mark.parametrize("result", [object(), {1, object()}, float("nan"), "\ud800", lambda: None])
async def test_a_result_that_cannot_be_kept_makes_a_letter_and_not_a_second_run(lab: Lab, result: object) -> None:
    app = await lab.app()
    runs: list[int] = []

    @app.handler("q")
    async def give() -> object:
        runs.append(1)
        return result

    item_id = await app.enqueue("q")
    await lab.drain(app)
    item = await app.get(item_id)
    assert runs == [1]
    assert item.letter is not None
    assert item.letter.reason == "result"
    assert item.letter.failure.type == "redrive.errors.PayloadNotSerialisable"
