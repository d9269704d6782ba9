"""What the generated tests draw from: moves for the state machine, and selections of every field and shape."""

from __future__ import annotations

from hypothesis import strategies as st

from redrive.core.decide import Charge, Decision, ToCancelled, ToDead, ToDone, ToReady
from redrive.core.item import Dedupe, Priority, Terms
from redrive.core.meters import Rate
from redrive.core.select import EVERYTHING, FIELDS, And, Ids, Match, Not, Op, Or, Selection
from redrive.core.verbs import Archive, Cancel, Change, Discard, QueueChange, Replay, Restore, Skip, Want
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
    st.builds(ToDead, st.just("rule"), st.just(Charge.ERROR), st.builds(failure, causes), st.just("r"), st.just(1_000)),
    st.builds(ToCancelled, st.just("asked")),
)
changes: st.SearchStrategy[Change] = st.sampled_from(
    [
        Replay(),
        Replay(),
        Replay("once"),
        Replay("fresh", 1_000),
        Replay(force=True),
        Archive(),
        Discard(),
        Restore(),
        Cancel(),
        Cancel(),
        Skip(),
        Skip(),
    ]
)
filters: st.SearchStrategy[Selection] = st.sampled_from(
    [
        EVERYTHING,
        Match("state", "=", "dead"),
        Match("state", "=", "ready"),
        Match("disposition", "=", "trash"),
        Match("cause", "=", "c1"),
        Match("crashes", ">=", 1),
        Match("hold", "=", "order"),
        Match("route", "=", "r"),
        And((Match("queue", "=", "a"), Match("age", ">", 2_000))),
    ]
)

priorities = st.sampled_from([Priority.NORMAL, Priority.NORMAL, Priority.HIGH, Priority.LOW])
# One of these often enough that lines, keys and limits have something to do; what they wait for is chosen by the rule.
bonds: st.SearchStrategy[Terms | None] = st.sampled_from(
    [
        None,
        None,
        Terms(policy="gentle"),
        Terms(on_dead="die"),
        Terms(on_dead="die"),
        Terms(order_key="o"),
        Terms(order_key="o"),
        Terms(order_key="o"),
        Terms(order_key="o", on_dead="die"),
        Terms(order_key="p", limit_key="l"),
        Terms(limit_key="l"),
        Terms(limit_key="l"),
        Terms(limit_key="l"),
        Terms(dedupe=Dedupe("d")),
        Terms(dedupe=Dedupe("d", "store")),
        Terms(dedupe=Dedupe("d", "queue", 2_000)),
        Terms(order_key="o", dedupe=Dedupe("e", "store", 5_000)),
    ]
)
awaited: st.SearchStrategy[list[int]] = st.sampled_from([[], [], [], [], [0], [1], [2], [3, 0], [5, 1]])
TTLS = (1_000, 5_000)
asked = st.builds(
    Want,
    queues,
    st.integers(0, 3),
    st.sampled_from(TTLS),
    st.sampled_from([1, 2, 3, 3]),
    st.sampled_from([None, None, None, 0, 1]),
    st.sampled_from([0, 0, 9, 19]),
)
# Half of them take a limit away again: a queue that gives nothing more would end the story.
queue_changes: st.SearchStrategy[QueueChange] = st.sampled_from(
    [
        QueueChange(True, "ada", "because"),
        QueueChange(False, "ada", "because"),
        QueueChange(False),
        QueueChange(),
        QueueChange(max_running=1),
        QueueChange(max_running=2),
        QueueChange(max_running=None),
        QueueChange(max_running=None),
        QueueChange(max_per_key=1),
        QueueChange(max_per_key=1),
        QueueChange(max_per_key=None),
        QueueChange(rate=Rate(2)),
        QueueChange(rate=Rate(1, 1_000, 3)),
        QueueChange(rate=None),
        QueueChange(rate=None),
        QueueChange(capacity=4),
        QueueChange(capacity=None),
        QueueChange(capacity=None),
        QueueChange(order="block"),
        QueueChange(order="park"),
        QueueChange(order="park"),
        QueueChange(order="skip"),
        QueueChange(order="skip"),
        QueueChange(gate="g"),
        QueueChange(gate=""),
        QueueChange(keep=1_000),
        QueueChange(keep_results=0),
        QueueChange(keep=None, keep_results=None),
    ]
)

# What the queue is told in which an example begins with a dead head, and the one where more waits than may run.
orders = st.sampled_from([QueueChange(order="park"), QueueChange(order="skip", keep=0), QueueChange(order="block")])
limits = st.sampled_from(
    [
        QueueChange(max_running=2),
        QueueChange(max_per_key=1),
        QueueChange(gate="g", keep=1_000, keep_results=0),
        QueueChange(rate=Rate(1, 1_000, 3)),
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
    "route": ("billing", "bill*", "", "*", "other"),
    "priority": ("high", "normal", "low", "n*", "HIGH"),
    "hold": ("after", "order", "limit", "*", ""),
    "key": ("o1", "o*", "*", "", "O1"),
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
