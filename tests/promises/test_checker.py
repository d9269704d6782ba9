"""R0 for the rig itself: a checker that never alarms proves nothing. One planted fault of each class must be named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from redrive.core.item import Attempt, Deed, Ending, Failure, History, Item, Letter, Revision, Terms
from redrive.core.states import Disposition, State
from tests.support.rig import records as r
from tests.support.rig.log import Log, Tail, TornLog, read, read_all
from tests.support.rig.survey import Survey
from tests.support.rig.verdict import judge

FAILURE = Failure("RuntimeError", "no", "error", rule="default", cause="c0ffee")
A, B = "host-1-aaaa", "host-2-bbbb"
WORKERS = [r.Worker(A, 1, 0), r.Worker(B, 2, 0)]


def item(state: State = State.DONE, **facts: object) -> Item:
    base = Item("i", "q", b"{}", 1, state, enqueued_at=1, due_at=1, renewed_at=1, deliveries=1, attempt=1)
    return replace(base, **facts)


def attempt(delivery: int, ending: Ending, *, number: int | None = None, worker: str = A) -> Attempt:
    failure = None if ending in (Ending.DONE, Ending.SNOOZED, Ending.RELEASED) else FAILURE
    return Attempt(delivery, delivery if number is None else number, worker, 1, 1, ending, failure)


def asked(answer: str = "ok", item_id: str = "i") -> list[r.Record]:
    told: list[r.Record] = []
    if answer in ("ok", "fail", "unknown"):
        told = [r.Told(item_id, answer, 2)]  # type: ignore[arg-type]  # checked on the line above
    return [r.Invoke(item_id, "q", 1), *told]


def ran(delivery: int, how: str | None, *, pid: int = 1, at: int = 0, number: int | None = None) -> list[r.Record]:
    """A run from 10 * delivery on; `how` None: it never ended."""
    ns = at or 10 * delivery
    number = delivery if number is None else number
    start = r.Start("i", number, delivery, pid, ns)
    return [start] if how is None else [start, r.End("i", number, delivery, pid, ns + 2, how)]


def settled(delivery: int, ending: str, state: str, *, worker: str = A, at: int = 0) -> r.Record:
    return r.Settled("i", delivery, worker, ending, state, at or 10 * delivery + 3)


def delayed(start: int) -> list[r.Record]:
    """Enqueued at 1,000 with a delay of 500, and run at `start`, all in milliseconds."""
    told: list[r.Record] = [r.Invoke("i", "q", 1, 1_000, 500), r.Told("i", "ok", 2)]
    return [*told, r.Start("i", 1, 1, 1, 10, start), r.End("i", 1, 1, 1, 12, "done", start), settled(1, "done", "done")]


def retried(again: int) -> list[r.Record]:
    """Failed at 1,000, to be tried 500 later, and run at `again`."""
    first: list[r.Record] = [r.Start("i", 1, 1, 1, 10, 990), r.End("i", 1, 1, 1, 12, "failed", 1_000)]
    second: list[r.Record] = [r.Start("i", 2, 2, 1, 20, again), r.End("i", 2, 2, 1, 22, "done", again)]
    return [*asked(), *first, r.Settled("i", 1, A, "failed", "ready", 13, 500), *second, settled(2, "done", "done")]


def rescued(at: int, *, blows: tuple[r.Record, ...] = ()) -> list[r.Record]:
    """A lease until 1,500 that was taken over `at`, and ended by its new holder."""
    taken = [r.Start("i", 1, 1, 1, 10, 1_000, 1_500), *blows, r.Reclaimed("i", 2, B, A, 20, at)]
    return [*asked(), *taken, *ran(3, "done", pid=2, number=2), settled(3, "done", "done", worker=B)]


def found_by_b(blow: r.Record) -> list[r.Record]:
    """A lapse of a living worker, which the one who found it did not tell of."""
    late: list[r.Record] = [r.End("i", 1, 1, 1, 50, "done"), r.Refused("i", 1, A, 51)]
    again = [*ran(3, "done", pid=2, number=2), settled(3, "done", "done", worker=B)]
    return [*asked(), r.Start("i", 1, 1, 1, 10), blow, *again, *late]


def killed(pid: int, at: int) -> r.Record:
    return r.Struck(pid, "kill", at)


def edited() -> list[r.Record]:
    """Put as b"1", failed for good, and read by a reader of changes."""
    told: list[r.Record] = [r.Invoke("i", "q", 1, payload=b"1"), r.Told("i", "ok", 2)]
    return [*told, *ran(1, "failed"), settled(1, "failed", "dead"), r.Seen(1, "i", "open", 20)]


def acts(*words: str) -> tuple[Deed, ...]:
    return tuple(Deed(1, word, "ann", "why", f"request-{number}") for number, word in enumerate(words))


def letter() -> Letter:
    return Letter("max_attempts", 5, Disposition.OPEN, FAILURE)


def verdict_of(records: list[r.Record], final: History | None, **miscounts: str) -> dict[str, dict[str, str]]:
    finals = {} if final is None else {final.item.id: final}
    return judge([*WORKERS, *records], Survey(finals, miscounts)).faults


ONCE = History(item())
RETRIED = History(item(deliveries=2, attempt=2, errors=1), (attempt(1, Ending.FAILED), attempt(2, Ending.DONE)))
CRASHED = History(
    item(deliveries=3, attempt=2, crashes=1), (attempt(2, Ending.CRASHED, number=1), attempt(3, Ending.DONE, number=2))
)
FOUND = replace(
    CRASHED, attempts=(replace(CRASHED.attempts[0], note=f"found by {B}; max_crashes"), *CRASHED.attempts[1:])
)
DEAD = History(item(State.DEAD, errors=1, letter=letter()), (attempt(1, Ending.FAILED),))
EDITED = replace(
    DEAD, item=replace(DEAD.item, terms=Terms(revision=1)), revisions=(Revision(0, b"1", 1, "ann", "why"),)
)
RELEASED = History(item(deliveries=2), (attempt(1, Ending.RELEASED), attempt(2, Ending.DONE, number=1)))

CLEAN: dict[str, Callable[[], tuple[list[r.Record], History | None]]] = {
    "a first-try success": lambda: ([*asked(), *ran(1, "done"), settled(1, "done", "done")], ONCE),
    "done, and its worker died before it could say so": lambda: ([*asked(), *ran(1, "done"), killed(1, 13)], ONCE),
    "a retry": lambda: (
        [*asked(), *ran(1, "failed"), settled(1, "failed", "ready"), *ran(2, "done"), settled(2, "done", "done")],
        RETRIED,
    ),
    "a kill and a second run": lambda: (
        [
            *asked(),
            *ran(1, None),
            killed(1, 12),
            r.Reclaimed("i", 2, B, A, 20),
            *ran(3, "done", pid=2, number=2),
            settled(3, "done", "done", worker=B),
        ],
        CRASHED,
    ),
    "a lapse of a living worker, whose late word was refused": lambda: (
        [
            *asked(),
            r.Start("i", 1, 1, 1, 10),
            r.Reclaimed("i", 2, B, A, 20),
            *ran(3, "done", pid=2, number=2),
            settled(3, "done", "done", worker=B),
            r.End("i", 1, 1, 1, 50, "done"),
            r.Refused("i", 1, A, 51),
        ],
        CRASHED,
    ),
    "a killed worker that had leased but not started": lambda: (
        [*asked(), killed(1, 12), *ran(3, "done", pid=2, number=2), settled(3, "done", "done", worker=B)],
        CRASHED,
    ),
    "a crash whose finder never heard that its word was taken": lambda: (
        found_by_b(r.Trouble(2, "reaper", "", 21)),
        FOUND,
    ),
    "a crash whose finder was killed before it could tell": lambda: (found_by_b(killed(2, 40)), FOUND),
    "dead after its last attempt": lambda: ([*asked(), *ran(1, "failed"), settled(1, "failed", "dead")], DEAD),
    "released by a worker that stops": lambda: (
        [
            *asked(),
            *ran(1, "cancelled"),
            settled(1, "released", "ready"),
            *ran(2, "done", number=1),
            settled(2, "done", "done"),
        ],
        RELEASED,
    ),
    "a delay that is over": lambda: (delayed(1_500), ONCE),
    "a retry when it is due": lambda: (retried(1_500), RETRIED),
    "a rescue when the lease is over": lambda: (rescued(1_500), CRASHED),
    "a rescue before that, of one that was killed": lambda: (rescued(1_400, blows=(killed(1, 12),)), CRASHED),
    "an enqueue that failed": lambda: (asked("fail"), None),
    "an enqueue nobody knows of, which is not there": lambda: (asked("unknown"), None),
    "edited and recalled": lambda: (edited(), replace(EDITED, deeds=acts("replay", "edit", "recall"))),
    "a settle of unknown outcome, told twice": lambda: (
        [*asked(), *ran(1, "done"), settled(1, "done", "done"), settled(1, "done", "done", at=20)],
        ONCE,
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_history_raises_no_alarm(name: str) -> None:
    assert verdict_of(*CLEAN[name]()) == {}


PLANTED: dict[str, tuple[str, Callable[[], tuple[list[r.Record], History | None]]]] = {
    "accepted and gone": ("lost", lambda: (asked(), None)),
    "accepted, run, and gone": ("lost", lambda: ([*asked(), *ran(1, "done")], None)),
    "ready after the drain": ("stuck", lambda: (asked(), History(item(State.READY, deliveries=0, attempt=0)))),
    "leased after the drain": ("stuck", lambda: ([*asked(), *ran(1, None)], _leased())),
    "two ends accepted": (
        "double_terminal",
        lambda: (
            [
                *asked(),
                *ran(1, "failed"),
                settled(1, "failed", "dead"),
                *ran(2, "done"),
                settled(2, "done", "done"),
            ],
            RETRIED,
        ),
    ),
    "accepted as done, and dead in the store": (
        "double_terminal",
        lambda: ([*asked(), *ran(1, "failed"), settled(1, "done", "done")], DEAD),
    ),
    "nobody asked for it": ("unexpected", lambda: ([*ran(1, "done"), settled(1, "done", "done")], ONCE)),
    "enqueue said no, and it is there": (
        "unexpected",
        lambda: ([*asked("fail"), *ran(1, "done"), settled(1, "done", "done")], ONCE),
    ),
    "a second run for nothing": (
        "unexplained_duplicates",
        lambda: ([*asked(), *ran(1, "done"), *ran(3, "done", pid=2, number=2), killed(1, 99)], CRASHED),
    ),
    "the same delivery twice": (
        "unexplained_duplicates",
        lambda: ([*asked(), *ran(1, "done"), *ran(1, "done", pid=2, at=30), killed(1, 15)], ONCE),
    ),
    "run again after its end was accepted": (
        "unexplained_duplicates",
        lambda: (
            [*asked(), *ran(1, "done"), settled(1, "done", "done"), killed(1, 15), *ran(2, None)],
            History(item(deliveries=2), (attempt(2, Ending.DONE, number=1),)),
        ),
    ),
    "two at once, both believed": (
        "overlap",
        lambda: (
            [
                *asked(),
                r.Start("i", 1, 1, 1, 10),
                *ran(2, "done", pid=2),
                settled(2, "done", "done", worker=B),
                r.End("i", 1, 1, 1, 30, "failed"),
                settled(1, "failed", "ready", at=31),
            ],
            RETRIED,
        ),
    ),
    "run before its delay was over": ("early", lambda: (delayed(1_490), ONCE)),
    "tried again before it was due": ("early", lambda: (retried(1_490), RETRIED)),
    "taken over from one that had time left": ("premature", lambda: (rescued(1_490), CRASHED)),
    "an error that was not counted": (
        "wrong_attempts",
        lambda: (
            [*asked(), *ran(1, "failed"), settled(1, "failed", "ready"), *ran(2, "done"), settled(2, "done", "done")],
            replace(RETRIED, item=replace(RETRIED.item, errors=0)),
        ),
    ),
    "a run that is not on record": (
        "wrong_attempts",
        lambda: (
            [*asked(), *ran(1, "failed"), *ran(2, "done"), settled(2, "done", "done")],
            History(item(deliveries=2), (attempt(2, Ending.DONE, number=1),)),
        ),
    ),
    "a record of a run that never was": (
        "wrong_attempts",
        lambda: ([*asked(), *ran(2, "done"), settled(2, "done", "done")], RETRIED),
    ),
    "a crash charged to a worker that did not crash": (
        "wrong_attempts",
        lambda: ([*asked(), *ran(3, "done", pid=2, number=2), settled(3, "done", "done", worker=B)], CRASHED),
    ),
    "a crash whose finder was in other trouble": (
        "wrong_attempts",
        lambda: (found_by_b(r.Trouble(2, "pump", "", 21)), FOUND),
    ),
    "a crash of which another was told": (
        "wrong_attempts",
        lambda: (found_by_b(r.Trouble(1, "reaper", "", 21)), FOUND),
    ),
    "the first payload is another one": (
        "wrong_payload",
        lambda: (edited(), replace(EDITED, revisions=(Revision(0, b"2", 1, "ann", "why"),))),
    ),
    "an earlier payload is lost": ("wrong_payload", lambda: (edited(), replace(EDITED, revisions=()))),
    "a replay that was recalled and counts": (
        "wrong_replays",
        lambda: (edited(), replace(EDITED, item=replace(EDITED.item, replays=1), deeds=acts("replay", "recall"))),
    ),
    "recalled and no letter": (
        "wrong_replays",
        lambda: ([*asked(), *ran(1, "done")], History(item(), deeds=acts("replay", "recall"))),
    ),
    "a letter that a reader of changes did not get": (
        "unseen",
        lambda: ([*edited(), r.Seen(2, "i", "", 21)], EDITED),
    ),
    "dead and no letter": (
        "half_moved",
        lambda: ([*asked(), *ran(1, "failed")], replace(DEAD, item=replace(DEAD.item, letter=None))),
    ),
    "a letter that is not dead": (
        "half_moved",
        lambda: ([*asked(), *ran(1, "done")], History(item(letter=letter()))),
    ),
    "a letter without its last failure": (
        "half_moved",
        lambda: (
            [*asked(), *ran(1, "failed")],
            replace(DEAD, attempts=(replace(DEAD.attempts[0], failure=replace(FAILURE, cause="other")),)),
        ),
    ),
}


def _leased() -> History:
    return History(item(State.LEASED, deliveries=2, attempt=2, crashes=1), (attempt(1, Ending.CRASHED),))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named(name: str) -> None:
    kind, make = PLANTED[name]
    faults = verdict_of(*make())
    assert "i" in faults.get(kind, {}), f"{kind} was not named: {faults}"


def test_every_class_has_a_planted_fault() -> None:
    classes = {name for name, value in vars(judge([], Survey())).items() if isinstance(value, dict)}
    assert classes == {kind for kind, _ in PLANTED.values()} | {"miscounted"}


def test_counters_that_differ_are_named() -> None:
    assert verdict_of([*asked(), *ran(1, "done")], ONCE, **{"q/done": "kept 2, counted 1"}).keys() == {"miscounted"}


def test_an_unknown_enqueue_that_came_is_recovered_and_no_fault() -> None:
    verdict = judge([*WORKERS, *asked("unknown"), *ran(1, "done")], Survey({"i": ONCE}))
    assert verdict.recovered == ("i",)
    assert verdict.faults == {}


def test_a_follow_up_exists_exactly_with_the_delivery_that_was_accepted() -> None:
    child = History(replace(item(), id="child"))
    base = [*WORKERS, *asked(), *ran(1, "done"), r.Start("child", 1, 1, 1, 40), r.End("child", 1, 1, 1, 41, "done")]
    mine, other = r.Follow("child", "i", 1, 11), r.Follow("child", "i", 7, 11)
    assert judge([*base, mine], Survey({"i": ONCE, "child": child})).faults == {}
    assert judge([*base[:-2], mine], Survey({"i": ONCE})).faults.keys() == {"lost"}
    assert judge([*base, other], Survey({"i": ONCE, "child": child})).faults.keys() == {"unexpected"}


def test_a_worker_that_took_its_lease_back_and_was_killed_before_it_could_tell() -> None:
    child = History(replace(item(), id="child"))
    done = History(replace(item(), deliveries=2), (attempt(2, Ending.DONE, number=1),))
    records = [*WORKERS, *asked(), *ran(1, "done"), r.Follow("child", "i", 1, 11), r.Start("child", 1, 1, 2, 40)]
    survey = Survey({"i": done, "child": child})
    assert judge([*records, r.Struck(1, "kill", 30)], survey).faults == {}
    assert judge(records, survey).faults.keys() == {"unexpected", "wrong_attempts"}


def test_a_torn_line_does_not_go_unnoticed(tmp_path: Path) -> None:
    log = Log(tmp_path / "a.log")
    log(r.Start("i", 1, 1, 1, 10))
    log.close()
    with (tmp_path / "a.log").open("ab") as file:
        file.write(b'{"type":"end","id":"i"')
    assert [type(record) for record in Tail(tmp_path / "a.log").new()] == [r.Start]
    with pytest.raises(TornLog):
        read(tmp_path / "a.log")


def test_records_of_all_files_come_in_the_order_of_time(tmp_path: Path) -> None:
    for name, times in (("a", (1, 4)), ("b", (2, 3))):
        log = Log(tmp_path / f"{name}.log")
        for ns in times:
            log(r.Worker(name, 1, ns))
        log.close()
    assert [record.ns for record in read_all(tmp_path)] == [1, 2, 3, 4]
