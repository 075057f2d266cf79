"""Forms of timers and cron lines that people write, and what their calls are."""

from __future__ import annotations

from datetime import UTC

import pytest

from gpuops.model.nights.runners import Half
from gpuops.plan.rotation.installed_calls import calls_of_crontab, calls_of_unit, read_calendar

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
    found = read_calendar("*-*-* 18/2:00 UTC")
    assert found is not None
    assert {minute % DAY_MINUTES // 60 for minute in found[0]} == {18, 20, 22}


@pytest.mark.parametrize(
    ("line", "minutes"),
    [
        ("@hourly\troot\tgpuops rotate night --yes", 7 * 24),
        ("@weekly root gpuops rotate night --yes", 1),
        ("30 20 * * 1-5 root gpuops rotate night --yes", 5),
    ],
)
def test_a_line_of_cron(line: str, minutes: int) -> None:
    (calls,) = calls_of_crontab("/etc/cron.d/gpuops", f"{line}\n", UTC, has_cron_tz=False)
    assert (calls.half, len(calls.minutes), calls.unreadable) == (Half.NIGHT, minutes, "")


def test_digits_of_other_scripts_are_no_numbers() -> None:
    line = "\u00b2 4 * * * root gpuops rotate night\n"
    (calls,) = calls_of_crontab("/etc/cron.d/gpuops", line, UTC, has_cron_tz=False)
    assert calls.unreadable == "\u00b2 4 * * *"
