"""Every value of the stores' verbs survives the codec. New examples in each run, and more of them than in the tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.test_codec import VALUES, survives
from tests.core.values import of


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: getattr(kind, "__name__", "union"))
@settings(max_examples=100, derandomize=False)
@given(data=st.data())
def test_every_value_of_the_verbs_survives(kind: Any, data: st.DataObject) -> None:
    survives(kind, data.draw(of(kind)))
