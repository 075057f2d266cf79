"""Faults of GPUs (G) and of boots of hosts (B): no room, GPUs that are gone, settings that were lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyVmomi import vim

from gpuops.sim.fault_injection.rule import rules_of
from gpuops.sim.state.board import GpuMode
from tests.sim.guests import nvidia_smi
from tests.sim.lab import Lab
from tests.sim.wire.faults.clients import give, ledger_of_others


def sees_G1(lab: Lab) -> None:
    give(lab, "G1", target="vdi-06")
    lab.vm("vdi-12").PowerOnVM_Task()
    lab.let_pass(30)
    assert "vdi-06" in {vm for on_it in lab.gpus("esx-01.lab").values() for vm in on_it}
    assert ledger_of_others(lab) == [("PowerOnVM_Task", "vdi-06")]


def sees_G2(lab: Lab) -> None:
    give(lab, "G2")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.run(lab.vm("vdi-06").PowerOnVM_Task())


def sees_G4(lab: Lab) -> None:
    lab.power_on("ml-06", "esx-02.lab")  # takes the other A40 there
    give(lab, "G4", target="vdi-07")
    for name in ("vdi-07", "vdi-08", "vdi-09", "vdi-10"):
        lab.run(lab.vm(name).SuspendVM_Task())
    lab.attach("ml-07", "nvidia_a40-48c")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.power_on("ml-07", "esx-02.lab")
    lab.let_pass(300)
    lab.power_on("ml-07", "esx-02.lab")


def sees_G5(lab: Lab) -> None:
    give(lab, "G5", target="esx-02.lab")
    assert "0000:3b:00.0" in lab.gpus("esx-02.lab")
    lab.vm("vdi-01").SuspendVM_Task()
    assert "0000:3b:00.0" not in lab.gpus("esx-02.lab")
    assert lab.power("vdi-07") == "poweredOff"


def sees_G6(lab: Lab) -> None:
    lab.run(lab.vm("vdi-07").SuspendVM_Task())
    [crash, refusal] = rules_of("G6")
    lab.world.injector.add(replace(crash, target="esx-02.lab"))
    lab.world.injector.add(refusal)
    lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(120)
    assert lab.host("esx-02.lab").runtime.connectionState == "connected"
    for _ in range(2):
        with pytest.raises(vim.fault.GenericVmConfigFault):
            lab.run(lab.vm("vdi-07").PowerOnVM_Task())
    assert lab.power("vdi-07") == "suspended"


def sees_G3(lab: Lab) -> None:
    give(lab, "G3")
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.power_on("ml-07", "esx-02.lab")
    lab.power_on("ml-07", "esx-02.lab")


def sees_G8(lab: Lab) -> None:
    give(lab, "G8", target="esx-02.lab")
    assert not lab.host("esx-02.lab").summary.rebootRequired
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.host("esx-02.lab").summary.rebootRequired
    assert list(lab.world.ledger)[-1].after == {"module_options": "NVreg_RegistryDwords=RmPVMRL=0x11"}


def sees_G10(lab: Lab) -> None:
    [host] = [host for host in lab.world.by_type("HostSystem") if host.name == "esx-02.lab"]
    for gpu in host.state.gpus:
        gpu.mode = GpuMode.MIXED_SIZE
    host.graphics_changed()
    give(lab, "G10", target="esx-02.lab")
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.host("esx-02.lab").runtime.connectionState == "notResponding"
    lab.let_pass(61)
    assert {gpu.vgpuMode for gpu in lab.host("esx-02.lab").config.graphicsInfo} == {"sameSize"}


def sees_G11(lab: Lab) -> None:
    give(lab, "G11", target="esx-02.lab", for_s=900)
    assert "nvidia_a40-8q" in lab.host("esx-02.lab").config.sharedPassthruGpuTypes
    lab.vm("vdi-01").SuspendVM_Task()
    lab.let_pass(601)
    assert lab.host("esx-02.lab").runtime.connectionState == "connected"
    vgpu_types = set(lab.host("esx-02.lab").config.sharedPassthruGpuTypes)
    assert "nvidia_a40-4q" in vgpu_types
    assert "nvidia_a40-8q" not in vgpu_types
    with pytest.raises(vim.fault.InsufficientGraphicsResourcesFault):
        lab.power_on("vdi-07", "esx-02.lab")
    lab.let_pass(300)
    lab.power_on("vdi-07", "esx-02.lab")


def sees_G12(lab: Lab) -> None:
    give(lab, "G12", target="esx-02.lab")
    modes = {gpu.pciId: gpu.vgpuMode for gpu in lab.host("esx-02.lab").config.graphicsInfo}
    assert modes["0000:3b:00.0"] == "sameSize"
    lab.vm("vdi-01").SuspendVM_Task()
    assert lab.host("esx-02.lab").runtime.connectionState == "notResponding"
    lab.let_pass(61)
    modes = {gpu.pciId: gpu.vgpuMode for gpu in lab.host("esx-02.lab").config.graphicsInfo}
    assert modes["0000:3b:00.0"] == "mixedSize"


def reboot_host(lab: Lab) -> Any:
    """The host esx-02.lab, twenty-five minutes after it was asked to reboot."""
    lab.run(lab.host("esx-02.lab").RebootHost_Task(force=True))
    lab.let_pass(1500)
    return lab.host("esx-02.lab")


def sees_B1(lab: Lab) -> None:
    give(lab, "B1", target="esx-02.lab")
    assert reboot_host(lab).runtime.connectionState == "notResponding"


def sees_B2(lab: Lab) -> None:
    give(lab, "B2", target="esx-02.lab")
    modules = lab.host("esx-02.lab").configManager.kernelModuleSystem
    modules.UpdateModuleOptionString("nvidia", "NVreg_RegistryDwords=RmPVMRL=0x01")
    assert reboot_host(lab).runtime.connectionState == "connected"
    assert modules.QueryConfiguredModuleOptionString("nvidia") == ""


def sees_B3(lab: Lab) -> None:
    give(lab, "B3", target="esx-02.lab")
    listed = {gpu.pciId for gpu in lab.host("esx-02.lab").config.graphicsInfo}
    assert listed
    host = reboot_host(lab)
    assert host.runtime.connectionState == "connected"
    assert not {gpu.pciId for gpu in host.config.graphicsInfo or ()} & listed


def sees_B4(lab: Lab) -> None:
    give(lab, "B4", target="esx-02.lab")
    [host] = [host for host in lab.world.by_type("HostSystem") if host.name == "esx-02.lab"]
    assert nvidia_smi.answer(host, "nvidia-smi -i 0000:86:00.0 -mig 1")[1] == 0
    assert reboot_host(lab).runtime.connectionState == "connected"
    modes = {gpu.pciId: gpu.vgpuMode for gpu in lab.host("esx-02.lab").config.graphicsInfo}
    assert modes["0000:86:00.0"] == "sameSize"
