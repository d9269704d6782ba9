"""Checks of `dedupe_by` and `transform` functions, and their import by name in the process that sends."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial, reduce
from typing import Any

from redrive.core.acts import Replay
from redrive.core.quantity import shown
from redrive.engine.caller import Caller, is_async
from redrive.engine.replays import ByPayload
from redrive.errors import ConfigError
from redrive.office.replay import DedupeBy, Transform


def check_functions(dedupe_by: object, transform: object, change: Replay) -> None:
    """Raises ConfigError."""
    if isinstance(dedupe_by, str):
        if not all(dedupe_by.split(".")):
            hint = "use names with dots between them, such as order.id"
            raise ConfigError(f"{dedupe_by!r} is not a path into a payload", field="dedupe_by", hint=hint)
    elif dedupe_by is not None:
        _check_function(dedupe_by, "dedupe_by")
    if isinstance(transform, str):
        module, _, path = transform.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
            hint = "write module:function, as in repairs:new_form"
            raise ConfigError(f"{transform!r} does not name a function", field="transform", hint=hint)
    elif transform is not None:
        _check_function(transform, "transform")
    if transform is not None and change.budget == "once":
        hint = "leave out one of the two: a new item has the full budget of its queue"
        raise ConfigError("'once' cannot be used with transform", field="budget", hint=hint)


def _check_function(given: object, field: str) -> None:
    if not callable(given) or is_async(given):
        hint = "use a plain function of the payload, def f(payload): …"
        raise ConfigError(f"{shown(given)} is not a plain function", field=field, hint=hint)


def named(dedupe_by: DedupeBy | None, transform: Transform | None, change: Replay) -> ByPayload:
    """The functions by name, for the process that sends. Raises ConfigError for one that cannot be imported by name."""
    check_functions(dedupe_by, transform, change)
    path = dedupe_by if isinstance(dedupe_by, str) else ""
    return ByPayload(path, "" if path else _name_of(dedupe_by, "dedupe_by"), _name_of(transform, "transform"))


def _name_of(given: object, field: str) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    name = f"{getattr(given, '__module__', '')}:{getattr(given, '__qualname__', '')}"
    with suppress(ConfigError):
        if not name.startswith("__main__:") and _imported(name, field) is given:
            return name
    hint = "with pace or background a worker calls it: define it at the top level of a module that workers can import"
    raise ConfigError(f"{shown(given)} cannot be imported by a worker", field=field, hint=hint)


def _imported(name: str, field: str) -> Callable[[Any], object]:
    module, _, path = name.partition(":")
    try:
        found = reduce(getattr, path.split("."), importlib.import_module(module))
    except (Exception, SystemExit) as error:
        why = f"{name} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(why, field=field, hint="put its module where this process can import it") from error
    _check_function(found, field)
    return found  # type: ignore[return-value] # it was checked


async def loaded(name: str, field: str, caller: Caller) -> Callable[[Any], object]:
    """The function of this name, imported in a thread, since that may take long. Raises ConfigError."""
    function, error = await caller.in_thread(partial(_imported, name, field))
    if error is not None:
        raise error
    return function  # type: ignore[no-any-return] # it was checked
