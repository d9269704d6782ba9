"""`redrive webhook run`, `edge` and `hub`: the processes of webhooks, from start to end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from redrive.cli.access import HELP_NAMES, config_option, pass_on, store_option, verbose_option
from redrive.cli.exits import NotAllowed, Talk
from redrive.cli.incoming import incoming
from redrive.cli.webhook_access import named_values, relay_of, secrets_in
from redrive.core.durations import Duration
from redrive.errors import ConfigError
from redrive.events import Events
from redrive.net.urls import check_address
from redrive.webhooks.settings import WebhookSettings

if TYPE_CHECKING:
    from redrive.net.server import Served
    from redrive.settings import Settings
    from redrive.webhooks import Relay, WebhookHub

F = TypeVar("F", bound=Callable[..., Any])
ENDING = """SIGTERM or Ctrl-C once: take nothing new, let what is under way end within the grace, release the rest.
Twice: at once. Exit 0 after SIGTERM, 130 after Ctrl-C or a second signal."""
ABOUT_RUN = f"""Deliver webhooks, and with --http receive them too, in one process.

\b
Examples:
  redrive webhook run
  redrive webhook run --http 127.0.0.1:8080 --allow 10.0.0.0/8 -c 200

Senders post to /h/ENDPOINT. The process also gives up webhooks that are too old, at its start and once an hour. Many
processes may share a store. The rest is in the settings, under [webhooks]: see redrive config show.

{ENDING}
"""
ABOUT_EDGE = f"""Receive webhooks and keep them for hubs, which connect to this process and deliver them.

\b
Examples:
  redrive webhook edge --http 0.0.0.0:8080 --max-body 1MiB

Senders post to /h/ENDPOINT, hubs connect with a token of `redrive webhook token create`. Nothing is delivered from
here: `redrive webhook run --http` does both.

{ENDING}
"""
ABOUT_HUB = f"""Deliver what an edge keeps, from a private network: it only makes connections, and has no store.

\b
Examples:
  redrive webhook hub --edge https://hooks.example.com --token-file /run/secrets/hub --allow 10.0.0.0/8
  redrive webhook hub --edge https://hooks.example.com --endpoint payments --destination payments=http://pay:8000/in

The token is in REDRIVE_HUB_TOKEN or a file. A --destination may lead anywhere; URLs of the edge lead to public
addresses and to --allow. Several hubs share the work. Exit 4 if the edge refuses the hub for good.

{ENDING}
"""
_ALLOW = click.option(
    "--allow", metavar="NETWORK", multiple=True, help="A private network to deliver into: 10.1.0.0/16."
)


def _process_options(command: F) -> F:
    for option in (
        verbose_option,
        click.option("--json-logs", is_flag=True, help="Log JSON objects, one a line."),
        click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]"),
        click.option("--grace", metavar="DURATION", help="How long what is under way may take.  [default: 30s]"),
    ):
        command = option(command)
    return command


def _relay_options(command: F) -> F:
    for option in (
        _process_options,
        store_option,
        click.option("--max-body", metavar="SIZE", help="The largest body that is received.  [default: 10MiB]"),
        click.option("--http", metavar="HOST:PORT", help="Receive here; port 0 takes any that is free."),
    ):
        command = option(command)
    return command


class RelayProcess:
    """What a session runs of a relay: `work`, and the server around it if there is an address for one."""

    def __init__(self, relay: Relay, work: Callable[[Duration], Awaitable[None]], http: str | None) -> None:
        self.relay = relay
        self._work = work
        self._serving: AbstractAsyncContextManager[Served] | None = None
        if http is not None:
            with incoming():
                from redrive.net.server import serving

                self._serving = serving(relay.asgi(), *check_address(http, field="http"))
        self._hurry: Callable[[], None] = lambda: None
        self.events = relay.app.events

    async def open(self) -> None:
        await self.relay.open()

    async def run(self, *, grace: Duration, **_: object) -> None:
        if self._serving is None:
            await self._work(grace)
            return
        async with self._serving as served:
            self._hurry = lambda: setattr(served.server, "force_exit", True)
            self.receiving(served.address)
            await self._work(grace)
            await self.relay.stop()  # the workers of hubs, whose results still come in

    def receiving(self, address: str) -> None:
        from redrive.cli.worker_logs import logger

        logger.info("receiving at http://%s/h/ENDPOINT", address)

    async def stop(self, *, grace: Duration | None = None) -> None:
        if grace == 0:
            self._hurry()
        await self.relay.stop(grace=grace)

    async def close(self) -> None:
        await self.relay.close()


class _HubProcess:
    def __init__(self, hub: WebhookHub) -> None:
        self._hub = hub
        self.events = Events()

    async def open(self) -> None: ...

    async def run(self, **_: object) -> None:
        await self._hub.run()

    async def stop(self, *, grace: Duration | None = None) -> None:
        self._hub.stop()
        if grace == 0:  # the edge gives to others what this hub has
            from redrive.cli.exits import Exit
            from redrive.cli.leaving import leave_now

            leave_now(Exit.INTERRUPTED)

    async def close(self) -> None: ...


def _loaded(talk: Talk, *, grace: str | None, log_level: str | None, json_logs: bool, **flags: object) -> Settings:
    """The settings in force, with logging set up by them."""
    from redrive.cli.worker_logs import set_up_logging
    from redrive.settings import load

    given: dict[str, object] = {
        "worker.grace": grace,
        "log.level": log_level,
        "log.format": "json" if json_logs else None,
        **{f"webhooks.{name}": None if value == () else value for name, value in flags.items()},
    }
    chosen = load(config=talk.config, flags=given).settings
    pass_on(talk, chosen)
    set_up_logging(debug=talk.debug, level=chosen.log.level, format=chosen.log.format)
    return chosen


def _run(talk: Talk, store: str, *, deliver: bool, **flags: Any) -> int:
    from redrive.cli.worker_session import Session

    chosen = _loaded(talk, **flags)
    http = chosen.section(WebhookSettings).http
    if http is None and not deliver:
        hint = "use --http HOST:PORT, or write http under [webhooks] in redrive.toml"
        raise ConfigError("no address to receive at", field="--http", hint=hint)
    relay = relay_of(store, chosen, log=True, works=True)
    process = RelayProcess(relay, lambda grace: relay.run(grace=grace, deliver=deliver), http)
    return asyncio.run(Session(process, chosen.worker.grace).serve())


@click.command("run", help=ABOUT_RUN, context_settings=HELP_NAMES)
@click.option("-c", "--concurrency", metavar="N", help="At most so many deliveries at once.  [default: 50]")
@_ALLOW
@_relay_options
@click.pass_obj
def run(talk: Talk, /, *, store: str, **flags: Any) -> int:
    return _run(talk, store, deliver=True, **flags)


@click.command("edge", help=ABOUT_EDGE, context_settings=HELP_NAMES)
@_relay_options
@click.pass_obj
def edge(talk: Talk, /, *, store: str, **flags: Any) -> int:
    return _run(talk, store, deliver=False, **flags)


@click.command("hub", help=ABOUT_HUB, context_settings=HELP_NAMES)
@click.option("--edge", "url", metavar="URL", required=True, help="Where the edge is.")
@click.option("--token", metavar="TEXT", help="Better in REDRIVE_HUB_TOKEN: a list of processes shows arguments.")
@click.option("--token-file", metavar="FILE", help="Has the token; - for stdin.")
@click.option("--name", metavar="NAME", default="", help="Shown by `webhook hubs`.  [default: the host's name]")
@click.option("--endpoint", "endpoints", metavar="ID", multiple=True, help="Only for this one; may be repeated.")
@click.option("--destination", "destinations", metavar="ID=URL", multiple=True, help="Its URL; may be repeated.")
@_ALLOW
@click.option("-c", "--concurrency", metavar="N", type=int, default=10, show_default=True, help="Deliveries at once.")
@config_option
@_process_options
@click.pass_obj
def hub(
    talk: Talk, /, *, url: str, token: str | None, token_file: str | None, destinations: tuple[str, ...], **given: Any
) -> int:
    from redrive.cli.worker_session import Session
    from redrive.webhooks import HubRefused, WebhookHub

    chosen = _loaded(talk, **{name: given.pop(name) for name in ("grace", "log_level", "json_logs")})
    secret, leading = _token(token, token_file), named_values(destinations, "--destination")
    client = WebhookHub(url, secret, destinations=leading, **given)
    try:
        return asyncio.run(Session(_HubProcess(client), chosen.worker.grace).serve())
    except HubRefused as refused:
        raise NotAllowed(f"{refused.code}: {refused.message}", hint="redrive webhook token list, at the edge") from None


def _token(token: str | None, file: str | None) -> str:
    if token is not None and file is not None:
        raise click.UsageError("say --token or --token-file, not both", ctx=click.get_current_context())
    found = (
        secrets_in(file, "--token-file")[0] if file is not None else token or os.environ.get("REDRIVE_HUB_TOKEN", "")
    )
    if not found:
        hint = "set REDRIVE_HUB_TOKEN, or use --token-file; `redrive webhook token create` at the edge makes one"
        raise ConfigError("there is no token", field="--token", hint=hint)
    return found
