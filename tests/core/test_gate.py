"""When a gate opens, probes and closes, and when retries are kept back: played through with plain numbers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from redrive.core import codec
from redrive.core import gate as g
from redrive.core.item import Failure
from redrive.core.meters import opens_at, room
from redrive.core.verbs import Gate
from redrive.errors import ConfigError

T0 = 1_767_225_600_000
CONFIG = g.gate_config()


def bad(count: int, leased: int = T0, hold: int = 0) -> g.Seen:
    return g.Seen(failures=count, in_row=count, failed_from=leased, why="Down: no answer", hold=hold)


def good(count: int, leased: int = T0) -> g.Seen:
    return g.Seen(successes=count, succeeded_from=leased)


def closed(**values: Any) -> g.GateState:
    return replace(g.GateState(half_since=T0), **values)


def opened(config: g.GateConfig = CONFIG, *, at: int = T0) -> g.GateState:
    state = g.step(closed(), config, bad(20), at)
    assert state.open
    return state


def test_half_of_enough_outcomes_opens_it() -> None:
    state = g.step(closed(), CONFIG, good(10), T0)
    state = g.step(state, CONFIG, replace(bad(9), in_row=1), T0 + 1)
    assert not state.open
    state = g.step(state, CONFIG, replace(bad(1), in_row=1), T0 + 2)
    assert state.open
    assert (state.since, state.opened) == (T0 + 2, 1)
    assert state.why == "10 of 20 failed within 30s: Down: no answer"


def test_where_little_happens_a_few_in_a_row_open_it() -> None:
    state = closed()
    for number in range(4):
        state = g.step(state, CONFIG, bad(1), T0 + number)
    assert not state.open
    state = g.step(state, CONFIG, bad(1), T0 + 4)
    assert state.open
    assert state.why.startswith("5 failed in a row")


def test_a_success_ends_the_row() -> None:
    state = g.step(closed(), CONFIG, bad(4), T0)
    state = g.step(state, CONFIG, good(1), T0 + 1)
    state = g.step(state, CONFIG, bad(4), T0 + 2)
    assert not state.open
    # In one report, only what failed after the last success is in the row.
    state = g.step(closed(in_row=4), CONFIG, g.Seen(successes=3, failures=2, in_row=1), T0)
    assert (state.open, state.in_row) == (False, 1)


def test_among_many_successes_a_short_row_is_chance_and_a_long_one_is_not() -> None:
    busy = g.step(closed(), CONFIG, good(10_000), T0)
    state = g.step(busy, CONFIG, bad(19), T0 + 1)
    assert not state.open
    state = g.step(state, CONFIG, bad(1), T0 + 2)
    assert state.open
    assert state.why.startswith("20 failed in a row")


def test_outcomes_are_forgotten_after_the_window() -> None:
    config = g.gate_config(consecutive=None)
    state = g.step(closed(), config, bad(19), T0)
    state = g.step(state, config, good(1), T0 + 16_000)
    assert state.open, "within the window they count together"
    state = g.step(closed(), config, bad(15), T0)
    state = g.step(state, config, good(1), T0 + 15_000)
    state = g.step(state, config, bad(4), T0 + 31_000)
    assert not state.open
    assert state.window == g.Counts(1, 4)


def test_a_probe_that_succeeds_closes_it_and_counting_starts_anew() -> None:
    state = opened()
    after = g.step(state, CONFIG, good(1, leased=T0 + 30_000), T0 + 30_500)
    assert after == g.GateState(since=T0 + 30_500, why="a probe succeeded", opened=1, half_since=T0 + 30_500)


def test_what_was_leased_before_the_first_probe_says_nothing() -> None:
    state = opened()
    assert g.step(state, CONFIG, good(50, leased=T0 + 29_999), T0 + 40_000) == state
    assert g.step(state, CONFIG, bad(50, leased=T0 + 29_999), T0 + 40_000) == state


def test_each_failed_probe_doubles_the_interval_up_to_the_longest() -> None:
    config = g.gate_config(interval="30s", longest="2m")
    state, now, intervals = opened(config), T0, []
    for _ in range(4):
        now = state.longer_from
        state = g.step(state, config, bad(1, leased=now), now + 10)
        intervals.append(state.interval)
    assert intervals == [60_000, 120_000, 120_000, 120_000]
    assert state.why == "a probe failed: Down: no answer"
    assert (state.since, state.opened) == (T0, 1)


def test_probes_that_ran_together_lengthen_it_once_and_a_late_success_still_closes_it() -> None:
    state = g.step(opened(), CONFIG, bad(1, leased=T0 + 30_000), T0 + 90_000)
    assert g.step(state, CONFIG, bad(1, leased=T0 + 60_000), T0 + 91_000) == state
    assert not g.step(state, CONFIG, good(1, leased=T0 + 60_000), T0 + 91_000).open


def test_several_successes_may_be_asked_for() -> None:
    config = g.gate_config(successes=2)
    state = g.step(opened(config), config, good(1, leased=T0 + 30_000), T0 + 30_001)
    assert state.open
    assert not g.step(state, config, good(1, leased=T0 + 60_000), T0 + 60_001).open
    failed = g.step(state, config, bad(1, leased=T0 + 60_000), T0 + 60_001)
    assert g.step(failed, config, good(1, leased=failed.longer_from), failed.longer_from).open


def test_a_retry_after_puts_the_first_probe_off_but_not_for_ever() -> None:
    config = g.gate_config(interval="30s", longest="5m")
    assert g.step(closed(), config, bad(20, hold=120_000), T0).interval == 120_000
    assert g.step(closed(), config, bad(20, hold=10**12), T0).interval == 300_000
    assert g.step(closed(), config, bad(20, hold=1), T0).interval == 30_000


def test_a_gate_opened_by_hand_is_left_alone() -> None:
    state = g.held(closed(), T0, by="ann", why="their maintenance")
    assert g.step(state, CONFIG, good(1, leased=T0 + 10**9), T0 + 10**9) == state
    write = g.write("smtp", 1, closed(), state, CONFIG)
    assert write.shut
    assert write.interval is not None
    year = 365 * 86_400_000_000
    gate = Gate("smtp", 2, write.interval, write.burst, next_at=T0 * 1000 + write.burst * write.interval)
    assert room(gate.interval or 0, gate.burst, gate.next_at, T0 * 1000 + year) == 0
    assert gate.next_at < 2**53, "exact where numbers are doubles"
    assert not g.released(state, T0, by="ann", why="over").open


@pytest.mark.parametrize("probes", [1, 3])
def test_leases_are_metered_to_the_probes_of_an_interval(probes: int) -> None:
    config = g.gate_config(probes=probes)
    before = closed()
    state = g.step(before, config, bad(20), T0)
    write = g.write("smtp", 3, before, state, config)
    assert (write.expect, write.burst, write.shut) == (3, 1, True)
    assert write.interval == 30_000_000 // probes
    at = opens_at(write.interval, write.burst, T0 * 1000 + write.burst * write.interval)
    assert at == state.probes_from * 1000, "what the meter lets through first is taken for a probe"


def test_a_write_shuts_the_meter_only_when_it_opens_or_gets_longer() -> None:
    state = opened()
    assert not g.write("smtp", 1, state, state, CONFIG).shut
    longer = g.step(state, CONFIG, bad(1, leased=T0 + 30_000), T0 + 30_000)
    assert g.write("smtp", 1, state, longer, CONFIG).shut
    again = replace(longer, longer_from=longer.longer_from + 60_000)
    assert g.write("smtp", 1, longer, again, CONFIG).shut, "at the longest interval too"
    assert g.write("smtp", 1, longer, g.GateState(), CONFIG).interval is None


def test_retries_are_a_share_in_bad_times_and_free_in_good_ones() -> None:
    config = g.gate_config(retry_share=0.1, retry_floor="10s", retry_burst=50)
    write = g.write("smtp", 0, closed(), closed(), config)
    assert (write.share, write.cap, write.floor) == (100, 50_000, 10_000_000)
    state = closed()
    floors: list[int] = []
    while not floors or write.share is not None:
        state = g.step(state, config, good(5), T0 + len(floors) * 1000)
        write = g.write("smtp", 0, closed(), state, config)
        floors.append(write.floor)
    assert floors == sorted(floors, reverse=True)
    assert len(floors) == 14, "each time twice as fast"
    again = g.step(g.step(closed(), config, good(5), T0), config, good(5), T0 + 999)
    assert g.write("smtp", 0, closed(), again, config).floor == 5_000_000, "once a second, however many tell"
    assert g.calm(g.GateBody(config, state))
    state = g.step(state, config, bad(1), T0 + 20_000)
    write = g.write("smtp", 0, closed(), state, config)
    assert write.share is None, "1 of 71 is less than the share"
    state = g.step(state, config, bad(9), T0 + 21_000)
    write = g.write("smtp", 0, closed(), state, config)
    assert (write.share, write.floor) == (100, 10_000_000)
    assert not g.calm(g.GateBody(config, state))


def test_without_a_share_there_is_no_budget() -> None:
    assert g.write("smtp", 0, closed(), closed(), g.gate_config(retry_share=None)).share is None
    assert g.write("smtp", 0, closed(), closed(), g.gate_config(retry_share=0)).share == 0


@pytest.mark.parametrize(
    ("category", "action", "counts"),
    [
        ("connection", "retry", True),
        ("timeout", "retry", True),
        ("server", "keep", True),
        ("error", "retry", True),
        ("server", "dead", False),
        ("data", "retry", False),
        ("rejected", "retry", False),
        ("rate_limit", "retry", False),
    ],
)
def test_only_failures_of_the_dependency_count(category: str, action: str, counts: bool) -> None:
    failure = Failure("E", "text", category, "default", "cause", action)
    assert g.counts_against(failure, CONFIG) is counts


def test_body_survives_the_codec_and_an_older_or_newer_one_can_be_read() -> None:
    body = g.GateBody(g.gate_config(probes=2), opened())
    gate = Gate("smtp", 1, body=codec.encode(body))
    assert g.body_of(gate) == body
    assert g.body_of(Gate("smtp", 1, body=b'{"state":{"open":true,"new":1},"later":2}')).state.open
    assert g.body_of(None) == g.body_of(Gate("smtp", 1)) == g.GateBody()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("failure_rate", 0),
        ("failure_rate", 1.5),
        ("failure_rate", True),
        ("least", 0),
        ("window", "1ms"),
        ("consecutive", 0),
        ("interval", 0),
        ("interval", "2d"),
        ("longest", "soon"),
        ("probes", 0),
        ("successes", 1.5),
        ("retry_share", -0.1),
        ("retry_share", "10%"),
        ("retry_floor", 0),
        ("retry_burst", 0),
        ("ignore", "data"),
        ("ignore", [1]),
    ],
)
def test_bad_values_name_their_field(field: str, value: object) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError) as caught:
        g.gate_config(**options)
    assert caught.value.field == field
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, 7, "line\n"])
def test_bad_names(name: object) -> None:
    with pytest.raises(ConfigError, match="not a name of a gate"):
        g.check_gate_name(name)
