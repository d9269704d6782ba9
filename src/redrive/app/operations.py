"""Methods of an app for operators: read its state and health, pause, configure, cancel, prune, back up."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable
from typing import Unpack

from redrive.app.lifecycle import Lifecycle
from redrive.app.registration import is_count
from redrive.core.acts import (
    Act,
    Amended,
    Cancel,
    Expire,
    Park,
    RunNow,
    SetPolicy,
    Unpark,
    WaitingChange,
)
from redrive.core.codec import dump_payload
from redrive.core.durations import Duration, parse
from redrive.core.families import OWN_GATE
from redrive.core.filters import parse as parse_filter
from redrive.core.item import Item
from redrive.core.policy_data import PolicyLike
from redrive.core.routes import check_route
from redrive.core.verbs import (
    Backup,
    CauseTally,
    Checkup,
    QueueChange,
    Reencrypted,
    StoreInfo,
    Tally,
    Tombstone,
    WorkerBeat,
)
from redrive.engine import deaths
from redrive.engine.cancelling import cancel_by_force
from redrive.engine.orders import Order
from redrive.engine.registry import unknown_queue
from redrive.errors import ConfigError
from redrive.observe.alerts.api import Alerts
from redrive.observe.app_metrics import AppMetrics
from redrive.office import gates, workers
from redrive.office import settings as office
from redrive.office.audit import Audit
from redrive.office.bites import amend_in_bites, bites_of, joined
from redrive.office.editing import edit
from redrive.office.encryption import reencrypt_all
from redrive.office.gates import GateView
from redrive.office.health import Health
from redrive.office.health import health as find_health
from redrive.office.letters import Letters, Which, check_reason, check_several
from redrive.office.overview import Overview, overview
from redrive.office.policies import check_policy
from redrive.office.replays import Replays
from redrive.office.said import request_named
from redrive.office.schedules import Schedules
from redrive.office.settings import QueueOptions
from redrive.office.views import Views
from redrive.office.waiting import amend_waiting, check_label


class Operating(Lifecycle):
    @property
    def letters(self) -> Letters:
        """The dead letter office."""
        return self._parts.check_open().letters

    @property
    def schedules(self) -> Schedules:
        """What recurs: list, pause, resume, run now, remove."""
        return self._parts.check_open().schedules

    @property
    def views(self) -> Views:
        """Filters with a name, kept in the store: save, list, get, remove."""
        parts = self._parts.check_open()
        return Views(parts.store, actor=parts.actor)

    @property
    def replays(self) -> Replays:
        """Replays in the background: list, get, pause, resume, cancel, set_rate, undo."""
        parts = self._parts.check_open()
        return Replays(parts.store, actor=parts.actor)

    @property
    def audit(self) -> Audit:
        """What was done by whom and why: list, verify, seal."""
        return Audit(self._parts.check_open().store)

    @property
    def metrics(self) -> AppMetrics:
        """Metrics of every queue, for Prometheus: `app.metrics.register()`. They count from the first access on."""
        if self._parts.metrics is None:
            self._parts.metrics = AppMetrics(self.events, lambda: self._parts.store, lambda: self._parts.open_loop)
        return self._parts.metrics

    @property
    def alerts(self) -> Alerts:
        """Alerts: channel, rule and every declare them; list, silence, silences, unsilence, test and evaluate act."""
        return Alerts(self._parts)

    def info(self) -> StoreInfo:
        return self._parts.check_open().store.info()

    async def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        """Without `members`, the row of a family stands in place of those of its members; with some names, beside those
        of these members.
        """
        return await self._parts.check_open().store.tally(members=members)

    async def overview(self, *, members: bool = False) -> Overview:
        """The store at one time: its queues, routes, gates, most frequent causes of dead letters, and workers.

        `members`: with a row for each member of a family, not one for the family.
        """
        return await overview(self._parts.check_open().store, members=members)

    async def health(self, *, oldest: Duration = "15m", max_letters: int | None = None) -> Health:
        """What an operator should look at: queues without a worker, old or stuck work, lost workers, full routes, …

        `oldest`: how long an item may be due. `max_letters`: how many open letters are no problem; None for any number.
        """
        parts = self._parts.check_open()
        if max_letters not in (None, 0) and not is_count(max_letters):
            hint = "use a whole number of at least 0, or None for any number"
            raise ConfigError(f"{max_letters!r} is not a number of letters", field="max_letters", hint=hint)
        return await find_health(parts.store, oldest=parse(oldest, field="oldest"), max_letters=max_letters)

    async def causes(self, queue: str | None = None, *, limit: int = 100) -> tuple[CauseTally, ...]:
        """Open letters grouped by cause, most first."""
        return await self._parts.check_open().store.causes(queue, limit)

    async def workers(self) -> tuple[WorkerBeat, ...]:
        return await self._parts.check_open().store.workers()

    async def stop_worker(
        self, worker: str, *, reason: str, at_once: bool = False, request_id: str | None = None
    ) -> str:
        """Ask a worker, wherever it runs, to finish what it has and end; `at_once` to release it. Gives its full name.

        By its name, or a prefix that fits one. It hears of it with its next beat, within some ten seconds.
        """
        parts = self._parts.check_open()
        why = check_reason(reason)
        beat = workers.find(await parts.store.workers(), worker)
        order = Order("stop" if at_once else "drain", parts.actor, why, parts.clock.now())
        await workers.ask_to_end(parts.store, beat, order, request_named(request_id))
        return beat.worker

    async def report_death(self, pid: int, *, why: str) -> tuple[str, ...]:
        """For whoever supervises workers on this host: how the process died, for the evidence of what it held.

        Gives the names of its workers; none if the process had no worker, or they stopped in good order.
        """
        return await deaths.report(self._parts.check_open().store, platform.node(), pid, why)

    async def pause(self, queue: str, *, reason: str) -> None:
        """No worker leases from the queue until `resume`; what runs goes on."""
        parts = await self._parts.catch_up()
        why = check_reason(reason)
        await parts.client.check_queue(queue)
        change = QueueChange(paused=True, by=parts.actor, reason=why)
        await parts.store.configure(queue, change, office.settings_entry("pause", queue, {}, self._act(why)))

    async def resume(self, queue: str, *, reason: str = "resumed") -> None:
        parts = await self._parts.catch_up()
        why = check_reason(reason)
        await parts.client.check_queue(queue)
        entry = office.settings_entry("resume", queue, {}, self._act(why))
        await parts.store.configure(queue, QueueChange(paused=False), entry)

    async def configure(self, queue: str, *, reason: str, **settings: Unpack[QueueOptions]) -> None:
        """Change settings of a queue now, for every worker; those that `app.queue` declares. None lifts a limit.

        It stays until it is changed again, or until the code declares another value than it did.
        """
        parts = await self._parts.catch_up()
        change, why = office.queue_change(settings, queue), check_reason(reason)
        if not settings:
            raise ConfigError("nothing to change", field="settings", hint="say which, such as max_running=10")
        await parts.client.check_queue(queue)
        office.check_share(queue, change, parts.registry.declared)
        await office.check_member(parts.store, queue, change)
        if settings.get("policy") is not None:
            await check_policy(parts.store, settings["policy"], parts.registry.policies)
        said = office.said(change)
        if said.get("gate") not in (None, "", OWN_GATE):
            # One that is not there would hold nothing back.
            await gates.declare_gate(parts.store, said["gate"])
        await parts.store.configure(queue, change, office.settings_entry("configure", queue, said, self._act(why)))

    async def configure_route(self, route: str, *, capacity: int | None, reason: str) -> None:
        """How many open letters the route has room for from now on; None for no limit."""
        parts = await self._parts.catch_up()
        name, most, why = check_route(route), office.check_capacity(capacity), check_reason(reason)
        entry = office.settings_entry("configure_route", name, {"capacity": most}, self._act(why))
        await parts.store.configure_route(name, most, entry)

    async def gates(self) -> tuple[GateView, ...]:
        """Every gate: open or closed, since when and why, and when the next probe may run."""
        parts = await self._parts.catch_up()
        return await gates.list_gates(parts.store)

    async def open_gate(self, name: str, *, reason: str) -> GateView:
        """By hand: nothing behind it is leased, not even a probe, until `close_gate`. What runs goes on."""
        parts = await self._parts.catch_up()
        return await gates.open_gate(parts.store, name, self._act(reason))

    async def close_gate(self, name: str, *, reason: str) -> GateView:
        """By hand: what waits behind it flows again, and failures are counted anew."""
        parts = await self._parts.catch_up()
        return await gates.close_gate(parts.store, name, self._act(reason))

    async def remove_gate(self, name: str, *, reason: str) -> None:
        """One that no queue stands behind. One that an app still declares comes back when that app is opened."""
        parts = await self._parts.catch_up()
        await gates.remove_gate(parts.store, name, self._act(reason))

    async def cancel(
        self, ids: str | Iterable[str], *, reason: str, force: bool = False, request_id: str | None = None
    ) -> Amended:
        """Cancel items that are ready (waiting, scheduled or between retries). A running one is asked to stop.

        Its worker hears of it within seconds, and cancels the handler; a handler that finishes first is done all the
        same. `force` does not wait for that: the item is taken from its worker, whose result no longer counts.
        """
        parts = self._parts.check_open()
        chosen = [str(each) for each in check_several(ids, "ids")]
        act = self._act(reason, request_id)
        if not force:
            return await amend_in_bites(parts.store, bites_of(chosen, Cancel()), act)
        return joined([await cancel_by_force(parts.store, each, act) for each in dict.fromkeys(chosen)])

    async def set_policy(
        self, which: Which, policy: PolicyLike | None, *, reason: str, request_id: str | None = None
    ) -> Amended:
        """Replace the policy of waiting items, from their next failure on. None removes it: then the queue's applies.

        `which` is an id, ids, items, a page, or a filter, which selects waiting items only. Items that run or have
        ended are skipped.
        """
        parts = self._parts.check_open()
        text = "" if policy is None else await check_policy(parts.store, policy, parts.registry.policies)
        return await self._amend_waiting(which, SetPolicy(text), reason, request_id)

    async def run_now(
        self, which: Which, *, reason: str, reset: bool = False, request_id: str | None = None
    ) -> Amended:
        """Make waiting items due at once, whatever their retry or delay; what waits for others still does.

        `reset` gives them the whole budget of attempts again. `which` as for `set_policy`.
        """
        return await self._amend_waiting(which, RunNow(reset=bool(reset)), reason, request_id)

    async def expire(self, which: Which, *, reason: str, request_id: str | None = None) -> Amended:
        """Make waiting items dead letters with the reason `expired`, without another attempt. `which` as for
        `set_policy`.
        """
        return await self._amend_waiting(which, Expire(), reason, request_id)

    async def park(self, which: Which, label: str, *, reason: str, request_id: str | None = None) -> Amended:
        """Keep waiting items from being leased, however due they are, until `unpark`, `cancel` or `expire`.

        `label` is a short name for why, such as `schema`: `hold:parked` finds them, and `item.hold` is `parked:schema`.
        A parked head of an order key blocks its key. `which` as for `set_policy`.
        """
        return await self._amend_waiting(which, Park(check_label(label)), reason, request_id)

    async def unpark(self, which: Which, *, reason: str, request_id: str | None = None) -> Amended:
        """Let parked items go on: they wait for what they would wait for now, and run when that is over. `which` as for
        `set_policy`; items that are not parked are skipped.
        """
        return await self._amend_waiting(which, Unpark(), reason, request_id)

    async def edit(
        self,
        item_id: str,
        payload: object,
        *,
        reason: str,
        revision: int | None = None,
        raw: bool = False,
        request_id: str | None = None,
    ) -> Item:
        """Replace the payload of a dead letter or a waiting item, and keep the one before. Gives the item.

        `payload` as for `enqueue`: of a queue with a door, such as a mailbox, it is the body; with `raw` all that is
        stored. `revision`: the number that the payload must have now (`item.revision`), so that no other edit is lost.
        A repeat with the same `request_id` adds no revision, nor does the payload that is there already; either gives
        the item as it is now. Raises NotFound,
        EncryptionKeyMissing if this process cannot read the payload that is there, and Conflict for an item that runs,
        is over, or has another revision.
        """
        parts = self._parts.check_open()
        if revision is not None and revision != 0 and not is_count(revision):
            hint = "use item.revision, or None for any"
            raise ConfigError(f"{revision!r} is not the number of a revision", field="revision", hint=hint)
        body = dump_payload(payload, limit=parts.max_payload)
        known = await parts.letters.resolve(item_id)
        act = self._act(reason, request_id)
        return await edit(parts.store, known, body, act, revision=revision, raw=raw, most=parts.max_payload)

    async def _amend_waiting(self, which: Which, change: WaitingChange, reason: str, request_id: str | None) -> Amended:
        return await amend_waiting(self._parts.check_open().store, which, change, self._act(reason, request_id))

    def _act(self, reason: str, request_id: str | None = None) -> Act:
        return Act(self._parts.actor, check_reason(reason), request_named(request_id))

    async def prune(
        self, filter: str, *, reason: str, limit: int = 1000, request_id: str | None = None
    ) -> tuple[Tombstone, ...]:
        """Remove resolved items for good (done, cancelled, letters in the trash); each leaves a tombstone."""
        parts = self._parts.check_open()
        selection = parse_filter(filter)
        if not filter.strip():
            hint = "to mean everything that is resolved, say state:done,cancelled,dead"
            raise ConfigError("it is empty", field="filter", hint=hint)
        if not is_count(limit):
            raise ConfigError(f"{limit!r} is not a number of items", field="limit", hint="use 1 or more")
        return await parts.store.prune(selection, limit, self._act(reason, request_id))

    async def check(self, *, quick: bool = False) -> Checkup:
        """Whether the store is whole and agrees with itself. Changes nothing; `quick` leaves payloads unread."""
        return await self._parts.check_open().store.check(quick=quick)

    async def reencrypt(self, queue: str | None = None, *, dry_run: bool = False) -> Reencrypted:
        """Encrypt payloads and results anew with the current key, page by page, while work goes on: those with another
        key, and those in clear of an encrypted queue. `dry_run` only counts how many have which key. UnknownQueue for a
        queue that is not there.
        """
        store = self._parts.check_open().store
        names = [] if queue is None else [row.queue for row in (await store.tally()).queues]
        if queue is not None and queue not in names:
            raise unknown_queue(queue, names, "name a queue that redrive queue list --members shows")
        ring = store.keyring()
        act = self._act("encrypted" if ring is None else f"encrypted with key {ring.current}")
        return await reencrypt_all(store, queue, act, dry_run=dry_run)

    async def backup(self, path: str | os.PathLike[str], *, force: bool = False) -> Backup:
        """Copy the whole store, as it is now, into a new file, while work goes on. `force` replaces a file."""
        parts = self._parts.check_open()
        target: object = path
        if not isinstance(target, str | os.PathLike):
            raise ConfigError(f"{path!r} is not a path", field="path", hint="use a text or a pathlib.Path")
        return await parts.store.backup(os.fspath(path), force=force)
