"""When a gate opens and closes: the circuit breaker and the retry budget of a named dependency, for the whole fleet.

A gate is closed while all is well. It opens when too much fails: then leases behind it are metered to a few probes, and
the rest waits, uncharged. A probe that succeeds closes it, one that fails makes the next interval longer. There is no
third state: half-open is what the meter lets through. Everything here is pure; who tells what happened is
`engine.gates`, who meters is the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from redrive.core import codec, durations
from redrive.core.durations import Duration
from redrive.core.item import Failure, Instant, Millis
from redrive.core.verbs import Gate, GateWrite
from redrive.errors import ConfigError

NAME_LIMIT = 128
IGNORED = ("bug", "data", "internal", "not_found", "permission", "rate_limit", "rejected", "resource")
"""Categories of failures that say nothing about the dependency: it answered, or was never asked."""

_SHARE = 1000
"""Shares and credit are counted in thousandths."""
_HELD = 10 * 365 * 86_400_000_000
"""Microseconds between probes of a gate that was opened by hand: none will come."""
_EASE: Millis = 1_000
LIFTED = 1_000
"""Microseconds: where the floor of the retry budget ends up while all is well, and the budget is lifted."""


class GateConfig(Struct, frozen=True):
    """What `gate_config` makes of its options; durations in milliseconds. Kept with the gate, so a fleet has one."""

    failure_rate: float | None = 0.5
    least: int = 20
    window: Millis = 30_000
    consecutive: int | None = 5
    interval: Millis = 30_000
    longest: Millis = 600_000
    probes: int = 1
    successes: int = 1
    retry_share: float | None = 0.1
    retry_floor: Millis = 10_000
    retry_burst: int = 100
    ignore: tuple[str, ...] = IGNORED


class Counts(Struct, frozen=True):
    successes: int = 0
    failures: int = 0

    @property
    def outcomes(self) -> int:
        return self.successes + self.failures


class GateState(Struct, frozen=True):
    """`open`: why it is metered is in `why`, and `by` names whoever opened it by hand.

    Outcomes of the last window are kept in two halves, `recent` since `half_since` and `before`. `in_row`: failures
    since the last success. `interval`: from one probe to the next, in milliseconds. Only what was leased at
    `probes_from` or later is a probe; one leased before `longer_from` cannot make the interval longer (again). `floor`:
    of the retry budget, in microseconds, 0 for the one of the config; down at LIFTED there is no budget. `eased_at`:
    when it last changed.
    """

    open: bool = False
    since: Instant = 0
    why: str = ""
    by: str = ""
    opened: int = 0
    half_since: Instant = 0
    recent: Counts = Counts()
    before: Counts = Counts()
    in_row: int = 0
    interval: Millis = 0
    probes_from: Instant = 0
    longer_from: Instant = 0
    probes_done: int = 0
    floor: int = 0
    eased_at: Instant = 0

    @property
    def window(self) -> Counts:
        recent, before = self.recent, self.before
        return Counts(recent.successes + before.successes, recent.failures + before.failures)


class GateBody(Struct, frozen=True):
    """What the store keeps for us with the gate. By `mark` a writer knows its own write again."""

    config: GateConfig = GateConfig()
    state: GateState = GateState()
    mark: str = ""


class Seen(Struct, frozen=True):
    """What a worker saw since it last told. `in_row`: failures after the last success, all of them if there was none.

    `succeeded_from` and `failed_from`: when the latest of each was leased. `why` and `hold` are of the last failure:
    what it was, and how long the other side asked to be left alone. Instants are the store's.
    """

    successes: int = 0
    failures: int = 0
    in_row: int = 0
    succeeded_from: Instant = 0
    failed_from: Instant = 0
    why: str = ""
    hold: Millis = 0


def step(state: GateState, config: GateConfig, seen: Seen, now: Instant) -> GateState:
    """The state after what was seen. `now` is the store's time, or a little less: so no probe is taken for none."""
    return _probed(state, config, seen, now) if state.open else _flowing(state, config, seen, now)


def _flowing(state: GateState, config: GateConfig, seen: Seen, now: Instant) -> GateState:
    state = _counted(state, config, seen, now)
    why = _trouble(state, config)
    if why:
        return _opened(state, config, now, f"{why}: {seen.why}" if seen.why else why, seen.hold)
    return _eased(state, config, seen, now)


def _counted(state: GateState, config: GateConfig, seen: Seen, now: Instant) -> GateState:
    half = max(1, config.window // 2)
    recent, before, since = state.recent, state.before, state.half_since
    if now - since >= half:
        before = recent if now - since < 2 * half else Counts()
        recent, since = Counts(), now
    return replace(
        state,
        half_since=since,
        before=before,
        recent=Counts(recent.successes + seen.successes, recent.failures + seen.failures),
        in_row=seen.in_row if seen.successes else state.in_row + seen.in_row,
    )


def _trouble(state: GateState, config: GateConfig) -> str:
    """Why it has to open, or nothing. A short run of failures says something only where there is little traffic: where
    there is much, chance alone makes one every few minutes.
    """
    window = state.window
    enough = window.outcomes >= config.least
    if config.failure_rate is not None and enough and window.failures >= config.failure_rate * window.outcomes:
        return f"{window.failures} of {window.outcomes} failed within {durations.format(config.window)}"
    if config.consecutive is not None:
        most = max(config.consecutive, config.least) if enough else config.consecutive
        if state.in_row >= most:
            return f"{state.in_row} failed in a row"
    return ""


def _eased(state: GateState, config: GateConfig, seen: Seen, now: Instant) -> GateState:
    """Where fewer fail than the share allows to be tried again, what is left of bad times flows faster and faster:
    twice as fast each second, however many workers tell of successes.
    """
    window = state.window
    if window.failures > (config.retry_share or 0) * window.outcomes:
        return replace(state, floor=0, eased_at=now)
    if not seen.successes or state.floor == LIFTED or now - state.eased_at < _EASE:
        return state
    return replace(state, floor=max(LIFTED, (state.floor or config.retry_floor * 1000) // 2), eased_at=now)


def calm(body: GateBody) -> bool:
    """Nothing failed, and nothing is held back: further successes are no news."""
    state = body.state
    budget = body.config.retry_share is not None and state.floor != LIFTED
    return not (state.open or state.window.failures or state.in_row or budget)


def _opened(state: GateState, config: GateConfig, now: Instant, why: str, hold: Millis) -> GateState:
    interval = max(config.interval, min(hold, config.longest))
    first = now + _spacing(interval, config)
    return GateState(
        open=True,
        since=now,
        why=why,
        opened=state.opened + 1,
        interval=interval,
        probes_from=first,
        longer_from=first,
    )


def _probed(state: GateState, config: GateConfig, seen: Seen, now: Instant) -> GateState:
    if state.by:
        return state
    if seen.failures and seen.failed_from >= state.longer_from:
        interval = max(min(state.interval * 2, config.longest), min(seen.hold, config.longest))
        why = f"a probe failed: {seen.why}"
        longer = now + _spacing(interval, config)
        return replace(state, why=why, interval=interval, longer_from=longer, probes_done=0)
    if seen.successes and seen.succeeded_from >= state.probes_from:
        done = state.probes_done + 1
        if done < config.successes:
            return replace(state, probes_done=done)
        why = "a probe succeeded" if done == 1 else f"{done} probes succeeded"
        return GateState(since=now, why=why, opened=state.opened, half_since=now)
    return state


def _spacing(interval: Millis, config: GateConfig) -> Millis:
    return max(1, interval // config.probes)


def held(state: GateState, now: Instant, *, by: str, why: str) -> GateState:
    """Opened by hand: no probes, until it is closed by hand."""
    opened = state.opened + (not state.open)
    return GateState(open=True, since=now, why=why, by=by, opened=opened)


def released(state: GateState, now: Instant, *, by: str, why: str) -> GateState:
    """Closed by hand; what was counted before is forgotten."""
    return GateState(since=now, why=why, by=by, opened=state.opened, half_since=now)


def write(
    name: str, expect: int, before: GateState, state: GateState, config: GateConfig, *, mark: str = ""
) -> GateWrite:
    """What the store is to do so that leases follow the state. A new or longer interval begins with nothing."""
    interval = None
    if state.open:
        interval = _HELD if state.by else _spacing(state.interval, config) * 1000
    shut = state.open and (not before.open or (state.interval, state.by) != (before.interval, before.by))
    return GateWrite(
        name=name,
        expect=expect,
        interval=interval,
        share=None if config.retry_share is None or state.floor == LIFTED else round(config.retry_share * _SHARE),
        cap=config.retry_burst * _SHARE,
        floor=state.floor or config.retry_floor * 1000,
        shut=shut or state.longer_from != before.longer_from,
        body=codec.encode(GateBody(config, state, mark)),
    )


def body_of(gate: Gate | None) -> GateBody:
    return codec.decode(gate.body, GateBody) if gate is not None and gate.body else GateBody()


def counts_against(failure: Failure, config: GateConfig) -> bool:
    """Whether a failure speaks of the dependency, and not of the item or of ourselves."""
    return failure.action != "dead" and failure.category not in config.ignore


def gate_config(
    *,
    failure_rate: float | None = 0.5,
    least: int = 20,
    window: Duration = "30s",
    consecutive: int | None = 5,
    interval: Duration = "30s",
    longest: Duration = "10m",
    probes: int = 1,
    successes: int = 1,
    retry_share: float | None = 0.1,
    retry_floor: Duration = "10s",
    retry_burst: int = 100,
    ignore: Iterable[str] = IGNORED,
) -> GateConfig:
    """Opens when `failure_rate` of at least `least` outcomes within `window` failed, or `least` in a row, or where
    there were fewer outcomes than that, `consecutive` in a row. Then `probes` each `interval`, which doubles up to
    `longest` while they fail; so many `successes` of them close it. In bad times, when more than `retry_share` of all
    that ends fails, retries may be that share of first attempts (`retry_burst` of them saved up), and one each
    `retry_floor` in any case. None leaves a rule out. Failures of the categories in `ignore` are not counted.
    """
    pause = _duration(interval, "interval")
    return GateConfig(
        failure_rate=None if failure_rate is None else _share(failure_rate, "failure_rate", least=0.01),
        least=_count(least, "least"),
        window=_duration(window, "window"),
        consecutive=None if consecutive is None else _count(consecutive, "consecutive"),
        interval=pause,
        longest=max(pause, _duration(longest, "longest")),
        probes=_count(probes, "probes"),
        successes=_count(successes, "successes"),
        retry_share=None if retry_share is None else _share(retry_share, "retry_share"),
        retry_floor=_duration(retry_floor, "retry_floor"),
        retry_burst=_count(retry_burst, "retry_burst"),
        ignore=_categories(ignore),
    )


def check_gate_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LIMIT or not name.isprintable() or " " in name:
        hint = f"use 1 to {NAME_LIMIT} printable characters without blanks"
        raise ConfigError(f"{name!r} is not a name of a gate", field="gate", hint=hint)
    return name


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**6:
        raise ConfigError(f"{value!r} cannot be used", field=field, hint="use a whole number from 1 to 1,000,000")
    return value


def _share(value: object, field: str, *, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
        hint = f"use a number from {least:g} to 1, or None to do without"
        raise ConfigError(f"{value!r} is not a share", field=field, hint=hint)
    return float(value)


def _duration(value: Duration, field: str) -> Millis:
    millis = durations.parse(value, field=field)
    if not 100 <= millis <= 86_400_000:
        hint = "use something from 100ms to 1d"
        raise ConfigError(f"{durations.format(millis)} cannot be used", field=field, hint=hint)
    return millis


def _categories(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"{value!r} is not a list of categories", field="ignore", hint=f"as in {list(IGNORED[:2])}")
    names = tuple(value)
    if not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"{value!r} is not a list of categories", field="ignore", hint=f"as in {list(IGNORED[:2])}")
    return names
