"""Which turn of a policy is due at a moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.config.policy import load_policy, parse_policy
from gpuops.errors import UsageError
from gpuops.model.rotation import Policy
from gpuops.model.runners import Half
from gpuops.runner.due import EVERY, due, half_of, refuse_other_modes


def policy_of(windows: str) -> Policy:
    text = f"""
version: 1
name: nights
windows: {windows}
pools:
  - {{name: office, parked: true, owner: {{attribute: gpuops.owner, value: office}}, floor: 0, select: {{folder: vdi}},
     idle: {{cpu_below_mhz: 500}}}}
ml: {{queue: [{{vm: ml-01}}], stop: {{grace_s: 60, then: power-off}}}}
limits: {{in_flight: 2, per_host: 2}}
marker: gpuops.rotation
opt_out: {{attribute: gpuops.opt-out}}
"""
    return parse_policy(text, "policy.yaml")


ROOT = Path(__file__).resolve().parents[2]
PARIS = '[{opens: "22:00", closes: "05:30", back_by: "07:00", zone: Europe/Paris}]'
ODD = '[{opens: "21:47", closes: "04:13", back_by: "06:00", zone: America/St_Johns}]'


@pytest.mark.parametrize(
    ("now", "half", "since"),
    [
        ("2026-11-02T20:59:59Z", Half.DAY, "2026-11-02T20:50:00Z"),
        ("2026-11-02T21:00:00Z", Half.NIGHT, "2026-11-02T21:00:00Z"),
        ("2026-11-02T21:07:30Z", Half.NIGHT, "2026-11-02T21:00:00Z"),
        ("2026-11-03T04:29:00Z", Half.NIGHT, "2026-11-03T04:20:00Z"),
        ("2026-11-03T04:30:00Z", Half.DAY, "2026-11-03T04:30:00Z"),
        ("2026-11-03T05:59:00Z", Half.DAY, "2026-11-03T05:50:00Z"),
        ("2026-07-01T20:00:00Z", Half.NIGHT, "2026-07-01T20:00:00Z"),
    ],
)
def test_a_night_while_the_window_is_open_else_a_return(now: str, half: Half, since: str) -> None:
    found = due(policy_of(PARIS), datetime.fromisoformat(now))
    assert (found.half, found.since) == (half, datetime.fromisoformat(since))


def test_a_window_that_opens_between_two_tenths_is_a_turn_of_its_own() -> None:
    opens = datetime(2026, 11, 3, 1, 17, tzinfo=UTC)
    policy = policy_of(ODD)
    assert due(policy, opens - timedelta(seconds=1)).since == opens.replace(minute=10)
    found = due(policy, opens + timedelta(seconds=50))
    assert (found.half, found.since) == (Half.NIGHT, opens)


@given(st.integers(0, 366 * 24 * 3600), st.sampled_from([PARIS, ODD]))
def test_every_runner_names_the_same_turn_and_none_is_older_than_ten_minutes(second: int, windows: str) -> None:
    """Also while clocks are put forward and back."""
    now, policy = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second), policy_of(windows)
    found = due(policy, now)
    assert timedelta() <= now - found.since < EVERY
    assert found.half is half_of(policy, now) is half_of(policy, found.since)
    assert due(policy, found.since) == found
    assert (found.since.second, found.since.microsecond) == (0, 0)


def test_a_policy_that_no_clock_can_call_is_refused() -> None:
    with pytest.raises(UsageError, match="nights has no windows"):
        refuse_other_modes(policy_of("any"))
    with pytest.raises(UsageError, match="a runner plays nights"):
        refuse_other_modes(load_policy(ROOT / "templates" / "spare-policy.yaml"))
