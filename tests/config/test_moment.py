"""A moment is what people type, or refused in one line with the next move."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from gpuops.config.date_text import parse_moment
from gpuops.errors import UsageError
from gpuops.model.nights.rotation import Policy
from gpuops.model.window import Window

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
        ((), "2026-11-23 22:00: in which zone? the policy has no windows"),
        ((BERLIN, kolkata), "2026-11-23 22:00: in which zone? the windows are in Asia/Kolkata, Europe/Berlin"),
    ):
        with pytest.raises(UsageError) as refused:
            Policy("p", (), windows=windows).moment(local)
        assert (refused.value.message, refused.value.hint) == (message, "add the offset: 2026-11-23T22:00Z, or +01:00")
