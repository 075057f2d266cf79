"""CPU that VMs reserve: what gpuops refuses over it vCenter refuses too, and the last MHz is given."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyVmomi import vim

from gpuops.api import run
from gpuops.execute.site import Site
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.operations.host_admission import admission
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of
from tests.wire.placement.test_headroom import find_entity

pytestmark = pytest.mark.long


@pytest.mark.parametrize("asked_mhz", [2_000, 2_001])
def test_what_is_refused_here_is_refused_there(lab: SimServer, tmp_path: Path, asked_mhz: int) -> None:
    desk, vm = find_entity(lab, "VirtualMachine", "vdi-01"), find_entity(lab, "VirtualMachine", "ml-07")
    host = find_entity(lab, "HostSystem", "esx-01.lab")
    with lab.world.changed:
        desk.state.cpu_reservation_mhz = host.state.model.capacity_mhz - 2_000
        vm.state.cpu_reservation_mhz = asked_mhz
    with Connection(target_of(lab)) as connection:
        site = Site(connection, tmp_path, lambda: datetime(2026, 11, 2, 18, tzinfo=UTC))
        report = run(Attach(vm="ml-07", profile="a100-3-20c", power=PowerPolicy.ON), site, apply=True)
    if asked_mhz == 2_000:
        assert report.exit_code == 0, "and the power-on was let through"
        return
    (reason,) = report.plan.rejections
    expected_reason = "esx-01.lab: CPU to reserve, beside what running VMs reserve: needs 2001 MHz, 2000 there"
    assert (report.exit_code, str(reason)) == (3, expected_reason)
    vm.state.memory_locked = True
    with pytest.raises(vim.fault.InsufficientCpuResourcesFault):
        admission(vm, host)
