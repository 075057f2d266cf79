"""What a simulated vCenter does under each deviation of the table of assumptions, through real pyVmomi."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.host_events import restart_vcenter
from gpuops.sim.scenario.counter_values import measure
from gpuops.sim.scenario.deviations import deviate
from gpuops.sim.state.gpu_admission import GpuOrder
from tests.sim.lab import Lab, serve_lab

FIRST, SECOND = "esx-01.lab", "esx-02.lab"


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The scenario `lab` under the deviation that the test is named after."""
    with serve_lab() as lab:
        deviate(lab.world, [request.node.originalname.removeprefix("test_").replace("_", "-")])
        yield lab


def host_of(lab: Lab, name: str) -> Any:
    return next(host for host in lab.world.by_type("HostSystem") if host.name == name)


def suspend(lab: Lab, name: str) -> None:
    lab.run(lab.vm(name).SuspendVM_Task())


def clone_of(lab: Lab, name: str) -> Any:
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(), powerOn=False, template=False)
    return lab.run(lab.vm(name).CloneVM_Task(lab.vm(name).parent, "copy", spec))


def test_vgpu_device_keys(lab: Lab) -> None:
    lab.attach("ml-07", "grid_a100-3-20c")
    assert [device.key for device in lab.passthrough("ml-07")] == [13064]


def test_gpu_choice(lab: Lab) -> None:
    assert host_of(lab, FIRST).state.deviation.gpus is GpuOrder.FULLEST, "its policy is performance"
    assert host_of(lab, SECOND).state.deviation.gpus is GpuOrder.EMPTIEST, "its policy is consolidation"


def test_gpu_instance_start(lab: Lab) -> None:
    lab.power_on("ml-01", FIRST)
    assert lab.seats("ml-01") == [("0000:3b:00.0", "grid_a100-3-20c", 4)]


def test_vgpu_pin(lab: Lab) -> None:
    pin = vim.option.OptionValue(key="pciPassthru0.cfg.gpu-pci-id", value="0000:af:00.0")
    lab.attach("ml-07", "grid_a100-3-20c", extraConfig=[pin])
    lab.power_on("ml-07", FIRST)
    assert lab.seats("ml-07") == [("0000:3b:00.0", "grid_a100-3-20c", 0)]


def test_no_gpu_fault(lab: Lab) -> None:
    with pytest.raises(vim.fault.GenericVmConfigFault, match=r"libnvidia-vgx\.so"):
        lab.power_on("ml-06", FIRST)


def test_no_memory_fault(lab: Lab) -> None:
    host = host_of(lab, SECOND)
    host.state.model = replace(host.state.model, memory_mib=sum(vm.state.reserved_mib for vm in host.running_vms()))
    with pytest.raises(vim.fault.GenericVmConfigFault, match="memory resource"):
        lab.power_on("vdi-12", SECOND)


def test_busy_vm_fault(lab: Lab) -> None:
    suspend = lab.vm("vdi-01").SuspendVM_Task()
    with pytest.raises(vim.fault.InvalidState):
        lab.vm("vdi-01").PowerOffVM_Task()
    lab.run(suspend)


def test_suspend_frees_slot(lab: Lab) -> None:
    suspend(lab, "vdi-01")
    before = len(host_of(lab, FIRST).seats())
    lab.let_pass(301)
    assert len(host_of(lab, FIRST).seats()) == before - 1


def test_suspend_refusal(lab: Lab) -> None:
    lab.power_on("ml-05", SECOND)
    began = lab.world.clock.now()
    with pytest.raises(vim.fault.GenericVmConfigFault):
        suspend(lab, "ml-05")
    assert (lab.world.clock.now() - began).total_seconds() > 100
    assert lab.power("ml-05") == "poweredOn"


def test_suspend_duration(lab: Lab) -> None:
    began = lab.world.clock.now()
    suspend(lab, "vdi-01")
    gib = 8 + 8  # memory and frame buffer, at 1 GiB/s
    assert (lab.world.clock.now() - began).total_seconds() >= 8 * gib


def test_suspended_vm_memory(lab: Lab) -> None:
    host = host_of(lab, SECOND)
    running_mib = sum(vm.state.reserved_mib for vm in host.running_vms())
    host.state.model = replace(host.state.model, memory_mib=running_mib + 8192)
    with pytest.raises(vim.fault.InsufficientResourcesFault):
        lab.power_on("vdi-12", SECOND)


def test_suspended_vm_host(lab: Lab) -> None:
    suspend(lab, "vdi-01")
    lab.let_pass(61)
    assert lab.vm("vdi-01").runtime.host == lab.host(SECOND)


def test_drs_vgpu_vms(lab: Lab) -> None:
    lab.power_on("vdi-06", FIRST)
    lab.let_pass(61)
    assert lab.vm("vdi-06").runtime.host == lab.host(SECOND)


def test_clone_attributes(lab: Lab) -> None:
    assert [value.value for value in clone_of(lab, "ml-09").customValue] == ["ml", "research"]


def test_clone_options(lab: Lab) -> None:
    assert not [option.key for option in clone_of(lab, "ml-09").config.extraConfig if "pciPassthru" in option.key]


def test_gpu_counter_instances(lab: Lab) -> None:
    values = measure(host_of(lab, FIRST), lab.world.clock.now())
    assert {instance for name, instance in values if name.startswith("gpu.")} == {"gpu-0", "gpu-1", "gpu-2"}


def test_vgpu_mode_change(lab: Lab) -> None:
    config = lab.host(SECOND).config.graphicsConfig
    [device] = [device for device in config.deviceType if device.deviceId == "0000:af:00.0"]
    device.vgpuMode = "sameSize"
    lab.host(SECOND).configManager.graphicsManager.UpdateGraphicsConfig(config)
    host_config = lab.host(SECOND).config
    assert [graphics.vgpuMode for graphics in host_config.graphicsInfo if graphics.pciId == device.deviceId] == [
        "mixedSize"
    ]
    assert [
        device_type.vgpuMode
        for device_type in host_config.graphicsConfig.deviceType
        if device_type.deviceId == device.deviceId
    ] == ["sameSize"]


def test_mig_mode_after_boot(lab: Lab) -> None:
    lab.run(lab.host(FIRST).RebootHost_Task(force=True))
    lab.let_pass(900)
    assert {gpu.vgpuMode for gpu in lab.host(FIRST).config.graphicsInfo} == {"sameSize"}


def test_sessions_after_restart(lab: Lab) -> None:
    suspend(lab, "vdi-01")
    restart_vcenter(lab.world, Rule(Effect.HAPPEN, for_s=1.0))
    lab.let_pass(2)
    assert lab.si.content.sessionManager.currentSession is not None
    assert lab.world.tasks.readable()
