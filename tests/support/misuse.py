"""What the processes of R28 do: programs that use one SQLite file in ways they should not."""

from __future__ import annotations

TRANSACTIONS = """
import asyncio, sys
from redrive.core.decide import ToDone
from redrive.core.item import NewItem
from redrive.core.verbs import LeaseRequest, Settlement, Verdict, Want
from redrive.stores.sqlite import SqliteStore, checkpoint

path, binding, name, transactions = sys.argv[1:]
checkpoint.LOOK = checkpoint.AFTER = 50  # the more of them, the more can go wrong

async def main():
    put = done = 0
    store = await SqliteStore(path, binding=binding).open()
    print("open", flush=True)
    sys.stdin.readline()
    for n in range(0, int(transactions), 3):
        put += len((await store.put([NewItem(f"{name}-{n}", "q", b"x" * 300)])).added)
        leases = await store.lease(LeaseRequest(name, (Want("q", 1, 600_000, 3),), f"{name}-{n}"))
        ends = [Settlement(item.id, item.deliveries, ToDone()) for item in leases.items]
        answers = (await store.settle(ends)).answers
        done += [answer.verdict for answer in answers].count(Verdict.APPLIED)
    await store.close()
    print(put, done)

asyncio.run(main())
"""
"""A third of the transactions puts, a third leases, a third settles."""

FORKS = """
import asyncio, os, sys, threading
from redrive import Item, Redrive
from redrive.stores.sqlite import SqliteStore

path, binding, leave, children = sys.argv[1:]
app = Redrive(SqliteStore(path, binding=binding), log=False)

@app.handler("q", concurrency=10)
async def work(item: Item) -> int:
    return os.getpid()

async def enqueue(name, count):
    await asyncio.gather(*(app.enqueue("q", id=f"{name}-{n}") for n in range(count)))

async def child(number):
    await enqueue(f"child-{number}", 10)
    assert await app.get("first-0")
    await app.run(until_idle=True)
    assert await app.wait(f"child-{number}-0", timeout=30) is not None
    if leave == "close":
        await app.close()

def forked(number, run):
    pid = os.fork()
    if pid == 0:
        try:
            run(child(number))
        except BaseException as error:
            print("child", number, repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        if leave == "exit":
            sys.exit(0)
        os._exit(0)
    return pid

def check(pids):
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def in_new_loop(coroutine):
    asyncio.new_event_loop().run_until_complete(coroutine)

async def while_running():
    # The fork falls into the middle of writes.
    await app.open()
    await enqueue("first", 1)
    for number in range(int(children)):
        writing = asyncio.ensure_future(enqueue(f"parent-{number}", 20))
        await asyncio.wait({writing}, timeout=0.002)
        pid = forked(number, in_new_loop)
        await writing
        await asyncio.to_thread(check, [pid])
    await enqueue("last", 1)
    await app.run(until_idle=True)
    await app.close()

def between_runs():
    # A child that ends as programs do takes asyncio's loops along, so there is none: each step has its own.
    asyncio.run(app.open())
    asyncio.run(enqueue("first", 1))
    for number in range(int(children)):
        pid = forked(number, asyncio.run)
        asyncio.run(enqueue(f"parent-{number}", 20))
        check([pid])
    asyncio.run(enqueue("last", 1))
    asyncio.run(app.run(until_idle=True))
    asyncio.run(app.close())

if leave == "exit":
    between_runs()
else:
    asyncio.run(while_running())
print("over")
"""
"""Children enqueue and work with the app that their parent has opened, while the parent writes."""

OUTLIVES = """
import asyncio, os, sys
from redrive.core.item import NewItem
from redrive.stores.sqlite import SqliteStore

path, binding = sys.argv[1:]
store = SqliteStore(path, binding=binding)

async def put(name):
    await store.put([NewItem(f"{name}-{n}", "q", b"x" * 3_000) for n in range(50)])

with asyncio.Runner() as runner:
    runner.run(store.open())
    runner.run(put("before"))
    heard, told = os.pipe()
    if os.fork() == 0:
        own = asyncio.new_event_loop()
        own.run_until_complete(put("child-first"))
        print("child", flush=True)
        os.read(heard, 1)
        own.run_until_complete(put("child-last"))
        os._exit(0)
    runner.run(put("parent"))
    sys.stdin.readline()
    runner.run(store.close())
    os.write(told, b"x")
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print("over")
"""
"""The child still writes when its parent has closed."""

WITHOUT_APSW = """
import asyncio, sys
from redrive import Redrive
from redrive.errors import MissingExtra
from redrive.stores.sqlite import SqliteStore

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name == "apsw" or name.startswith("apsw."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nowhere())
sys.modules.pop("apsw", None)

async def main():
    for store in (SqliteStore(sys.argv[1], binding="apsw"), Redrive(f"sqlite:///{sys.argv[1]}?binding=apsw")):
        try:
            await store.open()
        except MissingExtra as error:
            print(error)
    async with Redrive(f"sqlite:///{sys.argv[1]}", log=False) as app:
        app.queue("q")
        await app.enqueue("q")
        print(app.info().library)

asyncio.run(main())
"""
"""As if the extra were not installed."""

WARNS = """
import asyncio, logging, sys
logging.basicConfig(format="%(levelname)s %(message)s")
from redrive.core.item import NewItem
from redrive.stores.sqlite import SqliteStore, checkpoint
checkpoint.LOOK = checkpoint.AFTER = 1

async def main():
    for n in range(6):
        store = await SqliteStore(f"{sys.argv[1]}-{n % 2}.db", binding="stdlib").open()
        await store.put([NewItem(f"i-{n}-{m}", "q", b"x" * 100) for m in range(10)])
        await store.close()

asyncio.run(main())
"""
"""Several stores on several files, one after the other, each with checkpoints."""
