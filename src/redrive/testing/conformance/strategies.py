"""What the generated tests draw from: moves for the state machine, and selections of every field and shape."""

from __future__ import annotations

from hypothesis import strategies as st

from redrive.core.decide import Charge, Decision, ToDead, ToDone, ToReady
from redrive.core.select import EVERYTHING, FIELDS, And, Ids, Match, Not, Op, Or, Selection
from redrive.core.verbs import Archive, Cancel, Change, Discard, Replay, Restore
from redrive.testing.conformance.kit import SECOND, failure

QUEUES = ("a", "b")
WORKERS = ("w-1", "w-2", "w-3")

queues = st.sampled_from(QUEUES)
# Counted from the latest: the last leases and items are the ones still in motion, older ones are stale.
picks = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 8, 13]), min_size=1, max_size=3)
delays = st.sampled_from([0, 0, 1_000, 1_000, 5_000])
causes = st.sampled_from(["c1", "c2"])
decisions: st.SearchStrategy[Decision] = st.one_of(
    st.builds(ToDone, st.sampled_from([None, b"", b"\x00result"])),
    st.builds(ToReady, delays, st.sampled_from(Charge)),
    st.builds(ToDead, st.just("max_attempts"), st.sampled_from(Charge), st.builds(failure, causes)),
    st.builds(ToDead, st.just("rule"), st.just(Charge.ERROR), st.builds(failure, causes)),
)
changes: st.SearchStrategy[Change] = st.sampled_from(
    [Replay(), Replay("once"), Replay("fresh", 1_000), Archive(), Discard(), Restore(), Cancel(), Cancel()]
)
filters: st.SearchStrategy[Selection] = st.sampled_from(
    [
        EVERYTHING,
        Match("state", "=", "dead"),
        Match("state", "=", "ready"),
        Match("disposition", "=", "trash"),
        Match("cause", "=", "c1"),
        Match("crashes", ">=", 1),
        And((Match("queue", "=", "a"), Match("age", ">", 2_000))),
    ]
)

# Values that the population of `find` has, nearly has and has not.
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
}
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 5])
SPANS = st.sampled_from([-1, 0, SECOND - 1, SECOND, 7 * SECOND, 60 * SECOND, 10**15])
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
    return st.one_of(
        st.builds(Match, st.sampled_from(integers), st.sampled_from(ORDER_OPS), NUMBERS),
        st.builds(Match, st.sampled_from(spans), st.sampled_from(ORDER_OPS), SPANS),
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
    _texts(), _texts(), _orders(), _mismatched(), st.builds(Ids, st.just(("nobody",))), st.builds(Ids, st.just(()))
)


def _nodes(parts: st.SearchStrategy[Selection]) -> st.SearchStrategy[Selection]:
    several = st.lists(parts, max_size=3).map(tuple)
    return st.one_of(st.builds(And, several), st.builds(Or, several), st.builds(Not, parts))


selections: st.SearchStrategy[Selection] = st.recursive(_leaves, _nodes, max_leaves=6)
