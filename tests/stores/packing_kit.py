"""Bodies for the tests of packing."""

from __future__ import annotations

import random

from redrive.stores.packing import Packed, pack

TEXT = b'{"name": "Ada Lovelace", "city": "London"}\n' * 5_000
NOISE = random.Random(13).randbytes(200_000)


def packed(body: bytes) -> Packed:
    found = pack(body)
    assert isinstance(found, Packed)
    return found
