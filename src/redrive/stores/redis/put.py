"""`put` on Redis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redrive.core import codec
from redrive.core.families import family_of
from redrive.core.item import NewItem, Priority, Terms
from redrive.core.lanes import NUMBERS
from redrive.core.terms import ties
from redrive.core.verbs import Duplicate, PutResult
from redrive.errors import ConfigError, QueueFull, RedriveError
from redrive.stores.checks import hopeless_dependency, unknown_dependency
from redrive.stores.redis.rows import packed_body, packed_result
from redrive.stores.redis.texts import packed
from redrive.stores.reencrypting import Rewrite

MOST = 500_000
"""Items of one put: the server takes at most a million arguments."""

_NO_TERMS = Terms()

Run = Callable[[str, Sequence[Any]], Awaitable[Any]]


async def put(run: Run, items: Sequence[NewItem], audit: Sequence[Any] = ()) -> PutResult:
    """`audit`: the arguments of the entry that goes with it."""
    if not items:
        return PutResult()
    if len(items) > MOST:
        raise ConfigError(f"{len(items):,} items are too many for one put", field="items", hint=f"put at most {MOST:,}")
    heads = packed([entry(new) for new in items])
    reply = await run("put", [heads, *[packed_body(new.payload) for new in items], *audit])
    if not reply:
        return PutResult(tuple([new.id for new in items]))
    already, duplicates, *refusal = reply
    if refusal:
        raise _refused(items, *refusal[0])
    holders = dict(zip(duplicates[0::2], duplicates[1::2], strict=True))
    there = set(already) | holders.keys()
    return PutResult(
        tuple([new.id for place, new in enumerate(items, 1) if place not in there]),
        tuple([items[place - 1].id for place in already]),
        tuple([Duplicate(items[place - 1].id, holder.decode()) for place, holder in holders.items()]),
    )


async def rewrite(run: Run, rewrites: Sequence[Rewrite], audit: Sequence[Any]) -> int:
    """Of `reencrypt`: bodies that are still what was read. `audit`: the entry in pieces."""
    args: list[Any] = [*(audit or ("", "", ""))]
    for one in rewrites:
        kept = packed_body if one.purpose == "payload" else packed_result
        number = -1 if one.revision is None else one.revision
        args += ["body" if one.purpose == "payload" else "result", one.id, number, kept(one.old), kept(one.new)]
        args.append(codec.encode(one.id))
    return int(await run("rewrite", args))


def entry(new: NewItem, body: int = 0) -> tuple[object, ...]:
    """What putting.lua takes; nearly always an item is as short as that."""
    named = (new.kind, new.release) if new.kind or new.release else ()
    if new.terms is None and new.at is None and new.priority is Priority.NORMAL and not named:
        return new.id, new.queue, new.delay, body
    terms = None if new.terms == _NO_TERMS else new.terms
    due_at = False if new.at is None else new.at
    return (
        *(new.id, new.queue, new.delay, body, due_at, NUMBERS[new.priority], ties(terms), terms_facts(terms)),
        *named,
    )


def terms_facts(terms: Terms | None) -> tuple[object, ...] | bool:
    """As lines.lua has them."""
    if terms is None:
        return False
    key = (False, "", False) if terms.dedupe is None else (terms.dedupe.scope, terms.dedupe.key, terms.dedupe.window)
    scope, dedupe_key, window = key
    described = (terms.schema, terms.trace, terms.headers, terms.revision)
    return (
        *(terms.order_key, 0, "", terms.limit_key),
        *(scope, dedupe_key, False if window is None else window),
        *(terms.after or False, terms.on_dead, terms.policy, ""),
        *(((), described) if any(described) else ()),
    )


def _refused(items: Sequence[NewItem], why: bytes, *what: Any) -> RedriveError:
    if why in (b"after", b"never"):
        place, awaited = what
        refuse = unknown_dependency if why == b"after" else hopeless_dependency
        return refuse(items[place - 1].id, awaited.decode())
    queue, fill, capacity, more = min(what)
    name = queue.decode()
    members = [new.queue for new in items if family_of(new.queue) == name]
    return QueueFull(name, fill=fill, capacity=capacity, more=more, member=max(members, default=""))
