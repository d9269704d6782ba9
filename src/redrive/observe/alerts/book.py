"""Registry of the channels and rules of one app, from code and settings, and the outbox handler of its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial

from redrive.core import codec
from redrive.core.item import Item, Millis
from redrive.engine.ids import hashed_id
from redrive.engine.registry import OUTBOX, check_queue_name
from redrive.engine.signals import Retry
from redrive.errors import ConfigError, NotFound, NotificationFailed, StoreCorrupt
from redrive.observe.alerts.model import Channel, Message, Rule

EVERY: Millis = 15_000
LONGEST_WAIT: Millis = 3_600_000
"""The longest Retry-After of a channel that is obeyed."""


class AlertBook:
    """`outbox` registers the target of a channel. `every`: the interval at which rules are evaluated."""

    def __init__(self, outbox: Callable[..., object]) -> None:
        self._outbox = outbox
        self.channels: dict[str, Channel] = {}
        self.rules: dict[str, Rule] = {}
        self.every = EVERY

    @property
    def key(self) -> str:
        """Election key: processes with the same names of rules elect one that evaluates them."""
        return hashed_id("\n".join(sorted(self.rules)).encode())

    def add_channel(self, name: str, channel: Channel) -> None:
        queue_of(name)
        if self.channels.get(name, channel) != channel:
            hint = "declare it once, or use another name"
            raise ConfigError(f"{name!r} is already declared with other options", field="channel", hint=hint)
        if name not in self.channels:
            self.channels[name] = channel
            self._outbox(target_of(name), partial(deliver, channel), order="skip")

    def add_rule(self, rule: Rule) -> None:
        if self.rules.get(rule.name, rule) != rule:
            hint = "declare it once, or use another name"
            raise ConfigError(f"{rule.name!r} is already declared with other options", field="rule", hint=hint)
        self.rules[rule.name] = rule

    def load(self, channels: Mapping[str, Channel], rules: Mapping[str, Rule], every: Millis) -> None:
        """Add the channels and rules of the settings."""
        for name, channel in channels.items():
            self.add_channel(name, channel)
        for rule in rules.values():
            self.add_rule(rule)
        if every != EVERY:
            self.every = every

    def channel(self, name: str) -> Channel:
        """Raises NotFound."""
        if name not in self.channels:
            known = f"there are {', '.join(self.channels) or 'none'}"
            raise NotFound(f"no channel {name!r}", hint=near(name, self.channels, known))
        return self.channels[name]

    def check(self) -> None:
        """Raises ConfigError for a rule that sends to an undeclared channel."""
        for rule in self.rules.values():
            for name in rule.to:
                if name not in self.channels:
                    fix = near(name, self.channels, f"declare it: app.alerts.channel({name!r}, …)")
                    raise ConfigError(
                        f"rule {rule.name!r} sends to {name!r}, which is not a channel", field="to", hint=fix
                    )


def near(name: str, known: Iterable[str], otherwise: str) -> str:
    """A hint for an unknown name."""
    found = get_close_matches(name, known, n=1)
    return f"did you mean {found[0]!r}?" if found else otherwise


def target_of(channel: str) -> str:
    """The outbox target of a channel: each channel has its own queue and breaker."""
    return f"alerts@{channel}"


def queue_of(channel: str) -> str:
    return check_queue_name(f"{OUTBOX}{target_of(channel)}")


async def deliver(channel: Channel, item: Item) -> None:
    """One attempt at an outbox item."""
    from redrive.engine.outbox import Undeliverable
    from redrive.observe.alerts.channels import send

    try:
        message = codec.decode(item.payload, Message)
    except StoreCorrupt as error:
        raise Undeliverable(error.message) from None
    try:
        await send(channel, message)
    except NotificationFailed as error:
        if error.useless:
            raise Undeliverable(error.message) from None
        if error.retry_after:
            raise Retry(error.message, after=min(error.retry_after, LONGEST_WAIT) / 1000) from None
        raise
