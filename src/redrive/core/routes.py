"""Under which label a letter lies: by the type of its error, else by its category, else the policy's own label."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping

from redrive.core.classify import type_name
from redrive.core.item import Failure
from redrive.core.quantity import shown
from redrive.errors import ConfigError

ROUTE_LIMIT = 128

RouteKey = str | type[BaseException]
"""A category, the name of an error type with or without its module, or the type itself, which means its kin as well."""

_HINT = 'map a category or an error to a label: {"timeout": "network", ValueError: "bad-data"}'


def check_route(name: object, field: str = "route") -> str:
    if not isinstance(name, str) or not name or len(name) > ROUTE_LIMIT or not name.isprintable() or " " in name:
        hint = f"use 1 to {ROUTE_LIMIT} printable characters without blanks"
        raise ConfigError(f"{shown(name)} is not the name of a route", field=field, hint=hint)
    return name


class Routes:
    """Read once, so that a death is a look-up by name; only an unnamed type costs a search among its kin."""

    __slots__ = ("_kinds", "_named", "pairs", "usual")

    def __init__(self, routes: object, usual: object) -> None:
        self.usual = usual if usual == "" and isinstance(usual, str) else check_route(usual)
        if not isinstance(routes, Mapping):
            raise ConfigError(f"{shown(routes)} is not a mapping", field="routes", hint=_HINT)
        self._named: dict[str, str] = {}
        self._kinds: dict[type[BaseException], str] = {}
        for key, value in routes.items():
            self._add(key, check_route(value, "routes"))
        self.pairs = (*self._named.items(), ("", self.usual))

    def with_usual(self, usual: str) -> Routes:
        other = Routes({}, usual)
        other._named, other._kinds = self._named, self._kinds
        other.pairs = (*self._named.items(), ("", usual))
        return other

    def _add(self, key: object, route: str) -> None:
        kind = getattr(builtins, key, None) if isinstance(key, str) else key
        if isinstance(kind, type) and issubclass(kind, BaseException):
            self._kinds[kind] = route
            key = type_name(kind)
        if not isinstance(key, str) or not key.strip():
            raise ConfigError(f"{shown(key)} is neither a category nor an error type", field="routes", hint=_HINT)
        self._named[key.strip()] = route

    def of(self, failure: Failure) -> str:
        if not self._named:
            return self.usual
        for name in (failure.type, failure.type.rpartition(".")[2]):
            if name in self._named:
                return self._named[name]
        return self._of_kin(failure.type) or self._named.get(failure.category, self.usual)

    def _of_kin(self, name: str) -> str | None:
        """By the nearest type that it derives from. Evidence has names, so the type is looked for among their kin."""
        found = next((kind for root in self._kinds for kind in _kin(root) if type_name(kind) == name), None)
        if found is None:
            return None
        return next(self._kinds[ancestor] for ancestor in found.__mro__ if ancestor in self._kinds)


def _kin(root: type[BaseException]) -> Iterator[type[BaseException]]:
    waiting, seen = [root], {root}
    while waiting:
        kind = waiting.pop()
        yield kind
        new = [each for each in kind.__subclasses__() if each not in seen]
        seen.update(new)
        waiting += new
