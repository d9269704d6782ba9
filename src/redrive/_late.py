"""Names of a package that are imported when they are first used.

Importing redrive must cost next to nothing: pytest loads its plugin in every project where redrive is installed, and
the command line starts for every command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def names_of(
    package: str, homes: Mapping[str, Sequence[str]], *, extra: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package. `homes`: the names of each module, in a list or separated by
    blanks; a module without names is itself one. `extra`: the packages that the extra of its name installs; if one of
    them is missing, MissingExtra.
    """
    lists = {home: names.split() if isinstance(names, str) else names for home, names in homes.items()}
    where = {name: home for home, names in lists.items() for name in names}
    modules = {home.rpartition(".")[2]: home for home, names in homes.items() if not names}

    def find(name: str) -> object:
        if name in modules:
            return import_module(modules[name])
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(where[name]), name)
        except ModuleNotFoundError as error:
            missing, own = str(error.name).partition(".")[0], package.rpartition(".")[2]
            if missing not in extra:
                raise
            from redrive.errors import MissingExtra

            hint = f"pip install 'redrive[{own}]'"
            raise MissingExtra(f"the package {missing} is not installed", field=own, hint=hint) from None

    return find, lambda: sys.modules[package].__all__
