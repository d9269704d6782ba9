"""Packing itself: what was put comes back, what is no good is noticed, and nothing grows beyond what it admits."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import ConfigError, StoreCorrupt, StoreTooNew
from redrive.stores import packing
from redrive.stores.packing import Packed, fault, pack, unpack
from redrive.stores.sqlite import SqliteStore
from redrive.testing.conformance.kit import sha256
from tests.stores.packing_kit import NOISE, TEXT, packed

HEADER = struct.Struct(">Q32s")


def made_of(stream: bytes, size: int) -> Packed:
    """As a store would keep it that went wrong."""
    return Packed(HEADER.pack(size, bytes(32)) + stream, 1)


@given(st.binary(max_size=500), st.integers(1, 3_000))
def test_what_is_packed_comes_back(part: bytes, times: int) -> None:
    body = part * times
    kept = pack(body)
    assert unpack(kept) == body
    assert type(unpack(kept)) is bytes
    if isinstance(kept, Packed):
        assert len(kept) <= 0.9 * len(body)
        assert packing.digest(kept) == sha256(body)


@pytest.mark.parametrize("body", [b"", b"x", b"xy" * 20, NOISE, zlib.compress(NOISE)], ids=range(5))
def test_what_does_not_get_smaller_is_kept_as_it_is(body: bytes) -> None:
    assert pack(body) is body


def test_only_the_middle_is_tried_first() -> None:
    """A picture with a long description is not worth the time; a description with a picture is."""
    assert pack(TEXT[:50_000] + NOISE + TEXT[:50_000]) == TEXT[:50_000] + NOISE + TEXT[:50_000]
    assert isinstance(pack(NOISE[:20_000] + TEXT + NOISE[:20_000]), Packed)


@pytest.mark.parametrize(
    "body",
    [
        Packed(b"", 1),
        Packed(b"too short for a header", 1),
        made_of(b"", 10),
        made_of(b"no stream at all", 10),
        made_of(zlib.compress(TEXT)[:-1], len(TEXT)),
        made_of(zlib.compress(TEXT)[:100], len(TEXT)),
        made_of(zlib.compress(TEXT) + b"more", len(TEXT)),
        made_of(zlib.compress(TEXT), len(TEXT) - 1),
        made_of(zlib.compress(TEXT), len(TEXT) + 1),
        made_of(zlib.compress(TEXT), 0),
        made_of(zlib.compress(TEXT), 2**64 - 1),
    ],
    ids=range(11),
)
def test_what_does_not_unpack_is_damaged(body: Packed) -> None:
    with pytest.raises(StoreCorrupt, match="does not unpack"):
        unpack(body)


@pytest.mark.parametrize("number", [3, 7, -1, 2**40])
def test_an_unknown_number_is_a_later_release_s(number: int) -> None:
    with pytest.raises(StoreTooNew, match=f"packed in a way \\({number}\\)") as told:
        unpack(Packed(TEXT, number))
    assert "upgrade" in told.value.hint
    wrong = fault(TEXT, zlib.crc32(TEXT, number), number)
    assert isinstance(wrong, StoreTooNew)


def test_a_bomb_stops_at_the_size_it_admits() -> None:
    bomb = made_of(zlib.compress(bytes(20_000_000)), 1_000)
    tracemalloc.start()
    try:
        with pytest.raises(StoreCorrupt, match="1,000 bytes"):
            unpack(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What is left of the input is copied once by zlib; what would have come out is a thousand times as much.
    assert peak < 1_000_000


@given(st.integers(0, 2**40), st.integers(1, 255))
def test_every_flipped_bit_is_seen(place: int, change: int) -> None:
    body = packed(TEXT)
    crc = packing.checksum(body)
    assert fault(body, crc, 1) is None
    bent = bytearray(body)
    bent[place % len(body)] ^= change
    assert isinstance(fault(bytes(bent), crc, 1), StoreCorrupt)


def test_the_number_is_part_of_the_checksum() -> None:
    """A release that knows nothing of packing checks the bytes alone: it must not take them for a payload."""
    body = packed(TEXT)
    crc = packing.checksum(body)
    assert zlib.crc32(body) != crc
    for other in (0, 2):
        assert isinstance(fault(body, crc, other), StoreCorrupt)
    assert isinstance(fault(None, None, None), StoreCorrupt)


@pytest.mark.parametrize(("value", "above"), [(None, None), ("off", None), (0, 0), (10, 10), ("64KiB", 65_536)])
def test_thresholds(value: Any, above: int | None) -> None:
    assert packing.threshold(value) == above


@pytest.mark.parametrize("value", [True, -1, "large", "64K", 1.5])
def test_a_threshold_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError) as told:
        SqliteStore("x.db", compress_above=value)
    assert told.value.field == "compress_above"
