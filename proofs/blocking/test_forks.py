"""An app that was opened before a fork works in parent and child, also while other threads write."""

from __future__ import annotations

import pytest

from redrive.blocking import Redrive
from tests.support.scripts import Run
from tests.support.stores import EACH, StoreUrl

FORKS = """
app = Redrive(url).open()
app.queue("q")
app.enqueue("q", id="before")

child = os.fork()
if child == 0:
    say("loops in the child:", loops())
    app.enqueue("q", id="child")
    say("loops in the child then:", loops())
    say("seen by the child:", app.get("before").state, app.tally().queues[0].ready)
    {leave}
say("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
app.enqueue("q", id="after")
say("ready:", app.tally().queues[0].ready)
app.close()
say("loops at the end:", loops())
"""


@pytest.mark.parametrize("store", EACH)
@pytest.mark.parametrize("leave", ["sys.exit(3)", "app.close(); os._exit(3)"])
def test_a_child_goes_on_with_a_loop_of_its_own(run: Run, store: str, leave: str) -> None:
    script = run(FORKS.format(leave=leave), store)
    assert script.end() == 0, script.seen
    # Memory is the child's own copy; a file is everybody's.
    ready = 2 if store == "memory" else 3
    assert script.seen == [
        "loops in the child: 0",
        "loops in the child then: 1",
        "seen by the child: ready 2",
        "child ended with 3",
        f"ready: {ready}",
        "loops at the end: 0",
    ]


UNDER_LOAD = """
app = Redrive(url).open()
app.queue("q")
over = threading.Event()

def load():
    while not over.is_set():
        app.enqueue("q")

threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(15):
    child = os.fork()
    if child == 0:
        app.enqueue("q")
        app.tally()
        app.close()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        say("a child ended with", status)
over.set()
for thread in threads:
    thread.join()
app.close()
say("over")
"""


@pytest.mark.parametrize("store", EACH)
def test_locks_of_other_threads_do_not_hang_a_child(run: Run, store: str) -> None:
    script = run(UNDER_LOAD, store)
    assert script.end() == 0
    assert [line for line in script.seen if "child" in line] == []
    assert script.seen[-1] == "over"


HELD = """
from contextlib import ExitStack
from redrive.app.internals import store_of
from redrive.blocking._facade import behind
from redrive.blocking._process import this_process

app = Redrive(url).open()
app.queue("q")
locks = [this_process()._lock]
if url.startswith("memory"):
    locks.append(store_of(behind(app))._lock)
held, over = threading.Event(), threading.Event()

def hold():
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        held.set()
        over.wait()

threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if child == 0:
    app.enqueue("q")
    app.close()
    os._exit(3)
say("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
over.set()
app.close()
"""


@pytest.mark.parametrize("store", EACH)
def test_a_lock_that_was_held_at_the_fork_is_free_in_the_child(run: Run, store: str) -> None:
    script = run(HELD, store)
    assert script.end() == 0, script.seen
    assert script.seen == ["child ended with 3"]


WITH_A_WORKER = """
app = Redrive(url)
begun = threading.Event()

@app.handler("q")
def handle(name: str) -> str:
    begun.set()
    return name

app.open()
threading.Thread(target=app.run).start()
first = app.enqueue("q", {"name": "first"})
assert begun.wait(120)
child = os.fork()
if child == 0:
    app.stop()
    app.enqueue("q", {"name": "from the child"}, id="child")
    app.close()
    sys.exit(3)
say("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
say(app.wait(app.enqueue("q", {"name": "second"}), timeout="2m"))
if not url.startswith("memory"):
    say(app.wait("child", timeout="2m"))
app.close()
"""


@pytest.mark.parametrize("store", EACH)
def test_a_child_does_not_stop_the_workers_of_its_parent(run: Run, store: str) -> None:
    script = run(WITH_A_WORKER, store)
    assert script.end() == 0, script.seen
    said = [line for line in script.seen if "worker" not in line]
    assert said == ["child ended with 3", "second", *["from the child"] * (store != "memory")]


WORKS_IN_CHILDREN = """
app = Redrive(url)

@app.handler("q")
def handle(n: int) -> None:
    app.enqueue("seen", {"n": n})

app.queue("seen")
app.open()
app.enqueue_many("q", [{"n": n} for n in range(20)])
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        app.run(until_idle=True)
        sys.exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
app.close()
"""


def test_workers_in_children_of_a_process_that_opened_the_app(run: Run, same_url: StoreUrl) -> None:
    script = run(WORKS_IN_CHILDREN)
    assert script.end() == 0, script.seen
    with Redrive(same_url("sqlite")) as app:
        counts = {row.queue: (row.ready, row.done) for row in app.tally().queues}
    assert counts == {"q": (0, 20), "seen": (20, 0)}


POOL = """
import multiprocessing

app = Redrive(url).open()
app.queue("q")

def put(n):
    return str(app.enqueue("q", {"n": n}))

with multiprocessing.get_context("fork").Pool(2) as pool:
    say(len(set(pool.map(put, range(20)))))
say(app.tally().queues[0].ready)
app.close()
"""


def test_a_pool_of_processes(run: Run) -> None:
    script = run(POOL)
    assert script.end() == 0, script.seen
    assert script.seen == ["20", "20"]


PARENT_CLOSES_FIRST = """
app = Redrive(url).open()
app.queue("q")
app.enqueue("q", id="before")
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    app.enqueue("q", id="child-1")
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    app.enqueue("q", id="child-2")
    os._exit(0)
os.read(ready[0], 1)
app.close()
os.write(go[1], b"x")
assert os.waitpid(child, 0)[1] == 0
"""


def test_what_a_child_enqueues_after_its_parent_closed_is_there(run: Run, same_url: StoreUrl) -> None:
    """The parent is not the last one, and must not clean up as if it were."""
    script = run(PARENT_CLOSES_FIRST)
    assert script.end() == 0, script.seen
    with Redrive(same_url("sqlite")) as app:
        assert app.tally().queues[0].ready == 3


IN_A_HANDLER = """
app = Redrive(url)

@app.handler("q", concurrency=1)
def handle(how: str) -> int:
    child = os.fork()
    if child == 0:
        if how == "exit":
            sys.exit(3)
        if how == "raise":
            raise ValueError("in the child")
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

with app:
    ids = [app.enqueue("q", {"how": how}) for how in ("exit", "raise", "return")]
    app.run(until_idle=True)
    say(*(app.wait(each) for each in ids), app.tally().queues[0].done)
"""


@pytest.mark.parametrize("store", EACH)
def test_a_child_that_a_handler_forked_ends_with_the_handler(run: Run, store: str) -> None:
    script = run(IN_A_HANDLER, store=store)
    assert script.end() == 0, script.seen
    assert script.seen[-1] == "3 1 0 3"


FORKS_BESIDE_A_WRITER = """
app = Redrive(url).open()
app.queue("q")
written, over = 0, threading.Event()

def write():
    global written
    while not over.is_set():
        app.enqueue("q")
        written += 1

writer = threading.Thread(target=write)
writer.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
over.set()
writer.join()
say(app.tally().queues[0].ready == written)
app.close()
"""


@pytest.mark.parametrize("store", EACH)
def test_forks_in_a_row_while_another_thread_enqueues(run: Run, store: str) -> None:
    script = run(FORKS_BESIDE_A_WRITER, store=store)
    assert script.end() == 0, script.seen
    assert script.seen == ["True"]
