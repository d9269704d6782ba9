"""Puts the sources together and checks them at once: all faults are told together, each with where it came from."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from redrive import doors
from redrive.errors import BadSettings, ConfigError
from redrive.settings import files, readers
from redrive.settings.model import Field, Settings, door_sections, fields, sections, settings_from

_log = logging.getLogger("redrive.settings")

DEFAULT = "default"
OTHER_VARIABLES = (files.VARIABLE, "REDRIVE_APP", "REDRIVE_DEBUG", "REDRIVE_HUB_TOKEN", "REDRIVE_PROVE")
OURS = "REDRIVE_"
RELEASE = "REDRIVE_RELEASE"
SECRET_LIMIT = 64 * 1024


class Said(Struct, frozen=True):
    """What one source says of one setting; `flag` is how the command line calls it."""

    value: object
    origin: str
    flag: str = ""


class Fault(Struct, frozen=True):
    text: str
    error: ConfigError | None = None
    """Of a flag: it needs no further words of where it came from."""


class Loaded(Struct, frozen=True):
    """`origins`: where each value came from."""

    settings: Settings
    origins: dict[str, str]
    file: Path | None


def load(
    *,
    config: str | None = None,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded:
    """The settings in force here. `config` names the file, else REDRIVE_CONFIG, else the nearest one upwards.

    `flags` are by dotted name; None stands for a flag that was not given. Raises BadSettings with every fault.
    """
    variables = os.environ if environ is None else environ
    faults: list[Fault] = []
    file, said = _from_file(config, variables, faults)
    known = fields()
    said |= _from_environment(known, variables, faults)
    said |= {name: _flag(name, value) for name, value in (flags or {}).items() if value is not None}
    given = [(name, said[name]) for name in known if name in said]
    values = {name: value for name, one in given for value in _checked(known[name], one, faults)}
    if len(faults) == 1 and faults[0].error is not None:
        raise faults[0].error
    if faults:
        raise BadSettings(tuple(fault.text for fault in faults))
    origins = {name: said[name].origin if name in said else DEFAULT for name in known}
    return Loaded(settings_from(values), origins, file)


def release() -> str:
    """By the variable alone: an app or mailbox that names its store may be made in an event loop, and reads no file."""
    value = os.environ.get(RELEASE, "")
    return value and readers.release(value, "release")


def _checked(field: Field, said: Said, faults: list[Fault]) -> Iterator[object]:
    """The value, or nothing and a fault more."""
    try:
        yield field.read(said.value, said.flag or field.name)
    except BadSettings as error:
        faults += [Fault(f"{text} (from {said.origin})") for text in error.faults]
    except ConfigError as error:
        hint = f"; {error.hint}" if error.hint else ""
        faults.append(Fault(f"{error.message} (from {said.origin}{hint})", error if said.flag else None))


def _flag(name: str, value: object) -> Said:
    section, _, inner = name.rpartition(".")
    # A group of commands leaves out the section that it is about.
    short = inner if section in ("worker", *door_sections()) else name
    flag = f"--{short.replace('.', '-').replace('_', '-')}"
    # A wrong store is one wherever it is named.
    return Said(value, f"flag {flag}", "store" if name == "store" else flag)


# --- the file --------------------------------------------------------------------------------------------------------


def _from_file(
    config: str | None, variables: Mapping[str, str], faults: list[Fault]
) -> tuple[Path | None, dict[str, Said]]:
    try:
        if config:
            file = files.named(config, "--config")
        elif variables.get(files.VARIABLE):
            file = files.named(variables[files.VARIABLE], files.VARIABLE)
        else:
            file = files.find()
        tree = {} if file is None else files.read(file)
    except ConfigError as error:
        faults.append(Fault(str(error)))
        return None, {}
    for key, value in tree.items():
        if isinstance(value, dict):
            doors.find(str(key))  # the section of a door that is installed, and not loaded yet
    said: dict[str, Said] = {}
    known = fields()
    for name, value in _leaves(tree):
        if name in known:
            said[name] = Said(_placed(known[name], value, file), str(file))
        else:
            faults.append(Fault(f"{name}: {_why_not(name)} (from {file})"))
    return file, said


def _leaves(tree: Mapping[Any, Any]) -> Iterator[tuple[str, object]]:
    """By dotted name. A section must be one; what is no section has nothing inside."""
    for key, value in tree.items():
        name = str(key)
        if name in sections() and isinstance(value, dict):
            yield from ((f"{name}.{inner}", inside) for inner, inside in value.items())
        else:
            yield name, value


def _why_not(name: str) -> str:
    known = fields()
    if name in sections():
        return f"it is a section, with {', '.join(one for one in known if one.startswith(f'{name}.'))}"
    near = get_close_matches(name, known, n=1) or [one for one in known if one.rpartition(".")[2] == name]
    return f"no such setting; did you mean {near[0]}?" if near else f"no such setting; there are {', '.join(known)}"


def _placed(field: Field, value: object, file: Path | None) -> object:
    """A relative path in a file starts at that file, whatever the current directory is."""
    if field.name == "store":
        return _placed_url(value, file)
    is_text = field.is_path and isinstance(value, str) and value.strip()
    return str(file.parent / str(value)) if is_text and file is not None else value


def _placed_url(url: object, file: Path | None) -> object:
    relative = isinstance(url, str) and url.startswith("sqlite:///") and not url.startswith("sqlite:////")
    if not relative or file is None or file.parent == Path.cwd():
        return url
    return f"sqlite:///{quote(str(file.parent))}/{str(url).removeprefix('sqlite:///')}"


# --- the environment -------------------------------------------------------------------------------------------------


def _from_environment(known: Mapping[str, Field], variables: Mapping[str, str], faults: list[Fault]) -> dict[str, Said]:
    """An empty variable says nothing, as shells and containers have it."""
    said: dict[str, Said] = {}
    for name, field in known.items():
        plain, pointing = variables.get(field.variable, ""), variables.get(f"{field.variable}_FILE", "")
        if plain and pointing and field.secret:
            both = f"{name}: {field.variable} and {field.variable}_FILE are both there (keep one of them)"
            faults.append(Fault(both))
        elif plain:
            said[name] = Said(plain, f"environment {field.variable}")
        elif pointing and field.secret:
            said |= _from_secret_file(field, pointing, faults)
    return said


def _from_secret_file(field: Field, path: str, faults: list[Fault]) -> dict[str, Said]:
    variable = f"{field.variable}_FILE"
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as the variable says it
            text = file.read(SECRET_LIMIT).strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        faults.append(Fault(f"{field.name}: {path} cannot be read: {why} (from environment {variable})"))
        return {}
    if field.name == "encryption_keys" and os.stat(path).st_mode & 0o077:  # noqa: PTH116 - as the variable says it
        _log.warning("%s can be read by other users; chmod 600 keeps the encryption keys to this one", path)
    if not text:
        faults.append(Fault(f"{field.name}: {path} is empty (from environment {variable})"))
        return {}
    return {field.name: Said(text, f"{path} (environment {variable})")}


def unknown_variables(variables: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What is wrong with those that look like ours and mean nothing: one text each."""
    known = {*OTHER_VARIABLES, *(field.variable for field in fields().values())}
    known |= {f"{field.variable}_FILE" for field in fields().values() if field.secret}
    strange = sorted(
        {name for name in (os.environ if variables is None else variables) if name.startswith(OURS)} - known
    )
    return tuple(_strange(variable, known) for variable in strange)


def _strange(variable: str, known: Iterable[str]) -> str:
    # Without what they all have in common, or everything would be near to something.
    near = get_close_matches(variable.removeprefix(OURS), [name.removeprefix(OURS) for name in known], n=1)
    return f"{variable} means nothing{f'; did you mean {OURS}{near[0]}?' if near else ''}"
