"""Ctrl-C and SIGTERM end a blocking call or worker in order, and the end of the process releases what it holds."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from redrive.blocking import History, Redrive
from redrive.core.item import Ending
from tests.support.scripts import Run
from tests.support.stores import EACH, StoreUrl


def history(url: str, item_id: str) -> History:
    with Redrive(url) as app:
        return app.history(item_id)


# -- a call ----------------------------------------------------------------------------------------------------------

WAITS = """
from redrive.stores.url import store_from_url

store = store_from_url(url)
get = store.get
told = []

async def tell_and_get(item_id):
    if not told:
        told.append(item_id)
        say("waiting")
    return await get(item_id)

with Redrive(store) as app:
    app.queue("q")
    app.enqueue("q", id="one")
    store.get = tell_and_get
    try:
        app.wait("one")
    except KeyboardInterrupt:
        say("interrupted")
    say("still works:", app.get("one").state)
"""


@pytest.mark.parametrize("store", EACH)
def test_ctrl_c_ends_a_call_and_nothing_else(run: Run, store: str) -> None:
    script = run(WAITS, store)
    script.until("waiting")
    script.signal(signal.SIGINT)
    script.until("interrupted")
    script.until("still works: ready")
    assert script.end() == 0


# -- a worker --------------------------------------------------------------------------------------------------------

WORKS = """
app = Redrive(url)

@app.handler("patient", concurrency=1, lease="1s")
def patient(name: str) -> str:
    say("begun", name)
    while not Path("go").exists():
        threading.Event().wait(0.02)
    return name

@app.handler("stuck", concurrency=1, lease="1s")
def stuck(name: str) -> None:
    say("begun", name)
    threading.Event().wait()

with app:
    queue = Path("queue").read_text()
    app.enqueue(queue, {"name": "one"}, id="one")
    app.enqueue(queue, {"name": "two"}, id="two", delay="1ms")
    try:
        app.run(grace="1h", queues=[queue])
    except BaseException as error:
        say("raised", type(error).__name__)
        raise
    say("returned")
"""


@pytest.mark.parametrize(
    ("number", "raised", "code"),
    [
        (signal.SIGINT, "KeyboardInterrupt", -signal.SIGINT),
        (signal.SIGTERM, "SystemExit", 0),
    ],
)
def test_one_signal_drains(
    run: Run, tmp_path: Path, same_url: StoreUrl, *, number: signal.Signals, raised: str, code: int
) -> None:
    (tmp_path / "queue").write_text("patient")
    script = run(WORKS)
    script.until("begun one")
    script.signal(number)
    script.until("stopping; handlers may finish within 1h")
    (tmp_path / "go").touch()
    script.until(f"raised {raised}")
    assert script.end() == code
    assert history(same_url("sqlite"), "one").item.state == "done"
    assert history(same_url("sqlite"), "two").item.state == "ready"
    assert "begun two" not in script.seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_releases_at_once(run: Run, tmp_path: Path, same_url: StoreUrl, number: signal.Signals) -> None:
    (tmp_path / "queue").write_text("stuck")
    script = run(WORKS)
    script.until("begun one")
    script.signal(number)
    script.until("stopping; handlers may finish within 1h")
    script.signal(number)
    script.until("stopping at once")
    script.until("raised")
    assert script.end() == (0 if number == signal.SIGTERM else -signal.SIGINT)
    released = history(same_url("sqlite"), "one")
    assert released.item.state == "ready"
    assert [attempt.ending for attempt in released.attempts] == [Ending.RELEASED]
    assert (released.item.attempt, released.item.crashes, released.item.errors) == (0, 0, 0)


OWN_HANDLER = """
app = Redrive(url)

@app.handler("q")
def handle() -> None:
    say("begun")

def stop(number, frame):
    say("my own handler")
    app.stop()

signal.signal(signal.SIGTERM, stop)
with app:
    app.enqueue("q")
    app.run()
    say("returned")
    assert signal.getsignal(signal.SIGTERM) is stop
"""


def test_a_programs_own_handler_of_sigterm_is_left_alone(run: Run) -> None:
    script = run(OWN_HANDLER)
    script.until("begun")
    script.signal(signal.SIGTERM)
    script.until("my own handler")
    script.until("returned")
    assert script.end() == 0


RESTORED = """
app = Redrive(url)

@app.handler("q")
def handle() -> None: ...

with app:
    app.run(until_idle=True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    say("ran")
    threading.Event().wait()
"""


def test_sigterm_is_what_it_was_after_a_run(run: Run) -> None:
    script = run(RESTORED)
    script.until("ran")
    script.signal(signal.SIGTERM)
    assert script.end() == -signal.SIGTERM


# -- the end of the process ------------------------------------------------------------------------------------------

LEFT_OPEN = """
app = Redrive(url).open()
app.queue("q")
app.enqueue("q", id="one")
say(sorted(path.name for path in Path(url.removeprefix("sqlite:///")).parent.iterdir()))
"""


def test_an_app_left_open_is_closed_at_exit(run: Run, same_url: StoreUrl) -> None:
    script = run(LEFT_OPEN)
    assert script.end() == 0
    assert len(script.seen) == 1
    assert "redrive.db-wal" in script.seen[0]
    # The last connection was closed: no log, no socket.
    folder = Path(same_url("sqlite").removeprefix("sqlite:///")).parent
    assert sorted(path.name for path in folder.iterdir()) == ["redrive.db"]


LEFT_WORKING = """
app = Redrive(url)
begun = threading.Barrier(3)

@app.handler("plain", lease="1h")
def plain() -> None:
    begun.wait(120)
    threading.Event().wait()

@app.handler("awaited", lease="1h")
async def awaited() -> None:
    import asyncio
    await asyncio.to_thread(begun.wait, 120)
    await asyncio.Event().wait()

app.open()
app.enqueue("plain", id="plain")
app.enqueue("awaited", id="awaited")
threading.Thread(target=app.run, daemon=True).start()
begun.wait(120)
"""


def test_a_worker_left_running_is_stopped_at_exit_and_its_items_are_released(run: Run, same_url: StoreUrl) -> None:
    script = run(LEFT_WORKING)
    assert script.end() == 0, script.seen
    for item_id in ("plain", "awaited"):
        left = history(same_url("sqlite"), item_id)
        assert left.item.state == "ready", item_id
        assert [attempt.ending for attempt in left.attempts] == [Ending.RELEASED]


HANGS = """
import asyncio
from redrive.blocking import _process
from redrive.stores.memory import MemoryStore

class Gone(MemoryStore):
    async def close(self) -> None:
        await asyncio.Event().wait()

_process.FAREWELL = _process.LAST_CALLS = 0.1
Redrive(Gone()).open()
"""


def test_a_store_that_would_not_close_does_not_keep_the_process(run: Run) -> None:
    script = run(HANGS)
    assert script.end() == 0
    assert any("apps did not close within" in line for line in script.seen)


LATE = """
import atexit

@atexit.register
def late():
    try:
        app.enqueue("q")
    except AppClosed as error:
        say("refused:", error)

import redrive.blocking._process as process
atexit.unregister(process._end)
atexit.register(process._end)
app = Redrive(url).open()
app.queue("q")
app.enqueue("q")
"""


def test_a_call_after_the_end_is_refused(run: Run) -> None:
    script = run(LATE)
    assert script.end() == 0
    assert [line.partition(":")[0] for line in script.seen] == ["refused"]
