"""Import of the user's app and functions: `tasks:app` is the variable `app` of the module `tasks`, from here."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from redrive import blocking
from redrive.app import Redrive
from redrive.blocking._facade import behind
from redrive.cli.exits import UserCodeFailed
from redrive.errors import ConfigError

FIELD = "MODULE:APP"


def load_app(target: str) -> Redrive:
    module, app = _load(target, FIELD, "an app", "app", _offer)
    if isinstance(app, blocking.Redrive):
        # Its handlers call it from their threads, and such calls come to the loop in which it is opened: the worker's.
        return behind(app)
    if not isinstance(app, Redrive):
        what = f"{target} is a {type(app).__name__}, not a Redrive"
        raise ConfigError(what, field=FIELD, hint=_offer(module, module.__name__))
    return app


def load_function(target: str, *, field: str) -> Callable[..., Any]:
    module, function = _load(target, field, "a function", "function", _offer_functions)
    if not callable(function):
        what = f"{target} is a {type(function).__name__}, not a function"
        raise ConfigError(what, field=field, hint=_offer_functions(module, module.__name__))
    return function  # type: ignore[no-any-return]  # any that can be called


def _load(
    target: str, field: str, what: str, usual: str, offer: Callable[[ModuleType, str], str]
) -> tuple[ModuleType, Any]:
    module_name, _, attribute = target.partition(":")
    if not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        hint = f"write module:variable, as in {_guess(target, usual)}"
        raise ConfigError(f"{target!r} does not name {what}", field=field, hint=hint)
    module = _import(module_name, field)
    if not hasattr(module, attribute):
        hint = offer(module, module_name)
        raise ConfigError(f"module {module_name!r} has no {attribute!r}", field=field, hint=hint)
    return module, getattr(module, attribute)


def _guess(target: str, usual: str) -> str:
    """People name the file, or forget the variable."""
    path, _, attribute = target.partition(":")
    module = path.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
    fits = module and all(part.isidentifier() for part in module.split("."))
    return f"{module}:{attribute or usual}" if fits else f"tasks:{usual}"


def _offer(module: ModuleType, name: str) -> str:
    apps = [key for key, value in vars(module).items() if isinstance(value, Redrive | blocking.Redrive)]
    if apps:
        return f"use {' or '.join(f'{name}:{key}' for key in apps)}"
    return "make one there: app = redrive.Redrive(...)"


def _offer_functions(module: ModuleType, name: str) -> str:
    own = [key for key, value in vars(module).items() if isinstance(value, FunctionType) and value.__module__ == name]
    return f"use {' or '.join(f'{name}:{key}' for key in own)}" if own else "define one there: def repair(payload): …"


def _import(name: str, field: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"run it where {name.partition('.')[0]}.py is; this is {here}"
            raise ConfigError(f"no module {error.name!r}", field=field, hint=hint) from None
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> UserCodeFailed:
    """With the user's part of the traceback: what lies before is how we came there."""
    told = traceback.TracebackException.from_exception(error)
    own = [at for at, frame in enumerate(told.stack) if not _is_ours(frame.filename)]
    del told.stack[: own[0] if own else len(told.stack)]
    shown = "".join(told.format()).rstrip()
    return UserCodeFailed(f"importing {name!r} failed: {type(error).__name__}: {error}", shown=shown, hint="see above")


def _is_ours(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")
