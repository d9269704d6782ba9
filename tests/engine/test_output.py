"""What handlers keep with their attempts: recorded however those end, bounded, and never in an encrypted queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from redrive import Cancel, Dead, Item, Keyring, Policy, Snooze, constant, keep_output
from redrive.core.item import OUTPUT_LIMIT
from redrive.core.states import State
from redrive.errors import ConfigError
from redrive.events import Finished
from redrive.testing import Fault
from tests.support.lab import Lab, Seen

HOUR = 3_600_000
KEYS = Keyring({"k1": bytes(range(32))}, current="k1")


async def kept(lab: Lab, item_id: str) -> list[tuple[str, bytes]]:
    return [(attempt.ending, attempt.output) for attempt in (await lab.history(item_id)).attempts]


async def test_the_last_output_is_recorded_with_a_first_try_success(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q")
    async def send(text: str) -> str:
        if text:
            keep_output("to be replaced")
            keep_output(text)
        return "sent"

    ids = await app.enqueue_many("q", ["250 OK ☃", ""])
    await lab.drain(app)
    assert [await kept(lab, each) for each in ids] == [[("done", "250 OK ☃".encode())], []]
    assert [await app.wait(each) for each in ids] == ["sent", "sent"]


async def test_output_is_recorded_however_the_attempt_ends(lab: Lab) -> None:
    app = await lab.app()

    @app.handler("q", policy=Policy(constant("1s"), max_attempts=2), timeout="1m")
    async def end(how: str, item: Item) -> None:
        keep_output(f"{how} {item.deliveries}")
        if how == "fail":
            raise OSError(how)
        if how == "hang":
            await lab.clock.sleep(HOUR)
        if how == "snooze" and item.deliveries == 1:
            raise Snooze("1s")
        if how in ("die", "cancel"):
            raise {"die": Dead, "cancel": Cancel}[how](how)

    ends = {how: await app.enqueue("q", {"how": how}) for how in ("fail", "hang", "snooze", "die", "cancel")}
    await lab.drain(app)
    assert {how: await kept(lab, item_id) for how, item_id in ends.items()} == {
        "fail": [("failed", b"fail 1"), ("failed", b"fail 2")],
        "hang": [("failed", b"hang 1"), ("failed", b"hang 2")],
        "snooze": [("snoozed", b"snooze 1"), ("done", b"snooze 2")],
        "die": [("dead", b"die 1")],
        "cancel": [("cancelled", b"cancel 1")],
    }


@pytest.mark.parametrize("stubborn", [False, True])
async def test_output_of_what_a_stop_releases(lab: Lab, stubborn: bool) -> None:
    """Also of a handler that does not end when it is cancelled, and is given up."""
    app = await lab.app()
    going = asyncio.Event()

    @app.handler("q")
    async def hang() -> None:
        keep_output(b"as far as it came")
        try:
            await going.wait()
        except asyncio.CancelledError:
            if not stubborn:
                raise
            await going.wait()

    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.quiet()
    assert await kept(lab, item_id) == [("released", b"as far as it came")]


async def test_a_thread_that_was_given_up_changes_nothing_any_more(memory_lab: Lab) -> None:
    lab, gate, over = memory_lab, threading.Event(), threading.Event()
    app = await lab.app()

    @app.handler("q", timeout="1m", policy=Policy(constant("1h"), max_attempts=1))
    def work() -> None:
        keep_output("in time")
        assert gate.wait(20)
        keep_output("too late")
        over.set()

    seen = Seen(app)
    item_id = await app.enqueue("q")
    async with lab.working(app):
        await lab.until(lambda: bool(seen.of(Finished)))
        gate.set()
        assert await asyncio.to_thread(over.wait, 20)
    assert await kept(lab, item_id) == [("failed", b"in time")]


@pytest.mark.parametrize(
    ("given", "first", "last", "left_out"),
    [
        (b"x" * OUTPUT_LIMIT, b"x" * OUTPUT_LIMIT, b"", 0),
        (b"a" * 40_000 + b"z" * 40_000, b"a" * 32_768, b"z" * 32_768, 14_464),
        ("é" + "x☃" * 30_000 + "yy", ("é" + "x☃" * 8_191 + "x").encode(), ("x☃" * 8_191 + "yy").encode(), 54_471),
        (b"\x80" * 100_000, b"\x80" * 32_765, b"\x80" * 32_765, 34_470),
    ],
    ids=["limit", "bytes", "text", "no text"],
)
async def test_a_long_output_keeps_its_ends(
    memory_lab: Lab, given: bytes | str, first: bytes, last: bytes, left_out: int
) -> None:
    app = await memory_lab.app()

    @app.handler("q")
    async def work() -> None:
        keep_output(given)

    item_id = await app.enqueue("q")
    await memory_lab.drain(app)
    cut = b"\n[%d bytes were left out]\n" % left_out if left_out else b""
    assert await kept(memory_lab, item_id) == [("done", first + cut + last)]


async def test_what_cannot_be_kept(memory_lab: Lab) -> None:
    with pytest.raises(ConfigError, match=r"keep_output: not inside a handler \(call it in a function that app\.h"):
        keep_output("x")
    app = await memory_lab.app()

    @app.handler("q")
    async def work() -> None:
        keep_output("half \ud800")
        with pytest.raises(ConfigError, match="output: must be bytes or str, got dict"):
            keep_output({"status": 250})  # type: ignore[arg-type]  # what callers may give

    item_id = await app.enqueue("q")
    await memory_lab.drain(app)
    assert await kept(memory_lab, item_id) == [("done", rb"half \ud800")]


async def echo(text: str) -> None:
    keep_output(text)


async def test_an_encrypted_queue_keeps_no_output(lab: Lab) -> None:
    """Nor does a member of a family that was encrypted while the worker ran, or one whose settings cannot be read."""
    app, faulty = await lab.faulty()
    lab.store.use_keys(KEYS)
    app.queue("cards", encrypt=True)
    app.queue("mail:*")
    for queue in ("cards", "mail:*", "plain"):
        app.handler(queue)(echo)
    seen = Seen(app)
    async with lab.working(app):
        await app.configure("mail:a", reason="cards are there", encrypt=True)
        queues = ("cards", "mail:a", "mail:b", "plain")
        ids = {queue: await app.enqueue(queue, "4111") for queue in queues}
        await lab.until(lambda: len(seen.of(Finished)) == 4)
        faulty.fail("settings", Fault.UNAVAILABLE)
        ids["mail:c"] = await app.enqueue("mail:c", "4111")
        await lab.until(lambda: len(seen.of(Finished)) == 5)
    outputs = {queue: [output for _, output in await kept(lab, item_id)] for queue, item_id in ids.items()}
    assert outputs == {"cards": [], "mail:a": [], "mail:b": [b"4111"], "plain": [b"4111"], "mail:c": []}


async def test_without_keys_no_settings_are_read_for_it(memory_lab: Lab) -> None:
    async def reads(handler: Callable[[str], Awaitable[None]]) -> int:
        app, faulty = await memory_lab.faulty()
        app.handler("mail:*")(handler)
        item_id = await app.enqueue("mail:a", "250 OK")
        await memory_lab.drain(app)
        assert (await memory_lab.item(item_id)).state is State.DONE
        return sum(call.verb == "settings" for call in faulty.calls)

    async def plain(text: str) -> None: ...

    async def keeps(text: str) -> None:
        keep_output(text)

    assert await reads(keeps) == await reads(plain)
