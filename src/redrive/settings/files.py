"""The settings file: where it is, and what it says. Faults never quote the file, which may hold a password."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from redrive.errors import ConfigError, MissingExtra

VARIABLE = "REDRIVE_CONFIG"
NAMES = ("redrive.toml", "redrive.yaml", "redrive.yml")


def find(start: str | None = None) -> Path | None:
    """The nearest one, upwards from `start` or the current directory. Costs a few looks where there is none.

    Also a link that leads nowhere, or the folder that a container's mount makes of a missing file: whoever put it there
    means it, and must not work with a store that nobody named.
    """
    try:
        folder = os.path.realpath(start or os.getcwd())  # noqa: PTH109 - this is on the way of every command
    except OSError:
        return None  # the current directory is gone
    while True:
        found = [path for name in NAMES if os.path.lexists(path := os.path.join(folder, name))]  # noqa: PTH118
        if len(found) > 1:
            both = " and ".join(os.path.basename(path) for path in found)  # noqa: PTH119
            raise ConfigError(f"{folder} has {both}", field="settings", hint="keep one of them")
        if found:
            return Path(found[0])
        above = os.path.dirname(folder)  # noqa: PTH120
        if above == folder:
            return None
        folder = above


def named(path: str, by: str) -> Path | None:
    """The one that somebody named, which must be there. The null device stands for none."""
    if path == os.devnull:
        return None
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise ConfigError(f"no file {path}", field=by, hint="name the settings file, or leave it out")
    if file.suffix not in {".toml", ".yaml", ".yml"}:
        raise ConfigError(f"{path} is neither TOML nor YAML", field=by, hint="name a .toml, .yaml or .yml file")
    return file


def read(file: Path) -> dict[str, Any]:
    """What it says, not yet checked."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError("it is not UTF-8", field=str(file), hint="save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(
            f"it cannot be read: {error.strerror}", field=str(file), hint="check where it leads and its rights"
        ) from None
    said = _toml(text, file) if file.suffix == ".toml" else _yaml(text, file)
    if said is None:
        return {}
    if not isinstance(said, dict):
        raise ConfigError("it holds no settings", field=str(file), hint="write name: value, one a line")
    return said


def _toml(text: str, file: Path) -> Any:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"it is not TOML: {error}", field=str(file), hint="text stands in quotes") from None


def _yaml(text: str, file: Path) -> Any:
    try:
        import yaml
    except ImportError:
        hint = "pip install 'redrive[yaml]', or write it as redrive.toml"
        raise MissingExtra("YAML needs the package PyYAML", field=str(file), hint=hint) from None
    try:
        return yaml.load(text, _loader())  # noqa: S506 - made from the safe one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (at line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        problem = re.sub("'.*'", "'…'", error.problem or "it cannot be read", flags=re.DOTALL)
        what = f"it is not YAML: {problem}{where}"
    except (yaml.YAMLError, ValueError, RecursionError):
        what = "it is not YAML"
    raise ConfigError(what, field=str(file), hint="write name: value, one a line; indent what belongs to a section")


def _loader() -> Any:
    """The safe one, which does not take a name twice and say nothing."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # PyYAML ships no types
        pass

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for at, key in enumerate(keys):
            if key in keys[:at]:
                raise yaml.constructor.ConstructorError(
                    None, None, "a name is there twice", node.value[at][0].start_mark
                )
        made: dict[Any, Any] = loader.construct_mapping(node, deep=True)
        return made

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return Loader
