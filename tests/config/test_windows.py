"""Windows as people have them: over weekends, several a day, of some pools; windows of changes and moments as typed."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from gpuops.config.date_text import parse_moment, parse_window
from gpuops.config.policy import parse_policy
from gpuops.errors import UsageError
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.window import Weekday, Window
from gpuops.plan.rotation.returns.return_time import nights_called


def policy_of(windows: str) -> Policy:
    return parse_policy(
        f"""
version: 1
name: nights
windows: {windows}
pools:
  - {{name: office, parked: true, owner: none, select: {{folder: vdi}}, idle: {{cpu_below_mhz: 500}}}}
  - {{name: shift, parked: true, owner: none, select: {{folder: shift}}, idle: {{cpu_below_mhz: 500}}}}
""",
        "policy.yaml",
    )


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


WEEKEND = '[{opens: "fri 20:00", closes: "mon 05:00", back_by: "mon 07:00", zone: Europe/Berlin}]'

CHRISTMAS = (
    '[{opens: "2026-12-23 16:00", closes: "2026-12-28 05:00", back_by: "2026-12-28 07:00", zone: Europe/Berlin}]'
)


@pytest.mark.parametrize(
    ("windows", "now", "night", "opens", "closes", "back_by"),
    [
        (WEEKEND, "2026-11-27T19:00", "2026-11-27", "2026-11-27T19:00", "2026-11-30T04:00", "2026-11-30T06:00"),
        (WEEKEND, "2026-11-30T05:59", "2026-11-27", "2026-11-27T19:00", "2026-11-30T04:00", "2026-11-30T06:00"),
        # the clocks go back at this weekend, and forward at that one
        (WEEKEND, "2026-10-25T12:00", "2026-10-23", "2026-10-23T18:00", "2026-10-26T04:00", "2026-10-26T06:00"),
        (WEEKEND, "2026-03-29T12:00", "2026-03-27", "2026-03-27T19:00", "2026-03-30T03:00", "2026-03-30T05:00"),
        (CHRISTMAS, "2026-12-27T23:00", "2026-12-23", "2026-12-23T15:00", "2026-12-28T04:00", "2026-12-28T06:00"),
        (
            '[{opens: "03:00", closes: "03:00", zone: UTC, weekdays: [Sat, SUNDAY]}]',
            "2026-11-29T02:59", "2026-11-28", "2026-11-28T03:00", "2026-11-29T03:00", "2026-11-29T03:00",
        ),
        (
            '[{opens: "18:00", closes: "24:00", zone: UTC, weekdays: mon-fri}]',
            "2026-11-27T23:59", "2026-11-27", "2026-11-27T18:00", "2026-11-28T00:00", "2026-11-28T00:00",
        ),
        (
            '[{opens: "fri 20:00", closes: "sun 24:00", zone: UTC}]',
            "2026-11-29T23:59", "2026-11-27", "2026-11-27T20:00", "2026-11-30T00:00", "2026-11-30T00:00",
        ),
        (
            '[{opens: "2026-12-24 16:00", closes: "2026-12-24 24:00", zone: UTC}]',
            "2026-12-24T23:00", "2026-12-24", "2026-12-24T16:00", "2026-12-25T00:00", "2026-12-25T00:00",
        ),
        (
            '[{opens: "20:00", closes: "23:00", back_by: "mon 07:00", zone: UTC, weekdays: fri}]',
            "2026-11-29T12:00", "2026-11-27", "2026-11-27T20:00", "2026-11-27T23:00", "2026-11-30T07:00",
        ),
    ],
)  # fmt: skip
def test_the_night_of_a_moment(windows: str, now: str, night: str, opens: str, closes: str, back_by: str) -> None:
    planned_night = policy_of(windows).night_at(utc(now))
    assert planned_night is not None
    assert (planned_night.id, planned_night.opens, planned_night.closes, planned_night.back_by) == (
        night,
        utc(opens),
        utc(closes),
        utc(back_by),
    )


@pytest.mark.parametrize(
    ("windows", "now"),
    [
        (WEEKEND, "2026-11-27T18:59"),
        (WEEKEND, "2026-11-30T06:00"),
        (WEEKEND, "2026-12-01T22:00"),
        (CHRISTMAS, "2027-12-24T20:00"),
        ('[{opens: "20:00", closes: "05:00", zone: UTC, not_on: ["2027-03-25..2027-03-30"]}]', "2027-03-30T21:00"),
        ('[{opens: "20:00", closes: "05:00", zone: UTC, not_on: [holidays DE]}]', "2027-05-01T21:00"),
    ],
)
def test_no_night(windows: str, now: str) -> None:
    assert policy_of(windows).night_at(utc(now)) is None


def test_public_holidays_are_those_of_the_part_of_a_country() -> None:
    """Epiphany is one in Bavaria, and none in Berlin."""
    for part, open_on in (("DE-BY", False), ("DE-BE", True)):
        policy = policy_of(f'[{{opens: "20:00", closes: "05:00", zone: Europe/Berlin, not_on: [holidays {part}]}}]')
        assert policy.windows[0].opens_on(date(2027, 1, 6)) is open_on


LUNCH = """
  - {opens: "20:00", closes: "05:00", back_by: "07:00", zone: UTC}
  - {opens: "12:00", closes: "12:30", back_by: "13:00", zone: UTC, weekdays: mon-fri}
"""


def test_two_nights_of_one_day_have_names_of_their_own() -> None:
    """The first one is called as it would be alone; the other one by its time too."""
    policy = policy_of(LUNCH)
    names = {text: policy.night(utc(text)) for text in ("2026-11-23T12:15", "2026-11-23T21:00", "2026-11-29T21:00")}
    assert list(names.values()) == ["2026-11-23", "2026-11-23T20:00", "2026-11-29T20:00"]
    for moment, name in names.items():
        [night] = nights_called(name, policy)
        assert night.opens <= utc(moment) < night.back_by
    assert nights_called("2026-11-23T21:00Z", policy) == [], "that of a night without a window"
    evening = policy_of(LUNCH.replace("weekdays: mon-fri", "weekdays: tue"))
    assert len(nights_called("2026-11-23", evening)) == 1, "by the policy as it is by now"


def test_windows_of_two_zones_may_stand_beside_each_other() -> None:
    """Shifts: the desktops of the day shift by night, those of the night shift by day."""
    policy = policy_of(
        """
  - {opens: "20:00", closes: "05:00", back_by: "06:30", zone: Europe/Berlin, pools: [office]}
  - {opens: "09:00", closes: "17:00", back_by: "18:30", zone: Europe/London, pools: [shift]}
"""
    )
    for moment, pool_name in (("2026-11-24T22:00", "office"), ("2026-11-24T12:00", "shift")):
        tonight = policy.at_night(utc(moment))
        assert [pool.name for pool in tonight.pools if pool.is_taken_tonight] == [pool_name]
        assert tonight.text == policy.text
    assert policy.at_night(utc("2026-11-24T18:45")) is policy


def test_an_accepted_policy_of_the_journal_is_still_read() -> None:
    """Windows of two zones were not compared before."""
    text = policy_of(LUNCH).text.replace('"12:00"', '"06:00"').replace('"12:30"', '"12:00"')
    with pytest.raises(Exception, match="before the desktops of"):
        parse_policy(text, "policy.yaml")
    assert len(parse_policy(text, "the journal", accepted_before=True).windows) == 2


def test_a_window_of_days_is_off_on_the_evening_that_is_left_out() -> None:
    """And on no other day, whose hours it has none of."""
    [window] = policy_of(WEEKEND.replace("zone:", 'not_on: ["2026-11-27"], zone:')).windows
    assert window.evening_off(utc("2026-11-29T12:00")) == date(2026, 11, 27)
    assert window.evening_off(utc("2026-12-02T12:00")) is None
    assert window.next_night(utc("2026-11-27T12:00")) == window.night_of(date(2026, 12, 4))
    assert window.length_on(date(2026, 12, 4)) == timedelta(days=2, hours=11)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("Sat 22:00-04:00 Europe/Berlin", {Weekday.SAT}),
        ("sat,SUN 22:00-04:00 UTC", {Weekday.SAT, Weekday.SUN}),
        ("Fri-Mon 22:00 - 04:00 UTC", {Weekday.FRI, Weekday.SAT, Weekday.SUN, Weekday.MON}),
        ("22:00-04:00 UTC", set(Weekday)),
    ],
)
def test_days_times_and_zone(text: str, days: set[Weekday]) -> None:
    window = parse_window(text)
    assert (window.opens, window.closes, set(window.weekdays), window.name) == (time(22), time(4), days, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a window"),
        ("Sat 22:00 Europe/Berlin", "is not a window"),
        ("Sat 22:00-04:00", "is not a window"),
        ("Sat 25:00-04:00 UTC", "is not a time of day"),
        ("Sat 22:00-22:00 UTC", "opens and closes at the same time, 22:00"),
        ("Sat 22:00-04:00 Europe/Bonn", "is not an IANA zone"),
        ("Samstag 22:00-04:00 UTC", "'Samstag' is not a day of the week"),
        ("Sat- 22:00-04:00 UTC", "'' is not a day of the week"),
    ],
)
def test_what_is_no_window_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_window(text)


BERLIN = Window(time(20), time(5), ZoneInfo("Europe/Berlin"))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-23 22:00", datetime(2026, 11, 23, 22)),  # noqa: DTZ001
        ("2026-11-23T22:00Z", datetime(2026, 11, 23, 22, tzinfo=UTC)),
        ("2026-11-23T22:00+01:00", datetime(2026, 11, 23, 22, tzinfo=timezone(timedelta(hours=1)))),
    ],
)
def test_a_moment_is_read(text: str, moment: datetime) -> None:
    assert parse_moment("--at", text) == moment


@pytest.mark.parametrize(
    "text",
    ["", "now", "22:00", "2026-11-23", "2026-13-23 22:00", "23.11.2026 22:00", "2026-W48", "9999-12-31 22:00",
     "0026-11-23 22:00"],
)  # fmt: skip
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_moment("--at", text)
    assert refused.value.message == f"--at: {text!r} is not a date with a time"


@pytest.mark.parametrize(
    ("local", "utc"),
    [
        ("2026-11-23 22:00", "2026-11-23T21:00"),
        ("2026-07-23 22:00", "2026-07-23T20:00"),
        ("2026-03-29 02:30", "2026-03-29T01:00"),
        ("2026-10-25 02:30", "2026-10-25T00:30"),
    ],
)
def test_without_an_offset_it_is_of_the_zone_of_the_windows(local: str, utc: str) -> None:
    moment = Policy("p", (), windows=(BERLIN,)).moment(parse_moment("--at", local))
    assert moment == datetime.fromisoformat(utc).replace(tzinfo=UTC)


def test_without_one_zone_an_offset_is_asked_for() -> None:
    kolkata = Window(time(20), time(5), ZoneInfo("Asia/Kolkata"))
    local = parse_moment("--at", "2026-11-23 22:00")
    for windows, message in (
        ((), "2026-11-23 22:00 needs a time zone: the policy has no windows"),
        ((BERLIN, kolkata), "2026-11-23 22:00 needs a time zone: the windows are in Asia/Kolkata, Europe/Berlin"),
    ):
        with pytest.raises(UsageError) as refused:
            Policy("p", (), windows=windows).moment(local)
        assert (refused.value.message, refused.value.hint) == (message, "add the offset: 2026-11-23T22:00Z, or +01:00")
