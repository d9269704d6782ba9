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
        """Declare a channel, the destination of alerts: `app.alerts.channel("ops", slack("https://…"))`.

        `quiet`: hours such as "22:00-07:00", in a time zone (UTC if none is given), in which only critical alerts are
        sent; the others follow as one message at their end. `digest`: alerts of this period are one message.
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
        """Declare a condition and its channels: `app.alerts.rule("old-letters", oldest_letter("1h"), to="ops")`.

        `queues`: names of queues and families, default all; outbox queues never cause alerts. `members`: each member
        of a family is a subject. `for_`: how long the condition must hold. `severity`: info, warning, error or
        critical. `repeat`: interval of notifications while the alert fires; None for one notification.
        """
        return self._alerts.rule(
            name, when, to=to, queues=queues, members=members, for_=for_, severity=severity, repeat=repeat
        )

    def every(self, interval: Duration) -> None:
        """Set the interval at which the elected worker evaluates the rules; the default is 15 seconds."""
        self._alerts.every(interval)

    def evaluate(self) -> None:
        """Evaluate the rules now, in this process, besides the rounds of the workers, which deliver the messages."""
        self._bridge.call(self._alerts.evaluate)

    def test(self, channel: str) -> str:
        """Send a test message now and return the channel's answer. Raises NotFound and NotificationFailed."""
        return self._bridge.call(self._alerts.test, channel)

    def list(self) -> tuple[RuleView, ...]:
        """The rules of all apps on this store, sorted by name, with their states."""
        return self._bridge.call(self._alerts.list)

    def silence(self, rule: str, duration: Duration, *, reason: str, queue: str | None = None) -> Silence:
        """Send no notices of a rule (`*`: any rule) for this long, for one queue or family or for all. Alerts that
        still fire afterwards are sent then. The end of an alert that was sent before is sent. Raises NotFound.
        """
        return self._bridge.call(self._alerts.silence, rule, duration, reason=reason, queue=queue)

    def silences(self) -> tuple[Silence, ...]:
        """Active silences, the first to end first."""
        return self._bridge.call(self._alerts.silences)

    def unsilence(self, id: str, *, reason: str) -> Silence:
        """End a silence early, by its id or an unambiguous prefix. Raises NotFound."""
        return self._bridge.call(self._alerts.unsilence, id, reason=reason)
