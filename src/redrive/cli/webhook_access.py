"""What the webhook commands share: their settings, the endpoints and tokens of a store, a relay on it, secrets."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from redrive.cli.access import HELP_NAMES, json_option, settings, store_option, upkeep_of, verbose_option
from redrive.cli.asking import can_ask
from redrive.cli.incoming import incoming
from redrive.cli.output import iso
from redrive.cli.tables import Listing, Shape, list_options, show_list
from redrive.core import durations
from redrive.errors import BadDuration, ConfigError
from redrive.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.observe.alerts import Channel
    from redrive.settings import Settings
    from redrive.webhooks import Endpoints, Relay

T = TypeVar("T")
Option = Callable[[Callable[..., Any]], Callable[..., Any]]
SECRET_LIMIT = 64 * 1024
EVENT_LIMIT = 128
"""Characters of an event's name, which a stranger may have written."""


def command(
    name: str, about: str, *options: Option, lists: bool = False
) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with its own options, those of its output and those of the store."""

    def made(function: Callable[..., Any]) -> click.Command:
        for option in reversed((*options, list_options if lists else json_option, store_option, verbose_option)):
            function = option(function)
        return click.command(name, help=about, context_settings=HELP_NAMES)(function)

    return made


def show_rows(
    rows: Sequence[T],
    shape: Shape,
    header: str,
    line: Callable[[T], list[str]],
    as_object: Callable[[T], Any],
    **more: Any,
) -> None:
    """Where a terminal and a pipe show the same; `header` has blanks between its words."""
    table = lambda found: (header.split(), [line(each) for each in found])  # noqa: E731 - one expression
    show_list(Listing(as_object=as_object, table=table, line=line, **more), rows, shape)


def stamp(at: datetime | None) -> str | None:
    return None if at is None else iso(round(at.timestamp() * 1000))


def since_filter(text: str, field: str) -> str:
    """What --since means: a filter of `age` or `died`, by a duration or a time."""
    instant = {"age": "enqueued_at", "died": "died_at"}[field]
    try:
        return f"{instant}>={datetime.fromisoformat(text).astimezone(UTC).isoformat()}"
    except (ValueError, OverflowError):
        pass
    try:
        return f"{field}<={durations.format(durations.parse(text, field='--since'))}"
    except BadDuration:
        hint = "use a duration such as 2h, or a time such as 2026-11-18T08:00Z"
        raise ConfigError(f"{text!r} is neither a duration nor a time", field="--since", hint=hint) from None


def event_of(headers: Iterable[tuple[str, str]], body: bytes) -> str:
    """The event as its sender calls it, where that can be seen."""
    for name, value in headers:
        if name.lower() == "x-github-event":
            return value[:EVENT_LIMIT]
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    kind = found.get("type") if isinstance(found, dict) else None
    return kind[:EVENT_LIMIT] if isinstance(kind, str) else ""


def endpoints_by_settings() -> Callable[[Redrive], Endpoints]:
    """The endpoints of an app. The settings are read now: outside of a loop."""
    from redrive.net.guard import Guard
    from redrive.webhooks import Endpoints

    given = settings()
    guard = Guard(given.section(WebhookSettings).allow)
    return lambda app: Endpoints(app, guard, given.encryption_keys)


def relay_of(
    store: str, given: Settings, *, allow: Sequence[str] = (), log: bool = False, works: bool = False
) -> Relay:
    """`works`: it runs workers, which judge the alert rules of the settings and send notices."""
    with incoming():
        from redrive.app.internals import parts_of
        from redrive.webhooks import Relay

    chosen = given.section(WebhookSettings)
    relay = Relay(
        store,
        allow=(*chosen.allow, *allow),
        encryption=given.encryption_keys,
        keep=f"{chosen.keep}ms",
        retention="seed" if chosen.retention == "seed" else "letters",
        notify=_channel(given.alerts.channels, chosen.notify) if works and chosen.notify is not None else None,
        max_body=chosen.max_body,
        concurrency=chosen.concurrency,
        actor=given.actor,
        log=log,
    )
    if works:
        parts_of(relay.app).load_alerts(given.alerts)
    return relay


def _channel(channels: Mapping[str, Channel], name: str) -> Channel:
    if name not in channels:
        from redrive.observe.alerts.book import near

        hint = near(name, channels, f"declare it: [alerts.channels.{name}]")
        raise ConfigError(f"{name!r} is no channel", field="webhooks.notify", hint=hint)
    return channels[name]


def with_relay(store: str, ask: Callable[[Relay], Awaitable[T]]) -> T:
    """Ask a relay on a store that must be there."""
    import asyncio

    upkeep, relay = upkeep_of(store), relay_of(store, settings())

    async def asked() -> T:
        await upkeep.check_is_there()
        async with relay:
            return await ask(relay)

    return asyncio.run(asked())


def typed_secret() -> str:
    if not can_ask():
        hint = "give --secret-file FILE, or --secret-file - for stdin"
        raise ConfigError("there is no terminal to type it at", field="--secret", hint=hint)
    return str(click.prompt("Secret of the sender", hide_input=True, err=True))


def secrets_in(path: str, field: str) -> tuple[str, ...]:
    """The lines of a file, or of stdin for `-`; no error shows one."""
    try:
        text = sys.stdin.read(SECRET_LIMIT) if path == "-" else Path(path).read_text(encoding="utf-8")[:SECRET_LIMIT]
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{path} cannot be read: {why}", field=field, hint="name a file, one secret a line") from None
    lines = tuple([line.strip() for line in text.splitlines() if line.strip()])
    if not lines:
        raise ConfigError(f"{path} is empty", field=field, hint="name a file, one secret a line")
    return lines


def named_values(texts: Sequence[str], field: str) -> dict[str, str]:
    """Of NAME=VALUE, each name once."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name or name in found:
            why = "is there twice" if name in found else "has no name or no ="
            raise ConfigError(f"{name!r} {why}", field=field, hint="use NAME=VALUE, each name once")
        found[name] = value
    return found
