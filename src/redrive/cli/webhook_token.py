"""`redrive webhook token …` and `hubs`: what hubs show to an edge, and the hubs that came."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from redrive.cli.access import reason_option, visit
from redrive.cli.output import MISSING, iso, say, write, write_json
from redrive.cli.root import LazyGroup
from redrive.cli.tables import Shape
from redrive.cli.webhook_access import command, endpoints_by_settings, show_rows
from redrive.office.letters import check_reason
from redrive.office.tokens import Token
from redrive.webhooks.tokens import ALL, Tokens

if TYPE_CHECKING:
    from redrive.app import Redrive

token = LazyGroup(
    "token",
    {
        "create": "redrive.cli.webhook_token:create",
        "list": "redrive.cli.webhook_token:list_tokens",
        "revoke": "redrive.cli.webhook_token:revoke",
    },
    help="""Tokens: what hubs show to an edge. Stored as a hash, each for some endpoints or for all.

\b
Examples:
  redrive webhook token create warehouse --endpoint payments
  redrive webhook token list
""",
)
ABOUT_CREATE = """Create a token. It is printed now, and never again.

\b
Examples:
  redrive webhook token create warehouse --endpoint payments --endpoint orders
  redrive webhook token create everything > /run/secrets/hub
"""
ABOUT_LIST = """List the tokens, without their secrets.

\b
Examples:
  redrive webhook token list

In a pipe the columns are ID NAME ENDPOINTS CREATED REVOKED, separated by tabs.
"""
ABOUT_REVOKE = """Revoke a token. Hubs that use it are refused from their next request on.

\b
Examples:
  redrive webhook token revoke 4f1c9a2b --reason 'the laptop is gone'
"""
ABOUT_HUBS = """List the hubs that are or were connected to the edges of this store.

\b
Examples:
  redrive webhook hubs
  redrive webhook hubs --json | jq '.[] | select(.connected)'

In a pipe the columns are HUB STATE TOKEN ENDPOINTS SINCE SEEN, separated by tabs.
"""


def _tokens() -> Callable[[Redrive], Tokens]:
    endpoints = endpoints_by_settings()
    return lambda app: Tokens(app, endpoints(app))


def _object(token: Token) -> dict[str, Any]:
    times = {"created_at": iso(token.created_at), "revoked_at": iso(token.revoked_at)}
    return {"id": token.id, "name": token.name, "endpoints": list(token.scopes), **times}


def _line(token: Token) -> list[str]:
    times = [iso(token.created_at) or MISSING, iso(token.revoked_at) or MISSING]
    return [token.id, token.name, ",".join(token.scopes), *times]


_FOR = click.option("--endpoint", "endpoints", metavar="ID", multiple=True, help="May be repeated.  [default: all]")


@command("create", ABOUT_CREATE, click.argument("name", metavar="NAME"), _FOR)
def create(*, name: str, endpoints: tuple[str, ...], as_json: bool, store: str) -> None:
    tokens = _tokens()
    made, text = visit(store, lambda app: tokens(app).create(name, endpoints or ALL), make=True, acts=True)
    if as_json:
        write_json({**_object(made), "token": text})
        return
    write(text)
    say(f"token {made.id} is not shown again; a hub takes it from REDRIVE_HUB_TOKEN or --token-file")


@command("list", ABOUT_LIST, lists=True)
def list_tokens(*, shape: Shape, store: str) -> None:
    tokens = _tokens()
    found = visit(store, lambda app: tokens(app).list())
    header = "ID NAME ENDPOINTS CREATED REVOKED"
    show_rows(found, shape, header, _line, _object, key="id", none="no tokens", kind=Token)


@command("revoke", ABOUT_REVOKE, click.argument("id", metavar="ID"), reason_option())
def revoke(*, id: str, reason: str, as_json: bool, store: str) -> None:
    why, tokens = check_reason(reason), _tokens()
    revoked = visit(store, lambda app: tokens(app).revoke(id, reason=why), acts=True)
    if as_json:
        write_json(_object(revoked))
    else:
        say(f"revoked {revoked.id}")


@command("hubs", ABOUT_HUBS, lists=True)
def list_hubs(*, shape: Shape, store: str) -> None:
    from redrive.webhooks import Hub
    from redrive.webhooks.hub import hubs

    def as_object(hub: Hub) -> dict[str, Any]:
        return structs.asdict(hub) | {"connected_at": iso(hub.connected_at), "seen_at": iso(hub.seen_at)}

    def line(hub: Hub) -> list[str]:
        state, times = "connected" if hub.connected else "gone", (iso(hub.connected_at), iso(hub.seen_at))
        return [hub.name, state, hub.token, ",".join(hub.endpoints), *(at or MISSING for at in times)]

    found = visit(store, lambda app: hubs(SimpleNamespace(app=app)))
    show_rows(
        found, shape, "HUB STATE TOKEN ENDPOINTS SINCE SEEN", line, as_object, key="name", none="no hubs", kind=Hub
    )
