from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from redrive.core.graph import cycle


def test_what_waits_for_itself_is_a_ring() -> None:
    assert cycle({"a": ("a",)}) == ("a", "a")


def test_a_ring_is_named_from_where_it_closes() -> None:
    assert cycle({"x": ("a",), "a": ("b",), "b": ("c",), "c": ("a",)}) == ("a", "b", "c", "a")


def test_diamonds_and_old_items_are_no_ring() -> None:
    assert cycle({"a": ("b", "c"), "b": ("d",), "c": ("d", "old"), "d": ("old",)}) == ()
    assert cycle({}) == ()


def test_a_long_chain_is_no_trouble() -> None:
    chain = {str(number): (str(number + 1),) for number in range(10_000)}
    assert cycle(chain) == ()
    assert len(cycle({**chain, "10000": ("0",)})) == 10_002


@given(st.dictionaries(st.integers(0, 8), st.lists(st.integers(0, 9), max_size=3), max_size=9))
def test_a_ring_is_found_exactly_if_there_is_one(edges: dict[int, list[int]]) -> None:
    after = {str(name): tuple(map(str, awaited)) for name, awaited in edges.items()}
    ring = cycle(after)
    assert bool(ring) == _never_ends(after)
    for waiting, awaited in itertools.pairwise(ring):
        assert awaited in after[waiting]
    assert ring == () or ring[0] == ring[-1]


def _never_ends(after: dict[str, tuple[str, ...]]) -> bool:
    """Take away what waits for nobody until nothing changes: a ring is what is left."""
    left = dict(after)
    while free := [name for name, awaited in left.items() if not any(one in left for one in awaited)]:
        for name in free:
            del left[name]
    return bool(left)
