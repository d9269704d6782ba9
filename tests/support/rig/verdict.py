"""The checker: what producers, handlers and the nemesis wrote down, against what the store says after the drain.

Pure: values in, a verdict out, so that the checker itself can be checked with planted faults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from redrive.core.item import Ending, History, payloads_of
from redrive.core.states import TERMINAL, State
from redrive.core.terms import DEPENDENCY, EXPIRED
from redrive.engine.report import INTO
from tests.support.rig import records as r
from tests.support.rig import runs
from tests.support.rig.facts import ENDED, Facts
from tests.support.rig.numbers import renumbered
from tests.support.rig.survey import Survey, lies

Why = dict[str, str]
SHOWN = 5


@dataclass
class Verdict:
    """Ids with what is wrong about them, by class. `recovered` is no fault: an enqueue of unknown outcome that came."""

    lost: Why = field(default_factory=dict)
    stuck: Why = field(default_factory=dict)
    double_terminal: Why = field(default_factory=dict)
    unexpected: Why = field(default_factory=dict)
    unexplained_duplicates: Why = field(default_factory=dict)
    overlap: Why = field(default_factory=dict)
    early: Why = field(default_factory=dict)
    premature: Why = field(default_factory=dict)
    wrong_attempts: Why = field(default_factory=dict)
    half_moved: Why = field(default_factory=dict)
    wrong_payload: Why = field(default_factory=dict)
    wrong_replays: Why = field(default_factory=dict)
    unseen: Why = field(default_factory=dict)
    miscounted: Why = field(default_factory=dict)
    recovered: tuple[str, ...] = ()
    items: int = 0
    runs: int = 0
    duplicates: int = 0
    lapses: int = 0

    @property
    def faults(self) -> dict[str, Why]:
        return {name: why for name, why in vars(self).items() if isinstance(why, dict) and why}

    def report(self) -> str:
        head = f"{self.items} items, {self.runs} runs, {self.duplicates} explained duplicates, {self.lapses} lapses"
        lines = [f"{head}, {len(self.recovered)} recovered"]
        for name, why in self.faults.items():
            lines.append(f"{name}: {len(why)}")
            lines += [f"  {key}: {text}" for key, text in list(why.items())[:SHOWN]]
        return "\n".join(lines)


def judge(history: Iterable[r.Record], survey: Survey) -> Verdict:
    facts = Facts(renumbered(list(history)))
    finals = survey.finals
    expected = _expected_follow_ups(facts, finals)
    wanted = facts.invoked | expected.keys()
    verdict = Verdict(miscounted=dict(survey.miscounts), items=len(finals))
    for key, answer in facts.told.items():
        if answer == "ok" and key not in finals and key not in survey.pruned:
            verdict.lost[key] = "accepted, and in no state"
    for key, parent in expected.items():
        if key not in finals:
            verdict.lost[key] = f"its parent {parent} is done, and it is in no state"
    for key in {*finals, *facts.starts} - wanted - survey.pruned:
        verdict.unexpected[key] = "nobody asked for it"
    for key in finals.keys() & facts.told.keys():
        if facts.told[key] == "fail":
            verdict.unexpected[key] = "enqueue said that nothing was written"
    unsure = {key for key in facts.invoked if facts.told.get(key, "unknown") == "unknown"}
    verdict.recovered = tuple(sorted(unsure & finals.keys()))
    for key, final in finals.items():
        _judge_item(verdict, facts, key, final)
    verdict.unseen = _unseen(facts, finals)
    _count(verdict, facts)
    return verdict


def _judge_item(verdict: Verdict, facts: Facts, key: str, final: History) -> None:
    findings = {
        "stuck": None if final.item.state in TERMINAL else f"it is {final.item.state} after the drain",
        "double_terminal": _double_terminal(facts, final),
        "unexplained_duplicates": runs.unexplained(facts, key, final.item.replays),
        "overlap": runs.overlap(facts, key),
        "early": runs.early(facts, key),
        "premature": runs.premature(facts, key),
        "wrong_attempts": runs.wrong_attempts(facts, final),
        "half_moved": _half_moved(final),
        "wrong_payload": _wrong_payload(facts, final),
        "wrong_replays": _wrong_replays(final),
    }
    for name, why in findings.items():
        if why is not None:
            getattr(verdict, name)[key] = why


def _double_terminal(facts: Facts, final: History) -> str | None:
    if final.item.replays:
        return None  # every replay may end once more; R15 judges those
    ends = {one.delivery: one.state for one in facts.settled[final.item.id].values() if one.state in ENDED}
    if len(ends) > 1:
        return f"deliveries {sorted(ends)} were both accepted as its end"
    if ends and final.item.state not in ends.values():
        return f"its end was accepted as {next(iter(ends.values()))}, it is {final.item.state}"
    finished = [attempt.delivery for attempt in final.attempts if attempt.ending in (Ending.DONE, Ending.DEAD)]
    # A full route keeps an item alive: of those that say they went into one, only the last did.
    finished = [one for one in finished if one == finished[-1] or one not in _into_route(final)]
    if len(finished) > 1:
        return f"its history ends more than once, in deliveries {finished}"
    return None


def _into_route(final: History) -> set[int]:
    return {attempt.delivery for attempt in final.attempts if INTO in attempt.note}


def _half_moved(final: History) -> str | None:
    item, letter = final.item, final.item.letter
    if item.state is not State.DEAD:
        return None if letter is None else f"it is {item.state} and still a letter"
    if letter is None:
        return "it is dead and no letter"
    if not (letter.reason and letter.died_at and letter.failure.type and letter.failure.cause):
        return f"the letter is incomplete: {letter}"
    if letter.reason in {DEPENDENCY, EXPIRED}:
        return None  # it did not run: it died of another, in the write that ended that one, or by an act
    failures = [attempt.failure for attempt in final.attempts if attempt.failure is not None]
    if not failures or failures[-1].cause != letter.failure.cause:
        return "the letter's failure is not the last one of its history"
    return None


def _wrong_payload(facts: Facts, final: History) -> str | None:
    """Whatever was edited since, the payload that was enqueued is there, byte for byte."""
    if [one.number for one in final.revisions] != [*range(final.item.revision)]:
        return f"it is at revision {final.item.revision}, and has {[one.number for one in final.revisions]}"
    payload = payloads_of(final)[1 if final.revisions else 0].payload
    put = facts.payloads.get(final.item.id, payload)
    return None if payload == put else f"{put!r} was enqueued, {payload!r} is the first payload"


def _wrong_replays(final: History) -> str | None:
    """A recalled replay counts for nothing, and what was recalled is a letter until it is replayed again."""
    acts = [deed.change for deed in final.deeds if deed.change in {"replay", "recall", "import"}]
    if "import" in acts:
        return None  # what was done elsewhere is not told
    counted = acts.count("replay") - acts.count("recall")
    if final.item.replays != counted:
        return f"it was replayed {final.item.replays} times, its acts are {acts}"
    is_recalled = acts[-1:] == ["recall"] and final.item.state is not State.DEAD
    return f"it was recalled, and is {final.item.state}" if is_recalled else None


def _unseen(facts: Facts, finals: dict[str, History]) -> Why:
    """What a reader of changes, if there was one, has otherwise than it is."""
    are = {key: lies(final.item) for key, final in finals.items()}
    return {
        key: f"a reader of changes has it as {facts.seen.get(key)!r}, it is {are.get(key, '')!r}"
        for key in facts.seen.keys() | (are.keys() if facts.seen else ())
        if facts.seen.get(key, "") != are.get(key, "")
    }


def _expected_follow_ups(facts: Facts, finals: dict[str, History]) -> dict[str, str]:
    """Follow-ups of the one delivery whose result was accepted, by id, with their parent."""
    return {
        follow.id: follow.parent
        for follow in facts.follows
        if follow.parent in finals and _done_by(facts, finals[follow.parent], follow.delivery)
    }


def _done_by(facts: Facts, final: History, delivery: int) -> bool:
    if final.item.state is not State.DONE:
        return False
    done = [attempt for attempt in final.attempts if attempt.ending is Ending.DONE]
    if not done:
        return delivery == 1
    mine = [one.delivery for one in facts.starts.get(final.item.id, ()) if runs.is_of(facts, done[-1], one)]
    return mine[-1:] == [delivery]


def _count(verdict: Verdict, facts: Facts) -> None:
    verdict.runs = sum(map(len, facts.starts.values()))
    for key, starts in facts.starts.items():
        retries = sum(
            facts.ends[key, one.delivery].how in ("failed", "snoozed")
            for one in starts
            if (key, one.delivery) in facts.ends
        )
        verdict.duplicates += max(0, len(starts) - 1 - retries)
    reclaimed = [one for many in facts.reclaimed.values() for one in many]
    verdict.lapses = sum(not facts.was_struck(one.lost_by) for one in reclaimed)
