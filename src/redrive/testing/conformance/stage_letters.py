"""The rules of the state machine that are about letters: worked on where they lie, and taken in from elsewhere."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec import structs

from redrive.core.acts import Act
from redrive.core.decide import Decision, ToCancelled, ToDone
from redrive.core.item import Ending, History, Item, NewItem, Terms
from redrive.core.states import State, Verb
from redrive.core.verbs import (
    Answer,
    NewEntry,
    PutResult,
    Settlement,
    Verdict,
)
from redrive.testing.conformance.kit import ended
from redrive.testing.conformance.stage import Stage
from redrive.testing.conformance.strategies import WORKERS, decisions, picks


class LetterRules(Stage):
    @precondition(lambda self: any(item.letter is not None for item in self.before.values()))
    @rule(
        step=st.sampled_from(["lease", "lease", "both", "both", "settle"]),
        picked=picks,
        worker=st.sampled_from(WORKERS),
        chosen=st.lists(decisions, min_size=3, max_size=3),
        follow=st.booleans(),
        early=st.booleans(),
    )
    def in_place(
        self, step: str, picked: list[int], worker: str, chosen: list[Decision], *, follow: bool, early: bool
    ) -> None:
        """Letters are worked on where they lie; what is settled may be held by others, or by nobody, by now."""
        letters = [item.id for item in self.before.values() if item.letter is not None]
        names = [letters[-1 - pick % len(letters)] for pick in picked]
        if step != "settle":
            given: tuple[Item, ...] = self.both(
                lambda store: store.lease_letters(names, worker, 1_000, early=early), Verb.LEASE
            )
            assert early or not any(self._put_off(item.id) for item in given), "given before its time"
            self.leases.extend(given)
            self.touched.update(item.id for item in given)
        if step == "lease" or not self.leases:
            return
        self.the_stores_agree()
        child = [NewItem(f"i-{len(self.known):03d}", "b", b"child", terms=Terms(order_key="o"))] if follow else []
        items = [self._given(pick) for pick in picked]
        settlements = [
            Settlement(
                item.id, item.deliveries, decision, ended(item, Ending.FAILED), _only(child, decision), _by(item)
            )
            for item, decision in zip(items, chosen, strict=False)
        ]
        answers: tuple[Answer, ...] = self.both(lambda store: store.settle_letters(settlements), Verb.SETTLE_LETTERS)
        pairs = zip(settlements, answers, strict=True)
        if any(one.follow_ups and answer.verdict is Verdict.APPLIED for one, answer in pairs):
            self.known.extend(item.id for item in child)
        self.touched.update(item.id for item in items)

    def _put_off(self, item_id: str) -> bool:
        was = self.before[item_id]
        return was.lease_until is not None and was.lease_until > self.clock.now() and not was.worker

    @rule(picked=picks, again=st.booleans())
    def take_in(self, picked: list[int], again: bool) -> None:  # noqa: FBT001 - drawn, not passed
        """Letters that are there already, under other names: as another store with the same past would give them."""
        letters = [item_id for item_id, item in self.before.items() if item.state is State.DEAD]
        chosen = dict.fromkeys(letters[-1 - pick % len(letters)] for pick in picked) if letters else {}
        told: list[History] = [self.run(self.model.get(item_id)) for item_id in chosen]
        if not again:
            names = [f"i-{len(self.known) + number:03d}" for number in range(len(told))]
            pairs = zip(told, names, strict=True)
            told = [structs.replace(one, item=structs.replace(one.item, id=name)) for one, name in pairs]
        self.requests += 1
        by = Act("ada", "because", f"q-import-{self.requests}")
        answer: PutResult = self.both(lambda store: store.take_in(told, by))
        self.known.extend(answer.added)
        self.touched.update(answer.added, answer.already)


def _only(child: list[NewItem], decision: Decision) -> tuple[NewItem, ...]:
    """Follow-ups are for what is over."""
    return tuple(child) if isinstance(decision, ToDone | ToCancelled) else ()


def _by(item: Item) -> NewEntry:
    return NewEntry("audit", f"{item.id} {item.deliveries}".encode(), "ada", "because")
