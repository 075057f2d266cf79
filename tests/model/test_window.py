"""A night is one evening in every zone, whatever the clocks do, and never longer than it was meant; texts of times."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.time_text import (
    format_duration,
    format_hours,
    format_limit,
    format_minutes,
    format_stopwatch,
    parse_zoned,
)  # fmt: skip
from gpuops.model.window import Night, Weekday, Window, moments

BERLIN = ZoneInfo("Europe/Berlin")
NIGHTLY = Window(time(20), time(5), BERLIN)
ZONES = sorted(available_timezones())
MINUTES = st.integers(0, 24 * 60 - 1).map(lambda minutes: time(minutes // 60, minutes % 60))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "takes", "night"),
    [
        ("2026-11-20T18:59", False, None),
        ("2026-11-20T19:00", True, "2026-11-20"),
        ("2026-11-21T00:30", True, "2026-11-20"),
        ("2026-11-21T03:59", True, "2026-11-20"),
        ("2026-11-21T04:00", False, "2026-11-20"),
        ("2026-11-21T05:59", False, "2026-11-20"),
        ("2026-11-21T06:00", False, None),
    ],
)
def test_a_night_is_named_by_the_local_date_of_its_evening(now: str, takes: bool, night: str | None) -> None:
    night_of_now = replace(NIGHTLY, back_by=time(7)).night_at(utc(now))
    assert (night_of_now.id if night_of_now else None) == night
    assert (night_of_now is not None and night_of_now.takes_at(utc(now))) is takes


@pytest.mark.parametrize(
    ("window", "opens", "closes", "back_by"),
    [
        # Berlin: from 02:00 to 03:00 on 2026-03-29, from 03:00 to 02:00 on 2026-10-25, both at 01:00 UTC
        ("Europe/Berlin 2026-03-28 20:00 05:00 07:00", "2026-03-28T19:00", "2026-03-29T03:00", "2026-03-29T05:00"),
        ("Europe/Berlin 2026-10-24 20:00 05:00 07:00", "2026-10-24T18:00", "2026-10-25T04:00", "2026-10-25T06:00"),
        ("Europe/Berlin 2026-03-28 20:00 02:30 02:45", "2026-03-28T19:00", "2026-03-29T01:00", "2026-03-29T01:00"),
        ("Europe/Berlin 2026-10-24 20:00 02:30 02:45", "2026-10-24T18:00", "2026-10-25T00:30", "2026-10-25T00:45"),
        ("Europe/Berlin 2026-03-29 02:30 05:00 07:00", "2026-03-29T01:00", "2026-03-29T03:00", "2026-03-29T05:00"),
        ("Europe/Berlin 2026-10-25 02:30 02:50 07:00", "2026-10-25T01:30", "2026-10-25T01:50", "2026-10-25T06:00"),
        # New York: 2026-03-08 and 2026-11-01, at 02:00 local time
        ("America/New_York 2026-03-07 21:00 05:00 06:30", "2026-03-08T02:00", "2026-03-08T09:00", "2026-03-08T10:30"),
        ("America/New_York 2026-10-31 21:00 05:00 06:30", "2026-11-01T01:00", "2026-11-01T10:00", "2026-11-01T11:30"),
        ("America/New_York 2026-11-01 01:30 05:00 06:30", "2026-11-01T06:30", "2026-11-01T10:00", "2026-11-01T11:30"),
        # Kolkata never changes
        ("Asia/Kolkata 2026-03-28 20:00 05:00 07:00", "2026-03-28T14:30", "2026-03-28T23:30", "2026-03-29T01:30"),
        # Lord Howe, by half an hour: from 02:00 to 01:30 on 2026-04-05 (15:00 UTC the day before),
        # from 02:00 to 02:30 on 2026-10-04 (15:30 UTC the day before)
        ("AU 2026-04-04 20:00 01:45 07:00", "2026-04-04T09:00", "2026-04-04T14:45", "2026-04-04T20:30"),
        ("AU 2026-04-05 01:45 05:00 07:00", "2026-04-04T15:15", "2026-04-04T18:30", "2026-04-04T20:30"),
        ("AU 2026-10-03 20:00 02:15 07:00", "2026-10-03T09:30", "2026-10-03T15:30", "2026-10-03T20:00"),
    ],
)  # fmt: skip
def test_a_night_on_the_day_of_a_change_of_the_clocks(window: str, opens: str, closes: str, back_by: str) -> None:
    zone, day, *clocks = window.split()
    begins, ends, back = (time.fromisoformat(clock) for clock in clocks)
    night = Window(begins, ends, ZoneInfo(zone.replace("AU", "Australia/Lord_Howe")), back).night_of(
        date.fromisoformat(day)
    )
    assert night is not None
    assert night == Night(date.fromisoformat(day), utc(opens), utc(closes), utc(back_by), night.zone)


def test_the_night_of_a_clock_change_is_one_night() -> None:
    half_hours = (utc("2026-10-24T18:00") + number * timedelta(minutes=30) for number in range(20))
    assert {night.id for now in half_hours if (night := NIGHTLY.night_at(now))} == {"2026-10-24"}


def test_weekdays_and_dates_say_on_which_evenings_it_opens() -> None:
    window = replace(
        NIGHTLY,
        weekdays=frozenset({Weekday.MON, Weekday.FRI}),
        also_on=frozenset({date(2026, 12, 24)}),
        not_on=frozenset({date(2026, 12, 25)}),
    )
    opened = [day for day in range(20, 32) if window.opens_on(date(2026, 12, day))]
    assert opened == [21, 24, 28], "Christmas Eve is a Thursday; Christmas Day a Friday"
    friday_night = window.night_at(utc("2026-12-19T03:00"))
    assert friday_night is not None, "Saturday before dawn is Friday's night"
    assert friday_night.id == "2026-12-18"
    coming = window.next_night(utc("2026-12-19T03:00"))
    assert coming is not None
    assert coming.id == "2026-12-21"
    assert replace(window, weekdays=frozenset(), also_on=frozenset()).next_night(utc("2026-12-19T03:00")) is None


def test_a_day_that_a_zone_skipped_has_no_night() -> None:
    apia = Window(time(20), time(5), ZoneInfo("Pacific/Apia"))
    assert apia.night_of(date(2011, 12, 30)) is None
    before, after = apia.night_of(date(2011, 12, 29)), apia.night_of(date(2011, 12, 31))
    assert before is not None
    assert after is not None
    assert before.back_by <= after.opens


def test_a_clock_time_of_the_night_is_the_first_one_after_it_opened() -> None:
    night = NIGHTLY.night_of(date(2026, 10, 24))
    assert night is not None
    assert night.next(time(21)) == utc("2026-10-24T19:00")
    assert night.next(time(2, 30)) == utc("2026-10-25T00:30"), "the first of two"
    assert night.next(time(19)) == utc("2026-10-25T18:00")


@given(st.sampled_from(ZONES), st.dates(date(1900, 1, 1), date(2100, 1, 1)), MINUTES, MINUTES, st.none() | MINUTES)
def test_in_every_zone_a_night_is_never_longer_than_its_clock_says(
    zone: str, day: date, opens: time, closes: time, back_by: time | None
) -> None:
    assume(opens != closes)
    window = Window(opens, closes, ZoneInfo(zone), back_by)
    assume(window.length_on(day) <= timedelta(days=1))
    night = window.night_of(day)
    assume(night is not None)
    assert night is not None
    assert night.opens <= night.closes <= night.back_by
    assert night.opens.astimezone(window.zone).date() == day
    closing = night.closes.astimezone(window.zone)
    if moments(closing.date(), closes, window.zone) == (night.closes,) and night.opens < night.closes:
        assert closing.time() >= closes, "on time, or just after a jump over it"
    if night.opens < night.back_by:
        assert window.night_at(night.opens) is not None
        inside = window.night_at(night.back_by - timedelta(seconds=1))
        assert inside is not None


@given(st.sampled_from(ZONES), st.dates(date(1971, 1, 1), date(2100, 1, 1)), MINUTES, MINUTES, st.integers(0, 2880))
def test_in_every_zone_one_moment_is_in_one_night(
    zone: str, day: date, opens: time, closes: time, minutes: int
) -> None:
    assume(opens != closes)
    window = Window(opens, closes, ZoneInfo(zone))
    now = datetime.combine(day, time(12), UTC) + timedelta(minutes=minutes)
    around = [window.night_of(day + timedelta(days=number)) for number in range(-3, 5)]
    containing = [night for night in around if night is not None and night.opens <= now < night.back_by]
    assert window.night_at(now) == next(iter(containing[::-1]), None), "the one that opened last"
    length = window.length_on(day)
    if length <= timedelta(hours=20):
        assert len(containing) <= 1, "so that one window never has two nights open"


@given(st.sampled_from(ZONES), st.dates(date(1900, 1, 1), date(2100, 1, 1)), MINUTES)
def test_a_clock_shows_the_time_at_the_moments_it_is_said_to(zone: str, day: date, clock: time) -> None:
    instants = moments(day, clock, ZoneInfo(zone))
    assert sorted(instants) == list(instants)
    local = datetime.combine(day, clock)
    local_times = [moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0) for moment in instants]
    if local_times != [local] * len(instants):
        [jumped] = instants
        [after] = local_times
        before = (jumped - timedelta(seconds=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        assert before < local < after, "the clocks jumped over it just then"


@settings(max_examples=30)
@given(st.sampled_from(ZONES), st.integers(1971, 2099), st.sets(st.sampled_from(list(Weekday)), min_size=1), st.data())
def test_of_several_windows_each_evening_is_one_night_and_none_opens_over_another(
    zone: str, year: int, workdays: set[Weekday], draws: st.DataObject
) -> None:
    late, early = (draws.draw(st.integers(minimum, 23)) for minimum in (12, 12))
    back_by = time(min(late, early))
    night = Window(time(late, 30), time(5), ZoneInfo(zone), back_by, frozenset(workdays))
    other_nights = replace(night, opens=time(early, 30), weekdays=frozenset(Weekday) - workdays)
    policy = Policy("p", (), windows=(night, other_nights))
    start = datetime(year, draws.draw(st.integers(1, 12)), 1, tzinfo=UTC)
    nights_by_id: dict[str, Night] = {}
    for number in range(31 * 24):
        now = start + timedelta(hours=number)
        tonight = policy.night_at(now)
        if tonight is not None:
            assert nights_by_id.setdefault(tonight.id, tonight) == tonight
            assert policy.night(now) == tonight.id
    nights = sorted(nights_by_id.values(), key=lambda seen_night: seen_night.opens)
    assert all(earlier.back_by <= after.opens for earlier, after in pairwise(nights))
    assert len(nights) >= 29


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 00 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min")],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-1, "0:00"), (59.9, "0:59"), (725, "12:05"), (3600, "1:00:00"), (90_000, "25:00:00")]
)
def test_format_stopwatch(seconds: float, expected: str) -> None:
    assert format_stopwatch(seconds) == expected


@pytest.mark.parametrize(
    ("minutes", "text", "short"),
    [(20, "20 min", "20 min"), (90, "1 h 30 min", "1 h 30 min"), (2880, "48 h 00 min", "48 h")],
)
def test_format_minutes_and_hours(minutes: int, text: str, short: str) -> None:
    length = timedelta(minutes=minutes)
    assert (format_minutes(length), format_hours(length)) == (text, short)


def test_a_limit_is_in_minutes_where_these_are_exact() -> None:
    assert [format_limit(seconds) for seconds in (900, 90)] == ["15 min", "90 s"]


def test_a_moment_without_an_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="2026-11-03T05:00"):
        parse_zoned("2026-11-03T05:00")
