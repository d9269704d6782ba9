"""`redrive init`: the first two files of a project, ready to run."""

from __future__ import annotations

import os
from errno import ENOTDIR
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import click

from redrive.cli.access import HELP_NAMES, dry_run_option, json_option, verbose_option
from redrive.cli.exits import Exit
from redrive.cli.output import clean, on_terminal, say, tabbed, write, write_json
from redrive.errors import ConfigError, Conflict

ABOUT = """Write redrive.toml and an example tasks.py into DIRECTORY, or into this one. What is there is left as it is.

\b
Examples:
  redrive init
  redrive init shop --store postgresql://shop@localhost/shop
  redrive init --dry-run

In a pipe each line is `wrote` or `kept` and the file, separated by a tab. Exit 6 if there was nothing left to write.
"""
SETTINGS = """\
# Settings of redrive; `redrive config schema` has all of them, `redrive config show --origin` those in force.
# A variable such as REDRIVE_STORE beats this file, and a flag such as --store beats both.

# Where the queues are. A relative path starts at this file.
store = {store}

[worker]
# How long handlers may finish when a worker is told to stop.
grace = "30s"
"""
TASKS = '''\
"""An example. Run it with: redrive worker run tasks:app"""

from redrive import Policy, Redrive, exponential

app = Redrive()


@app.handler("emails", policy=Policy(exponential("1s", cap="10s"), max_attempts=3))
async def send(to: str) -> str:
    if "@" not in to:
        raise ValueError(f"{to!r} is no address")
    return f"sent to {to}"
'''
ELSEWHERE = "to keep it out of the project, name a file that has the URL in REDRIVE_STORE_FILE"
NEXT = (
    "redrive worker run tasks:app",
    """redrive queue push emails '{"to": "ann@example.com"}'""",
    """redrive queue push emails '{"to": "nobody"}'""",
    "redrive letters list",
)


@click.command("init", help=ABOUT, context_settings=HELP_NAMES)
@click.argument("directory", metavar="[DIRECTORY]", default=".")
@click.option("--store", metavar="URL", default="sqlite:///redrive.db", show_default=True, help="Where the queues are.")
@dry_run_option("Say what would be written, and write nothing.")
@json_option
@verbose_option
def init(*, directory: str, store: str, dry_run: bool, as_json: bool) -> int:
    from redrive.stores.url import store_from_url

    store_from_url(store)
    folder = Path(directory)
    files = {"redrive.toml": SETTINGS.format(store=_quoted(store)), "tasks.py": TASKS}
    secret = _has_password(store)
    written = {
        name: _written(folder / name, text, dry_run=dry_run, secret=secret and name == "redrive.toml")
        for name, text in files.items()
    }
    if as_json:
        write_json({"dry_run": dry_run, "files": [{"file": str(folder / n), "written": w} for n, w in written.items()]})
    elif not on_terminal():
        tabbed(["wrote" if done else "kept", str(folder / name)] for name, done in written.items())
    else:
        _tell(folder, written, dry_run=dry_run)
    if secret and written["redrive.toml"]:
        say(f"{folder / 'redrive.toml'} has a password in it, so only you may read it; {ELSEWHERE}")
    if not any(written.values()):
        raise Conflict("both files are there already; nothing was written", hint="name another directory")
    return Exit.DONE


def _tell(folder: Path, written: dict[str, bool], *, dry_run: bool) -> None:
    for name, done in written.items():
        word = ("would write" if dry_run else "wrote") if done else "kept"
        say(f"{word} {folder / name}")
    if any(written.values()) and not dry_run:
        say("next, the first of them in a terminal of its own:" if folder == Path() else f"next, in {folder}:")
        for command in NEXT:
            write(f"  {clean(command)}")


def _has_password(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password) or any("password" in name.lower() for name, _ in parse_qsl(parts.query))


def _written(path: Path, text: str, *, dry_run: bool, secret: bool) -> bool:
    """Never over what is there: it is made in the very call that finds nothing."""
    if dry_run:
        return not path.exists()
    try:
        _make(path.parent)
        mode = 0o600 if secret else 0o666
        with open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"{path} cannot be written: {why}", field="DIRECTORY", hint="name one that is yours"
        ) from None
    return True


def _make(folder: Path) -> None:
    if not folder.is_dir():
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise NotADirectoryError(ENOTDIR, "it is a file") from None


def _quoted(text: str) -> str:
    """As TOML writes a text."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
