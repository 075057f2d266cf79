"""A VM whose guest may run VMs of its own: read, named by doctor, refused by attach and by the host."""

from __future__ import annotations

import pytest
from pyVim.connect import Disconnect
from pyVim.task import WaitForTask
from pyVmomi import vim

from gpuops.clock import wall_clock
from gpuops.execute.site.site import catalog_of
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.examination import examine
from gpuops.plan.vm.attach import Attach
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.sim.lab import connect
from tests.wire.conftest import target_of

EXCLUDED = "exposes hardware virtualization to its guest, which excludes vGPUs and passthrough (Broadcom KB 437651)"


def test_nested_virtualization_excludes_gpus(lab: SimServer) -> None:
    client = connect(lab)
    machines = {
        vm.display_name: vim.VirtualMachine(vm.moid, client._stub) for vm in lab.world.by_type("VirtualMachine")
    }
    for name in ("ml-01", "ml-07"):
        WaitForTask(machines[name].ReconfigVM_Task(vim.vm.ConfigSpec(nestedHVEnabled=True)))
    with pytest.raises(vim.fault.VmConfigFault):
        WaitForTask(machines["ml-01"].PowerOnVM_Task())
    Disconnect(client)
    with Connection(target_of(lab)) as connection:
        inventory = connection.inventory()
    catalog = catalog_of(inventory)
    assert (inventory.find_vm("ml-01").nested_virtualization, inventory.find_vm("ml-02").nested_virtualization) == (
        True, False
    )  # fmt: skip
    errors = [
        str(finding) for finding in examine(inventory, catalog, Scope(), {}).findings if "KB 437651" in str(finding)
    ]
    assert len(errors) == 1 and "ml-01" in errors[0] and EXCLUDED in errors[0]
    plan = Attach("ml-07", profile="a100-3-20c").plan(inventory, catalog, wall_clock())
    assert [(refused.subject, refused.rule) for refused in plan.rejections] == [("ml-07", EXCLUDED)]
