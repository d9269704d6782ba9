"""The alerts of an app without `await`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import tzinfo

from redrive.blocking._bridge import Bridge
from redrive.core.durations import Duration
from redrive.observe.alerts import api
from redrive.observe.alerts.api import RuleView
from redrive.observe.alerts.model import Channel, Condition, Silence


class Alerts:
    def __init__(self, bridge: Bridge, alerts: api.Alerts) -> None:
        self._bridge = bridge
        self._alerts = alerts

    def channel(
        self,
        name: str,
        channel: Channel,
        *,
        quiet: str | None = None,
        timezone: str | tzinfo | None = None,
        digest: Duration = 0,
    ) -> str:
        """Declare where alerts go: `app.alerts.channel("ops", slack("https://…"))`.

        `quiet`: hours such as "22:00-07:00", in a time zone (UTC if none is given), in which only critical alerts go
        out; the others go as one message at their end. `digest`: alerts of so much time go as one message.
        """
        return self._alerts.channel(name, channel, quiet=quiet, timezone=timezone, digest=digest)

    def rule(
        self,
        name: str,
        when: Condition,
        *,
        to: str | Iterable[str],
        queues: str | Iterable[str] = (),
        members: bool = False,
        for_: Duration | None = None,
        severity: str | None = None,
        repeat: Duration | None = "4h",
    ) -> str:
        """Declare when to alert whom: `app.alerts.rule("old-letters", oldest_letter("1h"), to="ops")`.

        `queues`: names of queues and families, all unless given; outbox queues never cause alerts. `members`: of a
        family, each member by itself. `for_`: how long the condition must hold. `severity`: info, warning, error or
        critical. `repeat`: how often to tell it again while it fires; None for once.
        """
        return self._alerts.rule(
            name, when, to=to, queues=queues, members=members, for_=for_, severity=severity, repeat=repeat
        )

    def every(self, interval: Duration) -> None:
        """How often one of the workers judges the rules: 15 seconds, unless it is set here."""
        self._alerts.every(interval)

    def evaluate(self) -> None:
        """Judge the rules now, in this process, besides the rounds of the workers. Their workers deliver."""
        self._bridge.call(self._alerts.evaluate)

    def test(self, channel: str) -> str:
        """Send a test message now, and give what the channel answered. Raises NotFound, and NotificationFailed."""
        return self._bridge.call(self._alerts.test, channel)

    def list(self) -> tuple[RuleView, ...]:
        """The rules of all apps on this store, by name, and how they stand."""
        return self._bridge.call(self._alerts.list)

    def silence(self, rule: str, duration: Duration, *, reason: str, queue: str | None = None) -> Silence:
        """Tell nothing of a rule (`*`: of any) for so long; of one queue or family, or of all. What still fires then is
        told. An alert that was told before and is over meanwhile is told to be over. Raises NotFound.
        """
        return self._bridge.call(self._alerts.silence, rule, duration, reason=reason, queue=queue)

    def silences(self) -> tuple[Silence, ...]:
        """Those in force, the first to end first."""
        return self._bridge.call(self._alerts.silences)

    def unsilence(self, id: str, *, reason: str) -> Silence:
        """End a silence before its time. By its id, or a prefix that fits one. Raises NotFound."""
        return self._bridge.call(self._alerts.unsilence, id, reason=reason)
