"""Compares a class whose methods are awaited with its twin whose methods block."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

TWINS = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


def differences(awaited: type, blocking: type, twins: Mapping[object, object]) -> list[str]:
    """What a caller who changes the import would stumble over. `twins` maps classes that stand for each other."""
    names, others = _public(awaited), _public(blocking)
    found = [f"{name} is missing" for name in sorted(names - others)]
    found += [f"{name} is not in the original" for name in sorted(others - names)]
    for name in sorted(names & others):
        first, second = _method(awaited, name), _method(blocking, name)
        found += [f"{name}: {what}" for what in _compare(first, second, twins)]
    return found


def _public(kind: type) -> set[str]:
    names = {name for name in dir(kind) if not name.startswith("_")}
    return names | {TWINS.get(name, name) for name in dir(kind) if name in {*TWINS, *TWINS.values()}}


def _method(kind: type, name: str) -> Any:
    if not hasattr(kind, name):
        name = next(awaited for awaited, blocking in TWINS.items() if blocking == name)
    return inspect.getattr_static(kind, name)


def _compare(first: Any, second: Any, twins: Mapping[object, object]) -> list[str]:
    if type(first) is not type(second):
        return [f"a {type(second).__name__} instead of a {type(first).__name__}"]
    if isinstance(first, property):
        return _compare(first.fget, second.fget, twins)
    if not inspect.isfunction(first):
        return [] if first == second else [f"{second!r} instead of {first!r}"]
    found = ["it must not be awaited"] if inspect.iscoroutinefunction(second) else []
    found += _parameters(inspect.signature(first), inspect.signature(second))
    found += _types(typing.get_type_hints(first), typing.get_type_hints(second), twins)
    if not (inspect.getdoc(second) or "").startswith(inspect.getdoc(first) or ""):
        found.append("the docstring does not begin like the original's")
    return found


def _parameters(first: inspect.Signature, second: inspect.Signature) -> list[str]:
    names, others = list(first.parameters), list(second.parameters)
    if names != others:
        return [f"parameters {others} instead of {names}"]
    found = []
    for name, one in first.parameters.items():
        other = second.parameters[name]
        if one.kind is not other.kind:
            found.append(f"{name} is {other.kind.description} instead of {one.kind.description}")
        if one.default != other.default:
            found.append(f"{name} is {other.default!r} by default instead of {one.default!r}")
    return found


def _types(first: dict[str, Any], second: dict[str, Any], twins: Mapping[object, object]) -> list[str]:
    """An async function's annotation already says what awaiting it gives."""
    found = []
    for name in sorted(first.keys() | second.keys()):
        wanted, given = first.get(name, "nothing"), second.get(name, "nothing")
        if given != twins.get(wanted, wanted):
            found.append(f"{name} is annotated {given} instead of {wanted}")
    return found
