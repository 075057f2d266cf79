"""A saved host given sockets, NUMA nodes and GPUs, and the cluster's answer about what VMs may ask for.

Property names and shapes follow the vSphere API reference (HostHardwareInfo, HostConfigInfo, ConfigTarget, 8.0.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.peers.gpu_model import NVIDIA, Card, HostModel, Machine, Profile, Slot
from tests.peers.saved_objects import Content, SavedObject, reference

SOCKETS = 2
CORES_PER_SOCKET = 32
THREADS_PER_SOCKET = CORES_PER_SOCKET * 2
MEMORY_PER_SOCKET_BYTES = 256 * 2**30
CPU_MODEL = "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz"
CPU_MHZ = 1995
DISPLAY_CONTROLLER = 0x0302  # PCI class: 3D controller


def edit_host(document: SavedObject, host: HostModel, machines: Sequence[Machine], moids: Mapping[str, str]) -> None:
    """Rename the host, and give it two sockets with the GPUs of the model and the VMs registered on it."""
    document.put_text("name", host.name)
    document.put_text("summary.config.name", host.name)
    document.put_references("vm", "VirtualMachine", [moids[m.name] for m in machines if m.host == host.name])
    _edit_product(document)
    _edit_processors(document)
    _edit_numa(document, host)
    document.add("hardware.pciDevice", [pci_device(slot) for slot in host.slots])
    _edit_graphics(document, host, machines, moids)


def _edit_product(document: SavedObject) -> None:
    for product in ("config.product", "summary.config.product"):
        document.put_text(f"{product}.fullName", "VMware ESXi 8.0.3 build-24022510")
        document.put_text(f"{product}.version", "8.0.3")
        document.put_text(f"{product}.build", "24022510")
        document.put_text(f"{product}.apiVersion", "8.0.3.0")


def _edit_processors(document: SavedObject) -> None:
    document.put(
        "hardware.cpuInfo",
        {
            "numCpuPackages": SOCKETS,
            "numCpuCores": SOCKETS * CORES_PER_SOCKET,
            "numCpuThreads": SOCKETS * THREADS_PER_SOCKET,
            "hz": CPU_MHZ * 1_000_000,
        },
    )
    packages: list[Content] = [
        {
            "index": socket,
            "vendor": "intel",
            "hz": CPU_MHZ * 1_000_000,
            "busHz": 100_000_000,
            "description": CPU_MODEL,
            "threadId": _threads(socket),
        }
        for socket in range(SOCKETS)
    ]
    document.put("hardware.cpuPkg", packages)
    document.put_text("hardware.memorySize", SOCKETS * MEMORY_PER_SOCKET_BYTES)
    summary: dict[str, str | int] = {
        "cpuModel": CPU_MODEL,
        "cpuMhz": CPU_MHZ,
        "numCpuPkgs": SOCKETS,
        "numCpuCores": SOCKETS * CORES_PER_SOCKET,
        "numCpuThreads": SOCKETS * THREADS_PER_SOCKET,
        "memorySize": SOCKETS * MEMORY_PER_SOCKET_BYTES,
    }
    for path, value in summary.items():
        document.put_text(f"summary.hardware.{path}", value)


def _threads(socket: int) -> list[Content]:
    return list(range(socket * THREADS_PER_SOCKET, (socket + 1) * THREADS_PER_SOCKET))


def _edit_numa(document: SavedObject, host: HostModel) -> None:
    nodes: list[Content] = [
        {
            "typeId": node,
            "cpuID": _threads(node),
            "memorySize": MEMORY_PER_SOCKET_BYTES,
            "memoryRangeBegin": 0,
            "memoryRangeLength": MEMORY_PER_SOCKET_BYTES,
            "pciId": [slot.pci_id for slot in host.slots if slot.numa_node == node],
        }
        for node in range(SOCKETS)
    ]
    document.put("hardware.numaInfo", {"type": "NUMA", "numNodes": SOCKETS, "numaNode": nodes})


def pci_device(slot: Slot) -> Content:
    """The card as a PCI function of its host (HostPciDevice; its ids are 16-bit signed on the wire)."""
    return {
        "id": slot.pci_id,
        "classId": DISPLAY_CONTROLLER,
        "bus": slot.bus,
        "slot": 0,
        "function": 0,
        "vendorId": NVIDIA,
        "subVendorId": NVIDIA,
        "vendorName": "NVIDIA Corporation",
        "deviceId": slot.card.device_id,
        "subDeviceId": slot.card.subsystem_id,
        "deviceName": slot.card.name,
    }


def _edit_graphics(
    document: SavedObject, host: HostModel, machines: Sequence[Machine], moids: Mapping[str, str]
) -> None:
    document.put("config.graphicsInfo", [_graphics_info(slot, host, machines, moids) for slot in host.slots])
    document.put(
        "config.graphicsConfig",
        {
            "hostDefaultGraphicsType": "sharedDirect",
            "sharedPassthruAssignmentPolicy": "performance",
            "deviceType": [_device_type(slot) for slot in host.slots],
        },
    )
    document.put("config.sharedPassthruGpuTypes", [profile.name for profile in host.profiles])
    document.put("config.sharedGpuCapabilities", [_capabilities(profile) for profile in host.profiles])
    passthrough: list[Content] = [_passthrough(slot) for slot in host.slots]
    document.put("config.pciPassthruInfo", passthrough)


def _graphics_info(slot: Slot, host: HostModel, machines: Sequence[Machine], moids: Mapping[str, str]) -> Content:
    running = [m for m in machines if m.host == host.name and m.vgpu and m.on_gpu == slot.pci_id]
    return {
        "deviceName": slot.card.name,
        "vendorName": "NVIDIA Corporation",
        "pciId": slot.pci_id,
        "graphicsType": "sharedDirect",
        "vgpuMode": "multiInstanceGpu" if slot.card.mig else "sameSize",
        "memorySizeInKB": slot.card.framebuffer_gib * 2**20,
        "vm": [reference("VirtualMachine", moids[m.name]) for m in running],
    }


def _device_type(slot: Slot) -> Content:
    # A device in MIG mode has no configurable vgpuMode: the enumeration knows sameSize and mixedSize only.
    mode = {} if slot.card.mig else {"vgpuMode": "sameSize"}
    return {"deviceId": slot.pci_id, "graphicsType": "sharedDirect", **mode}


def _capabilities(profile: Profile) -> Content:
    return {
        "vgpu": profile.name,
        "diskSnapshotSupported": True,
        "memorySnapshotSupported": True,
        "suspendSupported": True,
        "migrateSupported": True,
    }


def _passthrough(slot: Slot) -> Content:
    return {
        "@xsi": "HostPciPassthruInfo",
        "id": slot.pci_id,
        "dependentDevice": slot.pci_id,
        "passthruEnabled": False,
        "passthruCapable": True,
        "passthruActive": False,
    }


def edit_config_target(answer: SavedObject, hosts: Sequence[HostModel]) -> None:
    """Fill the cluster's QueryConfigTarget with the GPUs of all hosts: vcsim gives this one answer for each."""
    cards = {slot.card: None for host in hosts for slot in host.slots}
    profiles = {p: slot.card for host in hosts for slot in host.slots for p in slot.card.profiles}
    answer.put_text("returnval.numCpus", SOCKETS * THREADS_PER_SOCKET)
    answer.put_text("returnval.numCpuCores", SOCKETS * CORES_PER_SOCKET)
    answer.put_text("returnval.numNumaNodes", SOCKETS)
    answer.put("returnval.pciPassthrough", [])
    answer.put(
        "returnval.sharedGpuPassthroughTypes",
        [{"@xsi": "VirtualMachinePciSharedGpuPassthroughInfo", "name": p.name, "vgpu": p.name} for p in profiles],
    )
    answer.put("returnval.vgpuDeviceInfo", [_vgpu_device(card) for card in cards])
    answer.put("returnval.vgpuProfileInfo", [_vgpu_profile(p, card) for p, card in profiles.items()])


def _vgpu_device(card: Card) -> Content:
    return {
        "@xsi": "VirtualMachineVgpuDeviceInfo",
        "name": card.name,
        "deviceName": card.name,
        "deviceVendorId": card.vendor_and_device,
        "maxFbSizeInGib": card.framebuffer_gib,
        "timeSlicedCapable": True,
        "migCapable": card.mig,
        "computeProfileCapable": True,
        "quadroProfileCapable": not card.mig,
    }


def _vgpu_profile(profile: Profile, card: Card) -> Content:
    return {
        "@xsi": "VirtualMachineVgpuProfileInfo",
        "name": profile.name,
        "profileName": profile.name,
        "deviceVendorId": card.vendor_and_device,
        "fbSizeInGib": profile.framebuffer_gib,
        "profileSharing": profile.sharing,
        "profileClass": profile.profile_class,
    }
