"""The VMs of a bundle's scenario: each as it was read, on the GPUs that it was on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import cycle, islice
from typing import Any, Final

from gpuops.advise.managed_vms import KNOWN_EXTENSIONS
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.other_device import OtherDevice
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    DirectPathDevice,
    DynamicDevice,
    Firmware,
    GpuDevice,
    PowerState,
    VgpuDevice,
    Vm,
)
from gpuops.report.bundle.harmless import SETTINGS
from gpuops.report.bundle.pseudonyms import NameKind, Pseudonyms

GUESTS: Final = {
    "guest": {"id": "otherGuest64", "name": "Other (64-bit)"},
    "guest-without-tools": {"id": "otherGuest64", "name": "Other (64-bit)", "tools": False},
}
"""What a guest system is, no plan asks."""
_POWER: Final = {PowerState.ON: "on", PowerState.OFF: "off", PowerState.SUSPENDED: "suspended"}
_OF_DEVICES: Final = re.compile(
    r"pcipassthru(?P<number>[0-9]{1,3})\.cfg\.(?P<name>gpu-pci-id|enable_uvm|enable_debugging|enable_profiling)"
)
_PLAIN: Final = re.compile(r"true|false|[0-9]{1,6}([,-][0-9]{1,6}){0,64}", re.IGNORECASE)
_YES_OR_NO: Final = ("true", "false", "yes", "no", "1", "0")
_ROLES: Final = ("desktop", "ml")
_VM_TYPE: Final = "VirtualMachine"


class WorldVms:
    """Declares VMs of one snapshot."""

    def __init__(self, inventory: Inventory, catalog: Catalog, names: Pseudonyms) -> None:
        self._inventory = inventory
        self._catalog = catalog
        self._names = names

    def declared(self) -> Iterator[dict[str, Any]]:
        """Each VM of a known host, those that run first: they have their GPUs already."""
        running_first = sorted(self._inventory.vms.values(), key=lambda vm: vm.power is not PowerState.ON)
        for vm in running_first:
            host = self._inventory.host_of(vm)
            if host is not None:
                yield self._declared(vm, host)

    def _declared(self, vm: Vm, host: Host) -> dict[str, Any]:
        devices = [self._device(device, host) for device in vm.devices or ()]
        return {
            "name": self._names.of(NameKind.VM, vm.name),
            "folder": self._folder(vm),
            "on": self._names.ref(host.ref),
            "guest": "guest-without-tools" if vm.power is PowerState.ON and vm.tools_running is False else "guest",
            "cpus": vm.vcpus or 1,
            "memory_gib": (vm.memory_mib or 1024) >> 10,
            "memory_mib": vm.memory_mib or 1024,
            "disk_gib": 1,
            "firmware": (vm.firmware or Firmware.EFI).value,
            "hardware_version": vm.hardware_version or 20,
            "devices": devices,
            "extra_config": dict(plain_settings(vm.extra_config or {})),
            "power": _POWER[vm.power or PowerState.OFF],
            "cpu_usage_mhz": vm.cpu_usage_mhz or 0,
            "console_connections": vm.console_connections or 0,
            "attributes": dict(self._attributes(vm)),
            "template": bool(vm.template),
            **({"snapshot": self._names.of(NameKind.SNAPSHOT, vm.ref)} if vm.snapshots else {}),
            **({"question": _QUESTION} if vm.question is not None else {}),
            **({"managed_by": self._manager(vm)} if vm.managed_by is not None else {}),
            "as_read": self._as_read(vm, host),
        }

    def _as_read(self, vm: Vm, host: Host) -> dict[str, Any]:
        on = vm.power is PowerState.ON
        vgpus = [device for device in vm.vgpus if self._known(device.profile) is not None]
        gpus, starts = _places(vm, host, vgpus) if on else ([], [])
        direct = [each for each in vm.devices or () if isinstance(each, DirectPathDevice | DynamicDevice)]
        group = next((device for device in vgpus if device.group is not None), None)
        return {
            "moid": self._names.ref(vm.ref),
            "datastore": next(
                (self._names.ref(ref) for ref in vm.datastores if ref in self._inventory.datastores), None
            ),
            "gpus": [str(address) for address in gpus],
            "starts": starts,
            "held": list(_held(vm, host, direct)) if on else [],
            "device_keys": [device.key for device in vm.devices or ()],
            "nodes": [device.numa_node if isinstance(device, VgpuDevice) else None for device in vm.devices or ()],
            "group": None if group is None else f"Nvidia:{len(vgpus)}@{self._known(group.profile)}%NVLink",
            "cores_per_socket": vm.cores_per_socket or 1,
            "cores_per_numa_node": vm.cores_per_numa_node or None,
            "memory_reservation_mib": vm.memory_reservation_mib or 0,
            "cpu_reservation_mhz": vm.cpu_reservation_mhz or 0,
            "memory_locked": bool(vm.memory_locked),
            "cpu_hot_add": bool(vm.cpu_hot_add),
            "nested_virtualization": bool(vm.nested_virtualization),
            "booted": moment(vm.started_at),
            "suspended": moment(vm.suspended_at),
        }

    def _device(self, device: GpuDevice, host: Host) -> dict[str, Any]:
        match device:
            case VgpuDevice(profile=profile) if self._known(profile) is not None:
                return {"vgpu": self._known(profile)}
            case DirectPathDevice(address=address) if self._is_declared(host, address):
                return {"direct_path": str(address)}
            case DynamicDevice(allowed=allowed, label=label):
                known = None if label is None else self._names.of(NameKind.LABEL, label)
                return {"dynamic": {"allowed": [list(pair) for pair in allowed], "label": known}}
            case _:
                return {"other": True}

    def _known(self, profile: str) -> str | None:
        """The profile by the catalogue's name; None = it does not know it."""
        found = self._catalog.profile(profile)
        return None if found is None else found.name

    def _is_declared(self, host: Host, address: PciAddress) -> bool:
        there = host.device(address)
        if there is None or isinstance(there, OtherDevice):
            return there is not None
        return board_key(self._catalog, there.vendor_id, there.device_id, there.subsystem_id) is not None

    def _folder(self, vm: Vm) -> str:
        """`folder-…/folder-…` below the datacenter's folder of VMs; of several datacenters each in one of its own."""
        parts = _folder_names(vm)
        if "vm" not in parts:
            return ""
        at = parts.index("vm")
        folders = [self._names.of(NameKind.FOLDER, part) for part in parts[at + 1 :]]
        top = [self._names.of(NameKind.DATACENTER, parts[at - 1])] if at and self._has_many else []
        return "/".join([*top, *folders])

    @property
    def _has_many(self) -> bool:
        return len(datacenters(self._inventory)) > 1

    def _attributes(self, vm: Vm) -> Iterator[tuple[str, str]]:
        """Custom attributes: those of gpuops by name where their value tells nothing, any other by pseudonym."""
        for name, value in vm.attributes.items():
            match name:
                case "gpuops.opt-out" if value.lower() in _YES_OR_NO:
                    yield name, value.lower()
                case "gpuops.role" if value in _ROLES:
                    yield name, value
                case "gpuops.return" if (wanted := moment_or_none(value)) is not None:
                    yield name, utc(wanted)
                case "gpuops.role" | "gpuops.owner" | "gpuops.opt-out":
                    yield name, self._names.of(NameKind.VALUE, value)
                case "gpuops.rotation":
                    pass  # the marker of a night
                case _:
                    yield self._names.of(NameKind.ATTRIBUTE, name), self._names.of(NameKind.VALUE, value)

    def _manager(self, vm: Vm) -> dict[str, str]:
        assert vm.managed_by is not None
        extension, kind = vm.managed_by.extension, vm.managed_by.kind
        known = extension if extension in KNOWN_EXTENSIONS else self._names.of(NameKind.EXTENSION, extension)
        return {"extension": known, "type": kind if kind in ("", _VM_TYPE) else self._names.of(NameKind.TEXT, kind)}


_QUESTION: Final = {"id": "1", "text": "question", "choices": {"0": "yes", "1": "no"}}
"""In place of whatever is asked: that it waits for an answer is what plans go by."""


def plain_settings(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Those of the keys that plans go by whose values are numbers, TRUE, FALSE or a PCI address."""
    known = {key.lower(): key for key in SETTINGS}
    for key, value in given.items():
        of_device = _OF_DEVICES.fullmatch(key.lower())
        spelled = known.get(key.lower())
        if of_device is not None:
            spelled = f"pciPassthru{int(of_device['number'])}.cfg.{of_device['name']}"
            if of_device["name"] == "gpu-pci-id":
                address = PciAddress.parse_or_none(value)
                if address is not None:
                    yield spelled, str(address)
                continue
        if spelled is not None and _PLAIN.fullmatch(value):
            yield spelled, value.upper()


def _places(vm: Vm, host: Host, vgpus: list[VgpuDevice]) -> tuple[list[PciAddress], list[int | None]]:
    """The GPU under each vGPU and where it lies there; nothing where the host does not tell."""
    told = [(gpu.address, each) for gpu in host.gpus for each in gpu.vgpus or () if each.vm == vm.ref]
    if len(told) == len(vgpus) and sorted(each.profile for _, each in told) == sorted(each.profile for each in vgpus):
        addresses: list[PciAddress] = []
        starts: list[int | None] = []
        for device in vgpus:
            found = next(pair for pair in told if pair[1].profile == device.profile)
            told.remove(found)
            addresses.append(found[0])
            starts.append(found[1].start)
        return addresses, starts
    on = [gpu.address for gpu in host.gpus if vm.ref in (gpu.vms or ())]
    if not on:
        return [], []
    return list(islice(cycle(on), len(vgpus))), []


def _held(vm: Vm, host: Host, direct: list[DirectPathDevice | DynamicDevice]) -> Iterator[str | None]:
    """The device under each DirectPath device: as the VM says it, else those that its host says are bound to it."""
    bound = iter([each.address for each in host.bindings if each.vm == vm.ref])
    for device in direct:
        match device:
            case DirectPathDevice(address=address):
                yield str(address)
            case DynamicDevice(assigned=assigned):
                found = assigned or next(bound, None)
                yield None if found is None else str(found)


def board_key(catalog: Catalog, vendor_id: int, device_id: int, subsystem_id: int | None) -> str | None:
    """The catalogue's key of a GPU; None = it does not know it."""
    board = catalog.board_by_pci(vendor_id, device_id, subsystem_id)
    return None if board is None else board.key


def datacenters(inventory: Inventory) -> tuple[str, ...]:
    """The names of the datacenters that VMs are in, sorted."""
    folders = map(_folder_names, inventory.vms.values())
    return tuple(sorted({names[names.index("vm") - 1] for names in folders if "vm" in names[1:]}))


def _folder_names(vm: Vm) -> Sequence[str]:
    """The names in the path of the VM's folder: `lab-dc`, `vm`, `ml`."""
    return vm.folders or tuple(name for name in vm.folder.split("/") if name)


def moment(at: datetime | None) -> str | None:
    """As ISO 8601 has it, in UTC; None = there is none."""
    return None if at is None else utc(at)


def utc(at: datetime) -> str:
    """As ISO 8601 has it, without the time zone of whoever wrote it; one of no time zone as it is."""
    return (at if at.tzinfo is None else at.astimezone(UTC)).isoformat()


def moment_or_none(text: str) -> datetime | None:
    """The moment that an ISO 8601 text says, in UTC; None = it is none."""
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
