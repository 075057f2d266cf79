"""Capacity of what a vCenter really shows, held against what it then really starts."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from gpuops.advise.capacity import Slots
from gpuops.api import capacity
from gpuops.clock import wall_clock
from gpuops.config.policy import load_policy, parse_policy
from gpuops.execute.site import Site
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.capacity.capacity_request import Capacity, CapacityRequest
from gpuops.plan.core.steps import SuspendVm
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

VDI_NIGHT = """
version: 1
name: vdi-night
pools:
  - name: office
    parked: true
    select: {folder: vdi}
    idle: {cpu_below_mhz: 500}
    owner: none
opt_out: {attribute: gpuops.opt-out}
"""


@pytest.fixture
def ask(serve: Callable[[str], SimServer], tmp_path: Path) -> Callable[..., Capacity]:
    def of(scenario: str, request: CapacityRequest | None = None, policy: Policy | None = None) -> Capacity:
        with Connection(target_of(serve(scenario))) as vcenter:
            site = Site(vcenter, tmp_path, wall_clock)
            return capacity(request or CapacityRequest(), vcenter.inventory(), site, policy)

    return of


def test_lab(ask: Callable[..., Capacity]) -> None:
    policy = load_policy(Path(str(files("gpuops.sim"))) / "scenarios" / "lab-policy.yaml")
    capacity_report = ask("lab", policy=policy)
    assert capacity_report.after is not None
    figures = [place.fits["nvidia_a40-48c"].slots for place in (capacity_report.now, capacity_report.after)]
    # 3b of esx-02 is emptied; d8 of esx-01 keeps three desktops that may not be taken
    assert (figures, capacity_report.desktops) == (
        [Slots(1, 1, figures[0].because), Slots(2, 2, figures[1].because)],
        6,
    )
    (devices,) = capacity_report.now.devices.items()
    assert (devices[0].label, devices[1].at_least) == ("l40s-ml", 2)


@pytest.mark.long
def test_vdi_after_the_night(ask: Callable[..., Capacity]) -> None:
    capacity_report = ask("vdi", policy=parse_policy(VDI_NIGHT, "vdi-night"))
    assert capacity_report.after is not None
    assert capacity_report.desktops == 90
    desktops = [place.fits["nvidia_a40-8q"].slots for place in (capacity_report.now, capacity_report.after)]
    # 20 A40 take 120; 104 desktops run, 14 of them busy, watched or opted out
    assert [(slots.at_least, slots.at_most) for slots in desktops] == [(16, 16), (106, 106)]
    assert capacity_report.now.fits["grid_a100-3-20c"].slots.at_least == 12


@pytest.mark.long
def test_what_is_said_of_the_night_is_what_vcenter_shows_afterwards(
    serve: Callable[[str], SimServer], tmp_path: Path
) -> None:
    policy = parse_policy(VDI_NIGHT, "vdi-night")
    with Connection(target_of(serve("vdi"))) as vcenter:
        site = Site(vcenter, tmp_path, wall_clock)
        before = vcenter.inventory()
        foretold = capacity(CapacityRequest(host="esx-01"), before, site, policy)
        host = before.find_host("esx-01")
        idle = [vm for vm in before.vms_on(host) if vm.cpu_usage_mhz == 60 and vm.console_connections == 0]
        suspended = [vm for vm in idle if vm.power is PowerState.ON and "gpuops.opt-out" not in vm.attributes]
        assert len(suspended) == foretold.desktops
        for vm in suspended:
            task = vcenter.submit(SuspendVm(vm.ref), before, "test")
            assert task is not None
            assert [end.error for end in vcenter.wait([task], 60)] == [None]
        observed = capacity(CapacityRequest(host="esx-01"), vcenter.inventory(), site)
    assert foretold.after is not None
    assert observed.now == foretold.after
