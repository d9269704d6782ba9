"""`redrive config …`: which settings are in force, where each came from, and what is wrong with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from redrive.cli.access import HELP_NAMES, config_option, json_option, verbose_option
from redrive.cli.exits import Exit, Talk
from redrive.cli.output import MISSING, clean, columns, on_terminal, say, tabbed, write, write_json
from redrive.cli.root import LazyGroup
from redrive.errors import BadSettings

if TYPE_CHECKING:
    from redrive.settings import Loaded

config = LazyGroup(
    "config",
    {
        "show": "redrive.cli.config:show",
        "check": "redrive.cli.config:check",
        "schema": "redrive.cli.config:schema",
    },
    help="""Settings: redrive.toml or redrive.yaml, REDRIVE_… variables, and what is in force.

\b
Examples:
  redrive config show --origin
  redrive config check
""",
)

ABOUT_SHOW = """Show the settings in force; passwords are left out.

\b
Examples:
  redrive config show
  redrive config show --origin
  redrive config show --config /etc/redrive.toml --json | jq .store

Flags win over REDRIVE_… variables, these over the file, and that over defaults. The file is redrive.toml or
redrive.yaml, the nearest one upwards from here. In a pipe the columns are SETTING VALUE, with --origin also ORIGIN.
"""
ABOUT_CHECK = """Say everything that is wrong with the settings, one fault a line on stdout. Exit 10 if anything is.

\b
Examples:
  redrive config check
  REDRIVE_CONFIG=/etc/redrive.toml redrive config check && systemctl restart worker

Variables that begin with REDRIVE_ and mean nothing count as faults too.
"""
ABOUT_SCHEMA = """Print the JSON Schema of the settings file, for editors.

\b
Examples:
  redrive config schema > redrive.schema.json
"""


@click.command("show", help=ABOUT_SHOW, context_settings=HELP_NAMES)
@click.option("--origin", is_flag=True, help="Also where each value came from.")
@config_option
@json_option
@verbose_option
@click.pass_obj
def show(talk: Talk, *, origin: bool, as_json: bool) -> None:
    from redrive.settings import load, unknown_variables

    loaded = load(config=talk.config)
    if as_json:
        write_json(_as_object(loaded, origin=origin))
    elif on_terminal():
        columns(["SETTING", "VALUE", *(["ORIGIN"] if origin else [])], _rows(loaded, origin=origin), wide=origin)
    else:
        tabbed(_rows(loaded, origin=origin))
    for one in unknown_variables():
        say(f"redrive: {one}")


@click.command("check", help=ABOUT_CHECK, context_settings=HELP_NAMES)
@config_option
@json_option
@verbose_option
@click.pass_obj
def check(talk: Talk, *, as_json: bool) -> int:
    from redrive.settings import load, unknown_variables

    file, faults = None, unknown_variables()
    try:
        file = load(config=talk.config).file
    except BadSettings as error:
        faults = (*error.faults, *faults)
    if as_json:
        write_json({"file": None if file is None else str(file), "faults": list(faults)})
    else:
        for fault in faults:
            write(clean(fault))
    if faults:
        return Exit.UNSOUND
    if not as_json:
        say(f"the settings can be used; {'there is no file' if file is None else f'the file is {file}'}")
    return Exit.DONE


@click.command("schema", help=ABOUT_SCHEMA, context_settings=HELP_NAMES)
@verbose_option
def schema() -> None:
    from redrive.settings import model

    write_json(model.schema())


def _shown(loaded: Loaded) -> dict[str, Any]:
    """By dotted name, as a file would say it, without passwords."""
    from redrive.settings.model import fields, value_of

    values = {name: (field, value_of(loaded.settings, name)) for name, field in fields().items()}
    return {name: None if value is None else field.show(value) for name, (field, value) in values.items()}


def _rows(loaded: Loaded, *, origin: bool) -> list[list[str]]:
    return [[name, _cell(value), *([loaded.origins[name]] if origin else [])] for name, value in _shown(loaded).items()]


def _cell(value: object) -> str:
    if isinstance(value, list | dict):
        return ",".join(value) or MISSING
    return MISSING if value is None else str(value)


def _as_object(loaded: Loaded, *, origin: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"file": None if loaded.file is None else str(loaded.file)}
    for name, value in _shown(loaded).items():
        section, _, inner = name.rpartition(".")
        place = made.setdefault(section, {}) if section else made
        place[inner] = {"value": value, "origin": loaded.origins[name]} if origin else value
    return made
