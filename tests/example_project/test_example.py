"""Tests that a project with gpuops installed can have, with no conftest.py."""

import pytest
from pyVim.connect import SmartConnect
from pyVim.task import WaitForTask
from pyVmomi import vim


def test_a_vm_is_powered_on(simulated_vcenter):
    vcenter = SmartConnect(**simulated_vcenter.login)
    vm = vcenter.content.searchIndex.FindByInventoryPath("lab-dc/vm/ml/ml-07")
    WaitForTask(vm.PowerOn())
    assert [(entry.method, entry.name) for entry in simulated_vcenter.ledger] == [("PowerOnVM_Task", "ml-07")]


@pytest.mark.simulated_vcenter(scenario="vdi", faults=[{"effect": "task", "fault": "NoDiskSpace"}], tls=False)
def test_a_task_ends_in_the_fault_that_is_to_come(simulated_vcenter):
    vcenter = SmartConnect(**simulated_vcenter.login)
    vm = vcenter.content.searchIndex.FindByInventoryPath("vdi-dc/vm/ml/ml-01")
    with pytest.raises(vim.fault.NoDiskSpace):
        WaitForTask(vm.PowerOn())
    assert simulated_vcenter.ledger == ()
