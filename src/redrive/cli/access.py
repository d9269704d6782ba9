"""What commands on a store share: the options, and the way in. Looking at a store never makes one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from redrive.app import Redrive
from redrive.cli.exits import Talk
from redrive.errors import BadStoreURL
from redrive.stores.base import Store
from redrive.stores.upkeep import Kept, Upkeep
from redrive.stores.url import store_from_url

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
DEFAULT_STORE = "sqlite:///redrive.db"
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def store_option(command: F) -> F:
    return click.option(
        "--store",
        metavar="URL",
        envvar="REDRIVE_STORE",
        default=DEFAULT_STORE,
        show_default=True,
        help="Where the queues are; also REDRIVE_STORE.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON: times in UTC, durations in seconds.")(command)


def verbose_option(command: F) -> F:
    return click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_speak_up,
        help="Show the traceback of an error; also REDRIVE_DEBUG=1.",
    )(command)


def _speak_up(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's call
    if value and isinstance(context.obj, Talk):
        context.obj.debug = True


def visit(url: str, ask: Callable[[Redrive], Awaitable[T]]) -> T:
    """Ask the store at `url`, which must be there: a wrong path must not become an empty database with good news."""
    store = store_from_url(url)
    app = Redrive(store, log=False)
    upkeep = _upkeep(store)

    async def asked() -> T:
        await upkeep.check_is_there()
        async with app:
            return await ask(app)

    return asyncio.run(asked())


def upkeep_of(url: str) -> Upkeep:
    return _upkeep(store_from_url(url))


def _upkeep(store: Store) -> Upkeep:
    if isinstance(store, Kept):
        return store.upkeep()
    hint = "name the store that the workers use: --store or REDRIVE_STORE"
    raise BadStoreURL("memory: is empty in every new process", field="store", hint=hint)
