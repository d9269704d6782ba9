"""Type arguments of generic classes, as of `class MyLoop(MainLoop[Request, Output])`, and parameters of functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, ForwardRef, TypeVar, get_args, get_origin


def arguments_of(instance: object, base: type) -> tuple[Any, ...] | None:
    """In the order of the base's variables, `Any` for one that is still open; None if there are none at all."""
    kind = type(instance)
    # Of `MainLoop[MyRequest, MyOutput](...)`; typing sets it when __init__ is over.
    given = get_args(getattr(instance, "__orig_class__", None))
    known = dict(zip(_variables(kind), given, strict=False))
    if kind is base:
        return given or None
    return _find(kind, base, known)


def given_for(generic: Any, *arguments: Any) -> Any:
    """`generic[arguments]`, for arguments that are only known when it runs."""
    return generic[arguments]


def _find(kind: type, base: type, known: Mapping[Any, Any]) -> tuple[Any, ...] | None:
    for alias in kind.__dict__.get("__orig_bases__", ()):
        origin = get_origin(alias)
        if isinstance(origin, type) and issubclass(origin, base):
            given = tuple(_filled(each, known, kind) for each in get_args(alias))
            if origin is base:
                return given
            return _find(origin, base, dict(zip(_variables(origin), given, strict=False)))
    for parent in kind.__bases__:
        if parent is not base and issubclass(parent, base):
            return _find(parent, base, {})
    return None


def _filled(argument: Any, known: Mapping[Any, Any], kind: type) -> Any:
    if isinstance(argument, TypeVar):
        return known.get(argument, Any)
    if isinstance(argument, ForwardRef):
        # A name that was not there yet; by now its module has it, if it ever will.
        return getattr(sys.modules.get(kind.__module__), argument.__forward_arg__, Any)
    variables = _variables(argument)
    return argument[tuple(known.get(each, Any) for each in variables)] if variables else argument


def _variables(kind: Any) -> tuple[Any, ...]:
    return getattr(kind, "__parameters__", ())


def parameters_of(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    """By name; none for functions written in C that have no signature."""
    try:
        return signature(function).parameters
    except (TypeError, ValueError):
        return {}
