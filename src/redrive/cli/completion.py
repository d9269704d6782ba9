"""`redrive completion`: the script that makes a shell complete our words."""

from __future__ import annotations

import click

from redrive.cli.access import HELP_NAMES, verbose_option
from redrive.cli.output import write
from redrive.errors import ConfigError

ABOUT = """Print the script that completes commands, options, queues, ids, causes and fields of filters in a shell.

\b
Examples:
  eval "$(redrive completion bash)"                                  # in ~/.bashrc
  eval "$(redrive completion zsh)"                                   # in ~/.zshrc
  redrive completion fish > ~/.config/fish/completions/redrive.fish
  redrive completion powershell | Out-String | Invoke-Expression     # in $PROFILE

SHELL is bash, zsh, fish or powershell. Names are those of the store that the command would use, by --store as typed so
far, REDRIVE_STORE or redrive.toml. It has 300 ms to answer; else they are those of the last time that it did.
"""


@click.command("completion", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("shell", metavar="SHELL")
@verbose_option
def completion(*, shell: str) -> None:
    from click.shell_completion import add_completion_class, get_completion_class

    from redrive.cli.completing_bash import Bash
    from redrive.cli.root import cli

    add_completion_class(Bash)
    kind = get_completion_class(shell)
    if kind is None:
        raise ConfigError(
            f"{shell!r} is no shell that can be helped", field="SHELL", hint="bash, zsh, fish, powershell"
        )
    write(kind(cli, {}, "redrive", "_REDRIVE_COMPLETE").source())
