from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.core import sizes
from redrive.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (1, 1),
        (1_048_576, 1_048_576),
        (sizes.MAX, sizes.MAX),
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1 byte", 1),
        ("512 bytes", 512),
        ("64KB", 64_000),
        ("64KiB", 65_536),
        (" 64 kib ", 65_536),
        ("1MB", 1_000_000),
        ("1MiB", 1_048_576),
        ("1.5MiB", 1_572_864),
        ("0.5KB", 500),
        ("2GB", 2_000_000_000),
        ("2GiB", 2_147_483_648),
        ("1TB", 1_000_000_000_000),
        ("1TiB", 1_099_511_627_776),
    ],
)
def test_is_read(value: Any, size: int) -> None:
    assert sizes.parse(value) == size


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (True, "a truth value has no size"),
        (False, "a truth value has no size"),
        (-1, "is negative"),
        ("-1", "it must not carry a sign"),
        ("+1", "it must not carry a sign"),
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("nonsense", "it is not one number"),
        ("1KiB 2B", "it is not one number"),
        ("1,5MB", "it is not one number"),
        ("1e6", "it is not one number"),
        ("٣MB", "it is not one number"),
        ("MB", "it is not one number"),
        ("1parsec", "the unit 'parsec' is unknown"),
        ("64K", "'K' may be KB (powers of 1,000) or KiB (powers of 1,024)"),
        ("64m", "'m' may be MB (powers of 1,000) or MiB (powers of 1,024)"),
        ("1.5", "it is not a whole number of bytes"),
        ("1.0005KB", "it is not a whole number of bytes"),
        ("9" * 65, "it is longer than 64 characters"),
        ("9" * 60, "larger than anything can be"),
        ("9999999TiB", "larger than anything can be"),
        (sizes.MAX + 1, "larger than anything can be"),
        pytest.param(10**5000, "larger than anything can be", id="too long to print"),
        (1e6, "it is a float"),
        (None, "it is a NoneType"),
        (b"1MB", "it is a bytes"),
    ],
)
def test_is_refused(value: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sizes.parse(value, field="max_payload")
    assert why in str(caught.value)
    assert caught.value.field == "max_payload"
    assert "512KiB" in caught.value.hint
    assert len(str(caught.value)) < 400


@given(st.integers(0, sizes.MAX), st.sampled_from(["", "B", " bytes"]))
def test_a_number_of_bytes_is_itself(size: int, unit: str) -> None:
    assert sizes.parse(size) == sizes.parse(f"{size}{unit}") == size


@given(st.text() | st.integers() | st.floats() | st.booleans() | st.none())
def test_everything_is_a_size_or_a_config_error(value: Any) -> None:
    try:
        size = sizes.parse(value)
    except ConfigError:
        return
    assert 0 <= size <= sizes.MAX
