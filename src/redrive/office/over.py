"""Why an item is over: who or what ended it, what an operator may do about a letter, and when it is removed."""

from __future__ import annotations

import re
from shlex import quote

from redrive.core.durations import brief
from redrive.core.item import Instant, Item, Terms, error_line, short_id
from redrive.core.states import Disposition, State
from redrive.core.terms import DEPENDENCY
from redrive.office.scene import Explanation, Scene, Why
from redrive.office.telling import Then, answer, done_by, with_state

MOVED_FROM = re.compile(r"from:([0-9a-f]{12})")
"""The tag of a letter that was moved here from another store, which it identifies."""
PAST = {State.DONE: "done", State.CANCELLED: "cancelled"}


def of_letter(scene: Scene) -> Explanation:
    item, letter, now = scene.history.item, scene.history.item.letter, scene.now
    assert letter is not None  # noqa: S101 - by the one caller
    failure = letter.failure
    error = error_line(failure.type, failure.text)
    text = f"it died {brief(now - letter.died_at)} ago: {letter.reason}"
    how = f"after {_of_what(scene)}, by rule {failure.rule} (category {failure.category})"
    why = [
        Why("dead", f"it died {brief(now - letter.died_at)} ago of {letter.reason}, {how}: {error}", by=failure.rule)
    ]
    if letter.reason == DEPENDENCY:
        why.append(_failed_dependency(scene))
    origin = _origin(item)
    if origin:
        why.append(Why("moved", f"it died on another store ({origin}), and was moved here"))
    if letter.route:
        why.append(Why("route", f"it lies under route {letter.route}"))
    if scene.behind:
        count = f"{scene.behind:,}{' or more' if scene.more else ''}"
        why.append(Why("holds_up", f"{count} wait behind it under order key {(item.terms or Terms()).order_key!r}"))
    if letter.disposition is Disposition.TRASH:
        return answer(scene, "dead", text, tuple(why), _in_trash(scene))
    if letter.disposition is Disposition.ARCHIVED:
        why.append(Why("archived", "it was archived" + done_by(scene, "archive")))
    if item.lease_until is not None and item.lease_until > now:
        why.append(_worked_on(item, now, item.lease_until))
        return answer(scene, "dead", text, tuple(why), _let_go(item, now, item.lease_until))
    if letter.reserved:
        why.append(Why("reserved", f"it is reserved for replay {letter.reserved}", by=letter.reserved))
        return answer(scene, "dead", text, tuple(why), _to_be_sent(letter.reserved))
    next_ = f"nothing, until somebody acts; a replay {_replay(scene)}"
    names = [
        f"redrive letters show {quote(short_id(item.id))}",
        f"redrive letters replay {quote(short_id(item.id))} --reason …",
    ]
    if scene.behind:
        names.append(f"redrive letters skip {quote(short_id(item.id))} --reason …")
    return answer(scene, "dead", text, tuple(why), Then(next_, advice=tuple(names)))


def _to_be_sent(replay: str) -> Then:
    advice = (f"redrive replay show {quote(replay)}", f"redrive replay cancel {quote(replay)} --reason …")
    return Then("a worker sends it in its turn; until then other acts are refused", advice=advice)


def _worked_on(item: Item, now: Instant, until: Instant) -> Why:
    """Where it lies; or it was, and is not to be for a while."""
    if not item.worker:
        text = f"whoever worked on it where it lies wants it left alone for {brief(until - now)}"
        return Why("held_back", text, until=until)
    since = brief(now - (item.leased_at or now))
    return Why("leased", f"{item.worker} works on it where it lies, since {since}", by=item.worker, until=until)


def _let_go(item: Item, now: Instant, until: Instant) -> Then:
    show = f"redrive letters show {quote(short_id(item.id))}"
    if not item.worker:
        return Then("it can be worked on where it lies again; anybody may act on it before", until, (show,))
    what = f"{item.worker} ends it, or lets it go; without a sign it is free again in {brief(until - now)}"
    return Then(f"{what}, and stays a letter", until, (show,))


def _of_what(scene: Scene) -> str:
    item = scene.history.item
    counts = {"error": item.errors, "crash": item.crashes}
    words = [
        f"{count} {word}{('es' if word == 'crash' else 's') * (count != 1)}" for word, count in counts.items() if count
    ]
    return " and ".join(words) or "no attempt"


def _failed_dependency(scene: Scene) -> Why:
    ended = [each for each in scene.others if each.state in (State.DEAD, State.CANCELLED)]
    if not ended:
        return Why("dependency", "the item that it waited for is no longer dead, or no longer there")
    told = [with_state(each, scene.now) for each in ended]
    return Why("dependency", f"it waited for {', '.join(told[:5])}", ids=tuple(each.id for each in ended))


def _in_trash(scene: Scene) -> Then:
    item, keep = scene.history.item, scene.queue.settings.keep_trash
    gone = None if item.ended_at is None else item.ended_at + keep
    when = "" if gone is None else f" in {brief(max(0, gone - scene.now))}"
    advice = (f"redrive letters restore {quote(short_id(item.id))} --reason …",)
    return Then(f"it was discarded{done_by(scene, 'discard')}; it is removed for good{when}", gone, advice)


def _replay(scene: Scene) -> str:
    item = scene.history.item
    terms = item.terms or Terms()
    gone = [each for each in scene.others if each.id in terms.after and each.state is State.CANCELLED]
    if gone:
        return f"needs --force: {short_id(gone[0].id)}, for which it waits, was cancelled"
    # The queue of that name may be served where it died, and by nobody here.
    where = f" in queue {item.queue} of this store, not where it came from" if _origin(item) else ""
    parts = [f"makes it ready again{where} with all counters at 0"]
    if terms.order_key:
        parts.append("before those that wait behind it" if scene.behind else "at the end of its order key")
    if terms.dedupe is not None:
        parts.append(f"unless a live item holds its dedupe key {terms.dedupe.key!r}")
    return ", ".join(parts)


def _origin(item: Item) -> str:
    """The store that it was moved from; empty for one that died here."""
    return next((found[1] for tag in item.tags if (found := MOVED_FROM.fullmatch(tag))), "")


def of_ended(scene: Scene) -> Explanation:
    item = scene.history.item
    word = PAST.get(item.state, str(item.state))
    ago = "" if item.ended_at is None else f" {brief(scene.now - item.ended_at)} ago"
    by = done_by(scene, "cancel") if item.state is State.CANCELLED else ""
    why = Why(
        word, f"it was {word}{ago}{by}" if by else f"it is {word} since{ago.removesuffix(' ago')}" if ago else word
    )
    keep = scene.queue.settings.keep
    gone = None if keep is None or item.ended_at is None else item.ended_at + keep
    then = (
        "nothing"
        if gone is None
        else f"it is removed in {brief(max(0, gone - scene.now))}, as the queue keeps it so long"
    )
    return answer(scene, word, why.text, (why,), Then(then, gone))
