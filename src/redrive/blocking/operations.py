"""Methods of a blocking app for operators."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Unpack

from redrive.blocking._alerts import Alerts
from redrive.blocking._audit import Audit
from redrive.blocking._letters import Letters
from redrive.blocking._replays import Replays
from redrive.blocking._schedules import Schedules
from redrive.blocking._views import Views
from redrive.blocking.lifecycle import Lifecycle
from redrive.core.acts import Amended
from redrive.core.durations import Duration
from redrive.core.item import History, Item
from redrive.core.policy_data import PolicyLike
from redrive.core.verbs import (
    Backup,
    CauseTally,
    Checkup,
    Reencrypted,
    StoreInfo,
    Tally,
    Tombstone,
    WorkerBeat,
)
from redrive.observe.app_metrics import AppMetrics
from redrive.office.gates import GateView
from redrive.office.health import Health
from redrive.office.letters import Which
from redrive.office.overview import Overview
from redrive.office.settings import QueueOptions


class Operating(Lifecycle):
    @property
    def letters(self) -> Letters:
        """The dead letter office."""
        return Letters(self._bridge, self._app.letters)

    @property
    def schedules(self) -> Schedules:
        """What recurs: list, pause, resume, run now, remove."""
        return Schedules(self._bridge, self._app.schedules)

    @property
    def views(self) -> Views:
        """Filters with a name, kept in the store: save, list, get, remove."""
        return Views(self._bridge, self._app.views)

    @property
    def replays(self) -> Replays:
        """Replays in the background: list, get, pause, resume, cancel, set_rate, undo."""
        return Replays(self._bridge, self._app.replays)

    @property
    def audit(self) -> Audit:
        """What was done by whom and why: list, verify, seal."""
        return Audit(self._bridge, self._app.audit)

    @property
    def metrics(self) -> AppMetrics:
        """Metrics of every queue, for Prometheus: `app.metrics.register()`. They count from the first access on."""
        return self._app.metrics

    @property
    def alerts(self) -> Alerts:
        """Alerts: channel, rule and every declare them; list, silence, silences, unsilence, test and evaluate act."""
        return Alerts(self._bridge, self._app.alerts)

    def info(self) -> StoreInfo:
        return self._app.info()

    def tally(self, *, members: bool | Collection[str] = True) -> Tally:
        """Without `members`, the row of a family stands in place of those of its members; with some names, beside those
        of these members.
        """
        return self._bridge.call(self._app.tally, members=members)

    def overview(self, *, members: bool = False) -> Overview:
        """The store at one time: its queues, routes, gates, most frequent causes of dead letters, and workers.

        `members`: with a row for each member of a family, not one for the family.
        """
        return self._bridge.call(self._app.overview, members=members)

    def health(self, *, oldest: Duration = "15m", max_letters: int | None = None) -> Health:
        """What an operator should look at: queues without a worker, old or stuck work, lost workers, full routes, …

        `oldest`: how long an item may be due. `max_letters`: how many open letters are no problem; None for any number.
        """
        return self._bridge.call(self._app.health, oldest=oldest, max_letters=max_letters)

    def causes(self, queue: str | None = None, *, limit: int = 100) -> tuple[CauseTally, ...]:
        """Open letters grouped by cause, most first."""
        return self._bridge.call(self._app.causes, queue, limit=limit)

    def workers(self) -> tuple[WorkerBeat, ...]:
        return self._bridge.call(self._app.workers)

    def stop_worker(self, worker: str, *, reason: str, at_once: bool = False, request_id: str | None = None) -> str:
        """Ask a worker, wherever it runs, to finish what it has and end; `at_once` to release it. Gives its full name.

        By its name, or a prefix that fits one. It hears of it with its next beat, within some ten seconds.
        """
        call = self._bridge.call
        return call(self._app.stop_worker, worker, reason=reason, at_once=at_once, request_id=request_id)

    def report_death(self, pid: int, *, why: str) -> tuple[str, ...]:
        """For whoever supervises workers on this host: how the process died, for the evidence of what it held.

        Gives the names of its workers; none if the process had no worker, or they stopped in good order.
        """
        return self._bridge.call(self._app.report_death, pid, why=why)

    def pause(self, queue: str, *, reason: str) -> None:
        """No worker leases from the queue until `resume`; what runs goes on."""
        self._bridge.call(self._app.pause, queue, reason=reason)

    def resume(self, queue: str, *, reason: str = "resumed") -> None:
        self._bridge.call(self._app.resume, queue, reason=reason)

    def configure(self, queue: str, *, reason: str, **settings: Unpack[QueueOptions]) -> None:
        """Change settings of a queue now, for every worker; those that `app.queue` declares. None lifts a limit.

        It stays until it is changed again, or until the code declares another value than it did.
        """
        self._bridge.call(self._app.configure, queue, reason=reason, **settings)

    def configure_route(self, route: str, *, capacity: int | None, reason: str) -> None:
        """How many open letters the route has room for from now on; None for no limit."""
        self._bridge.call(self._app.configure_route, route, capacity=capacity, reason=reason)

    def gates(self) -> tuple[GateView, ...]:
        """Every gate: open or closed, since when and why, and when the next probe may run."""
        return self._bridge.call(self._app.gates)

    def open_gate(self, name: str, *, reason: str) -> GateView:
        """By hand: nothing behind it is leased, not even a probe, until `close_gate`. What runs goes on."""
        return self._bridge.call(self._app.open_gate, name, reason=reason)

    def close_gate(self, name: str, *, reason: str) -> GateView:
        """By hand: what waits behind it flows again, and failures are counted anew."""
        return self._bridge.call(self._app.close_gate, name, reason=reason)

    def remove_gate(self, name: str, *, reason: str) -> None:
        """One that no queue stands behind. One that an app still declares comes back when that app is opened."""
        return self._bridge.call(self._app.remove_gate, name, reason=reason)

    def cancel(
        self, ids: str | Iterable[str], *, reason: str, force: bool = False, request_id: str | None = None
    ) -> Amended:
        """Cancel items that are ready (waiting, scheduled or between retries). A running one is asked to stop.

        Its worker hears of it within seconds, and cancels the handler; a handler that finishes first is done all the
        same. `force` does not wait for that: the item is taken from its worker, whose result no longer counts.
        """
        chosen = ids if isinstance(ids, str) else list(ids)
        return self._bridge.call(self._app.cancel, chosen, reason=reason, force=force, request_id=request_id)

    def set_policy(
        self, which: Which, policy: PolicyLike | None, *, reason: str, request_id: str | None = None
    ) -> Amended:
        """Replace the policy of waiting items, from their next failure on. None removes it: then the queue's applies.

        `which` is an id, ids, items, a page, or a filter, which selects waiting items only. Items that run or have
        ended are skipped.
        """
        chosen = which if isinstance(which, str | Item | History) else list(which)
        return self._bridge.call(self._app.set_policy, chosen, policy, reason=reason, request_id=request_id)

    def run_now(self, which: Which, *, reason: str, reset: bool = False, request_id: str | None = None) -> Amended:
        """Make waiting items due at once, whatever their retry or delay; what waits for others still does.

        `reset` gives them the whole budget of attempts again. `which` as for `set_policy`.
        """
        chosen = which if isinstance(which, str | Item | History) else list(which)
        return self._bridge.call(self._app.run_now, chosen, reason=reason, reset=reset, request_id=request_id)

    def expire(self, which: Which, *, reason: str, request_id: str | None = None) -> Amended:
        """Make waiting items dead letters with the reason `expired`, without another attempt. `which` as for
        `set_policy`.
        """
        chosen = which if isinstance(which, str | Item | History) else list(which)
        return self._bridge.call(self._app.expire, chosen, reason=reason, request_id=request_id)

    def park(self, which: Which, label: str, *, reason: str, request_id: str | None = None) -> Amended:
        """Keep waiting items from being leased, however due they are, until `unpark`, `cancel` or `expire`.

        `label` is a short name for why, such as `schema`: `hold:parked` finds them, and `item.hold` is `parked:schema`.
        A parked head of an order key blocks its key. `which` as for `set_policy`.
        """
        chosen = which if isinstance(which, str | Item | History) else list(which)
        return self._bridge.call(self._app.park, chosen, label, reason=reason, request_id=request_id)

    def unpark(self, which: Which, *, reason: str, request_id: str | None = None) -> Amended:
        """Let parked items go on: they wait for what they would wait for now, and run when that is over. `which` as for
        `set_policy`; items that are not parked are skipped.
        """
        chosen = which if isinstance(which, str | Item | History) else list(which)
        return self._bridge.call(self._app.unpark, chosen, reason=reason, request_id=request_id)

    def edit(
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
        return self._bridge.call(
            self._app.edit, item_id, payload, reason=reason, revision=revision, raw=raw, request_id=request_id
        )

    def prune(
        self, filter: str, *, reason: str, limit: int = 1000, request_id: str | None = None
    ) -> tuple[Tombstone, ...]:
        """Remove resolved items for good (done, cancelled, letters in the trash); each leaves a tombstone."""
        return self._bridge.call(self._app.prune, filter, reason=reason, limit=limit, request_id=request_id)

    def check(self, *, quick: bool = False) -> Checkup:
        """Whether the store is whole and agrees with itself. Changes nothing; `quick` leaves payloads unread."""
        return self._bridge.call(self._app.check, quick=quick)

    def reencrypt(self, queue: str | None = None, *, dry_run: bool = False) -> Reencrypted:
        """Encrypt payloads and results anew with the current key, page by page, while work goes on: those with another
        key, and those in clear of an encrypted queue. `dry_run` only counts how many have which key. UnknownQueue for a
        queue that is not there.
        """
        return self._bridge.call(self._app.reencrypt, queue, dry_run=dry_run)

    def backup(self, path: str | os.PathLike[str], *, force: bool = False) -> Backup:
        """Copy the whole store, as it is now, into a new file, while work goes on. `force` replaces a file."""
        return self._bridge.call(self._app.backup, path, force=force)
