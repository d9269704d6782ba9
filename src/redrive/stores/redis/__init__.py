"""The store for many machines that have a Redis 7 or a Valkey: `pip install "redrive[redis]"`."""

from redrive.errors import MissingExtra

try:
    from redrive.stores.redis.store import RedisStore
except ModuleNotFoundError as error:
    if error.name != "hiredis":
        raise
    raise MissingExtra(
        "the package hiredis is needed for redis:// stores", field="store", hint='pip install "redrive[redis]"'
    ) from None

__all__ = ["RedisStore"]
