"""Which turn of a policy is due at a moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.config.policy import load_policy, parse_policy
from gpuops.errors import UsageError
from gpuops.extras.fleet.runner.due import EVERY, due, half_of, refuse_clash, refuse_other_modes, waits
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.nights.runners import Half


def policy_of(windows: str, name: str = "nights") -> Policy:
    text = f"""
version: 1
name: {name}
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


def with_defrag(policy: Policy, window: str) -> Policy:
    """Return the policy with two moves in this window."""
    return parse_policy(f"{policy.text}defrag: {{budget: 2, windows: ['{window}']}}", "policy.yaml")


def test_a_defrag_in_a_night_of_another_policy_is_refused() -> None:
    now = datetime(2026, 11, 2, tzinfo=UTC)
    moving = with_defrag(policy_of(PARIS, "moving"), "Sat 12:00-14:00 Europe/Paris")
    saturday_night = policy_of('[{opens: "Sat 13:00", closes: "Sat 16:00", zone: Europe/Paris}]', "saturday")
    sunday_night = policy_of('[{opens: "Sun 13:00", closes: "Sun 16:00", zone: Europe/Paris}]', "sunday")
    refuse_clash([moving, sunday_night], now)
    with pytest.raises(UsageError, match="`defrag` of moving moves VMs from 2026-10-31 11:00 UTC on, in"):
        refuse_clash([saturday_night, moving], now)


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
    due_turn = due(policy_of(PARIS), datetime.fromisoformat(now))
    assert (due_turn.half, due_turn.since) == (half, datetime.fromisoformat(since))


def test_a_window_that_opens_between_two_tenths_is_a_turn_of_its_own() -> None:
    opens = datetime(2026, 11, 3, 1, 17, tzinfo=UTC)
    policy = policy_of(ODD)
    assert due(policy, opens - timedelta(seconds=1)).since == opens.replace(minute=10)
    due_turn = due(policy, opens + timedelta(seconds=50))
    assert (due_turn.half, due_turn.since) == (Half.NIGHT, opens)


@pytest.mark.long
@given(st.integers(0, 366 * 24 * 3600), st.sampled_from([PARIS, ODD]))
def test_every_runner_names_the_same_turn_and_none_is_older_than_ten_minutes(second: int, windows: str) -> None:
    """Also while clocks are put forward and back."""
    now, policy = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second), policy_of(windows)
    due_turn = due(policy, now)
    assert timedelta() <= now - due_turn.since < EVERY
    assert due_turn.half is half_of(policy, now) is half_of(policy, due_turn.since)
    assert due(policy, due_turn.since) == due_turn
    assert (due_turn.since.second, due_turn.since.microsecond) == (0, 0)


def test_a_policy_that_no_clock_can_call_is_refused() -> None:
    with pytest.raises(UsageError, match="nights has no windows"):
        refuse_other_modes(policy_of("any"))
    with pytest.raises(UsageError, match="a runner plays only nights"):
        refuse_other_modes(load_policy(ROOT / "templates" / "spare-policy.yaml"))


@pytest.mark.parametrize(
    ("other_policy", "clashes"),
    [
        (PARIS, False),
        ('[{opens: "23:00", closes: "05:30", zone: Europe/Paris}]', False),
        ('[{opens: "07:00", closes: "09:00", back_by: "10:00", zone: Europe/Paris}]', False),
        ('[{opens: "20:00", closes: "21:00", back_by: "21:30", zone: Europe/Paris}]', False),
        ('[{opens: "20:00", closes: "23:00", zone: Europe/Paris}]', True),
        ('[{opens: "06:00", closes: "09:00", zone: Europe/Paris}]', True),
        ('[{opens: "22:00", closes: "05:30", back_by: "07:00", zone: Europe/London}]', True),
        # in some weeks of a year alone clocks of these two are not six hours apart
        ('[{opens: "01:00", closes: "02:30", back_by: "03:00", zone: America/New_York}]', True),
    ],
)
def test_no_return_of_a_policy_is_due_while_a_window_of_another_is_open(other_policy: str, clashes: bool) -> None:
    policies = [policy_of(PARIS), policy_of(other_policy, "others")]
    now = datetime(2026, 11, 2, 12, tzinfo=UTC)
    if clashes:
        with pytest.raises(UsageError, match="a return ends every night of its vCenter"):
            refuse_clash(policies, now)
    else:
        refuse_clash(policies, now)


def test_a_return_waits_until_no_window_of_its_vcenter_is_open() -> None:
    early, late = policy_of('[{opens: "20:00", closes: "22:00", zone: UTC}]'), policy_of(PARIS, "others")
    at_night = datetime(2026, 11, 2, 23, tzinfo=UTC)
    assert half_of(early, at_night) is Half.DAY
    assert waits(Half.DAY, [early, late], at_night)
    assert not waits(Half.NIGHT, [early, late], at_night)
    assert not waits(Half.DAY, [early, late], at_night + timedelta(hours=8))
