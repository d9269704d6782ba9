"""Names of a package that are imported when they are first used.

Importing redrive must cost next to nothing: pytest loads its plugin in every project where redrive is installed, and
the command line starts for every command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def names_of(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package. `homes`: the names of each module, in a list or separated by
    blanks; a module without names is itself one.
    """
    lists = {home: names.split() if isinstance(names, str) else names for home, names in homes.items()}
    where = {name: home for home, names in lists.items() for name in names}
    modules = {home.rpartition(".")[2]: home for home, names in homes.items() if not names}

    def find(name: str) -> object:
        if name in modules:
            return import_module(modules[name])
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(where[name]), name)

    return find, lambda: sys.modules[package].__all__
