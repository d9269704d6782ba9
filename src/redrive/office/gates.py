"""Gates as people see them: what stands open and why, and opening and closing them by hand, on the record."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from shlex import quote
from typing import Literal

from msgspec import Struct

from redrive.core import codec
from redrive.core import gate as g
from redrive.core.acts import Act
from redrive.core.item import Instant
from redrive.core.meters import opens_at
from redrive.core.select import Ids
from redrive.core.verbs import Gate, NewEntry
from redrive.errors import Conflict, NotFound
from redrive.stores.audit import TOPIC, AuditRecord
from redrive.stores.base import Store

Next = Callable[[g.GateBody, Instant], g.GateBody]
ONE_RETRY = 1000
"""In the thousandths that a gate's credit is counted in."""
REMOVED = "removed"
"""The mark of a gate that nobody wants any more. The store keeps its number, so that a writer who still has the old one
is refused; whoever declares the gate again has it back."""


class GateView(Struct, frozen=True):
    """`state` is since `since`, because of `why`; `by` names who did it by hand. `half-open`: a probe may run.

    `failures` of `outcomes` failed in the last window, as far as workers have told. `retries`: how many of them are
    saved up, None while there is no budget to keep. `retry_at`: none is, and then the next passes all the same.
    """

    name: str
    state: Literal["closed", "open", "half-open"]
    since: Instant | None
    why: str
    by: str
    next_probe_at: Instant | None
    opened: int
    failures: int
    outcomes: int
    retries: float | None
    config: g.GateConfig
    retry_at: Instant | None = None


async def list_gates(store: Store) -> tuple[GateView, ...]:
    now = (await store.tally(members=False)).at
    return tuple([_view(gate, now) for gate in await _there(store)])


async def show_gate(store: Store, name: str) -> GateView:
    """Raises NotFound."""
    gate = await store.gate(name)
    if gate is None or _is_removed(gate):
        raise await _unknown(store, name)
    return _view(gate, (await store.tally(members=False)).at)


async def _there(store: Store) -> list[Gate]:
    return [gate for gate in await store.gates() if not _is_removed(gate)]


def _is_removed(gate: Gate) -> bool:
    return g.body_of(gate).mark == REMOVED


async def declare_gate(store: Store, name: str, config: g.GateConfig | None = None) -> None:
    """As the code says; the state stays. Without a config: as it is, or with the usual one if there is none."""
    g.check_gate_name(name)
    gate = await store.gate(name)
    if gate is not None and config is None and not _is_removed(gate):
        return

    def declared(body: g.GateBody, _: Instant) -> g.GateBody:
        return g.GateBody(config or body.config, body.state)

    await _change(store, name, gate, declared, 0)


async def open_gate(store: Store, name: str, by: Act) -> GateView:
    """Shut for all, without probes, until somebody closes it."""

    def opened(body: g.GateBody, now: Instant) -> g.GateBody:
        return g.GateBody(body.config, g.held(body.state, now, by=by.actor, why=by.reason))

    return await _by_hand(store, name, opened, "gate open", by)


async def close_gate(store: Store, name: str, by: Act) -> GateView:
    """All flows at once; failures are counted anew."""

    def closed(body: g.GateBody, now: Instant) -> g.GateBody:
        return g.GateBody(body.config, g.released(body.state, now, by=by.actor, why=by.reason))

    return await _by_hand(store, name, closed, "gate close", by)


async def remove_gate(store: Store, name: str, by: Act) -> None:
    """Conflict while queues stand behind it."""
    gate = await store.gate(name)
    if gate is None or _is_removed(gate):
        raise await _unknown(store, name)
    check_nothing_behind(name, [row.queue for row in (await store.tally()).queues if row.settings.gate == name])
    while gate is not None:
        write = g.write(name, gate.version, g.body_of(gate).state, g.GateState(), g.GateConfig(), mark=REMOVED)
        try:
            await store.set_gate(write, audit_entry("gate remove", name, by))
        except Conflict:
            gate = await store.gate(name)
        else:
            return


def check_nothing_behind(name: str, queues: list[str]) -> None:
    """Raises Conflict."""
    if queues:
        hint = f"take them away first: redrive queue set {quote(queues[0])} --gate none --reason …"
        raise Conflict(f"gate {name!r} has queues behind it: {', '.join(queues)}", hint=hint)


async def _by_hand(store: Store, name: str, change: Next, word: str, by: Act) -> GateView:
    gate = await store.gate(name)
    if gate is None or _is_removed(gate):
        raise await _unknown(store, name)
    now = (await store.tally(members=False)).at
    return _view(await _change(store, name, gate, change, now, audit=audit_entry(word, name, by)), now)


async def _change(
    store: Store, name: str, gate: Gate | None, change: Next, now: Instant, *, audit: NewEntry | None = None
) -> Gate:
    """Workers write the same gate: whoever was first, the change is made to what is there. What is audited is written
    also if it changes nothing.
    """
    while True:
        body = g.body_of(gate)
        after = change(body, now)
        same = (after.config, after.state, body.mark == REMOVED) == (body.config, body.state, False)
        if gate is not None and same and audit is None:
            return gate
        expect = 0 if gate is None else gate.version
        try:
            return await store.set_gate(g.write(name, expect, body.state, after.state, after.config), audit)
        except Conflict:
            gate = await store.gate(name)


def audit_entry(word: str, name: str, by: Act) -> NewEntry:
    """Of an act on something that is no item, for the write that does it."""
    record = AuditRecord(word, Ids(()), (name,))
    return NewEntry(TOPIC, codec.encode(record), by.actor, by.reason, by.request_id)


def _view(gate: Gate, now: Instant) -> GateView:
    body = g.body_of(gate)
    state, window = body.state, body.state.window
    probe_at = None
    word: Literal["closed", "open", "half-open"] = "closed"
    if gate.interval is not None:
        word = "open"
        if not state.by:
            probe_at = -(-opens_at(gate.interval, gate.burst, gate.next_at) // 1000)
            word = "half-open" if state.longer_from <= now else "open"
    return GateView(
        name=gate.name,
        state=word,
        since=state.since or None,
        why=state.why,
        by=state.by,
        next_probe_at=probe_at,
        opened=state.opened,
        failures=window.failures,
        outcomes=window.outcomes,
        retries=None if gate.share is None else gate.credit / ONE_RETRY,
        config=body.config,
        retry_at=_retry_at(gate, now),
    )


def _retry_at(gate: Gate, now: Instant) -> Instant | None:
    if gate.interval is not None or gate.share is None or gate.credit >= ONE_RETRY:
        return None
    at = -(-opens_at(gate.floor, 1, gate.floor_at) // 1000)
    return at if at > now else None


async def _unknown(store: Store, name: str) -> NotFound:
    near = get_close_matches(name, [gate.name for gate in await _there(store)], n=1)
    guess = f"did you mean {near[0]!r}?" if near else f"declare it with app.gate({name!r})"
    return NotFound(f"no gate {name!r}", hint=guess)
