"""Two policies that select the same desktops, over real SOAP: the floors of both hold while their nights are open.

`tests/execute/rotation/test_rotation.py` has the same on a small vCenter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.config.policy import parse_policy
from gpuops.model.nights.rotation_policy import Policy
from gpuops.sim.server import SimServer
from tests.wire.nights.test_rotation import Wire


def policy_of(name: str, floor: int, ml_vms: str) -> Policy:
    """A policy over 89 desktops that run, whose ML VMs need the GPUs of six desktops on their host each."""
    text = f"""
version: 1
name: {name}
windows: any
pools:
  - name: office
    parked: true
    floor: {floor}
    select: {{folder: vdi, name: "vdi-0[0-8]?"}}
    idle: {{cpu_below_mhz: 500}}
    owner: {{attribute: gpuops.owner, value: office}}
ml:
  queue: [{ml_vms}]
"""
    return parse_policy(text, name)


@pytest.fixture
def vdi_wire(serve: Callable[[str], SimServer], tmp_path: Path) -> Wire:
    return Wire(serve("vdi"), tmp_path / "state", policy_of("early", 61, "{vm: ml-01}, {vm: ml-02}"))


@pytest.mark.long
def test_the_floor_of_an_open_night_holds_for_another_policy(vdi_wire: Wire) -> None:
    assert vdi_wire.night().exit_code == 0
    assert len(vdi_wire.to_power("suspended")) == 12
    vdi_wire.policy = policy_of("late", 0, "{vm: ml-03}, {vm: ml-04}, {vm: ml-05}")
    late = vdi_wire.night()
    assert late.exit_code == 0
    assert len(vdi_wire.to_power("suspended")) == 18, "after 12 more six may go, for 61 of 89 stay running"
    assert "the floors of policy early hold as well: its night is open" in late.plan.because
    reasons = {choice.reason for choice in late.plan.choices if choice.subject.startswith("vdi-0")}
    assert "floor: 61 of pool office of policy early, whose night is open, stay running" in reasons
    assert vdi_wire.day().exit_code == 0


@pytest.mark.long
def test_a_floor_that_another_night_has_broken_is_named(vdi_wire: Wire) -> None:
    """The journal did not know the other policy when that night took its desktops."""
    early, vdi_wire.policy = vdi_wire.policy, policy_of("late", 0, "{vm: ml-03}, {vm: ml-04}, {vm: ml-05}")
    assert vdi_wire.night().exit_code == 0
    assert len(vdi_wire.to_power("suspended")) == 18
    vdi_wire.policy = policy_of("early", 75, "{vm: ml-01}, {vm: ml-02}")
    report = vdi_wire.night()
    assert len(vdi_wire.to_power("suspended")) == 18
    assert report.exit_code == 4
    [broken] = report.plan.unmet
    assert broken.subject == "pool office"
    assert broken.rule.startswith("floor: 75 must stay running, 71 do: night ")
    assert broken.rule.endswith(" of policy late has taken 18")
    vdi_wire.policy = early
    assert vdi_wire.night().exit_code == 0, "71 run, and 61 are its floor"
    assert vdi_wire.day().exit_code == 0
