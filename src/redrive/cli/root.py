"""The tree of commands. A command's module is imported when the command is used."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from redrive._version import __version__
from redrive.cli.access import HELP_NAMES, json_option
from redrive.cli.exits import Exit, Talk, tell
from redrive.cli.incoming import incoming
from redrive.cli.output import write, write_json

if TYPE_CHECKING:
    from redrive.doors import Group

COMPLETING = "_REDRIVE_COMPLETE"
"""In the environment: a shell asks how to go on."""


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's call
        return list(self.commands)


class LazyGroup(click.Group):
    """`lazy` says where a command lives: name to "module:attribute". Without a command it shows its help."""

    def __init__(self, name: str, lazy: dict[str, str], help: str, epilog: str | None = None) -> None:
        super().__init__(
            name,
            help=help,
            epilog=epilog,
            callback=_help_if_alone,
            invoke_without_command=True,
            no_args_is_help=False,
            context_settings=HELP_NAMES,
            subcommand_metavar="COMMAND …",
        )
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's call
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's call
        place = self.lazy.get(cmd_name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        with incoming():
            command: click.Command = getattr(import_module(module), attribute)
        if COMPLETING in os.environ:
            from redrive.cli.completing import attach

            attach(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From what is kept of each: a list of commands must not import all of them."""
        _InOrder(self.name, {name: self.in_short(ctx, name) for name in self.lazy}).format_commands(ctx, formatter)

    def in_short(self, ctx: click.Context, name: str) -> click.Command:
        from redrive.cli.summaries import SUMMARIES

        kept = SUMMARIES.get(f"{self.name} {name}")
        command = self.get_command(ctx, name) if kept is None else click.Command(name, help=kept)
        assert command is not None  # noqa: S101 - it is asked for what is listed
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.lazy and not word.startswith("-"):
            from difflib import get_close_matches  # only for a word that is wrong

            from redrive.cli.summaries import SUMMARIES

            near = get_close_matches(word, self.lazy, n=1)
            known = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.lazy)}"
            elsewhere = [name for name in SUMMARIES if name.endswith(f" {word}")]
            if len(elsewhere) == 1:
                known = f"did you mean 'redrive {elsewhere[0]}'?"
            raise click.UsageError(f"no command {word!r}; {known}", ctx=ctx)
        return super().resolve_command(ctx, args)


@click.pass_context
def _help_if_alone(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _facts() -> dict[str, str]:
    import sqlite3

    return {"redrive": __version__, "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}


def _version_line() -> str:
    facts = _facts()
    return f"redrive {facts['redrive']} (Python {facts['python']}, SQLite {facts['sqlite']})"


@click.command(
    "version",
    context_settings=HELP_NAMES,
    help="Show the versions in use.\n\n\b\nExamples:\n  redrive version\n  redrive version --json | jq -r .redrive",
)
@json_option
def version(*, as_json: bool) -> None:
    if as_json:
        write_json(_facts())
    else:
        write(_version_line())


def _show_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's call
    if value and not context.resilient_parsing:
        write(_version_line())
        context.exit()


ABOUT = """A durable work queue in which failure is a first-class citizen.

\b
Examples:
  redrive init
  redrive worker run tasks:app
  redrive status
  redrive letters list --where 'queue:emails error:*Timeout'
  redrive item explain k3v9q2ma
  redrive letters replay k3v9q2ma --reason 'mail server is back'
  redrive queue set emails --rate 100/min --reason 'mail server is slow'

The store is --store, REDRIVE_STORE or redrive.toml, else sqlite:///redrive.db in the current directory.
More: redrive help exit-codes | filters | fields | durations | environment
"""

CODES = """\b
Exit codes:
  0 done                  7 store not there, not reachable or not usable
  1 failed                8 still going: the time to wait ran out
  2 usage                 9 partly: some were skipped, named on stderr
  3 not confirmed        10 a check found something
  4 not allowed         130 interrupted
  5 not found, or       141 nobody reads the output any more
    not unique
  6 conflict: nothing could be changed in its state
"""


class _Root(LazyGroup):
    """With the groups of doors, which are looked up for help, or for a word that is no command of our own."""

    def __init__(self, name: str, lazy: dict[str, str], help: str, epilog: str | None = None) -> None:
        super().__init__(name, lazy, help, epilog)
        self.of_doors: dict[str, Group] = {}

    def add_doors(self, word: str = "") -> None:
        """Before `worker`, where work begins. A word that is still unknown may be the door of an installed package."""
        if word in self.lazy:
            return
        from redrive import doors

        if not any(word in door.groups for door in doors.every()):
            doors.find(word)
        self.of_doors = {name: group for door in reversed(doors.every()) for name, group in door.groups.items()}
        own = [name for name in self.lazy if name not in self.of_doors]
        at = own.index("worker")
        places = self.lazy | {name: group.place for name, group in self.of_doors.items()}
        self.lazy = {name: places[name] for name in (*own[:at], *self.of_doors, *own[at:])}

    def list_commands(self, ctx: click.Context) -> list[str]:
        self.add_doors()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self.add_doors(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.add_doors()
        super().format_commands(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        self.add_doors(args[0])
        if args[0] in self.of_doors and isinstance(ctx.obj, Talk):
            from redrive import doors

            owner = next((door.name for door in doors.every() if args[0] in door.groups), "")
            ctx.obj.door = "" if owner in doors.BUILT_IN else owner
        return super().resolve_command(ctx, args)

    def in_short(self, ctx: click.Context, name: str) -> click.Command:
        group = self.of_doors.get(name)
        return super().in_short(ctx, name) if group is None else click.Command(name, help=group.summary)


cli = _Root(
    "redrive",
    {
        "init": "redrive.cli.init:init",
        "demo": "redrive.cli.demo.command:demo",
        "status": "redrive.cli.status:status",
        "top": "redrive.cli.top:top",
        "health": "redrive.cli.health:health",
        "doctor": "redrive.cli.doctor:doctor",
        "queue": "redrive.cli.queue:queue",
        "item": "redrive.cli.item:item",
        "letters": "redrive.cli.letters:letters",
        "causes": "redrive.cli.causes:causes",
        "replay": "redrive.cli.replays:replay",
        "view": "redrive.cli.view:view",
        "worker": "redrive.cli.worker:worker",
        "route": "redrive.cli.route:route",
        "gate": "redrive.cli.gate:gate",
        "schedule": "redrive.cli.schedule:schedule",
        "policy": "redrive.cli.policy:policy",
        "alert": "redrive.cli.alert:alert",
        "db": "redrive.cli.db:db",
        "audit": "redrive.cli.audit:audit",
        "config": "redrive.cli.config:config",
        "version": "redrive.cli.root:version",
        "completion": "redrive.cli.completion:completion",
        "help": "redrive.cli.topics:show_help",
    },
    help=ABOUT,
    epilog=CODES,
)
cli.params.append(
    click.Option(
        ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
    )
)


def _invoke(args: list[str], talk: Talk) -> object:
    """As click does it by itself, but for a reader that has gone: to click that is a failure like others."""
    if COMPLETING in os.environ:
        from redrive.cli.completing import answer

        answer(cli, talk)
    try:
        with cli.make_context("redrive", args, obj=talk) as context:
            return cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code


def run_command(args: Sequence[str]) -> int:
    """See `redrive.cli.run`."""
    talk = Talk(json="--json" in args or "--jsonl" in args)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        answer = _invoke(list(args), talk)
    except BrokenPipeError:
        # Whoever read our output is gone: nothing is left to do, and nobody waits for a store that is slow to close.
        from redrive.cli.leaving import leave_now

        leave_now(Exit.UNREAD)
    except SystemExit as done:
        # A shell that asked how to go on has its answer.
        from redrive.cli.leaving import leave_now

        leave_now(int(done.code or 0))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place that turns errors into exit codes
        return tell(error, talk)
    return answer if isinstance(answer, int) else Exit.DONE
