"""What a caller gives as its connection, told by class names: no driver is imported that the caller does not use."""

from __future__ import annotations

from typing import Any

from redrive.errors import ConfigError


def unwrapped(within: object) -> Any:
    """The driver's connection, before which Django's wrapper and SQLAlchemy's pooled one stand.

    To be called in the caller's own thread: Django's wrapper is another one in each.
    """
    names = ancestry(within)
    if "django.ConnectionProxy" in names or "django.BaseDatabaseWrapper" in names:
        inner = getattr(within, "connection", None)
        if inner is None:
            hint = "call enqueue inside `with transaction.atomic():`"
            raise ConfigError("Django has not connected yet", field="within", hint=hint)
        return inner
    if names & {"sqlalchemy.scoped_session", "sqlalchemy.async_scoped_session"}:
        return within()  # type: ignore[operator]  # it is called for the session of here and now
    if "sqlalchemy.PoolProxiedConnection" in names:
        return getattr(within, "driver_connection")  # noqa: B009 - known by its name only
    return within


def ancestry(value: object) -> set[str]:
    """Package and class of everything it is, whatever modules they hide in."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(value).__mro__}


def name_of(value: object) -> str:
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
