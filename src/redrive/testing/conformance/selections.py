"""Selections of every field and shape, with values that the population of `find` has, nearly has and has not."""

from __future__ import annotations

from hypothesis import strategies as st

from redrive.core.select import FIELDS, And, Ids, Match, Not, Op, Or, Path, Selection, Text
from redrive.testing.clock import START
from redrive.testing.conformance.kit import SECOND

TEXTS: dict[str, tuple[str, ...]] = {
    "id": ("i-000001", "i-*", "*1", "nobody"),
    "queue": ("a", "b", "c", "A", "*", "", "_", "%"),
    "state": ("ready", "leased", "done", "dead", "cancelled", "d*"),
    "disposition": ("open", "archived", "trash", "*"),
    "cause": ("c1", "c2", "c3", "c*", "*2", "C1"),
    "error": ("SMTPTimeout", "Timeout", "app.Timeout", "*Timeout", "*E*r*", "valueerror"),
    "category": ("timeout", "auth", "t*"),
    "rule": ("default", "*"),
    "reason": ("max_attempts", "rule", "max*", "max%"),
    "route": ("billing", "bill*", "", "*", "other"),
    "priority": ("high", "normal", "low", "n*", "HIGH"),
    "hold": ("after", "order", "limit", "parked", "par*", "parked:order", "*", ""),
    "key": ("o1", "o*", "*", "", "O1"),
    "tag": ("eu", "us", "e*", "*", "", "EU"),
    "worker": ("w-1", "w-*", "*", "", "W-1"),
    "reserved": ("x", "x*", "", "*"),
    "text": ("refused", "*refused*", "*", "", "REFUSED*"),
}
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 5])
SPANS = st.sampled_from([-1, 0, SECOND - 1, SECOND, 7 * SECOND, 60 * SECOND, 10**15])
INSTANTS = SPANS.map(lambda span: START + span)
TEXT_OPS: tuple[Op, ...] = ("=", "glob")
ORDER_OPS: tuple[Op, ...] = ("=", "<", "<=", ">", ">=")


def _texts() -> st.SearchStrategy[Match]:
    named = [
        st.builds(Match, st.just(field), st.sampled_from(TEXT_OPS), st.sampled_from(TEXTS[field])) for field in TEXTS
    ]
    return st.one_of(named)


def _orders() -> st.SearchStrategy[Match]:
    integers = [field for field, kind in FIELDS.items() if kind == "integer"]
    spans = [field for field, kind in FIELDS.items() if kind == "duration"]
    instants = [field for field, kind in FIELDS.items() if kind == "instant"]
    return st.one_of(
        st.builds(Match, st.sampled_from(integers), st.sampled_from(ORDER_OPS), NUMBERS),
        st.builds(Match, st.sampled_from(spans), st.sampled_from(ORDER_OPS), SPANS),
        st.builds(Match, st.sampled_from(instants), st.sampled_from(ORDER_OPS), INSTANTS),
    )


def _payloads() -> st.SearchStrategy[Selection]:
    """Texts anywhere, and paths with values of every kind."""
    texts = st.sampled_from(["refused", "TIMEOUT", "who", "strasse", '"who":', "nowhere", "'; --"])
    paths = st.sampled_from([("n",), ("who",), ("items", "0", "sku"), ("items", "9"), ("gone",), ()])
    values = st.sampled_from([0, 3, 3.0, 10, -1, "ada", "3", "x-1", True, False, None])
    return st.one_of(
        st.builds(Text, texts),
        st.builds(Path, paths, st.sampled_from(ORDER_OPS), values),
        st.builds(Path, paths, st.just("glob"), st.sampled_from(["*", "a*", "x-*", "*%*", 3])),
    )


def _mismatched() -> st.SearchStrategy[Match]:
    """What the parser never makes but a wire may carry: the evaluator calls it false, and so must every store."""
    return st.one_of(
        st.builds(Match, st.sampled_from(sorted(TEXTS)), st.sampled_from(ORDER_OPS), NUMBERS),
        st.builds(Match, st.sampled_from(["queue", "cause"]), st.sampled_from(ORDER_OPS[1:]), st.just("b")),
        st.builds(Match, st.sampled_from(["errors", "age"]), st.sampled_from([*ORDER_OPS, "glob"]), st.just("1")),
        st.builds(Match, st.sampled_from(["errors", "died"]), st.just("glob"), NUMBERS),
    )


_leaves: st.SearchStrategy[Selection] = st.one_of(
    _texts(),
    _texts(),
    _orders(),
    _payloads(),
    _mismatched(),
    st.builds(Ids, st.just(("nobody",))),
    st.builds(Ids, st.just(())),
)


def _nodes(parts: st.SearchStrategy[Selection]) -> st.SearchStrategy[Selection]:
    several = st.lists(parts, max_size=3).map(tuple)
    return st.one_of(st.builds(And, several), st.builds(Or, several), st.builds(Not, parts))


selections: st.SearchStrategy[Selection] = st.recursive(_leaves, _nodes, max_leaves=6)
