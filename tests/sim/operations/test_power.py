"""Power through real pyVmomi: admission of vGPUs and DirectPath devices, suspend, resume, guest operations."""

from __future__ import annotations

import pytest
from pyVmomi import vim, vmodl

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events import vm_events
from tests.sim.lab import Lab, P


@pytest.mark.long
def test_vgpu_vm_starts_on_a_free_gpu_instance_and_the_host_shows_it(lab: Lab) -> None:
    lab.attach("ml-07", "grid_a100-3-20c")
    lab.power_on("ml-07")
    assert lab.power("ml-07") == "poweredOn"
    assert lab.seats("ml-07") == [("0000:3b:00.0", "grid_a100-3-20c", 0)]
    assert lab.gpus("esx-01.lab")["0000:3b:00.0"] == ["ml-07"]
    assert lab.events("ml-07") == ["VmReconfiguredEvent", "VmStartingEvent", "VmPoweredOnEvent"]


@pytest.mark.long
def test_gpu_full_of_instances_refuses_the_next(lab: Lab) -> None:
    lab.attach("ml-07", *["grid_a100-3-20c"] * 4)
    lab.power_on("ml-07")
    assert [start for _, _, start in lab.seats("ml-07")] == [0, 4, 0, 4]
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault) as refused:
        lab.power_on("ml-01", "esx-01.lab")
    assert "no GPU instance left for grid_a100-3-20c" in refused.value.faultMessage[0].message
    assert lab.power("ml-01") == "poweredOff"
    assert lab.events("ml-01")[-1] == "VmFailedToPowerOnEvent"


@pytest.mark.long
def test_one_slot_is_left_on_the_desktops_gpu_and_not_two(lab: Lab) -> None:
    lab.power_on("vdi-06", "esx-01.lab")
    lab.attach("ml-07", "nvidia_a40-8c")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault, match="amount of graphics resource") as refused:
        lab.power_on("ml-07", "esx-01.lab")
    assert "0000:d8:00.0: 6 of 6 vGPUs run" in refused.value.faultMessage[0].message


def test_gpu_is_locked_to_the_size_that_runs_on_it(lab: Lab) -> None:
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault) as refused:
        lab.power_on("ml-06", "esx-01.lab")
    assert "locked to 8192 MiB" in refused.value.faultMessage[0].message
    offered = lab.host("esx-01.lab").config.sharedPassthruGpuTypes
    assert "nvidia_a40-8c" in offered
    assert "nvidia_a40-48c" not in offered


@pytest.mark.long
def test_drs_takes_another_host_when_the_own_one_refuses(lab: Lab) -> None:
    lab.power_on("ml-06")
    assert lab.seats("ml-06") == [("0000:af:00.0", "nvidia_a40-48c", 0)]
    assert lab.vm("ml-06").runtime.host == lab.host("esx-02.lab")


@pytest.mark.long
def test_mixed_size_gpu_takes_sizes_beside_each_other(lab: Lab) -> None:
    lab.attach("ml-08", "nvidia_a40-24c")
    lab.power_on("ml-08", "esx-02.lab")
    lab.attach("snapped", "nvidia_a40-12c")
    lab.power_on("snapped", "esx-02.lab")
    ((gpu, _, first),) = lab.seats("ml-08")
    ((beside, _, second),) = lab.seats("snapped")
    assert gpu == beside == "0000:af:00.0"
    assert first == 0
    assert second in (24, 36)


@pytest.mark.long
def test_pin_puts_the_vgpu_on_that_gpu(lab: Lab) -> None:
    pin = [vim.option.OptionValue(key="pciPassthru0.cfg.gpu-pci-id", value="0000:AF:00.0")]
    lab.attach("ml-07", "grid_a100-3-20c", extraConfig=pin)
    lab.power_on("ml-07", "esx-01.lab")
    assert lab.seats("ml-07") == [("0000:af:00.0", "grid_a100-3-20c", 0)]


@pytest.mark.long
def test_memory_must_be_reserved(lab: Lab) -> None:
    lab.attach("ml-07", "grid_a100-3-20c", memoryReservationLockedToMax=False)
    with pytest.raises(vim.fault.GenericVmConfigFault, match=r"should be equal to memsize \(65536\)"):
        lab.power_on("ml-07", "esx-01.lab")
    spec = vim.vm.ConfigSpec(memoryAllocation=vim.ResourceAllocationInfo(reservation=65536))
    lab.run(lab.vm("ml-07").ReconfigVM_Task(spec))
    lab.power_on("ml-07", "esx-01.lab")


@pytest.mark.long
def test_reservation_beyond_the_host_is_refused_with_numbers(lab: Lab) -> None:
    spec = vim.vm.ConfigSpec(memoryMB=1 << 20, memoryReservationLockedToMax=True)
    lab.run(lab.vm("ml-07").ReconfigVM_Task(spec))
    with pytest.raises(vim.fault.InsufficientMemoryResourcesFault) as refused:
        lab.power_on("ml-07", "esx-01.lab")
    assert refused.value.requested == 1 << 40
    assert refused.value.unreserved == (1024 - 5 * 8) << 30


@pytest.mark.long
def test_suspend_frees_the_slot_and_resume_is_a_new_admission(lab: Lab) -> None:
    free = lab.vm("vdi-01").datastore[0].summary.freeSpace
    for number in range(1, 6):
        lab.run(lab.vm(f"vdi-{number:02}").SuspendVM_Task())
    suspended = lab.vm("vdi-01")
    assert suspended.runtime.powerState == "suspended"
    assert suspended.runtime.suspendTime is not None
    assert suspended.datastore[0].summary.freeSpace == free - 5 * (16 << 30)
    assert "suspendMemory" in {file.type for file in suspended.layoutEx.file}
    assert lab.gpus("esx-01.lab")["0000:d8:00.0"] == []
    lab.power_on("ml-06", "esx-01.lab")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.power_on("vdi-01", "esx-01.lab")
    assert lab.power("vdi-01") == "suspended"
    lab.power_off("ml-06")
    lab.power_on("vdi-01", "esx-01.lab")
    assert lab.power("vdi-01") == "poweredOn"
    assert lab.events("vdi-01")[-2:] == ["VmResumingEvent", "VmPoweredOnEvent"]


@pytest.mark.long
def test_suspend_takes_as_long_as_its_size_says_and_others_share_the_datastore(lab: Lab) -> None:
    alone = lab.vm("vdi-07").SuspendVM_Task()
    lab.run(alone)
    assert (alone.info.completeTime - alone.info.startTime).total_seconds() == pytest.approx(16, abs=1)
    first, second = lab.vm("vdi-08").SuspendVM_Task(), lab.vm("vdi-09").SuspendVM_Task()
    lab.run(second)
    assert (second.info.completeTime - second.info.startTime).total_seconds() == pytest.approx(32, abs=1)
    lab.run(first)


@pytest.mark.long
def test_suspend_needs_space_on_the_datastore(lab: Lab) -> None:
    next(lab.world.by_type("Datastore")).free_mib = 1024
    with pytest.raises(vim.fault.NoDiskSpace) as refused:
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
    assert refused.value.datastore == "lab-ds-1"
    assert lab.power("vdi-01") == "poweredOn"
    assert len(lab.world.ledger) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["ml-03", "ml-04", "ml-05"])
def test_direct_path_and_nvlink_vms_are_not_suspended(lab: Lab, name: str) -> None:
    lab.power_on(name)
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(lab.vm(name).SuspendVM_Task())
    assert lab.power(name) == "poweredOn"


@pytest.mark.long
def test_unified_memory_excludes_suspend(lab: Lab) -> None:
    uvm = [vim.option.OptionValue(key="pciPassthru0.cfg.enable_uvm", value="1")]
    lab.attach("ml-07", "grid_a100-7-40c", extraConfig=uvm)
    lab.power_on("ml-07")
    with pytest.raises(vmodl.fault.NotSupported, match="enable_uvm"):
        lab.run(lab.vm("ml-07").SuspendVM_Task())


@pytest.mark.long
def test_second_suspend_is_an_invalid_power_state(lab: Lab) -> None:
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    with pytest.raises(vim.fault.InvalidPowerState) as refused:
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
    assert refused.value.existingState == "suspended"


@pytest.mark.long
def test_power_off_of_a_suspended_vm_discards_its_state(lab: Lab) -> None:
    free = lab.vm("vdi-11").datastore[0].summary.freeSpace
    lab.power_off("vdi-11")
    assert lab.power("vdi-11") == "poweredOff"
    assert lab.vm("vdi-11").datastore[0].summary.freeSpace == free + (16 << 30)


@pytest.mark.long
def test_a_resume_whose_state_was_discarded_meanwhile_does_not_boot(lab: Lab) -> None:
    task = lab.vm("vdi-11").PowerOnVM_Task()
    vdi = next(vm for vm in lab.world.by_type("VirtualMachine") if vm.name == "vdi-11")
    vm_events.power_off(vdi, Rule(Effect.HAPPEN, "PowerOnVM_Task", happening="vm.stopped"))
    with pytest.raises(vim.fault.InvalidPowerState):
        lab.run(task)
    assert lab.power("vdi-11") == "poweredOff"


@pytest.mark.long
def test_nvlink_group_takes_both_gpus_together(lab: Lab) -> None:
    lab.power_on("ml-05")
    assert {gpu for gpu, _, _ in lab.seats("ml-05")} == {"0000:86:00.0", "0000:8a:00.0"}


@pytest.mark.long
def test_direct_path_device_has_one_holder(lab: Lab) -> None:
    lab.power_on("ml-03")
    bindings = [(binding.vm, binding.instanceId) for binding in lab.host("esx-02.lab").config.assignableHardwareBinding]
    assert bindings == [(lab.vm("ml-03"), "pcie-0000:5e:00.0")]
    target = next(
        passthrough
        for passthrough in lab.cluster().environmentBrowser.QueryConfigTarget(lab.host("esx-02.lab")).pciPassthrough
        if passthrough.pciDevice.id == "0000:5e:00.0"
    )
    _attach_static(lab, "ml-08", target, f"{target.pciDevice.deviceId & 0xFFFF:x}")
    with pytest.raises(vim.fault.GenericVmConfigFault, match="already in use"):
        lab.power_on("ml-08", "esx-02.lab")


@pytest.mark.long
def test_dynamic_device_takes_what_is_free_and_says_which(lab: Lab) -> None:
    lab.power_on("ml-03")
    lab.power_on("ml-04")
    (device,) = lab.passthrough("ml-04")
    assert device.backing.assignedId == "0000:d8:00.0"
    lab.power_off("ml-04")
    (device,) = lab.passthrough("ml-04")
    assert device.backing.assignedId is None


@pytest.mark.long
def test_decimal_device_id_passes_the_reconfigure_and_fails_at_power_on(lab: Lab) -> None:
    (target, *_) = lab.cluster().environmentBrowser.QueryConfigTarget(lab.host("esx-02.lab")).pciPassthrough
    _attach_static(lab, "ml-08", target, str(target.pciDevice.deviceId))
    with pytest.raises(vim.fault.GenericVmConfigFault, match="systemId does not match"):
        lab.power_on("ml-08", "esx-02.lab")


def _attach_static(lab: Lab, name: str, target: vim.vm.PciPassthroughInfo, device_id: str) -> None:
    backing = P.DeviceBackingInfo(
        deviceName=target.name,
        id=target.pciDevice.id,
        deviceId=device_id,
        systemId=target.systemId,
        vendorId=target.pciDevice.vendorId,
    )
    added = vim.vm.device.VirtualDeviceSpec(operation="add", device=P(key=-101, backing=backing))
    options = [
        vim.option.OptionValue(key="pciPassthru.use64bitMMIO", value="TRUE"),
        vim.option.OptionValue(key="pciPassthru.64bitMMIOSizeGB", value="128"),
    ]
    spec = vim.vm.ConfigSpec(deviceChange=[added], memoryReservationLockedToMax=True, extraConfig=options)
    lab.run(lab.vm(name).ReconfigVM_Task(spec))


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extraConfig": [vim.option.OptionValue(key="pciPassthru.64bitMMIOSizeGB", value="32")]}, "exceeds limit 32"),
        ({"extraConfig": [vim.option.OptionValue(key="pciPassthru.use64bitMMIO", value="")]}, "exceeds limit 32"),
        ({"firmware": "bios"}, "not EFI"),
    ],
)
def test_whole_gpu_needs_efi_and_room_for_its_memory(lab: Lab, change: dict[str, object], message: str) -> None:
    lab.run(lab.vm("ml-03").ReconfigVM_Task(vim.vm.ConfigSpec(**change)))
    with pytest.raises(vim.fault.GenericVmConfigFault, match=message):
        lab.power_on("ml-03", "esx-02.lab")


@pytest.mark.long
def test_host_in_maintenance_takes_no_vm(lab: Lab) -> None:
    for name in _running(lab, "esx-02.lab"):
        lab.power_off(name)
    lab.run(lab.host("esx-02.lab").EnterMaintenanceMode_Task(0))
    with pytest.raises(vim.fault.InvalidState, match="maintenance"):
        lab.power_on("ml-08", "esx-02.lab")


def _running(lab: Lab, host: str) -> list[str]:
    return [vm.name for vm in lab.host(host).vm if vm.runtime.powerState == "poweredOn"]


@pytest.mark.long
def test_template_is_not_powered_on(lab: Lab) -> None:
    with pytest.raises(vmodl.fault.NotSupported):
        lab.power_on("golden")


@pytest.mark.long
def test_guest_shuts_down_in_its_own_time(lab: Lab) -> None:
    lab.vm("vdi-01").ShutdownGuest()
    assert lab.power("vdi-01") == "poweredOn"
    lab.let_pass(60)
    assert lab.power("vdi-01") == "poweredOff"
    assert lab.vm("vdi-01").runtime.cleanPowerOff is True
    assert lab.events("vdi-01") == ["VmGuestShutdownEvent", "VmPoweredOffEvent"]


@pytest.mark.long
def test_guest_without_tools_cannot_be_asked(lab: Lab) -> None:
    with pytest.raises(vim.fault.ToolsUnavailable):
        lab.vm("bare").ShutdownGuest()


@pytest.mark.long
def test_standby_keeps_the_vgpu(lab: Lab) -> None:
    lab.vm("vdi-01").StandbyGuest()
    lab.let_pass(600)
    assert "vdi-01" in lab.gpus("esx-01.lab")["0000:d8:00.0"]


@pytest.mark.long
def test_question_blocks_until_it_is_answered(lab: Lab) -> None:
    with pytest.raises(vim.fault.QuestionPending, match="pending question"):
        lab.run(lab.vm("asking").SuspendVM_Task())
    question = lab.vm("asking").runtime.question
    assert [choice.label for choice in question.choice.choiceInfo] == ["Retry", "Cancel"]
    lab.vm("asking").AnswerVM(question.id, "0")
    assert lab.vm("asking").runtime.question is None
    lab.run(lab.vm("asking").SuspendVM_Task())
    with pytest.raises(vim.fault.ConcurrentAccess):
        lab.vm("asking").AnswerVM(question.id, "0")


@pytest.mark.long
def test_cancelling_answer_powers_the_vm_off(lab: Lab) -> None:
    lab.vm("asking").AnswerVM("42", "1")
    assert lab.power("asking") == "poweredOff"


@pytest.mark.long
def test_of_two_for_the_last_slot_one_is_refused(lab: Lab) -> None:
    lab.attach("ml-07", "nvidia_a40-8q")
    first = lab.vm("vdi-06").PowerOnVM_Task(lab.host("esx-01.lab"))
    second = lab.vm("ml-07").PowerOnVM_Task(lab.host("esx-01.lab"))
    lab.run(first)
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.run(second)


@pytest.mark.long
def test_many_are_powered_on_by_one_call(lab: Lab) -> None:
    vms = [lab.vm("ml-01"), lab.vm("vdi-06"), lab.vm("vdi-01")]
    result = lab.run(lab.datacenter().PowerOnMultiVM_Task(vms))
    assert [attempt.vm for attempt in result.attempted] == vms[:2]
    assert isinstance(result.notAttempted[0].fault, vim.fault.InvalidPowerState)
    for attempt in result.attempted:
        lab.run(attempt.task)
    assert lab.power("ml-01") == "poweredOn"


@pytest.mark.long
def test_ledger_tells_each_effect_with_what_was_before(lab: Lab) -> None:
    lab.run(lab.vm("vdi-01").SuspendVM_Task())
    (entry,) = lab.world.ledger
    assert (entry.method, entry.name) == ("SuspendVM_Task", "vdi-01")
    assert entry.before == {
        "power": "poweredOn",
        "suspend_time": None,
        "gpus": [{"gpu": "0000:d8:00.0", "profile": "nvidia_a40-8q", "start": None}],
    }
    assert entry.after == {"power": "suspended", "suspend_time": entry.at.isoformat(), "gpus": []}
    assert lab.vm("vdi-01").runtime.suspendTime == entry.at


@pytest.mark.long
def test_when_it_was_suspended_last_stays_while_it_runs_again(lab: Lab) -> None:
    """vSphere API reference, VirtualMachineRuntimeInfo.suspendTime: updated every time it is suspended."""
    moments = []
    for _ in range(2):
        lab.run(lab.vm("vdi-01").SuspendVM_Task())
        moments.append(lab.vm("vdi-01").runtime.suspendTime)
        lab.run(lab.vm("vdi-01").PowerOnVM_Task())
        assert lab.vm("vdi-01").runtime.suspendTime == moments[-1]
    assert moments[0] < moments[1]


@pytest.mark.long
def test_reset_keeps_the_slot(lab: Lab) -> None:
    before = lab.vm("vdi-01").runtime.bootTime
    lab.run(lab.vm("vdi-01").ResetVM_Task())
    assert lab.vm("vdi-01").runtime.bootTime > before
    assert "vdi-01" in lab.gpus("esx-01.lab")["0000:d8:00.0"]


@pytest.mark.long
def test_trial_tells_every_host_s_answer_and_changes_nothing(lab: Lab) -> None:
    checker = lab.si.content.vmCompatibilityChecker
    results = lab.run(checker.CheckPowerOn_Task(lab.vm("ml-06")))
    assert [(check_result.host.name, [type(error) for error in check_result.error]) for check_result in results] == [
        ("esx-01.lab", [vim.fault.InsufficientGraphicsResourcesFault]),
        ("esx-02.lab", []),
    ]
    (only,) = lab.cluster().RecommendHostsForVm(lab.vm("ml-06"), None)
    assert only.host == lab.host("esx-02.lab")
    assert lab.power("ml-06") == "poweredOff"
    assert len(lab.world.ledger) == 0


@pytest.mark.long
def test_guest_reboots_and_keeps_its_slot(lab: Lab) -> None:
    before = lab.vm("vdi-01").runtime.bootTime
    lab.vm("vdi-01").RebootGuest()
    lab.let_pass(60)
    assert lab.vm("vdi-01").runtime.bootTime > before
    assert "vdi-01" in lab.gpus("esx-01.lab")["0000:d8:00.0"]


@pytest.mark.long
def test_terminated_vm_is_off_at_once(lab: Lab) -> None:
    lab.vm("vdi-01").TerminateVM()
    assert lab.power("vdi-01") == "poweredOff"
    assert lab.vm("vdi-01").runtime.cleanPowerOff is False


@pytest.mark.long
def test_open_consoles_are_counted(lab: Lab) -> None:
    assert lab.vm("vdi-04").runtime.numMksConnections == 1
