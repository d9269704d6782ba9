"""Why an item is where it is: what keeps it, who decided that, and what happens next and when. Pure: all that it knows
is in the Scene.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from redrive.core import rates
from redrive.core.durations import brief
from redrive.core.item import Attempt, Ending, Instant, Item, Terms, short_id
from redrive.core.states import Disposition, State
from redrive.core.terms import DEPENDENCY
from redrive.core.verbs import QueueTally, RouteTally, WorkerBeat
from redrive.engine.report import INTO
from redrive.office.gates import GateView
from redrive.office.scene import Explanation, Scene, Why, state_of

PAST = {State.DONE: "done", State.CANCELLED: "cancelled"}


class Then(NamedTuple):
    """What happens next."""

    what: str
    at: Instant | None = None
    advice: tuple[str, ...] = ()


def explain(scene: Scene) -> Explanation:
    item = scene.history.item
    if item.state is State.DEAD:
        return _dead(scene)
    if item.state is State.LEASED:
        return _running(scene)
    if item.state is State.READY:
        return _waiting(scene)
    return _over(scene)


# -- what waits -------------------------------------------------------------------------------------------------------


def _waiting(scene: Scene) -> Explanation:
    item, now = scene.history.item, scene.now
    why = tuple(_reasons(scene))
    state = state_of(item, now)
    if not why:
        since = brief(now - item.due_at)
        text = f"nothing keeps it: it has been due for {since}"
        return _told(scene, state, text, why, Then("the next worker of its queue with a free slot takes it"))
    first = why[0]
    return _told(scene, state, first.text, why, Then(_then(scene, why), _when(why), _advice(scene, why)))


def _reasons(scene: Scene) -> Iterator[Why]:
    """What keeps a ready item from running now, the strongest first."""
    item = scene.history.item
    if item.hold:
        yield _held(scene)
    full = _kept_by(scene)
    if full is not None:
        yield _kept(scene, full)
    elif item.due_at > scene.now:
        yield _not_due(scene)
    if scene.queue.paused:
        yield _paused(scene.queue)
    if scene.gate is not None and scene.gate.state != "closed":
        yield _gated(scene.gate)
    most = scene.queue.settings.max_running
    if most is not None and scene.queue.leased >= most:
        yield Why("max_running", f"{scene.queue.leased:,} of its queue run, and {most:,} may at once")
    if not _servers(scene):
        yield Why("no_worker", f"no live worker serves {item.queue}{_last_server(scene)}")
    rate = scene.queue.settings.rate
    if rate is not None and item.due_at <= scene.now and scene.queue.ready > rate.most:
        yield Why("rate", f"its queue is given out at {rates.format(rate)}, and {scene.queue.ready:,} are ready")


def _held(scene: Scene) -> Why:
    item, ids = scene.history.item, scene.history.blocked_by
    whom = _named(scene, ids)
    if item.hold == "after":
        return Why("after", f"it waits for {whom} to be done", ids=ids)
    key = (item.terms or Terms()).order_key
    if item.hold == "order":
        return Why("order", f"{whom} goes first under order key {key!r}", ids=ids)
    if item.hold == "limit":
        limit = (item.terms or Terms()).limit_key
        most = scene.queue.settings.max_per_key
        return Why("limit", f"{'as many' if most is None else f'{most:,}'} of limit key {limit!r} run as may", ids=ids)
    return Why("parked", f"{whom} is dead, and holds up order key {key!r}; the queue parks those behind it", ids=ids)


def _named(scene: Scene, ids: tuple[str, ...]) -> str:
    """The first of them with its state; the rest as a number."""
    if not ids:
        return "another item"
    known = {each.id: each for each in scene.others}
    first = ids[0] if ids[0] not in known else _with_state(known[ids[0]], scene.now)
    return first if len(ids) == 1 else f"{first} and {len(ids) - 1:,} more"


def _with_state(other: Item, now: Instant) -> str:
    if other.letter is not None:
        return f"{short_id(other.id)} (dead since {brief(now - other.letter.died_at)}: {other.letter.failure.type})"
    return f"{short_id(other.id)} ({state_of(other, now)})"


def _kept_by(scene: Scene) -> RouteTally | None:
    """The full route that keeps it alive: its last attempt was to be the last, and it was not replayed since."""
    last = _last(scene)
    if last is None or INTO not in last.note or _replayed_at(scene) > last.started_at:
        return None
    route = last.note.partition(f"{INTO} ")[2].partition(";")[0]
    return next((row for row in scene.routes if row.route == route and row.capacity is not None), RouteTally(route))


def _kept(scene: Scene, route: RouteTally) -> Why:
    room = "" if route.capacity is None else f" ({route.open:,} of {route.capacity:,})"
    due = scene.history.item.due_at
    text = f"its last error would have made it a letter, but route {route.route} was full{room}: so it is tried again"
    return Why("route_full", text, until=due if due > scene.now else None)


def _not_due(scene: Scene) -> Why:
    item, now = scene.history.item, scene.now
    wait, last = brief(item.due_at - now), _last(scene)
    if item.replays and _replayed_at(scene) >= item.renewed_at > 0 and not item.errors and not item.crashes:
        return Why("delayed", f"it was replayed with a delay, and is due in {wait}", until=item.due_at)
    if last is None or not (item.errors or item.crashes or item.deliveries):
        return Why("scheduled", f"it is due in {wait}", until=item.due_at)
    how = "crashed" if last.ending is Ending.CRASHED else last.ending
    error = f": {last.failure.type}" if last.failure is not None else ""
    if last.ending in (Ending.SNOOZED, Ending.LIMITED, Ending.RELEASED):
        text = f"its last delivery was {last.ending}{error}, which costs nothing; it is due in {wait}"
        return Why(str(last.ending), text, until=item.due_at)
    text = f"attempt {last.number}{_of(scene)} {how}{error}; the next is due in {wait}"
    return Why("retry", text, by=_judge(scene), until=item.due_at)


def _of(scene: Scene) -> str:
    most = None if scene.policy is None else scene.policy.max_attempts
    return "" if most is None else f" of {most}"


def _judge(scene: Scene) -> str:
    """Whose policy says when it comes again."""
    own = (scene.history.item.terms or Terms()).policy
    if own:
        return f"policy {own} of the item"
    named = scene.queue.settings.policy
    return f"policy {named} of the queue" if named else "the policy of the handler"


def _paused(row: QueueTally) -> Why:
    who, reason = row.paused_by or "somebody", row.paused_reason or "no reason given"
    return Why("paused", f"queue {row.queue} is paused by {who}: {reason}", by=who)


def _gated(gate: GateView) -> Why:
    by = f" by {gate.by}" if gate.by else ""
    return Why("gate", f"gate {gate.name} is {gate.state}{by}: {gate.why}", by=gate.by, until=gate.next_probe_at)


def _servers(scene: Scene) -> list[WorkerBeat]:
    queue = scene.history.item.queue
    return [beat for beat in scene.workers if beat.alive and queue in beat.facts.queues]


def _last_server(scene: Scene) -> str:
    seen = [beat for beat in scene.workers if scene.history.item.queue in beat.facts.queues]
    if not seen:
        return "; none did within the last day"
    last = max(seen, key=lambda beat: beat.seen_at)
    return f"; {last.worker} was last heard of {brief(scene.now - last.seen_at)} ago"


def _then(scene: Scene, why: tuple[Why, ...]) -> str:
    """All that has to happen, in the order of the reasons."""
    conditions = tuple(dict.fromkeys(_condition(scene, each) for each in why if each.kind != "rate"))
    if not conditions:
        return "it runs when its turn comes"
    *rest, last = conditions
    text = f"it runs when {', '.join(rest)}{' and ' if rest else ''}{last}"
    kept = any(each.kind == "route_full" for each in why)
    return f"{text}; another error makes it a letter if its route has room by then" if kept else text


def _condition(scene: Scene, why: Why) -> str:
    dead = [each for each in scene.others if each.id in why.ids and each.letter is not None]
    match why.kind:
        case "after":
            return f"{short_id(dead[0].id)} is replayed and done" if dead else "they are done"
        case "order" | "parked":
            over = "is replayed to done, discarded or skipped" if dead else "has ended"
            return f"{short_id(why.ids[0]) if why.ids else 'the head of its key'} {over}"
        case "limit" | "max_running":
            return "one of those that run ends"
        case "paused":
            return "somebody resumes the queue"
        case "gate":
            return "a probe succeeds" if why.until is not None else "somebody closes the gate"
        case "no_worker":
            return "a worker serves the queue"
        case _:
            return "it is due"


def _when(why: tuple[Why, ...]) -> Instant | None:
    """Known only where nothing but time keeps it."""
    return why[0].until if len(why) == 1 and why[0].kind != "gate" else None


def _advice(scene: Scene, why: tuple[Why, ...]) -> tuple[str, ...]:
    kinds = {each.kind for each in why}
    dead = [each for each in scene.others if each.letter is not None and each.id in scene.history.blocked_by]
    advice = [f"redrive letters replay {short_id(each.id)} --reason …" for each in dead[:1]]
    if dead and kinds & {"order", "parked"}:
        advice.append(f"redrive letters skip {short_id(dead[0].id)} --reason …")
    if "paused" in kinds:
        advice.append(f"redrive queue resume {scene.queue.queue}")
    if "gate" in kinds and scene.gate is not None:
        advice.append(f"redrive gate close {scene.gate.name} --reason …")
    if "max_running" in kinds:
        advice.append(f"redrive queue set {scene.queue.queue} --max-running N --reason …")
    if "no_worker" in kinds:
        advice.append(f"redrive worker run MODULE:APP --queues {scene.queue.queue}")
    if "route_full" in kinds:
        advice.append("redrive route list")
    return tuple(advice)


# -- what runs --------------------------------------------------------------------------------------------------------


def _running(scene: Scene) -> Explanation:
    item, now = scene.history.item, scene.now
    until = item.lease_until or now
    since = brief(now - (item.leased_at or now))
    why = [
        Why("leased", f"{item.worker} has it since {since} (attempt {item.attempt}{_of(scene)})", by=item.worker or "")
    ]
    if item.cancel:
        why.append(Why("cancel", f"it was asked to stop by {item.cancel}", by=item.cancel))
    if until > now:
        then = f"its handler ends, or the lease is prolonged; without a sign it is taken over in {brief(until - now)}"
        return _told(scene, "running", why[0].text, tuple(why), Then(then, until))
    why.append(Why("lease_expired", f"its lease ran out {brief(now - until)} ago: that worker is lost, or hangs"))
    if not _servers(scene):
        why.append(Why("no_worker", f"no live worker serves {item.queue}{_last_server(scene)}"))
        then, advice = "a worker of the queue starts and takes it over, as a crash", _advice(scene, tuple(why))
        return _told(scene, "running", why[-2].text, tuple(why), Then(then, advice=advice))
    return _told(scene, "running", why[-1].text, tuple(why), Then("a worker of the queue takes it over, as a crash"))


# -- what is over -----------------------------------------------------------------------------------------------------


def _dead(scene: Scene) -> Explanation:
    item, letter, now = scene.history.item, scene.history.item.letter, scene.now
    assert letter is not None  # noqa: S101 - by the one caller
    failure = letter.failure
    error = f"{failure.type}: {failure.text}" if failure.text else failure.type
    text = f"it died {brief(now - letter.died_at)} ago: {letter.reason}"
    how = f"after {_of_what(scene)}, by rule {failure.rule} (category {failure.category})"
    why = [
        Why("dead", f"it died {brief(now - letter.died_at)} ago of {letter.reason}, {how}: {error}", by=failure.rule)
    ]
    if letter.reason == DEPENDENCY:
        why.append(_failed_dependency(scene))
    if letter.route:
        why.append(Why("route", f"it lies under route {letter.route}"))
    if scene.behind:
        count = f"{scene.behind:,}{' or more' if scene.more else ''}"
        why.append(Why("holds_up", f"{count} wait behind it under order key {(item.terms or Terms()).order_key!r}"))
    if letter.disposition is Disposition.TRASH:
        return _told(scene, "dead", text, tuple(why), _in_trash(scene))
    if letter.disposition is Disposition.ARCHIVED:
        why.append(Why("archived", "it was archived" + _deed(scene, "archive")))
    next_ = f"nothing, until somebody acts; a replay {_replay(scene)}"
    names = [f"redrive letters show {short_id(item.id)}", f"redrive letters replay {short_id(item.id)} --reason …"]
    if scene.behind:
        names.append(f"redrive letters skip {short_id(item.id)} --reason …")
    return _told(scene, "dead", text, tuple(why), Then(next_, advice=tuple(names)))


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
    told = [_with_state(each, scene.now) for each in ended]
    return Why("dependency", f"it waited for {', '.join(told[:5])}", ids=tuple(each.id for each in ended))


def _in_trash(scene: Scene) -> Then:
    item, keep = scene.history.item, scene.queue.settings.keep_trash
    gone = None if item.ended_at is None else item.ended_at + keep
    when = "" if gone is None else f" in {brief(max(0, gone - scene.now))}"
    advice = (f"redrive letters restore {short_id(item.id)} --reason …",)
    return Then(f"it was discarded{_deed(scene, 'discard')}; it is removed for good{when}", gone, advice)


def _replay(scene: Scene) -> str:
    item = scene.history.item
    terms = item.terms or Terms()
    gone = [each for each in scene.others if each.id in terms.after and each.state is State.CANCELLED]
    if gone:
        return f"needs --force: {short_id(gone[0].id)}, for which it waits, was cancelled"
    parts = ["makes it ready again with all counters at 0"]
    if terms.order_key:
        parts.append("before those that wait behind it" if scene.behind else "at the end of its order key")
    if terms.dedupe is not None:
        parts.append(f"unless a live item holds its dedupe key {terms.dedupe.key!r}")
    return ", ".join(parts)


def _over(scene: Scene) -> Explanation:
    item = scene.history.item
    word = PAST.get(item.state, str(item.state))
    ago = "" if item.ended_at is None else f" {brief(scene.now - item.ended_at)} ago"
    by = _deed(scene, "cancel") if item.state is State.CANCELLED else ""
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
    return _told(scene, word, why.text, (why,), Then(then, gone))


# -- parts ------------------------------------------------------------------------------------------------------------


def _told(scene: Scene, state: str, summary: str, why: tuple[Why, ...], then: Then) -> Explanation:
    item = scene.history.item
    return Explanation(item.id, item.queue, state, summary, why, then.what, then.at, then.advice)


def _last(scene: Scene) -> Attempt | None:
    return scene.history.attempts[-1] if scene.history.attempts else None


def _replayed_at(scene: Scene) -> Instant:
    return max((deed.at for deed in scene.history.deeds if deed.change == "replay"), default=0)


def _deed(scene: Scene, change: str) -> str:
    deeds = [deed for deed in scene.history.deeds if deed.change == change]
    return f" by {deeds[-1].actor}: {deeds[-1].reason}" if deeds else ""
