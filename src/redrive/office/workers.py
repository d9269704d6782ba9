"""Asking workers to end, wherever they run. They hear it with their next beat."""

from __future__ import annotations

from collections.abc import Sequence

from redrive.core.acts import Act
from redrive.core.verbs import WorkerBeat
from redrive.engine import orders
from redrive.engine.orders import Order, can_hear
from redrive.errors import Conflict, NotFound
from redrive.office.gates import audit_entry
from redrive.stores.base import Store

SHOWN = 3


def find(beats: Sequence[WorkerBeat], text: str) -> WorkerBeat:
    """By name, by a prefix of it, or by a prefix of its last part: all names of a host begin alike.

    Where a prefix fits several, those that can hear are meant.
    """
    exact = [beat for beat in beats if beat.worker == text]
    near = [beat for beat in beats if text and _fits(beat.worker, text)]
    fitting = exact or [beat for beat in near if can_hear(beat)] or near
    if not fitting:
        raise NotFound(f"no worker {text!r} was heard of within a day", hint="see redrive worker list --all")
    if len(fitting) > 1:
        some = ", ".join(beat.worker for beat in fitting[:SHOWN])
        more = ", …" if len(fitting) > SHOWN else ""
        raise NotFound(f"{text!r} fits {len(fitting)} workers: {some}{more}", hint="write more of the name")
    return fitting[0]


def check_can_hear(beat: WorkerBeat) -> None:
    if not can_hear(beat):
        how = "it stopped already" if beat.facts.stopped else "it is lost; what it held comes back by itself"
        raise Conflict(f"{beat.worker} cannot be asked: {how}", hint="see redrive worker list --all")


async def ask_to_end(store: Store, beat: WorkerBeat, order: Order, request_id: str) -> None:
    """Conflict if it cannot hear any more."""
    check_can_hear(beat)
    act = Act(order.by, order.reason, request_id)
    await orders.give(store, [beat.worker], order, audit_entry(f"worker {order.word}", beat.worker, act))


def _fits(worker: str, text: str) -> bool:
    return worker.startswith(text) or worker.rpartition("-")[2].startswith(text)
