"""Ticks of schedules: which instants, under which ids, and what becomes of those that were missed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.core import codec
from redrive.core import schedule as s
from redrive.core.item import Dedupe, Priority, Terms
from redrive.errors import BadSchedule

HOUR = 3_600_000
DAY = 24 * HOUR
NOON = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()) * 1000
BERLIN = ZoneInfo("Europe/Berlin")


def make(**options: Any) -> s.Schedule:
    return s.make_schedule("nightly", "reports", b"{}", **options)


def instant(*parts: int, zone: ZoneInfo = BERLIN, fold: int = 0) -> int:
    year, month, day, hour, minute = parts
    return int(datetime(year, month, day, hour, minute, tzinfo=zone, fold=fold).timestamp()) * 1000


def ticks(schedule: s.Schedule, after: int, upto: int) -> list[int]:
    found = []
    tick = s.next_tick(schedule, after)
    while tick is not None and tick <= upto:
        found.append(tick)
        tick = s.next_tick(schedule, tick)
    return found


# -- instants ------------------------------------------------------------------------------------------------------


def test_intervals_count_from_the_epoch() -> None:
    schedule = make(every="10m")
    assert s.next_tick(schedule, NOON) == NOON + 600_000
    assert s.next_tick(schedule, NOON + 1) == NOON + 600_000
    assert s.next_tick(schedule, NOON - 1) == NOON
    assert ticks(make(every="7m"), 0, 22 * 60_000) == [420_000, 840_000, 1_260_000]


def test_cron_is_in_local_time() -> None:
    schedule = make(cron="0 2 * * *", timezone="Europe/Berlin")
    summer, winter = instant(2026, 7, 1, 2, 0), instant(2026, 12, 1, 2, 0)
    assert s.next_tick(schedule, summer - 1) == summer
    assert s.next_tick(schedule, winter - 1) == winter
    assert summer % DAY == 0
    assert winter % DAY == HOUR
    assert s.next_tick(make(cron="0 2 * * *"), NOON) == NOON + 14 * HOUR


def test_a_time_that_a_zone_skips_comes_right_after_and_once() -> None:
    """Two o'clock does not exist in Berlin on the 29th of March 2026."""
    evening = instant(2026, 3, 28, 20, 0)
    for cron in ("30 2 * * *", "0,30 2 * * *", "0 2,3 * * *"):
        schedule = make(cron=cron, timezone="Europe/Berlin")
        found = ticks(schedule, evening, instant(2026, 3, 29, 20, 0))
        assert found == [instant(2026, 3, 29, 3, 0)], cron


def test_a_time_that_a_zone_repeats_comes_once() -> None:
    """Half past two is there twice in Berlin on the 25th of October 2026."""
    schedule = make(cron="30 2 * * *", timezone="Europe/Berlin")
    evening = instant(2026, 10, 24, 20, 0)
    first = instant(2026, 10, 25, 2, 30)
    assert ticks(schedule, evening, evening + DAY) == [first]
    # Whoever looks between the two, or after both, sees no second one.
    assert s.next_tick(schedule, first) == instant(2026, 10, 26, 2, 30)
    assert s.next_tick(schedule, instant(2026, 10, 25, 2, 15, fold=1)) == instant(2026, 10, 26, 2, 30)


def test_what_comes_every_so_often_goes_by_the_time_that_passes() -> None:
    schedule = make(cron="*/30 * * * *", timezone="Europe/Berlin")
    for evening in (instant(2026, 3, 28, 20, 0), instant(2026, 10, 24, 20, 0)):
        assert ticks(schedule, evening, evening + DAY) == [evening + number * HOUR // 2 for number in range(1, 49)]


CRONS = ["30 2 * * *", "0,30 1-3 * * *", "*/20 2 * * *", "*/15 * * * *", "0 */2 * * SUN", "5 0 L * *", "0 3 29 2 *"]
CHANGES = [instant(2026, 3, 29, 3, 0), instant(2026, 10, 25, 3, 0)]


@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    change=st.sampled_from(CHANGES),
    start=st.integers(-30 * HOUR, 30 * HOUR),
    later=st.integers(0, 30 * HOUR),
)
@settings(max_examples=60)
def test_ticks_do_not_depend_on_where_one_begins_to_look(
    cron: str, zone: str, change: int, start: int, later: int
) -> None:
    schedule = s.Schedule("n", "q", b"", cron=cron, timezone=zone)
    begin, end = change + start, change + 40 * HOUR
    whole = ticks(schedule, begin, end)
    assert whole == sorted(set(whole))
    middle = begin + later
    assert ticks(schedule, middle, end) == [tick for tick in whole if tick > middle]
    found, more = s.last_ticks(schedule, begin, end, 3)
    assert (list(found), more) == (whole[-3:], len(whole) > 3)


@given(every=st.integers(1000, DAY), after=st.integers(0, 10**13), span=st.integers(0, 10 * DAY))
def test_the_last_ticks_of_an_interval(every: int, after: int, span: int) -> None:
    schedule = s.Schedule("n", "q", b"", every=every)
    found, more = s.last_ticks(schedule, after, after + span, 5)
    expected = list(range((after // every + 1) * every, after + span + 1, every))
    assert (list(found), more) == (expected[-5:], len(expected) > 5)


# -- missed ones ---------------------------------------------------------------------------------------------------


def test_what_is_a_little_late_is_on_time_under_any_rule() -> None:
    for rule in ("skip", "last", "all"):
        schedule = make(every="20s", catch_up=rule)
        what = s.plan(schedule, NOON, NOON, NOON + 59_999)
        assert what == s.Plan((NOON + 20_000, NOON + 40_000)), rule


@pytest.mark.parametrize(
    ("rule", "fired"),
    [("skip", ()), ("last", (NOON + 5 * HOUR,)), ("all", tuple(NOON + number * HOUR for number in range(1, 6)))],
)
def test_missed_ticks_go_by_the_rule(rule: str, fired: tuple[int, ...]) -> None:
    what = s.plan(make(every="1h", catch_up=rule), NOON, NOON, NOON + 5 * HOUR + HOUR // 2)
    assert what == s.Plan(fired, missed=5, late=len(fired))


def test_a_tick_that_is_due_now_makes_up_for_those_before_it() -> None:
    what = s.plan(make(every="1h", catch_up="last"), NOON, NOON, NOON + 5 * HOUR)
    assert what == s.Plan((NOON + 5 * HOUR,), missed=4, late=0)


@pytest.mark.parametrize("when", [{"every": "1m"}, {"cron": "* * * * *", "timezone": "Asia/Kolkata"}])
def test_of_years_of_missed_ticks_the_latest_thousand_are_made_up_for(when: dict[str, str]) -> None:
    now = NOON + 3 * 365 * DAY + 30_000
    what = s.plan(make(catch_up="all", **when), NOON, NOON, now)
    assert what.more
    assert (what.missed, what.late) == (1000, 1000)
    assert what.fire[-1] == now - 30_000
    assert [later - earlier for earlier, later in zip(what.fire, what.fire[1:], strict=False)] == [60_000] * 1000


def test_a_claim_is_judged_as_it_was_when_it_was_made() -> None:
    """Whoever takes over an hour later fires what was about to be fired, also where the rule now says skip."""
    schedule = make(every="10s", catch_up="skip")
    claimed = NOON + 30_000
    then = s.plan(schedule, NOON, NOON, claimed)
    later = s.plan(schedule, NOON, claimed, claimed + HOUR)
    assert then.fire == (NOON + 10_000, NOON + 20_000, NOON + 30_000)
    assert later.fire[:3] == then.fire
    assert all(tick > claimed + HOUR - s.MISSED_AFTER for tick in later.fire[3:])


# -- items ---------------------------------------------------------------------------------------------------------


def test_a_tick_has_an_id_of_its_own_that_can_be_read() -> None:
    assert s.tick_id("nightly", NOON) == "nightly@2026-06-01T12:00:00Z"
    assert s.tick_id("nightly", NOON + 1500) == "nightly@2026-06-01T12:00:01.500Z"


@given(st.integers(0, 10**13))
def test_the_id_says_which_tick_it_was(tick: int) -> None:
    assert s.tick_of(s.tick_id("a.b/c:d-e_f", tick)) == tick


@pytest.mark.parametrize("item_id", ["", "nightly", "nightly@run-abc", "x@2026-13-01T00:00:00Z", "x@2026-01-01"])
def test_other_ids_are_for_no_tick(item_id: str) -> None:
    assert s.tick_of(item_id) is None


def test_a_tick_is_an_item_that_is_not_due_before() -> None:
    schedule = make(every="1h", priority="high", order_key="o", limit_key="l", dedupe_key="d", policy="p")
    item = s.tick_item(schedule, NOON)
    assert (item.id, item.queue, item.payload, item.at) == (s.tick_id("nightly", NOON), "reports", b"{}", NOON)
    assert (item.delay, item.priority) == (0, Priority.HIGH)
    assert item.terms == Terms(order_key="o", limit_key="l", dedupe=Dedupe("d"), policy="p")
    assert s.tick_item(make(every="1h"), NOON).terms is None


def test_schedules_survive_the_codec() -> None:
    kept = s.Kept(make(cron="0 2 * * *", timezone=BERLIN, dedupe_key="one"), NOON, NOON + 1, "ann", "why")
    assert codec.decode(codec.encode(kept), s.Kept) == kept
    assert kept.schedule.when == "0 2 * * * Europe/Berlin"
    assert make(every="90s").when == "every 1m30s"


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("cron", {"cron": ""}),
        ("cron", {"cron": "61 * * * *"}),
        ("cron", {"cron": "* * * *"}),
        ("cron", {"cron": "* * * * * *"}),
        ("cron", {"cron": "*/0 * * * *"}),
        ("cron", {"cron": "5-1 * * * *"}),
        ("cron", {"cron": "0 0 30 2 *"}),
        ("cron", {"cron": "* * */20 2 1L"}),
        ("cron", {"cron": "L/2 * * * *"}),
        ("cron", {"cron": "٣ * * * *"}),
        ("cron", {"cron": 7}),
        ("cron", {"cron": "1," * 200 + "1 * * * *"}),
        ("every", {"every": 0}),
        ("every", {"every": "-5m"}),
        ("every", {"every": "999ms"}),
        ("every", {"every": "often"}),
        ("every", {"every": True}),
        ("timezone", {"cron": "* * * * *", "timezone": "Europe/Berln"}),
        ("timezone", {"cron": "* * * * *", "timezone": "../etc/passwd"}),
        ("timezone", {"cron": "* * * * *", "timezone": "Europe"}),
        ("timezone", {"cron": "* * * * *", "timezone": ""}),
        ("timezone", {"cron": "* * * * *", "timezone": 2}),
        ("timezone", {"every": "1h", "timezone": "UTC"}),
        ("catch_up", {"every": "1h", "catch_up": "some"}),
        ("priority", {"every": "1h", "priority": "urgent"}),
        ("order_key", {"every": "1h", "order_key": ""}),
        ("dedupe_key", {"every": "1h", "dedupe_key": "x" * 513}),
        ("order_key", {"every": "1h", "order_key": "a\0b"}),
        ("limit_key", {"every": "1h", "limit_key": "half \ud800"}),
        ("cron, every", {}),
        ("cron, every", {"cron": "* * * * *", "every": "1h"}),
    ],
)
def test_bad_values_name_their_field(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(BadSchedule) as caught:
        make(**options)
    assert caught.value.field == field
    assert caught.value.hint


def test_a_near_miss_of_a_zone_is_told() -> None:
    with pytest.raises(BadSchedule, match="Europe/Berlin"):
        make(cron="* * * * *", timezone="europe/berlin")


def test_without_time_zone_data_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(BadSchedule, match="pip install tzdata"):
        make(cron="* * * * *", timezone="Europe/Nowhere")


@pytest.mark.parametrize("name", ["", "a b", "a@b", "x" * 65, "star*", None, 7])
def test_bad_names(name: Any) -> None:
    with pytest.raises(BadSchedule) as caught:
        s.make_schedule(name, "q", b"", every="1h")
    assert caught.value.field == "name"
