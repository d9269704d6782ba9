"""What the state machine draws from. Selections of every field and shape are in `selections`."""

from __future__ import annotations

from hypothesis import strategies as st

from redrive.core.acts import (
    Archive,
    Cancel,
    Change,
    Discard,
    Edit,
    Expire,
    Move,
    Note,
    Park,
    Recall,
    Replay,
    Reserve,
    Restore,
    RunNow,
    SetPolicy,
    Skip,
    Tag,
    Unpark,
    Unreserve,
)
from redrive.core.decide import Charge, Decision, ToCancelled, ToDead, ToDone, ToReady
from redrive.core.item import Dedupe, Priority, Terms
from redrive.core.meters import Rate
from redrive.core.select import EVERYTHING, And, Match, Selection
from redrive.core.verbs import QueueChange, Want
from redrive.testing.conformance.kit import failure

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
        Discard(),
        Restore(),
        Cancel(),
        Cancel(),
        Skip(),
        Skip(),
        Move("a"),
        Move("b"),
        Replay(queue="b"),
        Tag(("x", "y")),
        Tag(("z",), ("x",)),
        Note(),
        SetPolicy("hasty"),
        SetPolicy(""),
        RunNow(),
        RunNow(reset=True),
        Expire(),
        Park("schema"),
        Park("schema"),
        Park("bank"),
        Unpark(),
        Unpark(),
        Edit(b"edited"),
        Edit(b"edited again", 1),
        Recall(),
        Recall(),
        Reserve("x"),
        Reserve("x"),
        Unreserve(),
        Replay(reserved="x"),
        Replay(reserved="x"),
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
        Match("hold", "=", "parked"),
        Match("route", "=", "r"),
        Match("reserved", "=", "x"),
        And((Match("queue", "=", "a"), Match("age", ">", 2_000))),
    ]
)

kinds = st.sampled_from(["", "", "k", "l"])
priorities = st.sampled_from([Priority.NORMAL, Priority.NORMAL, Priority.HIGH, Priority.LOW])
# One of these often enough that lines, keys and limits have something to do; what they wait for is chosen by the rule.
bonds: st.SearchStrategy[Terms | None] = st.sampled_from(
    [
        None,
        None,
        Terms(policy="gentle"),
        Terms(schema=2, trace="t", headers=(("a", "☃"),)),
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
    st.sampled_from([None, None, 300, 500]),
    st.sampled_from([None, None, None, ("k",), ("", "k"), ("l", "k")]),
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
        QueueChange(keep_trash=0),
        QueueChange(keep_trash=2_000),
    ]
)

# What the queue is told in which an example begins with a dead head, and the one where more waits than may run.
orders = st.sampled_from(
    [QueueChange(order="park", keep_trash=1_000), QueueChange(order="skip", keep=0), QueueChange(order="block")]
)
limits = st.sampled_from(
    [
        QueueChange(max_running=2),
        QueueChange(max_per_key=1),
        QueueChange(gate="g", keep=1_000, keep_results=0),
        QueueChange(rate=Rate(1, 1_000, 3)),
    ]
)
