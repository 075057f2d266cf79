"""Faults of VMs (V): they cannot be suspended, are deleted and made anew, renamed, moved, reverted."""

from __future__ import annotations

import pytest
from pyVmomi import vim, vmodl

from tests.sim.lab import Lab
from tests.sim.wire.faults.clients import give, ledger_of_others


def sees_V1(lab: Lab) -> None:
    give(lab, "V1")
    with pytest.raises(vim.fault.NoDiskSpace):
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
    assert lab.power("vdi-01") == "poweredOn"


def sees_V2(lab: Lab) -> None:
    give(lab, "V2")
    with pytest.raises(vmodl.fault.NotSupported):
        lab.vm("vdi-01").SuspendVM_Task()


def sees_V3(lab: Lab) -> None:
    give(lab, "V3")
    slow = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(100)
    assert slow.info.state == "running"
    lab.let_pass(100)
    assert slow.info.state == "success"


def sees_V4(lab: Lab) -> None:
    give(lab, "V4", target="vdi-11")
    old = lab.vm("vdi-11")
    before = old.config.instanceUuid
    lab.vm("vdi-01").SuspendVM_Task()
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        old.runtime  # noqa: B018 - a read over the wire
    new = lab.vm("vdi-11")
    assert (new.config.instanceUuid == before, lab.power("vdi-11")) == (False, "poweredOff")
    assert ledger_of_others(lab)[-2:] == [("Destroy_Task", "vdi-11"), ("CreateVM_Task", "vdi-11")]


def sees_V5(lab: Lab) -> None:
    give(lab, "V5", target="vdi-02", for_s=100)
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.vm("vdi-02").runtime.connectionState == "inaccessible"
    lab.let_pass(101)
    assert lab.vm("vdi-02").runtime.connectionState == "connected"


def sees_V6(lab: Lab) -> None:
    give(lab, "V6", target="vdi-02")
    vm = lab.vm("vdi-02")
    lab.vm("vdi-01").SuspendVM_Task()
    assert vm.name == vm.config.name == "vdi-02-renamed"


def sees_V7(lab: Lab) -> None:
    give(lab, "V7", target="vdi-11")
    assert lab.power("vdi-11") == "suspended"
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.power("vdi-11") == "poweredOff"
    assert ledger_of_others(lab) == [("PowerOffVM_Task", "vdi-11")]


def sees_V8(lab: Lab) -> None:
    give(lab, "V8", target="vdi-11")
    with pytest.raises(vim.fault.GenericVmConfigFault):
        lab.run(lab.vm("vdi-11").PowerOnVM_Task())
    assert lab.power("vdi-11") == "suspended"


def sees_V10(lab: Lab) -> None:
    give(lab, "V10", target="vdi-02")
    vm = lab.vm("vdi-02")
    before = vm.parent.name
    lab.vm("vdi-01").SuspendVM_Task()
    assert vm.parent.name != before


def sees_V11(lab: Lab) -> None:
    give(lab, "V11", target="vdi-11")
    assert lab.power("vdi-11") == "suspended"
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.power("vdi-11") == "poweredOff"
    assert ledger_of_others(lab) == [("RevertToSnapshot_Task", "vdi-11")]


def sees_V12(lab: Lab) -> None:
    give(lab, "V12", target="vdi-02")
    assert lab.vm("vdi-02").config.managedBy is None
    lab.vm("vdi-01").SuspendVM_Task()
    managed = lab.vm("vdi-02").config.managedBy
    assert (managed.extensionKey, managed.type) == ("com.vmware.vcenter.wcp", "VirtualMachine")
    assert ledger_of_others(lab) == [("ReconfigVM_Task", "vdi-02")]


def sees_V13(lab: Lab) -> None:
    give(lab, "V13", target="vdi-02", for_s=600)
    lab.vm("vdi-01").SuspendVM_Task()
    lab.vm("vdi-02").ShutdownGuest()
    lab.let_pass(601)
    assert lab.power("vdi-02") == "poweredOn"
    lab.vm("vdi-02").ShutdownGuest()
    lab.let_pass(60)
    assert lab.power("vdi-02") == "poweredOff"


def sees_V9(lab: Lab) -> None:
    give(lab, "V9", target="vdi-02")
    vm = lab.vm("vdi-02")
    assert vm.summary.quickStats.overallCpuUsage < 500
    lab.vm("vdi-01").SuspendVM_Task()
    assert vm.summary.quickStats.overallCpuUsage == 5200
    assert vm.runtime.numMksConnections == 0


def sees_V14(lab: Lab) -> None:
    give(lab, "V14", target="vdi-0[27]", times=None)
    lab.world.deviations.add("clone-attributes")
    lab.si.content.customFieldsManager.AddCustomFieldDef("owner", vim.VirtualMachine)
    lab.vm("vdi-02").setCustomValue("owner", "office")
    lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(60)
    clone = lab.vm("vdi-02-copy")
    assert (clone.runtime.powerState, clone.customValue[-1].value) == ("poweredOn", "office")
    assert clone.config.instanceUuid != lab.vm("vdi-02").config.instanceUuid
    assert ("CloneVM_Task", "vdi-07-copy") in ledger_of_others(lab)
