"""`redrive webhook endpoint …`: where webhooks go, and how. `list` and `show` are in webhook_endpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import dry_run_option, reason_option, visit, yes_option
from redrive.cli.asking import confirm
from redrive.cli.bulk import How, act_options
from redrive.cli.output import counted, say, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.webhook_access import (
    command,
    endpoints_by_settings,
    named_values,
    secrets_in,
    since_filter,
    typed_secret,
)
from redrive.cli.webhook_endpoints import endpoint_object
from redrive.errors import ConfigError, Conflict
from redrive.net.signing import PUBLIC
from redrive.office.letters import check_reason
from redrive.office.selection import Choice
from redrive.webhooks.endpoint_options import EndpointOptions
from redrive.webhooks.model import queues_of

if TYPE_CHECKING:
    from redrive.app import Redrive

NONE = "none"
NEW_KEY = "python -c 'import base64, os; print(base64.b64encode(os.urandom(32)).decode())'"
VERBS = (
    "create",
    "list",
    "show",
    "update",
    "mute",
    "unmute",
    "disable",
    "enable",
    "delete",
    "rotate-secret",
    "recover",
)
HERE = "redrive.cli.webhook_endpoint"
ELSEWHERE = {"list": f"{HERE}s:list_endpoints", "show": f"{HERE}s:show"}
endpoint = LazyGroup(
    "endpoint",
    {verb: ELSEWHERE.get(verb, f"{HERE}:{verb.replace('-', '_')}") for verb in VERBS},
    help="""Endpoints: where webhooks go, in which order, and what an answer means.

\b
Examples:
  redrive webhook endpoint create https://shop.example/hooks --id shop --provider github --secret
  redrive webhook endpoint show shop
  redrive webhook endpoint mute shop --reason 'the database moves'
""",
)
ABOUT_CREATE = """Create an endpoint. What senders post to /h/ID goes to the URL.

\b
Examples:
  redrive webhook endpoint create https://shop.example/hooks --id shop
  redrive webhook endpoint create https://shop.example/hooks --id github --provider github --secret-file secret.txt
  redrive webhook endpoint create https://erp.example/in --id erp --event 'order.*' --order block --rate 10/s
  redrive webhook endpoint create --id inside --via hub

An endpoint with --event gets a secret that signs what is published to it; with --signing ed25519 a key pair, whose
public key is printed. It is printed now, and never again. Secrets
are stored encrypted, with the keys of REDRIVE_ENCRYPTION_KEYS. In a pipe the line is ID, and SECRET after a tab.
"""
ABOUT_UPDATE = """Change an endpoint. In force from the next attempt on, also for webhooks that wait.

\b
Examples:
  redrive webhook endpoint update shop --url https://new.example/hooks
  redrive webhook endpoint update shop --timeout 10s --retry '{"max_attempts": 10}' --fail-on 404

none takes back --rate, --retry, --disable-after, --header, --event, --retry-on and --fail-on.
"""
ABOUT_DELETE = """Delete an endpoint. What waits for it is cancelled; failed and dead webhooks stay as letters.

\b
Examples:
  redrive webhook endpoint delete shop --reason 'the shop is closed'
"""
ABOUT_ROTATE = """Make a new secret that signs what is published to the endpoint. It is printed now, and never again.

\b
Examples:
  redrive webhook endpoint rotate-secret shop --overlap 7d

What is sent has the signatures of both secrets until the overlap is over.
"""
ABOUT_RECOVER = """Send failed and dead webhooks of an endpoint again, with new attempts and a new window of time.

\b
Examples:
  redrive webhook endpoint recover shop --since 2h --reason 'the bug is mended'
  redrive webhook endpoint recover shop --since 2026-11-18T08:00Z --reason INC-88 --yes

It asks first; without a terminal say --yes.
"""
TEXTS = {
    "name": ("TEXT", "For people."),
    "provider": ("WORD", "Who signs what comes in: github, stripe, slack, telegram, standard, hmac, static, none."),
    "bad_signature": ("WORD", "What is not signed well: flag stores it, refuse answers 401.  [default: flag]"),
    "order": ("WORD", "Behind one that failed: skip, block or park; none: in no order.  [default: skip]"),
    "signing": ("WORD", "How events are signed: hmac, or ed25519 with a key pair.  [default: hmac]"),
    "rate": ("RATE", "How fast they are sent, as in 10/s."),
    "timeout": ("DURATION", "For an answer.  [default: 40s]"),
    "retry": ("JSON", "A policy, as in '{\"max_attempts\": 10}'.  [default: 1s, 2s, 4s … 1h, until --max-age]"),
    "max_age": ("DURATION", "After which one that waits is given up.  [default: 7d]"),
    "disable_after": ("DURATION", "Of failures alone the endpoint is disabled.  [default: 14d]"),
}
LISTS = {
    "retry_on": ("--retry-on", "STATUS", "Tried again against the rule, as 404 or 4xx; may be repeated."),
    "fail_on": ("--fail-on", "STATUS", "Failed at once against the rule, as 501 or 5xx; may be repeated."),
    "headers": ("--header", "NAME=VALUE", "Sent with each; may be repeated."),
    "events": ("--event", "PATTERN", "Events that are published to it, as 'order.*'; may be repeated."),
    "verification": ("--verification", "NAME=VALUE", "How --provider verifies, as header=X-Sign; may be repeated."),
}
"""Options of an endpoint by their names, with metavar and help."""
FIELDS = (
    *(click.option(f"--{name.replace('_', '-')}", metavar=form, help=about) for name, (form, about) in TEXTS.items()),
    *(click.option(flag, name, metavar=form, multiple=True, help=about) for name, (flag, form, about) in LISTS.items()),
    click.option("--concurrency", metavar="N", type=int, help="At once, with --order none.  [default: 10]"),
    click.option("--breaker/--no-breaker", default=None, help="Stop sending while all attempts fail."),
    click.option("--secret", "ask_secret", is_flag=True, help="Type the secret of --provider."),
    click.option("--secret-file", metavar="FILE", help="Has it, or several, one a line; - for stdin."),
)
_ID = click.argument("id", metavar="ENDPOINT")


def _options(*, ask_secret: bool, secret_file: str | None, **said: Any) -> EndpointOptions:
    """As `Endpoints.create` takes them."""
    given: dict[str, Any] = {name: value for name, value in said.items() if value is not None and value != ()}
    given |= {name: None for name in ("rate", "retry", "disable_after") if given.get(name) == NONE}
    given |= {name: () for name in LISTS if given.get(name) == (NONE,)}
    given |= {name: named_values(given[name], LISTS[name][0]) for name in ("headers", "verification") if name in given}
    tolerance = given.get("verification", {}).get("tolerance", "")
    if tolerance.isdigit():
        given["verification"]["tolerance"] = int(tolerance)
    if secret_file is not None:
        given["secret"] = secrets_in(secret_file, "--secret-file")
    elif ask_secret:
        given["secret"] = typed_secret()
    made: EndpointOptions = given  # type: ignore[assignment]  # checked where they are used, with better errors
    return made


IN_PYTHON = (
    (r"endpoints\.update\('(.+?)', \.\.\.\)", r"redrive webhook endpoint update \1"),
    (r"endpoints\.rotate_secret\(.+?\), ", ""),
    (r"headers=\{'Authorization': \.\.\.\}", "--header Authorization=..."),
    (r"Relay\(allow=.+?\), \[webhooks\] allow", "allow under [webhooks] in redrive.toml, or REDRIVE_WEBHOOKS_ALLOW"),
    (r"order='none'", "--order none"),
    (r", or Rate\(count, per\)", ""),
    (r"a timedelta, or text such as", "or text such as"),
    (r"give keys: .*", f"set REDRIVE_ENCRYPTION_KEYS=k1:KEY; a new KEY: {NEW_KEY}"),
)
"""What hints say of the library, and what is typed here instead."""


@contextmanager
def _by_option() -> Iterator[None]:
    """Errors of fields that have another name here."""
    try:
        yield
    except (ConfigError, Conflict) as error:
        for pattern, here in IN_PYTHON:
            error.hint = re.sub(pattern, here, error.hint)
        if isinstance(error, Conflict):
            raise
        option, _, part = error.field.partition(".")
        flags = {"policy": "--retry", "backoff": "--retry", "secret": "--secret", "verification": "--verification"}
        if option not in flags:
            raise
        raise error.named(f"{flags[option]} {part}".rstrip()) from None


@command(
    "create",
    ABOUT_CREATE,
    click.argument("url", metavar="[URL]", default=""),
    click.option("--id", metavar="ID", help="Of the endpoint, as in /h/ID.  [default: a random one]"),
    click.option(
        "--via", metavar="WORD", default="direct", show_default=True, help="direct, or hub: hubs deliver to it."
    ),
    *FIELDS,
)
def create(*, url: str, id: str | None, via: Any, as_json: bool, store: str, **said: Any) -> None:
    if not url and via == "direct":
        hint = "give one; with --via hub it may be left to the hubs"
        raise ConfigError("an endpoint needs a URL", field="URL", hint=hint)
    options, endpoints = _options(**said), endpoints_by_settings()
    with _by_option():
        made = visit(store, lambda app: endpoints(app).create(url, id=id, via=via, **options), make=True, acts=True)
    if as_json:
        write_json({**endpoint_object(made.endpoint), "secret": made.secret or None})
        return
    write("\t".join([made.endpoint.id, made.secret] if made.secret else [made.endpoint.id]))
    if made.secret:
        say(_about(made.secret))


@command("update", ABOUT_UPDATE, _ID, click.option("--url", metavar="URL", help="Where webhooks go."), *FIELDS)
def update(*, id: str, url: str | None, as_json: bool, store: str, **said: Any) -> None:
    options = _options(**said)
    if url is None and not options:
        raise click.UsageError("say what to change, as in --timeout 10s", ctx=click.get_current_context())
    endpoints = endpoints_by_settings()
    with _by_option():
        changed = visit(store, lambda app: endpoints(app).update(id, url, **options), acts=True)
    if as_json:
        write_json(endpoint_object(changed))
    else:
        say(f"updated {id}")


def _about(secret: str) -> str:
    what = "receivers verify with this public key"
    return f"{what if secret.startswith(PUBLIC) else 'the secret signs what is published to it'}; it is not shown again"


def _state(method: str, about: str, default: str | None = None) -> click.Command:
    """Without a `default` a reason is required."""
    example = f"redrive webhook endpoint {method} shop{'' if default else ' --reason INC-88'}"

    @command(method, f"{about}\n\n\b\nExamples:\n  {example}\n", _ID, reason_option(default=default))
    def changing(*, id: str, reason: str, as_json: bool, store: str) -> None:
        why, endpoints = check_reason(reason), endpoints_by_settings()
        changed = visit(store, lambda app: getattr(endpoints(app), method)(id, reason=why), acts=True)
        if as_json:
            write_json(endpoint_object(changed))
        else:
            say(f"{changed.id} is {changed.status}")

    return changing


mute = _state("mute", "Store what comes, deliver nothing. What waits keeps its order and does not age.")
unmute = _state("unmute", "Deliver again what is stored for a muted endpoint, in order.", "unmuted")
disable = _state("disable", "Store what comes, deliver nothing, as mute: for an endpoint that does not work.")
enable = _state("enable", "Deliver again what is stored for a disabled endpoint, in order.", "enabled")


@command("delete", ABOUT_DELETE, _ID, reason_option(), yes_option, dry_run_option("Say what would be deleted."))
def delete(*, id: str, reason: str, yes: bool, dry_run: bool, as_json: bool, store: str) -> None:
    why, endpoints = check_reason(reason), endpoints_by_settings()
    waiting = visit(store, lambda app: endpoints(app).stats(id)).pending
    if not dry_run:
        what = f"endpoint {id} would be deleted, and {counted(waiting, 'webhook')} cancelled"
        confirm(what, f"Delete endpoint {id} and cancel {counted(waiting, 'webhook')}?", yes=yes)
        visit(store, lambda app: endpoints(app).delete(id, reason=why), acts=True)
    if as_json:
        write_json({"dry_run": dry_run, "endpoint": id, "cancelled": waiting})
    else:
        say(f"{'would delete' if dry_run else 'deleted'} {id}, cancelled {waiting:,}")


_OVERLAP = click.option(
    "--overlap", metavar="DURATION", default="24h", show_default=True, help="Both secrets sign for so long."
)


_SIGN_WITH = click.option(
    "--secret-file",
    metavar="FILE",
    help="Has the secret to sign with, whsec_ or whsk_; - for stdin.  [default: a new one]",
)


@command("rotate-secret", ABOUT_ROTATE, _ID, _OVERLAP, _SIGN_WITH)
def rotate_secret(*, id: str, overlap: str, secret_file: str | None, as_json: bool, store: str) -> None:
    endpoints = endpoints_by_settings()
    own = None if secret_file is None else secrets_in(secret_file, "--secret-file")[0]
    with _by_option():
        made = visit(store, lambda app: endpoints(app).rotate_secret(id, overlap=overlap, secret=own), acts=True)
    if as_json:
        write_json({"endpoint": id, "secret": made})
        return
    write(made)
    say(_about(made))


@click.command("recover", help=ABOUT_RECOVER, context_settings={"help_option_names": ["-h", "--help"]})
@_ID
@click.option("--since", metavar="DURATION|TIME", required=True, help="What failed since then, as in 2h.")
@act_options("Say what would be sent, and send nothing.")
def recover(*, id: str, since: str, how: How) -> int:
    from redrive.cli.webhook import send_again

    died, endpoints = since_filter(since, "died"), endpoints_by_settings()

    async def check(app: Redrive) -> None:
        await endpoints(app).get(id)

    return send_again(Choice(where=f"{queues_of(id)} {died}"), how, check)
