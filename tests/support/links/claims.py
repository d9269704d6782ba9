"""Every verb of a store over a bad link: how long it took, what it said, and whether that was true.

A verb that returns has happened. One that says StoreUnavailable has not, and never will, not even when a request that
was under way arrives late. One that says OutcomeUnknown may be repeated and is then done once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, Literal
from unittest.mock import patch

from msgspec.structs import replace

from redrive.core.acts import Cancel, Change, Edit, Expire, Park, Recall, Replay, Reserve, RunNow
from redrive.core.item import History, Item, Letter
from redrive.core.select import Ids, Match
from redrive.core.states import Disposition, State
from redrive.core.verbs import (
    DocumentWrite,
    GateWrite,
    NewEntry,
    QueueChange,
    Want,
    WorkerFacts,
)
from redrive.errors import NotFound, OutcomeUnknown, StoreError
from redrive.stores.base import Store
from redrive.stores.bodies import as_stored
from redrive.stores.keyring import Keyring
from redrive.stores.postgres import session as postgres
from redrive.stores.redis import session as redis
from redrive.testing.conformance.kit import act, asking, dead, failure, finished, held, new

Call = Callable[[], Awaitable[object]]

LETTERS = ("lease_letters", "settle_letters")
CHANGES: dict[str, tuple[Change, Callable[[Item], bool]]] = {
    "amend": (Cancel(), lambda item: item.state is State.CANCELLED),
    "amend-edit": (Edit(b"[]"), lambda item: item.revision > 0),
    "amend-park": (Park("link"), lambda item: item.hold == "parked:link"),
    "amend-run-now": (RunNow(), lambda item: item.due_at < item.enqueued_at + TTL),
    "amend-expire": (Expire(), lambda item: item.letter is not None),
    "amend-recall": (Recall(), lambda item: item.letter is not None),
    "amend-reserve": (Reserve("link"), lambda item: item.letter is not None and item.letter.reserved == "link"),
}
"""Acts, and how it is seen that they happened."""
MADE_LETTERS = (*LETTERS, "amend-recall", "amend-reserve")
GIVEN = ("lease", "settle", "extend", "reclaim", *CHANGES, "prune", *LETTERS)
"""Verbs that need an item; each has one of its own, in a queue of its own."""
OF_MANY = ("check", "reencrypt")
"""Verbs that are a sequence of calls: a check reads the whole store in windows."""
KEYS = Keyring({"k1": bytes(range(32))}, current="k1")
WAIT = 100
"""Milliseconds that the verb `wait` is asked to wait."""
TTL = 600_000
"""Milliseconds: nothing lapses while a busy machine gets through all of it."""
OVER = 1.0
"""Seconds by which a call may outlast its deadline."""


@dataclass(frozen=True)
class Word:
    """What a verb said. `wrong`: an error that no caller of a store is prepared for. `seconds` of a verb that is a
    sequence of calls are those of its longest call: the deadline is one for each.
    """

    answer: Literal["ok", "no", "unknown", "wrong"]
    seconds: float
    error: str = ""


@dataclass
class Heard:
    """What all verbs said, and by how much this process itself was late at worst."""

    words: dict[str, Word] = field(default_factory=dict)
    lag: float = 0.0

    def by_answer(self, answer: str) -> set[str]:
        return {verb for verb, word in self.words.items() if word.answer == answer}

    def faults(self, deadline: float) -> dict[str, str]:
        allowed = deadline + OVER + self.lag
        late = {
            verb: f"took {word.seconds:.2f} s, its deadline is {deadline} s: {word.error}"
            for verb, word in self.words.items()
            if word.seconds > allowed + (WAIT / 1000 if verb == "wait" else 0)
        }
        return late | {verb: word.error for verb, word in self.words.items() if word.answer == "wrong"}


class Round:
    """One try of every verb on things that nobody else touches. `direct` goes past the link."""

    def __init__(self, name: str, direct: Store) -> None:
        self.name = name
        self._direct = direct
        self._items: dict[str, Item] = {}
        self._by = act(f"{name}-request")
        self._asked = asking(queue=self._of("lease"), worker=f"{name}-worker", nonce=f"{name}-nonce")

    def _of(self, verb: str) -> str:
        return f"{self.name}-{verb}"

    async def prepare(self) -> None:
        store = self._direct
        later = {"amend-run-now": TTL}
        await store.put([new(item_id=self._of(verb), queue=self._of(verb), delay=later.get(verb, 0)) for verb in GIVEN])
        await store.put([new(item_id=self._of("reencrypt"), queue=self._of("reencrypt"))])
        await store.configure(self._of("reencrypt"), QueueChange(encrypt=True))
        wants = [Want(self._of(verb), 1, TTL, 3) for verb in ("settle", "extend", "reclaim", "prune", *MADE_LETTERS)]
        leases = await store.lease(asking(wants=wants, worker=f"{self.name}-first"))
        self._items = {item.id.removeprefix(f"{self.name}-"): item for item in leases.items}
        await store.settle([finished(self._items["prune"]), *[dead(self._items[verb]) for verb in MADE_LETTERS]])
        await store.amend(Ids((self._of("amend-recall"),)), Replay(), act(f"{self.name}-replay"))
        (self._items["settle_letters"],) = await store.lease_letters([self._of("settle_letters")], self.name, TTL)

    def calls(self, store: Store) -> dict[str, Call]:
        return self._writes(store) | self._reads(store)

    def _writes(self, store: Store) -> dict[str, Call]:
        name, of, items = self.name, self._of, self._items
        document = DocumentWrite("link", name, b"{}")
        acts = {verb: partial(store.amend, Ids((of(verb),)), change, self._by) for verb, (change, _) in CHANGES.items()}
        return {
            "put": lambda: store.put([new(item_id=of("put"), queue=of("put"))]),
            "lease": lambda: store.lease(self._asked),
            "settle": lambda: store.settle([finished(items["settle"])]),
            "extend": lambda: store.extend([held(items["extend"])], 10 * TTL),
            "reclaim": lambda: store.reclaim(name, [of("reclaim")], TTL, 1, [of("reclaim")], force=True),
            "lease_letters": lambda: store.lease_letters([of("lease_letters")], name, TTL),
            "settle_letters": lambda: store.settle_letters([finished(items["settle_letters"])]),
            **acts,
            "prune": lambda: store.prune(Match("id", "=", of("prune")), 1, self._by),
            "configure": lambda: store.configure(of("configure"), QueueChange(paused=True, by="a", reason="b")),
            "beat": lambda: store.beat(of("beat"), WorkerFacts(()), TTL),
            "elect": lambda: store.elect(of("elect"), "me", TTL),
            "write_documents": lambda: store.write_documents([document]),
            "append": lambda: store.append([NewEntry(of("append"), b"1")]),
            "configure_route": lambda: store.configure_route(of("configure_route"), 7),
            "set_gate": lambda: _set_gate(store, of("set_gate")),
            "take_in": lambda: store.take_in([_letter(of("take_in"))], self._by),
            "reencrypt": lambda: _reencrypt(store, of("reencrypt")),
        }

    def _reads(self, store: Store) -> dict[str, Call]:
        everything = Match("queue", "glob", f"{self.name}-*")
        return {
            "get": lambda: store.get(self._of("settle")),
            "find": lambda: store.find(everything),
            "ids": lambda: store.ids(everything),
            "tally": store.tally,
            "causes": store.causes,
            "changes": store.changes,
            "kinds": lambda: store.kinds(self._of("configure")),
            "tombstone": lambda: store.tombstone(self._of("settle")),
            "workers": store.workers,
            "wait": lambda: store.wait([self._of("configure")], WAIT),
            "document": lambda: store.document("link", "none"),
            "documents": lambda: store.documents("none"),
            "journal": lambda: store.journal("none"),
            "check": lambda: store.check(quick=True),
            "settings": lambda: store.settings(self._of("configure")),
            "gate": lambda: store.gate("none"),
            "gates": store.gates,
            # Nothing here has an end to its keeping: it looks, and leaves all as it is.
            "sweep": lambda: store.sweep(10, self._by),
        }

    async def happened(self) -> dict[str, bool]:
        """Which writes are there, as seen past the link."""
        store, of = self._direct, self._of
        item = {verb: await self._item(of(verb)) for verb in ("put", "take_in", *GIVEN)}
        before = self._items["extend"].lease_until
        return {
            "put": item["put"] is not None,
            "lease": _is(item["lease"], lambda it: it.deliveries == 1),
            "settle": _is(item["settle"], lambda it: it.state is State.DONE),
            "extend": _is(item["extend"], lambda it: it.lease_until != before),
            "reclaim": _is(item["reclaim"], lambda it: it.deliveries > 1),
            "lease_letters": _is(item["lease_letters"], lambda it: it.lease_until is not None),
            "settle_letters": _is(item["settle_letters"], lambda it: it.state is State.DONE),
            **{verb: _is(item[verb], happened) for verb, (_, happened) in CHANGES.items()},
            "prune": await store.tombstone(of("prune")) is not None,
            "configure": any(row.queue == of("configure") and row.paused for row in (await store.tally()).queues),
            "beat": any(beat.worker == of("beat") for beat in await store.workers()),
            "elect": not await store.elect(of("elect"), "somebody else", 1),
            "write_documents": await store.document("link", self.name) is not None,
            "append": bool(await store.journal(of("append"))),
            "configure_route": any(row.route == of("configure_route") for row in (await store.tally()).routes),
            "set_gate": await store.gate(of("set_gate")) is not None,
            "take_in": _is(item["take_in"], lambda it: it.state is State.DEAD),
            "reencrypt": (await as_stored(store.get(of("reencrypt")))).item.sealed != "",
        }

    async def _item(self, item_id: str) -> Item | None:
        history = await self._history(item_id)
        return None if history is None else history.item

    async def _history(self, item_id: str) -> History | None:
        try:
            return await self._direct.get(item_id)
        except NotFound:
            return None

    async def lies(self, heard: Heard) -> dict[str, str]:
        """What was said and is not so. To be asked when nothing is under way any more."""
        happened = await self.happened()
        words = {verb: heard.words[verb] for verb in happened if verb in heard.words}
        never = {verb: "it returned and did not happen" for verb in words if not happened[verb]}
        after_all = {verb: f"it happened after all: {words[verb].error}" for verb in words if happened[verb]}
        return {
            **{verb: why for verb, why in never.items() if words[verb].answer == "ok"},
            **{verb: why for verb, why in after_all.items() if words[verb].answer == "no"},
        }

    async def doubles(self) -> dict[str, str]:
        """What was repeated and happened twice."""
        found = {}
        for verb in ("lease", "settle", *LETTERS):
            item = await self._item(self._of(verb))
            if item is None or item.deliveries > (2 if verb in LETTERS else 1):
                found[verb] = f"{item}"
        for verb in (*CHANGES, "take_in"):
            history = await self._history(self._of(verb))
            mine = () if history is None else [deed for deed in history.deeds if deed.request_id == self._by.request_id]
            if len(mine) > 1:
                found[verb] = f"{mine}"
        return found


async def _set_gate(store: Store, name: str) -> None:
    """As who compares and sets does it: a write of unknown outcome that is there is not made again."""
    if await store.gate(name) is None:
        await store.set_gate(GateWrite(name, 0))


async def _reencrypt(store: Store, queue: str) -> None:
    store.use_keys(KEYS)
    await store.reencrypt(10, queue=queue)


def _letter(item_id: str) -> History:
    """Of another store."""
    died = 5
    letter = Letter("max_attempts", died, Disposition.OPEN, failure())
    item = Item(item_id, item_id, b"{}", 1, State.DEAD, 1, 1, 1, deliveries=1, attempt=1, errors=1, ended_at=died)
    return History(replace(item, letter=letter), ())


def _is(item: Item | None, question: Callable[[Item], bool]) -> bool:
    return item is not None and question(item)


_reads: ContextVar[list[float] | None] = ContextVar("reads", default=None)
"""Seconds of each read of the verb that this task asks."""


@contextmanager
def _reads_timed() -> Iterator[None]:
    def timed(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @wraps(read)
        async def measured(*args: Any) -> Any:
            began = time.monotonic()
            try:
                return await read(*args)
            finally:
                if (seconds := _reads.get()) is not None:
                    seconds.append(time.monotonic() - began)

        return measured

    with ExitStack() as patches:
        for session in (postgres.Session, redis.Session):
            patches.enter_context(patch.object(session, "read", timed(session.read)))
        yield


async def _ask_of_many(call: Call) -> Word:
    """It reads in several calls, each with the deadline of a call."""
    seconds: list[float] = []
    _reads.set(seconds)
    word = await _ask(call)
    return dataclasses.replace(word, seconds=max(seconds, default=word.seconds))


async def hear(calls: dict[str, Call]) -> Heard:
    """Ask all at once."""
    heard = Heard()
    watching = asyncio.create_task(_watch_lag(heard))
    try:
        with _reads_timed():
            asked = [_ask_of_many(call) if verb in OF_MANY else _ask(call) for verb, call in calls.items()]
            words = await asyncio.gather(*asked)
    finally:
        watching.cancel()
    heard.words = dict(zip(calls, words, strict=True))
    return heard


async def _ask(call: Call) -> Word:
    began = time.monotonic()

    def word(answer: Literal["ok", "no", "unknown", "wrong"], error: Exception | None = None) -> Word:
        return Word(answer, time.monotonic() - began, "" if error is None else f"{type(error).__name__}: {error}")

    try:
        await call()
    except OutcomeUnknown as error:
        return word("unknown", error)
    except StoreError as error:
        return word("no", error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it should not have come out of a store
        return word("wrong", error)
    return word("ok")


async def _watch_lag(heard: Heard) -> None:
    """A machine that is busy with other things makes everybody late; that is not the store's doing."""
    pause = 0.02
    while True:
        began = time.monotonic()
        await asyncio.sleep(pause)  # noqa: TID251 - real time is what is measured
        heard.lag = max(heard.lag, time.monotonic() - began - pause)
