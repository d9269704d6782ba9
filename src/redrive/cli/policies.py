"""Policies live in the code of an app: --app names it, and its module is imported to look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from redrive.engine.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])


def app_option(command: F) -> F:
    """The command gets `target`, or None."""
    return click.option(
        "--app",
        "target",
        metavar="MODULE:APP",
        envvar="REDRIVE_APP",
        help="Your app, for its policies; also REDRIVE_APP.",
    )(command)


def registry_of(target: str) -> Registry:
    """Handlers and policies of the app; nothing is opened."""
    from redrive.app.internals import parts_of
    from redrive.cli.load import load_app

    return parts_of(load_app(target)).registry
