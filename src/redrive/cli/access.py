"""What commands share: their options, and the way to the store. Looking at a store never makes one.

Nothing of the library is imported before a command really goes to a store: `--version` and `-h` must not wait for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from redrive.cli.exits import Talk
from redrive.cli.incoming import incoming

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.settings import Settings
    from redrive.stores.base import Store
    from redrive.stores.upkeep import Upkeep

HELP_NAMES = {"help_option_names": ["-h", "--help"]}
DEFAULT_STORE = "sqlite:///redrive.db"
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


# -- options -----------------------------------------------------------------------------------------------------------


def config_option(command: F) -> F:
    """The variable is read with the settings themselves, so that a fault in it has its name."""
    return click.option(
        "--config",
        metavar="FILE",
        expose_value=False,
        is_eager=True,
        callback=_note_config,
        help="The settings; also REDRIVE_CONFIG, else redrive.toml or redrive.yaml upwards from here.",
    )(command)


def store_option(command: F) -> F:
    """--store, and --config that may name it."""
    command = config_option(command)
    return click.option(
        "--store",
        metavar="URL",
        callback=_store_url,
        help=f"Where the queues are; also REDRIVE_STORE or redrive.toml.  [default: {DEFAULT_STORE}]",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON: times in UTC, durations in seconds.")(command)


def verbose_option(command: F) -> F:
    """How a command talks: -v, --no-color, --no-input. On every command."""
    command = click.option(
        "--no-input",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_never_ask,
        help="Never ask: what needs a yes is refused.",
    )(command)
    command = click.option(
        "--no-color",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_in_plain,
        help="No colours; also NO_COLOR=1.",
    )(command)
    return click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_speak_up,
        help="Show the traceback of an error; also REDRIVE_DEBUG=1.",
    )(command)


def reason_option(about: str = "Why; kept in the audit.", *, default: str | None = None) -> Callable[[F], F]:
    """Required, unless there is a default."""
    if default is None:
        return click.option("--reason", metavar="TEXT", required=True, help=about)
    return click.option("--reason", metavar="TEXT", default=default, help=about)


def yes_option(command: F) -> F:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def dry_run_option(about: str) -> Callable[[F], F]:
    return click.option("--dry-run", is_flag=True, help=about)


class WholeNumber(click.IntRange):
    """As its parent, which says of a word that it is no valid "integer range"."""

    name = "whole number"


def limit_option(default: int = 100) -> Callable[[F], F]:
    return click.option(
        "--limit", metavar="N", type=WholeNumber(min=1), default=default, show_default=True, help="At most so many."
    )


EVERY = "--all gives all of them"
"""Said where a list was cut."""


def all_option(command: F) -> F:
    return click.option("--all", "every", is_flag=True, help="However many they are, instead of --limit.")(command)


def how_many(limit: int, *, every: bool) -> int:
    """What --limit and --all mean together."""
    context = click.get_current_context()
    if every and context.get_parameter_source("limit") is not ParameterSource.DEFAULT:
        raise click.UsageError("--limit and --all exclude each other", ctx=context)
    return sys.maxsize if every else limit


def since_option(about: str) -> Callable[[F], F]:
    """A duration as in 2h; gives milliseconds, or None."""
    return click.option("--since", metavar="DURATION", callback=_duration, help=about)


def _duration(_context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    from redrive.core import durations

    return durations.parse(value, field=f"--{parameter.name}")


def pass_on(talk: Talk, chosen: Settings) -> None:
    """The app and the processes of a group read the same file; an app that names its store reads the variable alone."""
    if talk.config is not None:
        os.environ["REDRIVE_CONFIG"] = os.path.abspath(talk.config)  # noqa: PTH100 - on the way of every command
    if chosen.release is not None:
        os.environ["REDRIVE_RELEASE"] = chosen.release


def _talk(context: click.Context) -> Talk:
    return context.obj if isinstance(context.obj, Talk) else Talk()


def _speak_up(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's call
    _talk(context).context = context
    if value:
        _talk(context).debug = True


def _in_plain(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's call
    if value:
        _talk(context).colour = False


def _never_ask(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's call
    if value:
        _talk(context).ask = False


def _note_config(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    _talk(context).config = value


# -- the store ---------------------------------------------------------------------------------------------------------


def _store_url(context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    """As the flag, the environment or the settings say, in this order. A shell that completes asks for them itself."""
    return value or "" if context.resilient_parsing else settings(store=value).store


def settings(**flags: object) -> Settings:
    """Those in force: flags, the environment, and the file that --config names or that is found."""
    from redrive.settings import load

    context = click.get_current_context(silent=True)
    return load(config=None if context is None else _talk(context).config, flags=flags).settings


def store_of(app: Redrive) -> Store:
    """For what the office computes from the store itself."""
    from redrive.app.internals import store_of as found

    return found(app)


def visit(url: str, ask: Callable[[Redrive], Awaitable[T]], *, make: bool = False, acts: bool = False) -> T:
    """Ask the store at `url`, which must be there: a wrong path must not become an empty database with good news.

    `make`: for what brings something into it, also if it is new. `acts`: what it did is sealed in the audit.
    """
    with incoming():
        import asyncio

        from redrive.app import Redrive
        from redrive.stores.upkeep import Remote
        from redrive.stores.url import store_from_url

        store, chosen = store_from_url(url), settings()
        keys, release = chosen.encryption_keys, chosen.release
        app = Redrive(store, log=False, actor=chosen.actor, encryption=keys, release=release)
        upkeep = _upkeep(store)

    async def asked() -> T:
        if not make:
            await (store.open_existing() if isinstance(store, Remote) else upkeep.check_is_there())
        async with app:
            answer = await ask(app)
            if acts:
                await _seal(app)
            return answer

    return asyncio.run(asked())


async def _seal(app: Redrive) -> None:
    from redrive.errors import StoreError

    try:
        await app.audit.seal()
    except StoreError:
        return  # what was done is in the audit, and the next act or worker seals it


def upkeep_of(url: str) -> Upkeep:
    from redrive.stores.url import store_from_url

    return _upkeep(store_from_url(url))


def _upkeep(store: Store) -> Upkeep:
    from redrive.errors import BadStoreURL
    from redrive.stores.upkeep import Kept

    if isinstance(store, Kept):
        return store.upkeep()
    hint = "name the store that the workers use: --store or REDRIVE_STORE"
    raise BadStoreURL("memory: is empty in every new process", field="store", hint=hint)
