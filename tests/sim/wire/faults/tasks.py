"""Faults of the API and of tasks (A): foreign tasks, and tasks that hang, are forgotten or reported late."""

from __future__ import annotations

import pytest
from pyVmomi import vim, vmodl

from gpuops.sim.core.object_store import OTHER_USER
from tests.sim.lab import Lab, Q
from tests.sim.wire.faults.clients import give, powers


def sees_A1(lab: Lab) -> None:
    give(lab, "A1", target="vdi-01")
    powers(lab, "vdi-01")
    suspend = lab.vm("vdi-01").SuspendVM_Task()
    first, last = lab.vm("vdi-01").recentTask
    assert (first.info.state, first.info.reason.userName) == ("running", OTHER_USER)
    assert (last, suspend.info.state) == (suspend, "queued")


def sees_A2(lab: Lab) -> None:
    give(lab, "A2")
    with pytest.raises(vim.fault.ConcurrentAccess):
        lab.vm("ml-07").ReconfigVM_Task(vim.vm.ConfigSpec(annotation="x"))


def sees_A3(lab: Lab) -> None:
    give(lab, "A3", fault="GenericVmConfigFault", method="SuspendVM_Task")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(9)
    assert isinstance(task.info.error, vim.fault.GenericVmConfigFault)
    assert lab.power("vdi-01") == "poweredOn"


def sees_A4(lab: Lab) -> None:
    give(lab, "A4")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(1500)
    assert (task.info.state, lab.power("vdi-01")) == ("running", "poweredOn")


def sees_A5(lab: Lab) -> None:
    give(lab, "A5")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(600)
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        task.info  # noqa: B018 - a read over the wire
    assert lab.power("vdi-01") == "suspended"


def sees_A6(lab: Lab) -> None:
    give(lab, "A6")
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    assert lab.power("vdi-01") == "poweredOn"
    lab.let_pass(31)
    assert lab.power("vdi-01") == "suspended"


def sees_A7(lab: Lab) -> None:
    give(lab, "A7")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(500)
    assert (task.info.state, task.info.startTime) == ("queued", None)
    lab.let_pass(200)
    assert task.info.state == "success"


def sees_A8(lab: Lab) -> None:
    give(lab, "A8")
    off = lab.vm("vdi-06")
    result = lab.run(lab.datacenter().PowerOnMultiVM_Task([off]))
    assert [(not_attempted.vm, type(not_attempted.fault)) for not_attempted in result.notAttempted] == [
        (off, vim.fault.NoCompatibleHost)
    ]


def sees_A9(lab: Lab) -> None:
    give(lab, "A9")
    vm = lab.vm("vdi-06")
    task = vm.PowerOnVM_Task()
    lab.let_pass(600)
    asked_of = vm.runtime.question
    assert (task.info.state, asked_of.id) == ("running", "msg.hbacommon.outofspace")
    vm.AnswerVM(asked_of.id, "0")
    lab.let_pass(10)
    assert (task.info.state, lab.power("vdi-06")) == ("success", "poweredOn")


def sees_A10(lab: Lab) -> None:
    give(lab, "A10")
    [content] = powers(lab, "vdi-01")
    assert [prop.name for prop in content.propSet] == ["name"]
    assert not content.missingSet


def sees_A11(lab: Lab) -> None:
    assert lab.power("vdi-01") == "poweredOn"
    give(lab, "A11", target="vdi-01")
    task = lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(60)
    assert (task.info.state, lab.power("vdi-01")) == ("success", "poweredOn")
    lab.let_pass(60)
    assert lab.power("vdi-01") == "suspended"


def sees_A12(lab: Lab) -> None:
    give(lab, "A12", target="vdi-12")
    lab.world.page_limit = 5
    view = lab.si.content.viewManager.CreateContainerView(lab.si.content.rootFolder, [vim.VirtualMachine], True)
    walk = Q.TraversalSpec(type=vim.view.ContainerView, path="view")
    names = Q.PropertySpec(type=vim.VirtualMachine, pathSet=["name"])
    spec = Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=view, skip=True, selectSet=[walk])], propSet=[names])
    collector = lab.si.content.propertyCollector
    page = collector.RetrievePropertiesEx([spec], Q.RetrieveOptions())
    vm_names = []
    while page is not None:
        vm_names += [content.propSet[0].val for content in page.objects if content.propSet]
        page = collector.ContinueRetrievePropertiesEx(page.token) if page.token else None
    assert "vdi-12" not in vm_names
    assert {"vdi-01", "ml-07", "twin"} <= set(vm_names)
