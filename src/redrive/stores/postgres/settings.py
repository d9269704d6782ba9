"""Settings of queues, routes and gates on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from redrive.core.families import OWN_GATE, family_of, is_family, member_settings, names_between
from redrive.core.verbs import SAYABLE, Gate, GateWrite, NewEntry, QueueChange, QueueSettings, changed
from redrive.errors import Conflict
from redrive.stores.checks import check_capacity
from redrive.stores.postgres.compile import storable
from redrive.stores.postgres.rows import settings_of
from redrive.stores.postgres.tx import Tx

if TYPE_CHECKING:
    from redrive.stores.postgres.session import Session


async def settings(session: Session, queue: str) -> QueueSettings:
    own = await _read(session, queue) or QueueSettings()
    family = await _read(session, family_of(queue)) if family_of(queue) else None
    return own if family is None else member_settings(queue, own, family)


async def _read(session: Session, queue: str) -> QueueSettings | None:
    rows = await session.read(session.sql("configure", "settings"), (queue,)) if storable((queue,)) else []
    return settings_of(rows[0]) if rows else None


async def declare_family(session: Session, name: str) -> None:
    """Once in a session: what a lease of a family finds has to be counted and looked at from the beginning."""
    if name not in session.families and storable((name,)):
        await session.call(session.sql("families", "call_declare"), (name,))
        session.families.add(name)


async def configure(session: Session, queue: str, change: QueueChange, audit: NewEntry | None) -> QueueSettings:
    """The settings as they are now."""
    return await session.write(lambda tx: _configure(session, tx, queue, change), audit)


async def _configure(session: Session, tx: Tx, queue: str, change: QueueChange) -> QueueSettings:
    if is_family(queue):
        await tx.execute(session.sql("families", "call_declare"), (queue,))
    else:
        await tx.execute(session.sql("configure", "declare"), (queue,))
    (row,) = await tx.execute(f"{session.sql('configure', 'settings')} for no key update", (queue,))
    before = settings_of(row)
    after = changed(before, change, member=bool(family_of(queue)))
    if change.capacity is not UNSET and change.capacity is not None:
        ((fill,),) = await tx.execute(session.sql("configure", "fill"), (queue,))
        check_capacity(queue, change.capacity, fill)
    if after != before:
        if after.rate is not None or after.max_running is not None:
            pace = "lock_pace" if after.rate == before.rate else "pace"
            await tx.execute(session.sql("configure", pace), (queue,))
        await tx.execute(session.sql("configure", "write"), (*_columns(after), queue))
    if after.max_per_key != before.max_per_key:
        if is_family(queue):
            await tx.execute(session.sql("families", "free_asides"), names_between(queue))
        else:
            await tx.execute(session.sql("configure", "free_all"), (queue,))
    if change.paused is not None:
        by, reason = (change.by, change.reason) if change.paused else ("", "")
        await tx.execute(session.sql("configure", "pause"), (change.paused, by, reason, queue))
    if is_family(queue):
        await tx.execute(session.sql("families", "call_lower_all"), (queue,))
    tx.woken.add(queue)
    return after


def _said(after: QueueSettings, name: str) -> Any:
    """Null where it is as a new queue has it, unless a member of a family has it for itself."""
    value = getattr(after, name)
    return value if value != SAYABLE[name] or name in after.own else None


def _columns(after: QueueSettings) -> tuple[Any, ...]:
    rate = after.rate
    return (
        after.max_running,
        after.max_per_key,
        *((None, None, None) if rate is None else (rate.count, rate.per, rate.burst)),
        after.capacity,
        _said(after, "order"),
        after.policy,
        after.gate,
        after.keep,
        after.keep_results,
        None if after.retry_share is None else float(after.retry_share),
        _said(after, "keep_trash"),
        after.encrypt,
    )


async def configure_route(session: Session, route: str, capacity: int | None, audit: NewEntry | None) -> None:
    async def work(tx: Tx) -> None:
        if capacity is None:
            await tx.execute(session.sql("configure", "drop_route"), (route,))
            return
        await tx.execute(session.sql("configure", "lock_route"), (route, capacity))
        ((fill,),) = await tx.execute(session.sql("configure", "open_of_route"), (route,))
        check_capacity(route, capacity, fill)
        await tx.execute(session.sql("configure", "write_route"), (capacity, route))

    await session.write(work, audit)


# --- gates ---


async def gates(session: Session, name: str | None = None) -> tuple[Gate, ...]:
    if name is not None and not storable((name,)):
        return ()
    return tuple([Gate(*row) for row in await session.read(session.sql("configure", "gates"), (name, name))])


async def set_gate(session: Session, write: GateWrite, audit: NewEntry | None) -> Gate:
    return await session.write(lambda tx: _set_gate(session, tx, write), audit)


async def _set_gate(session: Session, tx: Tx, write: GateWrite) -> Gate:
    limits = (write.interval, write.burst, write.share, write.cap, write.floor)
    next_at = tx.now * 1000 + write.burst * write.interval if write.shut and write.interval is not None else None
    made = False
    if write.expect == 0:
        values = (write.name, *limits, next_at or 0, write.body)
        made = bool(await tx.execute(session.sql("configure", "make_gate"), values))
    if not made:
        rows = await tx.execute(session.sql("configure", "lock_gate"), (write.name,))
        version = rows[0][0] if rows else 0
        if version != write.expect:
            raise Conflict(
                f"gate {write.name!r} is at version {version}, not {write.expect}",
                hint="read it again and repeat the change on what is there now",
            )
        await tx.execute(session.sql("configure", "write_gate"), (*limits, next_at, write.body, write.name))
    behind = [name for (name,) in await tx.execute(session.sql("configure", "behind"), (write.name,))]
    for name in behind:
        if is_family(name):
            await tx.execute(session.sql("families", "call_lower_all"), (name,))
    family = family_of(write.name)
    rows = await tx.execute(session.sql("configure", "settings"), (family,)) if family else []
    if rows and settings_of(rows[0]).gate == OWN_GATE:
        behind.append(write.name)
    tx.woken.update(behind)
    (row,) = await tx.execute(session.sql("configure", "gates"), (write.name, write.name))
    return Gate(*row)
