"""Trials of moves, PlaceVm, and hardware labels."""

from __future__ import annotations

import pytest
from pyVmomi import vim

from tests.sim.lab import Lab


def test_a_trial_of_a_move_names_the_fault_of_the_move_and_changes_nothing(lab: Lab) -> None:
    checker, vm = lab.si.content.vmProvisioningChecker, lab.vm("vdi-01")
    [migrate] = lab.run(checker.CheckMigrate_Task(vm, lab.host("esx-02.lab")))
    [relocate] = lab.run(checker.CheckRelocate_Task(vm, vim.vm.RelocateSpec(host=lab.host("esx-02.lab"))))
    with pytest.raises(vim.fault.DisallowedMigrationDeviceAttached) as refused:
        lab.run(vm.MigrateVM_Task(host=lab.host("esx-02.lab"), priority="defaultPriority"))
    for trial in (migrate, relocate):
        assert [(type(error), error.msg) for error in trial.error] == [(type(refused.value), refused.value.msg)]
    results = lab.run(checker.QueryVMotionCompatibilityEx_Task([lab.vm("bare"), vm], [lab.host("esx-02.lab")]))
    assert [(check_result.vm.name, len(check_result.error)) for check_result in results] == [("bare", 0), ("vdi-01", 1)]
    compatible = lab.run(lab.si.content.vmCompatibilityChecker.CheckCompatibility_Task(lab.vm("bare")))
    assert [(check_result.host.name, list(check_result.error)) for check_result in compatible] == [
        ("esx-01.lab", []),
        ("esx-02.lab", []),
    ]
    assert len(lab.world.ledger) == 0


def test_a_cluster_recommends_no_host_for_a_vgpu_vm_that_cannot_move(lab: Lab) -> None:
    esx_02 = lab.host("esx-02.lab")
    moved = lab.cluster().PlaceVm(vim.cluster.PlacementSpec(vm=lab.vm("bare"), hosts=[esx_02]))
    assert [recommendation.action[0].targetHost for recommendation in moved.recommendations] == [esx_02]
    refused = lab.cluster().PlaceVm(vim.cluster.PlacementSpec(vm=lab.vm("vdi-01"), hosts=[esx_02]))
    assert refused.recommendations == []
    [faults] = refused.drsFault.faultsByVm
    assert [type(fault) for fault in faults.fault] == [vim.fault.DisallowedMigrationDeviceAttached]


def test_a_hardware_label_is_the_one_that_dynamic_direct_path_asks_for(lab: Lab) -> None:
    host = lab.host("esx-01.lab")
    manager = host.configManager.assignableHardwareManager
    label = vim.host.AssignableHardwareConfig.AttributeOverride(
        instanceId="pcie-0000:3b:00.0", name="hardwareLabel", value="training"
    )
    manager.UpdateAssignableHardwareConfig(vim.host.AssignableHardwareConfig(attributeOverride=[label]))
    labels = {gpu.id: gpu.hardwareLabel for gpu in host.config.pciPassthruInfo if gpu.hardwareLabel}
    assert labels == {"0000:3b:00.0": "training"}
    [override] = host.config.assignableHardwareConfig.attributeOverride
    assert (override.instanceId, override.value) == ("pcie-0000:3b:00.0", "training")
    manager.UpdateAssignableHardwareConfig(vim.host.AssignableHardwareConfig())
    assert list(manager.config.attributeOverride) == []
    with pytest.raises(vim.fault.HostConfigFault, match="keeps no override of vendor"):
        label.name = "vendor"
        manager.UpdateAssignableHardwareConfig(vim.host.AssignableHardwareConfig(attributeOverride=[label]))
