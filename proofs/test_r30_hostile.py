"""R30 hostile payloads. Whatever is accepted comes back byte for byte, on every store."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core.states import State
from redrive.stores.url import store_from_url
from tests.promises.test_r30_hostile import KINDS, QUEUES, Post, fresh
from tests.support.rig.size import HOSTILE, proof_size

SIZE = f"{HOSTILE[proof_size()]} generated lists"

# -- whatever else there is ------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
LEAVES = st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | TEXTS | st.binary(max_size=20)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.integers(), inner, max_size=4)
)
WRITTEN = ANYTHING.map(lambda value: json.dumps(value, default=str, skipkeys=True).encode("utf-8", "surrogatepass"))


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """JSON as Python writes it, surrogates, NaN and all, with a few bytes changed."""
    body = bytearray(draw(WRITTEN))
    for _ in range(draw(st.integers(0, 3))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=HOSTILE[proof_size()])
@given(documents=st.lists(ANYTHING | bent(), min_size=1, max_size=20))
async def test_r30_whatever_is_accepted_comes_back(
    tmp_path_factory: pytest.TempPathFactory, kind: str, documents: list[Any]
) -> None:
    """Whatever it is, `enqueue` takes it or raises a PayloadError that names it, and the worker goes on."""
    with fresh(kind, tmp_path_factory.mktemp("r30")) as url:
        post = Post(store_from_url(url))
        async with post.app as app:
            verdicts = [await post.verdict(document, f"doc-{n}") for n, document in enumerate(documents)]
            taken = [(n, document) for n, document in enumerate(documents) if verdicts[n] is None]
            put = await post.payloads([f"doc-{n}-{queue}" for n, _ in taken for queue in QUEUES])
            await app.run(until_idle=True)
            assert await post.payloads(put) == put
            for n, document in taken:
                body = put[f"doc-{n}-bytes"]
                assert post.seen[f"doc-{n}-bytes"] == body
                assert not isinstance(document, bytes) or body == document
                lying = await app.get(f"doc-{n}-values")
                assert lying.state is State.DONE or (lying.letter is not None and lying.letter.reason == "payload")
