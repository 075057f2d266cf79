"""Whether an ML VM runs by a later start than that of its night, and whether a desktop is in another suspended state,
by the moments that vCenter shows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuops.model.nights.night_record import Original, Role
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.rotation.power_moments import GRAIN, another_state, started_anew

STARTED = datetime(2026, 11, 2, 20, tzinfo=UTC)
LATER = STARTED + timedelta(hours=6)


@pytest.mark.parametrize(
    ("role", "power", "then", "now", "anew"),
    [
        (Role.ML, PowerState.ON, STARTED, LATER, True),
        (Role.ML, PowerState.ON, STARTED, STARTED + GRAIN, False),
        (Role.ML, PowerState.ON, STARTED, STARTED - GRAIN * 2, False),
        (Role.ML, PowerState.ON, None, LATER, False),
        (Role.ML, PowerState.ON, STARTED, None, False),
        (Role.ML, PowerState.OFF, STARTED, LATER, False),
        (Role.DESKTOP, PowerState.ON, STARTED, LATER, False),
    ],
)
def test_only_a_later_moment_of_an_ml_vm_that_runs_is_another_start(
    role: Role, power: PowerState, then: datetime | None, now: datetime | None, anew: bool
) -> None:
    original = Original("2026-11-02", role, "vm-1", "uuid-1", "ml-01", "host-1", taken=True, started_at=then)
    assert started_anew(original, Vm("vm-1", "ml-01", power=power, started_at=now)) is anew


@pytest.mark.parametrize(("role", "is_another"), [(Role.DESKTOP, True), (Role.SHUT_DOWN, False), (Role.ML, False)])
def test_only_a_desktop_that_its_night_suspended_is_in_another_suspended_state(role: Role, is_another: bool) -> None:
    original = Original("2026-11-02", role, "vm-1", "uuid-1", "desk-01", "host-1", taken=True, suspended_at=LATER)
    vm = Vm("vm-1", "desk-01", power=PowerState.SUSPENDED, suspended_at=STARTED)
    assert bool(another_state(original, vm)) is is_another
