"""DirectPath I/O entries of VMs that their host refuses at the next power-on.

The entry names its device by PCI address, device id, vendor id and system id. vCenter accepts any, and the host
compares them at power-on (vSphere API, VirtualPCIPassthroughDeviceBackingInfo and QueryConfigTarget; in govmomi issue
2248 the device id was written in decimal).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import DirectPathDevice, PowerState, Vm
from gpuops.plan.core.passthru_devices import pci_types


def entry_mismatch(device: DirectPathDevice, host: Host) -> str | None:
    """Return why a VM with this entry does not start on the host; None = it does, or the host's answer is not known.

    A device that the host lists and has not switched to passthrough is no mismatch: it can be switched on.
    """
    if host.config_target is None:
        return None
    target = next((target for target in host.config_target.passthrough if target.address == device.address), None)
    if target is None:
        return None if host.device(device.address) is not None else f"{host.name} has no device at {device.address}"
    entry_type, target_type = (device.vendor_id, device.device_id), (target.vendor_id, target.device_id)
    if entry_type != target_type:
        written, actual = pci_types([entry_type]), pci_types([target_type])
        return f"its entry for {device.address} names {written}, and the device there is {actual}"
    if device.system_id and target.system_id and device.system_id.lower() != target.system_id.lower():
        return f"its entry for {device.address} has the system id of another host than {host.name}"
    return None


def find_stale_entries(vm: Vm, host: Host | None) -> tuple[tuple[DirectPathDevice, str], ...]:
    """Return the DirectPath entries with which the VM does not start on the host, each with the reason.

    Empty for a running VM, since it has its devices.
    """
    if host is None or vm.power is PowerState.ON:
        return ()
    direct_path_devices = (device for device in vm.devices or () if isinstance(device, DirectPathDevice))
    return tuple(
        (device, reason) for device in direct_path_devices if (reason := entry_mismatch(device, host)) is not None
    )


def entries_to_replace(vm: Vm, host: Host | None, addresses: Iterable[PciAddress]) -> tuple[DirectPathDevice, ...]:
    """Return the entries of these addresses with which the VM does not start on the host."""
    requested = set(addresses)
    return tuple(device for device, _ in find_stale_entries(vm, host) if device.address in requested)
