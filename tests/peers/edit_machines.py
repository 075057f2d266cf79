"""A saved VM given a name, a place, a size, a power state and its GPU devices.

Shapes follow the vSphere API reference (VirtualMachineConfigInfo, VirtualPCIPassthrough and its backings, 8.0.3).
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.peers.gpu_model import Machine
from tests.peers.saved_objects import Content, SavedObject, reference

FIRST_PASSTHROUGH_KEY = 13000
PCI_CONTROLLER_KEY = 100
HARDWARE_VERSION = "vmx-21"
# An idle guest: what vSphere shows for an unused desktop.
IDLE_CPU_MHZ = 25
SUSPENDED_AT = "2026-01-05T19:30:00Z"


def edit_machine(document: SavedObject, machine: Machine, moids: Mapping[str, str]) -> None:
    """Make the saved VM the machine of the model; its id, disks and networks stay vcsim's."""
    for path in ("name", "config.name", "summary.config.name"):
        document.put_text(path, machine.name)
    _edit_size(document, machine)
    _edit_power(document, machine, moids[machine.host])
    if machine.vgpu is not None:
        document.add("config.hardware.device", vgpu_device(machine.vgpu))
        _attach_to_controller(document)


def _edit_size(document: SavedObject, machine: Machine) -> None:
    document.put_text("config.version", HARDWARE_VERSION)
    document.put_text("summary.config.hwVersion", HARDWARE_VERSION)
    document.put_text("config.guestId", machine.guest)
    document.put_text("summary.config.guestId", machine.guest)
    document.put_text("config.hardware.numCPU", machine.cpus)
    document.put_text("config.hardware.memoryMB", machine.memory_mib)
    document.put_text("summary.config.numCpu", machine.cpus)
    document.put_text("summary.config.memorySizeMB", machine.memory_mib)
    document.put("config.cpuHotAddEnabled", False)
    document.put("config.memoryHotAddEnabled", False)
    document.put_text("config.firmware", "efi")
    if machine.vgpu is not None:
        document.put("config.memoryAllocation.reservation", machine.memory_mib)
    document.put("config.memoryReservationLockedToMax", machine.vgpu is not None)


def _edit_power(document: SavedObject, machine: Machine, host_moid: str) -> None:
    for runtime in ("runtime", "summary.runtime"):
        document.put(f"{runtime}.host", reference("HostSystem", host_moid))
        document.put_text(f"{runtime}.powerState", machine.power)
        # Required by the API, and left out by vcsim: a strict client trips over their absence.
        document.put(f"{runtime}.faultToleranceState", "notConfigured")
        document.put(f"{runtime}.recordReplayState", "inactive")
        if machine.power != "poweredOn":
            document.put(f"{runtime}.bootTime", [])
        if machine.power == "suspended":
            document.put(f"{runtime}.suspendTime", SUSPENDED_AT)
    running = machine.power == "poweredOn"
    document.put("summary.quickStats.overallCpuUsage", IDLE_CPU_MHZ if running else 0)
    document.put("summary.quickStats.hostMemoryUsage", machine.memory_mib if running else 0)


def vgpu_device(profile: str) -> Content:
    """The vGPU of a VM."""
    summary = f"NVIDIA GRID vGPU {profile}"
    return {
        "@xsi": "VirtualPCIPassthrough",
        "key": FIRST_PASSTHROUGH_KEY,
        "deviceInfo": {"@xsi": "Description", "label": "PCI device 0", "summary": summary},
        "backing": {"@xsi": "VirtualPCIPassthroughVmiopBackingInfo", "vgpu": profile, "migrateSupported": True},
        "controllerKey": PCI_CONTROLLER_KEY,
        "unitNumber": 18,
    }


def _attach_to_controller(document: SavedObject) -> None:
    for device in document.children("config.hardware", "device"):
        if device.findtext("key") == str(PCI_CONTROLLER_KEY):
            slot = device.makeelement("device")
            slot.text = str(FIRST_PASSTHROUGH_KEY)
            device.append(slot)
