"""Why an item is where it is: what keeps it, who decided that, and what happens next and when. Pure: all that it knows
is in the Scene.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from msgspec.structs import replace

from redrive.core import rates
from redrive.core.durations import brief
from redrive.core.families import is_family, served
from redrive.core.item import Ending, Instant, Terms, short_id
from redrive.core.lanes import is_retry, level_of
from redrive.core.states import State
from redrive.core.terms import is_parked
from redrive.core.verbs import QueueTally, RouteTally, WorkerBeat
from redrive.engine.registry import OUTBOX, is_outbox
from redrive.engine.report import INTO
from redrive.office import doors
from redrive.office.gates import GateView
from redrive.office.judge import next_judge
from redrive.office.over import of_ended, of_letter
from redrive.office.scene import Explanation, Scene, Why, state_of
from redrive.office.telling import Then, answer, last_attempt, replayed_at, with_state
from redrive.stores.damage import MISSING_KEY

METERED = frozenset({"rate", "retry_budget"})
"""Kinds that let one through after the other: whose turn it is then, nobody knows before."""
CONDITIONS = {
    "park": "an operator unparks it",
    "missing_key": "a worker that has the key leases it",
    "rate": "the rate gives the next",
    "retry_budget": "the gate lets a retry through",
}


def explain(scene: Scene) -> Explanation:
    told = _explained(scene)
    if scene.history.item.state in (State.READY, State.LEASED):
        told = replace(told, policy=next_judge(scene))
    if not is_outbox(told.queue):
        return told
    text = f"an outbox item: a delivery to target {told.queue.removeprefix(OUTBOX)}, by processes that registered it"
    return replace(told, why=(*told.why, Why("outbox", text)))


def _explained(scene: Scene) -> Explanation:
    item = scene.history.item
    if item.state is State.DEAD:
        return of_letter(scene)
    if item.state is State.LEASED:
        return _running(scene)
    if item.state is State.READY:
        return _waiting(scene)
    return of_ended(scene)


# -- what waits -------------------------------------------------------------------------------------------------------


def _waiting(scene: Scene) -> Explanation:
    item, now = scene.history.item, scene.now
    why = tuple(_reasons(scene))
    state = state_of(item, now)
    if not why:
        since = brief(now - item.due_at)
        text = f"nothing keeps it: it has been due for {since}"
        return answer(scene, state, text, why, Then(_taker(scene)))
    first = why[0]
    return answer(scene, state, first.text, why, Then(_then(scene, why), _when(scene, why), _advice(scene, why)))


def _taker(scene: Scene) -> str:
    """A worker tells its slots with its beats, for all its queues together: what is leased may be known before."""
    servers = _takers(scene)
    slots = sum(beat.facts.slots for beat in servers)
    running = max(scene.queue.leased, sum(beat.facts.running for beat in servers))
    if 0 < slots <= running:
        return f"its workers are busy with {running:,} of {slots:,} at once; the next free slot takes it"
    return "the next worker of its queue with a free slot takes it"


def _reasons(scene: Scene) -> Iterator[Why]:
    """What keeps a ready item from running now, the strongest first."""
    item = scene.history.item
    if item.hold:
        yield _held(scene)
    full, keyless = _kept_by(scene), _lacked_key(scene)
    if full is not None:
        yield _kept(scene, full)
    elif keyless is not None:
        yield keyless
    elif item.due_at > scene.now:
        yield _not_due(scene)
    for row in (scene.queue, *scene.families):
        if row.paused:
            yield _paused(row)
    if scene.gate is not None and scene.gate.state != "closed":
        yield _gated(scene.gate)
    yield from _unpaid(scene)
    for row in _full(scene):
        of = "its queue" if row is scene.queue else f"family {row.queue}"
        yield Why("max_running", f"{row.leased:,} of {of} run, and {row.settings.max_running:,} may at once")
    if not _takers(scene):
        yield Why("no_worker", _unserved(scene))
    yield from _rated(scene)


def _full(scene: Scene) -> list[QueueTally]:
    """Those of its queue and its family of which as many run as may."""
    rows = (scene.queue, *scene.families)
    return [row for row in rows if row.settings.max_running is not None and row.leased >= row.settings.max_running]


def _held(scene: Scene) -> Why:
    item, ids = scene.history.item, scene.history.blocked_by
    whom = _named(scene, ids)
    if is_parked(item.hold):
        return _parked(scene)
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


def _parked(scene: Scene) -> Why:
    """By an operator: who, when and why."""
    label = scene.history.item.hold.removeprefix("parked:")
    deeds = [deed for deed in scene.history.deeds if deed.change == "park"]
    if not deeds:
        return Why("park", f"it is parked ({label})")
    last = deeds[-1]
    since = brief(scene.now - last.at)
    return Why("park", f"it was parked ({label}) by {last.actor} {since} ago: {last.reason}", by=last.actor)


def _named(scene: Scene, ids: tuple[str, ...]) -> str:
    """The first of them with its state; the rest as a number."""
    if not ids:
        return "another item"
    known = {each.id: each for each in scene.others}
    first = ids[0] if ids[0] not in known else with_state(known[ids[0]], scene.now)
    return first if len(ids) == 1 else f"{first} and {len(ids) - 1:,} more"


def _kept_by(scene: Scene) -> RouteTally | None:
    """The full route that keeps it alive: its last attempt was to be the last, and it was not replayed since."""
    last = last_attempt(scene)
    if last is None or INTO not in last.note or replayed_at(scene) > last.started_at:
        return None
    route = last.note.partition(f"{INTO} ")[2].partition(";")[0]
    return next((row for row in scene.routes if row.route == route and row.capacity is not None), RouteTally(route))


def _kept(scene: Scene, route: RouteTally) -> Why:
    room = "" if route.capacity is None else f" ({route.open:,} of {route.capacity:,})"
    due = scene.history.item.due_at
    text = f"its last error would have made it a letter, but route {route.route} was full{room}: so it is tried again"
    return Why("route_full", text, until=due if due > scene.now else None)


def _lacked_key(scene: Scene) -> Why | None:
    """The worker that leased it last did not have the key of its payload."""
    last = last_attempt(scene)
    if last is None or not last.note.startswith(MISSING_KEY):
        return None
    key, wait = last.note.removeprefix(MISSING_KEY).strip(), scene.history.item.due_at - scene.now
    due = f"; it may be leased again in {brief(wait)}" if wait > 0 else ""
    return Why("missing_key", f"worker {last.worker} gave it back, since it does not have encryption key {key}{due}")


def _not_due(scene: Scene) -> Why:
    item, now = scene.history.item, scene.now
    wait, last = brief(item.due_at - now), last_attempt(scene)
    if item.replays and replayed_at(scene) >= item.renewed_at > 0 and not item.errors and not item.crashes:
        return Why("delayed", f"it was replayed with a delay, and is due in {wait}", until=item.due_at)
    if last is None or not (item.errors or item.crashes or item.deliveries):
        return Why("scheduled", f"it is due in {wait}", until=item.due_at)
    how = "crashed" if last.ending is Ending.CRASHED else last.ending
    error = f": {last.failure.type}" if last.failure is not None else ""
    if last.ending in (Ending.SNOOZED, Ending.LIMITED, Ending.RELEASED):
        text = f"its last delivery was {last.ending}{error}, which costs nothing; it is due in {wait}"
        return Why(str(last.ending), text, until=item.due_at)
    text = f"attempt {last.number}{_of(scene)} {how}{error}; the next is due in {wait}"
    return Why("retry", text, until=item.due_at)


def _of(scene: Scene) -> str:
    most = None if scene.policy is None else scene.policy.max_attempts
    return "" if most is None else f" of {most}"


def _paused(row: QueueTally) -> Why:
    who, reason = row.paused_by or "somebody", row.paused_reason or "no reason given"
    what = "family" if is_family(row.queue) else "queue"
    return Why("paused", f"{what} {row.queue} is paused by {who}: {reason}", by=who)


def _gated(gate: GateView) -> Why:
    by = f" by {gate.by}" if gate.by else ""
    return Why("gate", f"gate {gate.name} is {gate.state}{by}: {gate.why}", by=gate.by, until=gate.next_probe_at)


def _unpaid(scene: Scene) -> Iterator[Why]:
    """In bad times a closed gate lets through as many retries as first attempts have paid for, and one now and then."""
    item, gate = scene.history.item, scene.gate
    if gate is None or gate.retry_at is None or gate.retry_at <= item.due_at or not is_retry(level_of(item)):
        return
    wait = brief(gate.retry_at - scene.now)
    text = f"gate {gate.name} has no retry to spare: first attempts earn them, and without any one passes in {wait}"
    yield Why("retry_budget", text, until=gate.retry_at)


def _rated(scene: Scene) -> Iterator[Why]:
    item, row, rate = scene.history.item, scene.queue, scene.queue.settings.rate
    if rate is None or item.hold:
        return
    given, ready = f"its queue is given out at {rates.format(rate)}", f"and {row.ready:,} are ready"
    if row.rate_at is not None and row.rate_at > item.due_at:
        others = "" if _alone(scene) else f", {ready}"
        yield Why("rate", f"{given}: the next in {brief(row.rate_at - scene.now)}{others}", until=row.rate_at)
    elif item.due_at <= scene.now and row.ready > rate.most:
        yield Why("rate", f"{given}, {ready}")


def _alone(scene: Scene) -> bool:
    """No other of its queue could be given in its place."""
    return scene.queue.ready <= 1


def _servers(scene: Scene) -> list[WorkerBeat]:
    queue = scene.history.item.queue
    return [beat for beat in scene.workers if beat.alive and served(beat.facts.queues, queue)]


def _takers(scene: Scene) -> list[WorkerBeat]:
    """Those that have a handler for its kind."""
    item = scene.history.item
    return [beat for beat in _servers(scene) if beat.facts.takes(served(beat.facts.queues, item.queue), item.kind)]


def _unserved(scene: Scene) -> str:
    item = scene.history.item
    if not _servers(scene):
        return f"no live worker serves {item.queue}{_last_server(scene)}"
    named = f"no worker for kind {item.kind!r}" if item.kind else "no worker for items without a kind"
    return f"{named}: the live workers of {item.queue} have other kinds"


def _last_server(scene: Scene) -> str:
    seen = [beat for beat in scene.workers if served(beat.facts.queues, scene.history.item.queue)]
    if not seen:
        return "; none did within the last day"
    last = max(seen, key=lambda beat: beat.seen_at)
    return f"; {last.worker} was last heard of {brief(scene.now - last.seen_at)} ago"


def _then(scene: Scene, why: tuple[Why, ...]) -> str:
    """All that has to happen, in the order of the reasons."""
    known = [each for each in why if each.kind not in METERED or _alone(scene)]
    conditions = tuple(dict.fromkeys(_condition(scene, each) for each in known))
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
            whole = any(row.paused for row in scene.families)
            return "somebody resumes the family" if whole and not scene.queue.paused else "somebody resumes the queue"
        case "gate":
            return "a probe succeeds" if why.until is not None else "somebody closes the gate"
        case "no_worker":
            kind = scene.history.item.kind
            return f"a worker serves kind {kind!r}" if kind and _servers(scene) else "a worker serves the queue"
        case _:
            return CONDITIONS.get(why.kind, "it is due")


def _when(scene: Scene, why: tuple[Why, ...]) -> Instant | None:
    """Known only where nothing but time keeps it, and no other can be given before it."""
    if len(why) > 1 or why[0].kind == "gate" or (why[0].kind in METERED and not _alone(scene)):
        return None
    return why[0].until


def _advice(scene: Scene, why: tuple[Why, ...]) -> tuple[str, ...]:
    kinds = {each.kind for each in why}
    dead = [each for each in scene.others if each.letter is not None and each.id in scene.history.blocked_by]
    advice = [f"redrive letters replay {quote(short_id(each.id))} --reason …" for each in dead[:1]]
    if dead and kinds & {"order", "parked"}:
        advice.append(f"redrive letters skip {quote(short_id(dead[0].id))} --reason …")
    if "park" in kinds:
        advice.append(f"redrive item unpark {quote(short_id(scene.history.item.id))} --reason …")
    rows = (scene.queue, *scene.families)
    advice += [f"redrive queue resume {quote(row.queue)}" for row in rows if "paused" in kinds and row.paused]
    if "gate" in kinds and scene.gate is not None:
        advice.append(f"redrive gate close {quote(scene.gate.name)} --reason …")
    if "max_running" in kinds:
        advice += [f"redrive queue set {quote(row.queue)} --max-running N --reason …" for row in _full(scene)]
    if "no_worker" in kinds:
        advice.append(doors.start(scene.door, scene.queue.queue))
    if "missing_key" in kinds:
        advice.append("redrive db keys")
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
        return answer(scene, "running", why[0].text, tuple(why), Then(then, until))
    why.append(Why("lease_expired", f"its lease ran out {brief(now - until)} ago: that worker is lost, or hangs"))
    if not _servers(scene):
        why.append(Why("no_worker", _unserved(scene)))
        then, advice = "a worker of the queue starts and takes it over, as a crash", _advice(scene, tuple(why))
        return answer(scene, "running", why[-2].text, tuple(why), Then(then, advice=advice))
    return answer(scene, "running", why[-1].text, tuple(why), Then("a worker of the queue takes it over, as a crash"))
