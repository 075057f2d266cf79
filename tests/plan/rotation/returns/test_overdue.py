"""Only a vCenter whose night has closed and whose desktops no run brings back is reported."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuops.config.policy import parse_policy
from gpuops.model.nights.night_record import Original, Role
from gpuops.plan.rotation.returns.return_time import overdue

POLICY = parse_policy(
    """
version: 1
name: small
pools: [{name: all, select: {folder: desktops}, parked: true, idle: {cpu_below_mhz: 500}, owner: none}]
ml: {queue: [{vm: ml-01}]}
window: {opens: "20:00", closes: "06:00", zone: UTC}
""",
    "small",
)
CLOSED = datetime(2026, 11, 3, 6, 0, tzinfo=UTC)
AWAY = Original("2026-11-02", Role.DESKTOP, "vm-1", "u-1", "desk-1", "host-1", taken=True, policy=POLICY)
HALF_AN_HOUR = timedelta(minutes=30)
NEVER, AT_NIGHT = None, datetime(2026, 11, 2, 22, 0, tzinfo=UTC)


def test_a_return_that_is_recorded_by_a_wrong_clock_silences_nothing() -> None:
    now = CLOSED + HALF_AN_HOUR
    assert overdue("uuid", (AWAY,), now + timedelta(minutes=29), now) is None
    assert overdue("uuid", (AWAY,), now + timedelta(days=1), now) is not None


@pytest.mark.parametrize(
    ("original", "last_return", "after"),
    [
        pytest.param(AWAY, NEVER, timedelta(minutes=29), id="a return is due only now"),
        pytest.param(AWAY, CLOSED + timedelta(minutes=5), timedelta(minutes=34), id="one tries"),
        pytest.param(replace(AWAY, returned=True), NEVER, HALF_AN_HOUR, id="it is back"),
        pytest.param(replace(AWAY, returned=True, given_up=True), NEVER, HALF_AN_HOUR, id="a person gave it up"),
        pytest.param(replace(AWAY, taken=False), NEVER, HALF_AN_HOUR, id="it was never taken"),
        pytest.param(replace(AWAY, policy=None), NEVER, HALF_AN_HOUR, id="no policy says when it closes"),
        pytest.param(replace(AWAY, night="2026-11-02T20:31"), NEVER, HALF_AN_HOUR, id="a night without a window"),
    ],
)
def test_what_is_not_overdue(original: Original, last_return: datetime | None, after: timedelta) -> None:
    assert overdue("uuid", (original,), last_return, CLOSED + after) is None


def test_many_are_named_by_three() -> None:
    originals = tuple(replace(AWAY, vm=f"vm-{n}", name=f"desk-{n}") for n in range(5))
    assert "desk-0, desk-1, desk-2 and 2 more not back" in str(overdue("uuid", originals, NEVER, CLOSED + HALF_AN_HOUR))
