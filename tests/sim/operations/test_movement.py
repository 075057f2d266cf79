"""Relocate, migrate, clone, destroy, templates, folders and snapshots through real pyVmomi."""

from __future__ import annotations

import pytest
from pyVmomi import vim, vmodl

from gpuops.sim.state.drs import ClusterRule, Group, HaAdmission
from tests.sim.lab import Lab


def relocate(lab: Lab, name: str, host: str) -> None:
    lab.run(lab.vm(name).RelocateVM_Task(vim.vm.RelocateSpec(host=lab.host(host))))


def migrate(lab: Lab, name: str, host: str) -> None:
    lab.run(lab.vm(name).MigrateVM_Task(host=lab.host(host), priority="defaultPriority"))


def test_cold_move_changes_the_registration(lab: Lab) -> None:
    relocate(lab, "ml-07", "esx-02.lab")
    vm = lab.vm("ml-07")
    assert vm.runtime.host == lab.host("esx-02.lab")
    assert vm in lab.host("esx-02.lab").vm
    assert vm not in lab.host("esx-01.lab").vm
    (entry,) = lab.world.ledger
    assert (entry.before, entry.after) == (
        {"host": lab.host("esx-01.lab")._moId},
        {"host": lab.host("esx-02.lab")._moId},
    )


@pytest.mark.long
def test_suspended_vm_moves_cold_and_resumes_there(lab: Lab) -> None:
    migrate(lab, "vdi-11", "esx-01.lab")
    lab.power_on("vdi-11", "esx-01.lab")
    assert "vdi-11" in lab.gpus("esx-01.lab")["0000:d8:00.0"]


@pytest.mark.long
def test_vmotion_of_a_vgpu_needs_the_vcenter_setting(lab: Lab) -> None:
    with pytest.raises(vim.fault.MigrationFault, match=r"vgpu\.hotmigrate\.enabled"):
        migrate(lab, "vdi-01", "esx-02.lab")
    setting = vim.option.OptionValue(key="vgpu.hotmigrate.enabled", value=True)
    lab.si.content.setting.UpdateOptions([setting])
    migrate(lab, "vdi-01", "esx-02.lab")
    assert "vdi-01" in lab.gpus("esx-02.lab")["0000:3b:00.0"]
    assert "vdi-01" not in lab.gpus("esx-01.lab")["0000:d8:00.0"]


@pytest.mark.long
def test_vmotion_is_an_admission(lab: Lab) -> None:
    lab.world.options["vgpu.hotmigrate.enabled"] = True
    for name in ("vdi-11", "vdi-12"):
        lab.power_on(name, "esx-02.lab")
    migrate(lab, "vdi-01", "esx-02.lab")
    assert lab.gpus("esx-02.lab")["0000:af:00.0"] == ["vdi-01"]
    lab.attach("ml-07", "nvidia_a40-48c")
    for name in ("vdi-01", "vdi-02", "vdi-03", "vdi-04", "vdi-05"):
        lab.power_off(name)
    lab.power_on("ml-07", "esx-01.lab")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        migrate(lab, "vdi-07", "esx-01.lab")
    assert "vdi-07" in lab.gpus("esx-02.lab")["0000:3b:00.0"]


@pytest.mark.long
@pytest.mark.parametrize(("tolerated", "moves"), [("10", False), ("11", True), ("", True)])
def test_vmotion_whose_estimated_stun_is_too_long_is_refused(lab: Lab, tolerated: str, moves: bool) -> None:
    """The estimate is that of the config target: 11 s for 8 GiB."""
    lab.world.options["vgpu.hotmigrate.enabled"] = True
    cluster = lab.world.get(lab.cluster()._moId)
    cluster.drs.options["VmDevicesStunTimeTolerated"] = tolerated
    target = lab.cluster().environmentBrowser.QueryConfigTarget(lab.host("esx-01.lab"))
    [profile] = [offered for offered in target.vgpuProfileInfo if offered.profileName == "nvidia_a40-8q"]
    assert [(offered.migrationBW, offered.stunTime) for offered in profile.stunTimeEstimates] == [(10_000, 11)]
    if moves:
        migrate(lab, "vdi-01", "esx-02.lab")
        return
    with pytest.raises(vim.fault.DisallowedMigrationDeviceAttached, match=r"11 s exceeds the limit of 10 s"):
        migrate(lab, "vdi-01", "esx-02.lab")


@pytest.mark.long
def test_direct_path_vm_is_not_migrated_live(lab: Lab) -> None:
    lab.power_on("ml-03")
    with pytest.raises(vim.fault.DisallowedMigrationDeviceAttached):
        migrate(lab, "ml-03", "esx-01.lab")


@pytest.mark.long
def test_clone_is_off_and_is_its_own_machine(lab: Lab) -> None:
    folder, pool = lab.vm("ml-01").parent, lab.vm("ml-01").resourcePool
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=pool), template=False, powerOn=False)
    clone = lab.run(lab.vm("ml-01").CloneVM_Task(folder, "copy-01", spec))
    assert (clone.name, clone.runtime.powerState) == ("copy-01", "poweredOff")
    assert clone.config.instanceUuid != lab.vm("ml-01").config.instanceUuid
    assert len(lab.passthrough("copy-01")) == 1
    with pytest.raises(vim.fault.DuplicateName):
        lab.run(lab.vm("ml-01").CloneVM_Task(folder, "copy-01", spec))


@pytest.mark.long
def test_template_becomes_a_vm_by_cloning(lab: Lab) -> None:
    location = vim.vm.RelocateSpec(pool=lab.vm("ml-01").resourcePool, host=lab.host("esx-02.lab"))
    spec = vim.vm.CloneSpec(location=location, template=False, powerOn=True)
    clone = lab.run(lab.vm("golden").CloneVM_Task(lab.vm("vdi-01").parent, "vdi-13", spec))
    assert clone.config.template is False
    assert clone.runtime.host == lab.host("esx-02.lab")
    lab.let_pass(60)
    assert clone.runtime.powerState == "poweredOn"


@pytest.mark.long
def test_template_has_no_pool_and_gets_one_back(lab: Lab) -> None:
    pool = lab.vm("ml-08").resourcePool
    lab.vm("ml-08").MarkAsTemplate()
    assert lab.vm("ml-08").resourcePool is None
    assert lab.vm("ml-08") not in pool.vm
    with pytest.raises(vmodl.fault.NotSupported):
        lab.vm("ml-08").MarkAsTemplate()
    lab.vm("ml-08").MarkAsVirtualMachine(pool=pool, host=None)
    assert lab.vm("ml-08").resourcePool == pool


@pytest.mark.long
def test_destroyed_vm_is_gone_everywhere(lab: Lab) -> None:
    vm, folder, pool, host = (lab.vm("snapped"), lab.vm("snapped").parent, lab.vm("snapped").resourcePool, "esx-01.lab")
    lab.run(vm.Destroy_Task())
    for listed in (folder.childEntity, pool.vm, lab.host(host).vm, lab.datacenter().datastore[0].vm):
        assert vm not in listed
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        print(vm.name)


@pytest.mark.long
def test_destroyed_vm_leaves_no_override_behind(lab: Lab) -> None:
    override = vim.cluster.DrsVmConfigInfo(key=lab.vm("snapped"), behavior="manual")
    spec = vim.cluster.ConfigSpecEx(drsVmConfigSpec=[vim.cluster.DrsVmConfigSpec(operation="add", info=override)])
    lab.run(lab.cluster().ReconfigureComputeResource_Task(spec, True))
    lab.run(lab.vm("snapped").Destroy_Task())
    assert lab.cluster().configurationEx.drsVmConfig == []


@pytest.mark.long
def test_running_vm_is_not_destroyed(lab: Lab) -> None:
    with pytest.raises(vim.fault.InvalidPowerState):
        lab.run(lab.vm("vdi-01").Destroy_Task())


@pytest.mark.long
def test_folder_is_made_and_filled(lab: Lab) -> None:
    folder = lab.datacenter().vmFolder.CreateFolder("night")
    lab.run(folder.MoveIntoFolder_Task([lab.vm("ml-07")]))
    assert lab.vm("ml-07").parent == folder
    assert [child.name for child in folder.childEntity] == ["ml-07"]
    with pytest.raises(vim.fault.DuplicateName):
        lab.datacenter().vmFolder.CreateFolder("night")


@pytest.mark.long
def test_snapshots_form_a_tree_and_leave_it(lab: Lab) -> None:
    vm = lab.vm("snapped")
    (first,) = vm.snapshot.rootSnapshotList
    second = lab.run(vm.CreateSnapshot_Task("second", "", memory=False, quiesce=False))
    assert [child.name for child in vm.snapshot.rootSnapshotList[0].childSnapshotList] == ["second"]
    lab.run(first.snapshot.RemoveSnapshot_Task(removeChildren=False))
    assert vm.snapshot.currentSnapshot == second
    assert [tree.name for tree in vm.snapshot.rootSnapshotList] == ["second"]
    lab.run(vm.RemoveAllSnapshots_Task())
    assert vm.snapshot is None


@pytest.mark.long
def test_running_direct_path_vm_takes_no_snapshot(lab: Lab) -> None:
    lab.power_on("ml-04")
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(lab.vm("ml-04").CreateSnapshot_Task("x", "", memory=False, quiesce=False))


@pytest.mark.long
def test_vmotion_obeys_rules_that_bind(lab: Lab) -> None:
    lab.world.options["vgpu.hotmigrate.enabled"] = True
    cluster = next(iter(lab.world.by_type("ClusterComputeResource")))
    host, vm = lab.host("esx-02.lab")._moId, lab.vm("vdi-01")._moId
    cluster.drs.groups = {"desks": Group("desks", False, (vm,)), "theirs": Group("theirs", True, (host,))}
    cluster.drs.rules = {1: ClusterRule(1, "off", "ClusterVmHostRuleInfo", True, True, (), "desks", None, "theirs")}
    with pytest.raises(vim.fault.VmHostAffinityRuleViolation):
        migrate(lab, "vdi-01", "esx-02.lab")
    cluster.drs.rules = {}
    migrate(lab, "vdi-01", "esx-02.lab")


@pytest.mark.long
def test_a_failover_host_takes_no_vmotion(lab: Lab) -> None:
    lab.world.options["vgpu.hotmigrate.enabled"] = True
    cluster = next(iter(lab.world.by_type("ClusterComputeResource")))
    cluster.drs.ha_enabled = True
    cluster.drs.ha_admission = HaAdmission(failover_hosts=(lab.host("esx-02.lab")._moId,))
    with pytest.raises(vim.fault.InsufficientFailoverResourcesFault):
        migrate(lab, "vdi-01", "esx-02.lab")
    migrate(lab, "vdi-07", "esx-01.lab")


@pytest.mark.long
@pytest.mark.parametrize("parameter", ["enable_uvm", "enable_debugging", "enable_profiling"])
def test_unified_memory_debugger_and_profiler_rule_out_vmotion(lab: Lab, parameter: str) -> None:
    lab.world.options["vgpu.hotmigrate.enabled"] = True
    state = lab.world.get(lab.vm("vdi-01")._moId).state
    state.extra_config = ((f"pciPassthru0.cfg.{parameter}", "1"),)
    with pytest.raises(vim.fault.DisallowedMigrationDeviceAttached):
        migrate(lab, "vdi-01", "esx-02.lab")
    state.extra_config = ((f"pciPassthru0.cfg.{parameter}", "0"),)
    migrate(lab, "vdi-01", "esx-02.lab")
