"""Alerts: rules over the store, evaluated by one elected worker; each channel has an outbox queue for its messages.

from redrive.observe.alerts import oldest_letter, slack

app.alerts.channel("ops", slack("https://hooks.slack.com/services/…"))
app.alerts.rule("old-letters", oldest_letter("1h"), to="ops")
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redrive.observe.alerts.channels import (
        callback,
        command,
        email,
        opsgenie,
        pagerduty,
        slack,
        telegram,
        webhook,
    )
    from redrive.observe.alerts.conditions import (
        custom,
        disabled,
        finding,
        letters,
        new_cause,
        no_worker,
        oldest_letter,
        store_down,
        success_rate,
        utilisation,
    )
    from redrive.observe.alerts.model import Channel, Condition, Message, Notice
else:
    from redrive._late import names_of

    # Every app has alerts, and most of them have none declared.
    __getattr__, __dir__ = names_of(
        __name__,
        {
            "redrive.observe.alerts.channels": (
                *("callback", "command", "email", "opsgenie", "pagerduty", "slack", "telegram", "webhook"),
            ),
            "redrive.observe.alerts.conditions": (
                *("custom", "disabled", "finding", "letters", "new_cause", "no_worker", "oldest_letter"),
                *("store_down", "success_rate", "utilisation"),
            ),
            "redrive.observe.alerts.model": ("Channel", "Condition", "Message", "Notice"),
        },
    )

__all__ = [
    "Channel",
    "Condition",
    "Message",
    "Notice",
    "callback",
    "command",
    "custom",
    "disabled",
    "email",
    "finding",
    "letters",
    "new_cause",
    "no_worker",
    "oldest_letter",
    "opsgenie",
    "pagerduty",
    "slack",
    "store_down",
    "success_rate",
    "telegram",
    "utilisation",
    "webhook",
]
