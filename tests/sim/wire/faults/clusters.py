"""Faults of clusters and storage (C): hosts that are lost, VMs that move, datastores that are full."""

from __future__ import annotations

import pytest
from pyVmomi import vim, vmodl

from tests.sim.lab import Lab
from tests.sim.wire.faults.clients import give


def sees_C1(lab: Lab) -> None:
    give(lab, "C1", target="esx-02.lab")
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.host("esx-02.lab").runtime.connectionState == "notResponding"
    lab.let_pass(601)
    assert lab.host("esx-02.lab").runtime.connectionState == "connected"
    assert lab.power("vdi-07") == "poweredOff"


def sees_C2(lab: Lab) -> None:
    give(lab, "C2", target="esx-02.lab")
    lab.vm("vdi-01").SuspendVM_Task()
    [entering] = [task for task in lab.world.tasks.unfinished() if task.name == "EnterMaintenanceMode_Task"]
    assert entering.entity.display_name == "esx-02.lab"
    assert not lab.host("esx-02.lab").runtime.inMaintenanceMode


def sees_C3(lab: Lab) -> None:
    give(lab, "C3", target="vdi-01")
    lab.vm("vdi-02").SuspendVM_Task()
    assert lab.vm("vdi-01").runtime.host.name == "esx-02.lab"
    assert "vdi-01" in {vm for on_it in lab.gpus("esx-02.lab").values() for vm in on_it}


def sees_C4(lab: Lab) -> None:
    give(lab, "C4", target="vdi-11")
    lab.vm("vdi-01").SuspendVM_Task()
    assert (lab.power("vdi-11"), lab.vm("vdi-11").runtime.host.name) == ("suspended", "esx-01.lab")


def sees_C5(lab: Lab) -> None:
    give(lab, "C5")
    with pytest.raises(vim.fault.NoDiskSpace):
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
    assert lab.vm("vdi-01").datastore[0].summary.freeSpace == 0


def sees_C7(lab: Lab) -> None:
    give(lab, "C7", target="vdi-02")
    before = lab.vm("vdi-02").runtime.bootTime
    lab.let_pass(60)
    lab.vm("vdi-01").SuspendVM_Task()
    runtime = lab.vm("vdi-02").runtime
    assert (runtime.powerState, runtime.bootTime > before) == ("poweredOn", True)
    assert not lab.vm("vdi-02").recentTask


def sees_C6(lab: Lab) -> None:
    give(lab, "C6")
    with pytest.raises(vim.fault.NoCompatibleHost):
        lab.run(lab.vm("vdi-06").PowerOnVM_Task())


def sees_C8(lab: Lab) -> None:
    give(lab, "C8", target="*")
    lab.vm("vdi-01").SuspendVM_Task()
    [store] = lab.vm("vdi-02").datastore
    assert (store.summary.accessible, lab.vm("vdi-02").runtime.connectionState) == (False, "inaccessible")
    lab.let_pass(601)
    assert (store.summary.accessible, lab.vm("vdi-02").runtime.connectionState) == (True, "connected")


def sees_C9(lab: Lab) -> None:
    give(lab, "C9", target="esx-02.lab")
    old_vm, old_host = lab.vm("vdi-07"), lab.host("esx-02.lab")
    uuid, booted = old_vm.config.instanceUuid, old_vm.runtime.bootTime
    assert "vdi-07" in {vm for on_it in lab.gpus("esx-02.lab").values() for vm in on_it}
    lab.vm("vdi-01").SuspendVM_Task()
    for old_object in (old_vm, old_host):
        with pytest.raises(vmodl.fault.ManagedObjectNotFound):
            old_object.name  # noqa: B018 - a read over the wire
    vm = lab.vm("vdi-07")
    assert (vm.config.instanceUuid, vm.runtime.bootTime, vm.runtime.powerState) == (uuid, booted, "poweredOn")
    assert (vm.customValue, vm.parent.name) == ([], "Discovered virtual machine")
    assert vm.runtime.host._moId == lab.host("esx-02.lab")._moId
    assert "vdi-07" in {vm for on_it in lab.gpus("esx-02.lab").values() for vm in on_it}
