"""Relocate, migrate, clone, destroy, snapshots and trials of moves; and what happens without any client."""

from __future__ import annotations

from typing import Any

import pytest
from pyVmomi import vim, vmodl

from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.operations.vms import power
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from gpuops.sim.scenario.build import build
from gpuops.sim.state.board import GpuMode
from gpuops.sim.state.drs import ClusterRule, Group, HaAdmission
from gpuops.sim.state.host_state import GpuFault
from gpuops.sim.state.vm_state import Power
from gpuops.sim.world import World
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
    with pytest.raises(vim.fault.HostConfigFault, match="supports no override of vendor"):
        label.name = "vendor"
        manager.UpdateAssignableHardwareConfig(vim.host.AssignableHardwareConfig(attributeOverride=[label]))


def revert(lab: Lab, name: str, to: str) -> None:
    happening = f"vm.reverted_to_{to}"
    vms = [vm for vm in lab.world.by_type("VirtualMachine") if vm.name == name]
    with lab.world.lock:
        OUTSIDE_EVENTS[happening].strike(lab.world, vms, Rule(Effect.HAPPEN, happening=happening))


@pytest.mark.parametrize("name", ["vdi-01", "vdi-11"], ids=["running", "suspended"])
def test_its_power_is_that_of_the_snapshot(lab: Lab, name: str) -> None:
    for to, power_state in (("off", "poweredOff"), ("suspended", "suspended"), ("running", "poweredOn")):
        revert(lab, name, to)
        assert lab.power(name) == power_state
    assert lab.seats(name), "it runs on a GPU again"


@pytest.mark.long
def test_its_suspended_state_is_that_of_the_snapshot(lab: Lab) -> None:
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    since = lab.vm("vdi-01").runtime.suspendTime
    revert(lab, "vdi-01", "suspended")
    assert lab.vm("vdi-01").runtime.suspendTime < since


def test_its_space_on_the_datastore_is_free_again(lab: Lab) -> None:
    free = lab.vm("vdi-01").datastore[0].summary.freeSpace
    revert(lab, "vdi-01", "suspended")
    assert lab.vm("vdi-01").datastore[0].summary.freeSpace < free
    revert(lab, "vdi-01", "off")
    assert lab.vm("vdi-01").datastore[0].summary.freeSpace == free


@pytest.mark.long
def test_one_whose_gpu_is_taken_meanwhile_stays_suspended(lab: Lab) -> None:
    lab.attach("ml-07", *["grid_a100-3-20c"] * 4)
    lab.power_on("ml-07")
    revert(lab, "ml-07", "suspended")
    lab.power_on("ml-01", "esx-01.lab")
    revert(lab, "ml-07", "running")
    assert lab.power("ml-07") == "suspended"


def test_a_vm_that_has_a_task_is_not_reverted(lab: Lab) -> None:
    task = lab.vm("vdi-11").PowerOnVM_Task()
    revert(lab, "vdi-11", "off")
    lab.run(task)
    assert lab.power("vdi-11") == "poweredOn"


@pytest.fixture
def world() -> World:
    return build("lab")


def find_entity(world: World, kind: str, name: str) -> Any:
    return next(entity for entity in world.by_type(kind) if entity.name == name)


def power_of(vm: Any) -> Power:
    power: Power = vm.state.power
    return power


def strike(world: World, happening: str, *targets: Any, for_s: float = 0.0) -> None:
    OUTSIDE_EVENTS[happening].strike(world, targets, Rule(Effect.HAPPEN, happening=happening, for_s=for_s))


def test_vsphere_ha_starts_a_vm_anew_without_a_task(world: World) -> None:
    vm = find_entity(world, "VirtualMachine", "vdi-07")
    with world.lock:
        booted = vm.state.boot_time
        tasks = len(list(world.tasks.readable()))
        world.clock.advance(60)
        strike(world, "vm.restarted_by_ha", vm)
        assert vm.state.power is Power.ON and vm.state.boot_time != booted
        assert len(list(world.tasks.readable())) == tasks


def test_a_guest_that_ignores_a_shutdown_goes_on_until_it_listens_again(world: World) -> None:
    vm = find_entity(world, "VirtualMachine", "vdi-07")
    with world.lock:
        strike(world, "vm.ignores_shutdown", vm, for_s=600)
        power.shut_down_guest(vm, somebody(world, "ShutdownGuest"))
        world.clock.advance(590)
        assert power_of(vm) is Power.ON
        world.clock.advance(20)
        power.shut_down_guest(vm, somebody(world, "ShutdownGuest"))
        world.clock.advance(60)
        assert power_of(vm) is Power.OFF


def test_vgpu_types_disappear_with_a_driver_and_come_back_with_it(world: World) -> None:
    host = find_entity(world, "HostSystem", "esx-02.lab")

    def types() -> set[str]:
        return {type_.name for gpu in host.state.gpus for type_ in gpu.board.types}

    with world.lock:
        strike(world, "host.other_driver", host, for_s=3600)
        assert "nvidia_a40-8q" not in types() and "nvidia_a40-4q" in types()
        world.clock.advance(3601)
        assert "nvidia_a40-8q" in types()


def test_gpus_that_can_take_mixed_sizes_from_then_on(world: World) -> None:
    host = find_entity(world, "HostSystem", "esx-02.lab")
    with world.lock:
        strike(world, "gpu.mixed_size", host, for_s=60)
        modes = {gpu.mode for gpu in host.state.gpus if gpu.board.mixed_size}
        assert modes == {GpuMode.MIXED_SIZE}


def test_a_password_that_changes_is_refused_and_open_sessions_go_on(world: World) -> None:
    world.sessions.passwords["me"] = "mine"
    with world.lock:
        session = world.sessions.open("me", "en")
        strike(world, "password.changed", for_s=60)
        assert not world.sessions.accepts("me", "mine")
        assert session in list(world.sessions)
        world.clock.advance(61)
        assert world.sessions.accepts("me", "mine")


def test_a_lost_gpu_stays_listed_takes_nothing_and_is_back_after_a_boot(world: World) -> None:
    host = find_entity(world, "HostSystem", "esx-02.lab")
    with world.lock:
        host.state.gpus[0].faults = frozenset({GpuFault.CORRUPT_INFOROM})
        listed = len(host.state.gpus)
        strike(world, "gpu.lost", host)
        assert power_of(find_entity(world, "VirtualMachine", "vdi-07")) is Power.OFF, "it was on this GPU"
        assert host.state.gpus[0].faults == {GpuFault.CORRUPT_INFOROM, GpuFault.LOST}
        assert len(host.state.gpus) == listed
        strike(world, "host.crashed", host, for_s=60)
        world.clock.advance(61)
        assert host.state.gpus[0].faults == {GpuFault.CORRUPT_INFOROM}


def test_a_host_that_is_added_again_brings_its_vms_along_under_other_ids(world: World) -> None:
    host, vm = find_entity(world, "HostSystem", "esx-02.lab"), find_entity(world, "VirtualMachine", "vdi-07")
    names, seats, free_mib = {vm.name for vm in host.vms()}, vm.state.seats, vm.datastore().free_mib
    with world.lock:
        strike(world, "host.readded", host)
        readded_host, entered = (
            find_entity(world, "HostSystem", "esx-02.lab"),
            find_entity(world, "VirtualMachine", "vdi-07"),
        )
        assert readded_host.moid != host.moid and entered.moid != vm.moid
        assert {vm.name for vm in readded_host.vms()} == names
        assert power_of(entered) is Power.ON and len(entered.state.seats) == len(seats)
        assert {seat.vm for seat in readded_host.seats()} >= {entered.moid} and vm.moid not in {
            s.vm for s in readded_host.seats()
        }
        assert entered.datastore().free_mib == free_mib
        assert world.find(vm.moid) is None and world.find(host.moid) is None
        power.suspend(entered, somebody(world, "SuspendVM_Task"))
        world.clock.advance(300)
        assert power_of(entered) is Power.SUSPENDED


def test_a_clone_is_off_if_its_source_is_and_made_once(world: World) -> None:
    vm = find_entity(world, "VirtualMachine", "ml-01")
    with world.lock:
        strike(world, "vm.cloned", vm, vm)
        clones = [vm for vm in world.by_type("VirtualMachine") if vm.name == "ml-01-copy"]
        assert [(power_of(clone), clone.state.devices, clone.attributes) for clone in clones] == [(Power.OFF, (), {})]
