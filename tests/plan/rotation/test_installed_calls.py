"""Forms of timers and cron lines that people write, and what their calls are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

import pytest

from gpuops.config.policy import parse_policy
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.runners import Half
from gpuops.plan.rotation.installed_calls import calls_of_crontab, calls_of_unit, misfits, of_policy_file, read_calendar
from gpuops.plan.rotation.timers import call_lines, group_into_lines

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)
POLICY_TEXT: Final = """
version: 1
name: nights
window: {opens: "20:00", closes: "05:00", back_by: "07:00", zone: UTC}
pools: [{name: office, parked: true, owner: none, select: {folder: vdi}, idle: {cpu_below_mhz: 500}}]
"""
POLICY: Final[Policy] = parse_policy(POLICY_TEXT, "policy.yaml")
TIMER = "[Timer]\nOnCalendar=*-*-* 18:00\n"
DAY_MINUTES = 24 * 60


@pytest.mark.parametrize(
    ("command", "file", "is_by_timer"),
    [
        ("gpuops rotate day \\\n    --policy /etc/p.yaml \\\n    --by-timer", "/etc/p.yaml", True),
        ("gpuops rotate day --policy=/etc/p.yaml", "/etc/p.yaml", False),
        ("gpuops rotate day --policy '/etc/a%%b$$c.yaml' --by-timer", "/etc/a%b$c.yaml", True),
        ("gpuops rotate day --yes", None, False),
    ],
)
def test_the_command_of_a_unit(command: str, file: str | None, is_by_timer: bool) -> None:
    (calls,) = calls_of_unit(Half.DAY, "gpuops-day.timer", TIMER, f"[Service]\nExecStart={command}\n", UTC)
    assert (calls.policy_file, calls.is_by_timer) == (file, is_by_timer)


def test_an_hour_with_a_step_goes_on_to_the_end_of_the_day() -> None:
    minutes_and_days = read_calendar("*-*-* 18/2:00 UTC")
    assert minutes_and_days is not None
    assert {minute % DAY_MINUTES // 60 for minute in minutes_and_days[0]} == {18, 20, 22}


@pytest.mark.parametrize("name", ["@fortnightly", "@monthly", "@every 15m", "@DAILY"])
def test_a_name_that_cannot_be_compared(name: str) -> None:
    line = f"{name} root gpuops rotate night --policy /etc/p.yaml --yes\n"
    (calls,) = calls_of_crontab("/etc/cron.d/gpuops", line, UTC, has_cron_tz=False)
    assert (calls.half, calls.minutes, calls.policy_file) == (Half.NIGHT, (), "/etc/p.yaml")
    assert calls.unreadable == name.split()[0]


def test_a_call_at_the_start_of_the_machine_is_the_call_of_no_night() -> None:
    text = "@reboot root gpuops rotate night --yes\n@reboot root gpuops rotate day --by-timer --yes\n"
    calls = tuple(calls_of_crontab("/etc/cron.d/gpuops", text, UTC, has_cron_tz=False))
    assert [(call.half, call.minutes, call.unreadable) for call in calls] == [(Half.NIGHT, (), ""), (Half.DAY, (), "")]
    never, late = misfits(POLICY, calls, NOW)
    assert "no call of `rotate night` comes in" in never
    assert "the first call of `rotate day` is late on" in late


@pytest.mark.parametrize(
    ("setting", "unreadable"),
    [
        ("OnUnitActiveSec=10min", "OnUnitActiveSec=10min"),
        ("OnBootSec=5min\nOnUnitInactiveSec=1h", "OnUnitInactiveSec=1h"),
        ("OnBootSec=5min", ""),
        ("OnCalendar=*-*-* 18:00\nOnCalendar=", ""),
    ],
)
def test_a_timer_without_hours_is_not_ignored(setting: str, unreadable: str) -> None:
    service = "[Service]\nExecStart=gpuops rotate night --yes\n"
    (calls,) = calls_of_unit(Half.NIGHT, "gpuops-night.timer", f"[Timer]\n{setting}\n", service, UTC)
    assert (calls.minutes, calls.unreadable) == ((), unreadable)
    assert misfits(POLICY, [calls], NOW)


def test_digits_of_other_scripts_are_no_numbers() -> None:
    line = "\u00b2 4 * * * root gpuops rotate night\n"
    (calls,) = calls_of_crontab("/etc/cron.d/gpuops", line, UTC, has_cron_tz=False)
    assert calls.unreadable == "\u00b2 4 * * *"


@pytest.mark.parametrize("zone", ["UTC", "CET", "GMT", "Japan", "EST5EDT", "Etc/GMT+3", "America/Port-au-Prince"])
def test_every_zone_that_is_written_is_read(zone: str) -> None:
    (line,) = group_into_lines({20 * 60}, zone)
    assert read_calendar(line.systemd) == ((20 * 60,), zone)


def test_a_path_is_compared_without_its_detours() -> None:
    text = "0 20 * * * root gpuops rotate night --policy /etc/gpuops/../gpuops//p.yaml --yes\n"
    calls = tuple(calls_of_crontab("/etc/cron.d/gpuops", text, UTC, has_cron_tz=False))
    assert of_policy_file(calls, "/etc/gpuops/p.yaml") == calls


def test_a_night_that_a_clock_change_shortens_has_its_call() -> None:
    """From 01:30 to 03:10 are 40 minutes in the night in which clocks go forward: its return is due as it opens."""
    zone = ZoneInfo("Europe/Berlin")
    window = 'window: {opens: "01:30", closes: "03:10", back_by: "03:10", zone: Europe/Berlin}'
    text = POLICY_TEXT.replace('window: {opens: "20:00", closes: "05:00", back_by: "07:00", zone: UTC}', window)
    policy = parse_policy(text, "short.yaml")
    timer = "\n".join(f"OnCalendar={line.systemd}" for line in call_lines(policy, NOW)[Half.NIGHT])
    calls = tuple(calls_of_unit(Half.NIGHT, "night.timer", timer, "[Service]\nExecStart=gpuops rotate night\n", zone))
    assert not [line for line in misfits(policy, calls, NOW) if "no call of `rotate night`" in line]
