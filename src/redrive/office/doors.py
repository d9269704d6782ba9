"""The door of a queue: a document names it, so that any process can say what serves the queue and show its items."""

from __future__ import annotations

from functools import partial
from shlex import quote

from msgspec import Struct
from msgspec.structs import replace

from redrive.core.families import family_of
from redrive.core.item import History, Item
from redrive.core.verbs import DocumentWrite
from redrive.doors import Door, find, loaded
from redrive.engine.registry import OUTBOX, is_outbox
from redrive.errors import ConfigError
from redrive.stores.aside import aside
from redrive.stores.base import Store

KIND = "door"


class Problem(Struct, frozen=True):
    """A health finding. `kind` is a word for programs, `what` the queue, route, gate or worker; `do` is a command that
    helps.
    """

    kind: str
    what: str
    text: str
    do: str


class Marked(dict[str, str]):
    """Names of doors by queue, in which a member of a family is found under the family's name."""

    def get(self, queue: str, default: str = "") -> str:  # type: ignore[override]  # one default is enough
        return super().get(queue) or super().get(family_of(queue), default)


async def mark(store: Store, queue: str, door: str) -> None:
    """Write the name of the queue's door, unless it is there already."""
    said = door.encode()
    known = await store.document(KIND, queue)
    if known is None or known.body != said:
        await store.write_documents([DocumentWrite(KIND, queue, said)])


async def doors(store: Store) -> Marked:
    """By queue; a member of a family has that of the family. Queues of plain handlers have none."""
    marked = {document.key: document.body.decode(errors="replace") for document in await store.documents(KIND)}
    for name in set(marked.values()):
        await _load(name)
    return Marked(marked)


async def _load(name: str) -> Door | None:
    """In a thread, where it is new to this process: modules are imported, and installed packages searched."""
    return loaded(name) or await aside(partial(find, name))


def receives(door: str) -> bool:
    """Whether the items of its queues are received, not handled: then no policy judges them."""
    found = loaded(door)
    return found is not None and found.receives


def start(door: str, queue: str) -> str:
    """What serves such a queue. The door is one that `doors` gave."""
    if is_outbox(queue):
        return f"start a process that delivers to the outbox target {queue.removeprefix(OUTBOX)}"
    found = loaded(door)
    form = found.start if found is not None else ""
    return (form or "redrive worker run MODULE:APP --queues {queue}").replace("{queue}", quote(queue))


async def problems(store: Store) -> tuple[Problem, ...]:
    """What the doors find wrong with their queues."""
    queues: dict[str, list[str]] = {}
    for queue, name in (await doors(store)).items():
        queues.setdefault(name, []).append(queue)
    found: list[Problem] = []
    for name in sorted(queues):
        door = loaded(name)
        if door is not None and door.check is not None:
            found += await door.check(store, tuple(sorted(queues[name])))
    return tuple(found)


async def show_body(store: Store, history: History) -> History:
    """The item with the body of its payload alone, without what its door keeps beside it; the same of its revisions."""
    item = history.item
    door = None if item.flaw else await _door_of(store, item)
    if door is None or door.body is None:
        return history
    revisions = [each if each.flaw else replace(each, payload=door.body(each.payload)) for each in history.revisions]
    return replace(history, item=replace(item, payload=door.body(item.payload)), revisions=tuple(revisions))


async def payload_with(store: Store, item: Item, body: bytes) -> bytes:
    """The payload of the item with another body, and all else that its door keeps beside it."""
    door = await _door_of(store, item)
    if door is None or door.with_body is None:
        return body
    if item.flaw:
        hint = "give the whole payload, as it is to be stored: raw=True, --raw on the command line"
        raise ConfigError(f"the payload of {item.id} is damaged: its other fields are lost", field="payload", hint=hint)
    return door.with_body(item.payload, body)


async def _door_of(store: Store, item: Item) -> Door | None:
    document = await store.document(KIND, item.queue)
    family = family_of(item.queue)
    if document is None and family:
        document = await store.document(KIND, family)
    return None if document is None else await _load(document.body.decode(errors="replace"))
