"""Rendered calls meet the windows in every zone, for a year, by systemd and by either kind of cron."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo

import pytest

from gpuops.config.policy import parse_policy
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.runners import Half
from gpuops.model.window import Night
from gpuops.plan.rotation.installed_calls import InstalledCalls, misfits, read_calendar, read_cron
from gpuops.plan.rotation.timers import CallLine, call_lines, group_into_lines, nights_ahead

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)
ZONES: Final = (
    "UTC", "Europe/Berlin", "Europe/London", "Europe/Lisbon", "Europe/Moscow", "Africa/Casablanca", "Africa/Cairo",
    "Africa/Lagos", "America/Chicago", "America/New_York", "America/St_Johns", "America/Sao_Paulo", "America/Havana",
    "America/Nuuk", "America/Santiago", "America/Phoenix", "America/Los_Angeles", "Asia/Tokyo", "Asia/Kolkata",
    "Asia/Kathmandu", "Asia/Beirut", "Asia/Jerusalem", "Asia/Dubai", "Asia/Shanghai", "Australia/Lord_Howe",
    "Australia/Sydney", "Australia/Adelaide", "Pacific/Chatham", "Pacific/Auckland", "Pacific/Honolulu",
)  # fmt: skip
WINDOWS: Final = {
    "every evening": '[{opens: "20:00", closes: "05:00", back_by: "07:00"}]',
    "closing as desktops are due": '[{opens: "21:47", closes: "06:13"}]',
    "in the change of the clocks": '[{opens: "23:30", closes: "02:30", back_by: "03:30"}]',
    "opening in the change of the clocks": '[{opens: "02:30", closes: "05:00", back_by: "06:00"}]',
    "a weekend": '[{opens: "fri 20:00", closes: "mon 05:00", back_by: "mon 07:00"}]',
    "a weekend, taken in an evening": '[{opens: "20:00", closes: "23:00", back_by: "mon 07:00", weekdays: fri}]',
    "24 hours": '[{opens: "03:00", closes: "03:00", weekdays: [sat, sun]}]',
    "until midnight": '[{opens: "18:00", closes: "24:00", weekdays: mon-fri}]',
    "two a day": """
  - {opens: "12:00", closes: "12:30", back_by: "13:00", weekdays: mon-fri}
  - {opens: "20:00", closes: "05:00", back_by: "07:00"}""",
    "holidays as one night": """
  - {opens: "20:00", closes: "05:00", back_by: "07:00", weekdays: mon-thu, not_on: ["2026-12-21..2027-01-01"]}
  - {opens: "2026-12-23 16:00", closes: "2026-12-28 05:00", back_by: "2026-12-28 07:00"}""",
    "not on public holidays": """
  - {opens: "20:00", closes: "05:00", back_by: "07:00", weekdays: mon-fri, not_on: [holidays DE-BY]}""",
    "by day": '[{opens: "09:05", closes: "16:50", back_by: "18:00", weekdays: [sat, sun]}]',
    "workdays and free days": """
  - {opens: "20:00", closes: "05:00", back_by: "07:00", weekdays: [mon, tue, wed, thu], not_on: [2026-12-23]}
  - {opens: "16:00", closes: "05:00", back_by: "07:00", weekdays: [fri, sat, sun], also_on: [2026-12-23]}""",
}  # fmt: skip
WEEKDAYS: Final = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]


@cache
def policy_of(windows: str, zone: str) -> Policy:
    """The policy whose windows, without a zone of their own, are in this one."""
    return parse_policy(
        f"""
version: 1
name: nights
windows: {re.sub(r"opens:", f"zone: {zone}, opens:", windows)}
pools: [{{name: office, parked: true, owner: none, select: {{folder: vdi}}, idle: {{cpu_below_mhz: 500}}}}]
""",
        "policy.yaml",
    )


def _expand_field(field: str, names: Sequence[str]) -> Iterator[str]:
    """What a field of cron or systemd means, with no help of gpuops: lists of ranges, and steps."""
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{names[0]}-{names[-1]}" if span == "*" else span.replace("..", "-")).partition("-")
        if step and not last:
            last = names[-1]
        yield from names[names.index(first) : names.index(last or first) + 1 : int(step or 1)]


def _two(count: int) -> list[str]:
    return [f"{number:02}" for number in range(count)]


@cache
def _times(text: str, *, is_cron: bool) -> frozenset[tuple[str, int, int]]:
    """Weekday, hour and minute of the calls of one line."""
    if is_cron:
        minutes, hours, days, months, weekdays = text.split()
        assert (days, months) == ("*", "*")
        numbers = [*map(str, range(60))]
        on = [WEEKDAYS[(int(number) - 1) % 7] for number in _expand_field(weekdays, numbers[:7])]
        times = [(int(h), int(m)) for h in _expand_field(hours, numbers[:24]) for m in _expand_field(minutes, numbers)]
    else:
        days, time = text.split()
        on = list(_expand_field("*" if days == "*-*-*" else days, WEEKDAYS))
        hours, minutes = time.split(":")
        times = [(int(h), int(m)) for h in _expand_field(hours, _two(24)) for m in _expand_field(minutes, _two(60))]
    return frozenset((day, hour, minute) for day in on for hour, minute in times)


Line = tuple[frozenset[tuple[str, int, int]], ZoneInfo]
"""The weekdays, hours and minutes of its calls, and the zone of these."""


def first_call(lines: Sequence[Line], begins: datetime, ends: datetime) -> datetime | None:
    """The first minute in which the clocks of a line's zone show one of its times."""
    moment = begins
    while moment < ends:
        for times, zone in lines:
            local = moment.astimezone(zone)
            if (WEEKDAYS[local.weekday()], local.hour, local.minute) in times:
                return moment
        moment += MINUTE
    return None


def require_met(policy: Policy, machine: str) -> None:
    """Timers call each evening within its window, and no return too late, for both kinds of timers."""
    now, machine_zone = NOW, ZoneInfo(machine)
    in_zones, in_hours = call_lines(policy, now), call_lines(policy, now, machine_zone)
    ways = {
        "systemd": (in_zones, False),
        "cron with CRON_TZ": (in_zones, True),
        "cron in the machine's hours": (in_hours, True),
    }
    for way, (calls, is_cron) in ways.items():
        lines = {half: [_line(line, machine_zone, is_cron=is_cron) for line in calls[half]] for half in Half}
        for night in _year(policy):
            due, latest = night.returns_from, max(night.returns_from, night.back_by - timedelta(minutes=45))
            assert first_call(lines[Half.NIGHT], night.opens, due) is not None, (way, night)
            returned = first_call(lines[Half.DAY], due, latest + MINUTE)
            assert returned is not None, (way, night)
        installed = [
            InstalledCalls(
                half, way, _read(line, is_cron=is_cron), ZoneInfo(line.zone) if line.zone else machine_zone, True
            )
            for half in Half
            for line in calls[half]
        ]
        assert misfits(policy, installed, now) == (), way


def _year(policy: Policy) -> list[Night]:
    nights = [night for night in nights_ahead(policy.windows, NOW) if night.opens < NOW + timedelta(days=366)]
    assert len(nights) > 50
    return nights


def _line(line: CallLine, machine_zone: ZoneInfo, *, is_cron: bool) -> Line:
    text = line.cron if is_cron else line.systemd.removesuffix(f" {line.zone}")
    assert is_cron or line.systemd.endswith(f" {line.zone}"), "the zone stands in each line"
    return _times(text, is_cron=is_cron), ZoneInfo(line.zone) if line.zone else machine_zone


def _read(line: CallLine, *, is_cron: bool) -> tuple[int, ...]:
    """What gpuops itself reads in the line."""
    if is_cron:
        calls_of_line = read_cron(line.cron)
        assert calls_of_line is not None
        return calls_of_line
    calendar = read_calendar(line.systemd)
    assert calendar is not None and calendar[1] == line.zone
    return calendar[0]


@pytest.mark.parametrize("form", WINDOWS)
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
def test_every_evening_is_called_and_every_return_in_time(form: str, zone: str) -> None:
    require_met(policy_of(WINDOWS[form], zone), "UTC")


@pytest.mark.long
@pytest.mark.parametrize("form", WINDOWS)
@pytest.mark.parametrize("zone", ZONES)
def test_the_same_in_thirty_zones(form: str, zone: str) -> None:
    """On a machine in UTC, and on one whose clocks change on other days."""
    for machine in ("UTC", "America/New_York"):
        require_met(policy_of(WINDOWS[form], zone), machine)


def test_lines_call_at_these_minutes_and_no_other() -> None:
    """Also at odd minutes, and on days that are no range."""
    minutes = {0, 7, 1430, 1440 * 2 + 600, *range(1440 * 4, 1440 * 5, 10), 1440 * 6 + 1439}
    lines = list(group_into_lines(minutes, "Asia/Kathmandu"))
    for is_cron in (True, False):
        called = {minute for line in lines for minute in _read(line, is_cron=is_cron)}
        assert called == minutes


OLD_NIGHT, OLD_DAY = "Mon..Fri 20..23:00/20", "*-*-* 05..19:00/10"


def installed_before(machine: str) -> list[InstalledCalls]:
    """The timers of earlier releases."""
    return [
        InstalledCalls(half, f"gpuops-{half}.timer", _of(calendar), ZoneInfo(machine), is_by_timer=False)
        for half, calendar in ((Half.NIGHT, OLD_NIGHT), (Half.DAY, OLD_DAY))
    ]


def _of(calendar: str) -> tuple[int, ...]:
    calls_of_line = read_calendar(calendar)
    assert calls_of_line is not None
    return calls_of_line[0]


@pytest.mark.parametrize(
    ("zone", "machine", "expected"),
    [
        ("Europe/Berlin", "Europe/Berlin", ["no call of `rotate night` comes in", "ends them"]),
        ("Europe/Berlin", "UTC", ["no call of `rotate night` comes in", "is late on", "ends them"]),
        ("Asia/Tokyo", "UTC", ["no call of `rotate night` comes in 371 of", "ends them"]),
    ],
)
def test_timers_of_earlier_releases_do_not_meet_the_windows(zone: str, machine: str, expected: list[str]) -> None:
    """With the windows of the template: evenings of the weekend are never called, and on a machine in UTC mornings are
    late in summer."""
    policy = policy_of(WINDOWS["workdays and free days"], zone)
    misfit_lines = misfits(policy, installed_before(machine), NOW)
    for text in expected[1:]:
        assert any(text in line for line in misfit_lines), (text, misfit_lines)
    assert expected[0].removesuffix(" 371 of") in misfit_lines[0]
    assert all(
        line.endswith("; gpuops rotate timers --policy FILE prints calls that fit the windows") for line in misfit_lines
    )
    assert all(f"hours of {machine}" in line for line in misfit_lines)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and "CI" not in os.environ,
    reason="no systemd-analyze: apt-get install systemd",
)
@pytest.mark.parametrize("form", ["every evening", "closing as desktops are due", "workdays and free days"])
def test_systemd_reads_the_expressions_as_we_do(form: str) -> None:
    """Its next ten calls after a moment are those of the same line by our reading."""
    for lines in call_lines(policy_of(WINDOWS[form], "Asia/Kathmandu"), NOW).values():
        for line in lines:
            output = subprocess.run(
                ["systemd-analyze", "calendar", "--iterations=10", f"--base-time={NOW:%Y-%m-%d %H:%M:%S}",
                 line.systemd],
                capture_output=True, encoding="utf-8", check=True, env=os.environ | {"TZ": "UTC", "LC_ALL": "C"},
            ).stdout  # fmt: skip
            elapses = re.findall(r"(?:Next elapse|Iter\. #\d+|Iteration #\d+): \w+ (\S+ \S+)", output)
            at, expected = NOW, []
            for _ in range(10):
                next_call = first_call(
                    [_line(line, ZoneInfo("UTC"), is_cron=False)], at + MINUTE, at + timedelta(days=8)
                )
                assert next_call is not None
                at = next_call
                expected.append(f"{at:%Y-%m-%d %H:%M:%S}")
            assert elapses == expected
