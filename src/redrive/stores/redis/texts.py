"""Texts and numbers on their way into a script."""

from __future__ import annotations

from msgspec import msgpack

from redrive.errors import ConfigError

_encoder = msgpack.Encoder()


def packed(value: object) -> bytes:
    """For cmsgpack.unpack. Bytes go beside it, as arguments of their own: the server's msgpack knows none."""
    try:
        return _encoder.encode(value)
    except (OverflowError, UnicodeEncodeError) as error:
        raise ConfigError(f"a value cannot be stored: {error}") from error
