"""HA admission control over the wire: it is read as it is set, and what gpuops refuses over it vCenter refuses too."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.api import run
from gpuops.execute.site import Site
from gpuops.model.vcenter.host import AdmissionControl
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.vm_blockers import PowerPolicy
from gpuops.sim.operations.host_admission import refuse_over_failover
from gpuops.sim.server import SimServer
from gpuops.sim.state.drs import HaAdmission
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long


def find_entity(server: SimServer, kind: str, name: str) -> Any:
    return next(entity for entity in server.world.by_type(kind) if entity.name == name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("admission", "read"),
    [
        (HaAdmission(failover_level=1), AdmissionControl(failover_level=1)),
        (HaAdmission(memory_percent=96), AdmissionControl(memory_percent=96, cpu_percent=96)),
        (HaAdmission(failover_hosts=("esx-01.lab",)), AdmissionControl(failover_hosts=("esx-01.lab",))),
        (HaAdmission(memory_percent=10), AdmissionControl(memory_percent=10, cpu_percent=10)),
        (HaAdmission(memory_percent=10, cpu_percent=98), AdmissionControl(memory_percent=10, cpu_percent=98)),
    ],
)
def test_what_is_refused_here_is_refused_there(
    lab: SimServer, tmp_path: Path, admission: HaAdmission, read: AdmissionControl
) -> None:
    host, vm = find_entity(lab, "HostSystem", "esx-01.lab"), find_entity(lab, "VirtualMachine", "ml-07")
    if admission.failover_hosts:
        admission, read = HaAdmission(failover_hosts=(host.moid,)), AdmissionControl(failover_hosts=(host.moid,))
    with lab.world.changed:
        cluster = host.compute_resource()
        cluster.drs.ha_enabled, cluster.drs.ha_admission = True, admission
        cluster.touch("configurationEx")
        vm.state.cpu_reservation_mhz = 24_000 if admission.cpu_percent else 0
    with Connection(target_of(lab)) as connection:
        site = Site(connection, tmp_path, lambda: datetime(2026, 11, 2, 18, tzinfo=UTC))
        (cluster_read,) = connection.inventory().clusters.values()
        assert cluster_read.admission == read
        report = run(Attach(vm="ml-07", profile="a100-3-20c", power=PowerPolicy.ON), site, apply=True)
    reasons = [str(rejection) for rejection in report.plan.rejections]
    if report.plan.feasible:
        assert not admission.cpu_percent, "it reserves more CPU than is not kept"
        assert report.exit_code == 0, "and the power-on was let through"
        return
    assert any("HA" in line for line in reasons), reasons
    vm.state.memory_locked = True
    with pytest.raises(vim.fault.InsufficientFailoverResourcesFault):
        refuse_over_failover(vm, host)


def test_without_admission_control_nothing_is_kept(lab: SimServer) -> None:
    with Connection(target_of(lab)) as connection:
        (cluster_read,) = connection.inventory().clusters.values()
    assert cluster_read.admission is None
