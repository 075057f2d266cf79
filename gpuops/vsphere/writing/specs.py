"""Makes the vmomi specs of planned changes for `steps`, which sends them.

pyVmomi silently leaves out fields that are newer than the negotiated API version. A change that needs such a field is
refused, and the error names the option, because vCenter would apply only a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import Refused
from gpuops.model.vcenter.vm import VmDrs
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu, VmChange
from gpuops.plan.core.versions import unsupported_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.core.steps import SetVmDrs
    from gpuops.vsphere.session import Session

FIRST_NEW_KEY: Final = -101
"""New devices carry unique negative keys in one spec; vCenter answers with its own."""

DEVICE_GROUP_KEY: Final = -1


def config_spec(change: VmChange, change_version: str, devices: Sequence[Any], api_version: str) -> Any:
    """Return the vim.vm.ConfigSpec of a change, which vCenter applies completely or not at all.

    `devices` are the present vim devices of the VM; a removal or an edit must contain them. With `change_version`,
    vCenter refuses the spec (ConcurrentAccess) if the VM was changed since it was read. Raises Refused for options that
    the API version does not have, or for a device that the VM does not have any more.
    """
    from pyVmomi import vim

    _check_version(change, api_version)
    spec = vim.vm.ConfigSpec(changeVersion=change_version)
    spec.deviceChange = [*_edits(change, devices), *_removals(change, devices), *_additions(change)]
    spec.extraConfig = [
        vim.option.OptionValue(key=option_key, value=option_text)
        for option_key, option_text in sorted(change.extra_config.items())
    ]
    if change.memory_locked is not None:
        spec.memoryReservationLockedToMax = change.memory_locked
    if change.memory_reservation_mib is not None:
        spec.memoryAllocation = vim.ResourceAllocationInfo(reservation=change.memory_reservation_mib)
    if change.cpu_hot_add is not None:
        spec.cpuHotAddEnabled = change.cpu_hot_add
    if change.cores_per_numa_node is not None:
        spec.virtualNuma = vim.vm.VirtualNuma(coresPerNumaNode=change.cores_per_numa_node)
    if change.device_group is not None:
        group = vim.vm.VirtualDeviceGroups.VendorDeviceGroup(
            groupInstanceKey=DEVICE_GROUP_KEY, deviceGroupName=change.device_group
        )
        spec.deviceGroups = vim.vm.VirtualDeviceGroups(deviceGroup=[group])
    return spec


def signed_short(identity: int) -> int:
    """Return a PCI id for vSphere's signed 16-bit fields: 0x10de stays, 0xa100 becomes negative."""
    return identity - 0x10000 if identity >= 0x8000 else identity


def _edits(change: VmChange, devices: Sequence[Any]) -> Iterator[Any]:
    from pyVmomi import vim

    for key, profile in change.replace_profile:
        device = _present(devices, key)
        device.backing = vim.vm.device.VirtualPCIPassthrough.VmiopBackingInfo(vgpu=profile)
        yield vim.vm.device.VirtualDeviceSpec(operation="edit", device=device)


def _removals(change: VmChange, devices: Sequence[Any]) -> Iterator[Any]:
    from pyVmomi import vim

    for key in change.remove:
        yield vim.vm.device.VirtualDeviceSpec(operation="remove", device=_present(devices, key))


def _additions(change: VmChange) -> Iterator[Any]:
    from pyVmomi import vim

    for position, new_device in enumerate(change.add):
        device = vim.vm.device.VirtualPCIPassthrough(key=FIRST_NEW_KEY - position, backing=_backing(new_device))
        if isinstance(new_device, NewVgpu) and new_device.numa_node is not None:
            device.numaNode = new_device.numa_node
        if change.device_group is not None:
            device.deviceGroupInfo = vim.vm.device.VirtualDevice.DeviceGroupInfo(
                groupInstanceKey=DEVICE_GROUP_KEY,
                sequenceId=position if new_device.sequence_id is None else new_device.sequence_id,
            )
        yield vim.vm.device.VirtualDeviceSpec(operation="add", device=device)


def _backing(new_device: NewDevice) -> Any:
    from pyVmomi import vim

    kinds = vim.vm.device.VirtualPCIPassthrough
    match new_device:
        case NewVgpu():
            return kinds.VmiopBackingInfo(vgpu=new_device.profile)
        case NewDirectPath():
            return kinds.DeviceBackingInfo(
                deviceName=new_device.name,
                id=str(new_device.address),
                systemId=new_device.system_id,
                # a string of hexadecimal digits without 0x: a decimal one passes here and fails at power-on
                deviceId=f"{new_device.device_id & 0xFFFF:x}",
                vendorId=signed_short(new_device.vendor_id),
            )
        case NewDynamic():
            allowed = [kinds.AllowedDevice(vendorId=vendor, deviceId=device) for vendor, device in new_device.allowed]
            return kinds.DynamicBackingInfo(deviceName="", allowedDevice=allowed, customLabel=new_device.label)


def _present(devices: Sequence[Any], key: int) -> Any:
    for device in devices:
        if device.key == key:
            return device
    raise Refused(f"device {key} is not on the VM any more", hint="run the command again: it reads the VM anew")


def _check_version(change: VmChange, api_version: str) -> None:
    beyond = unsupported_option(
        api_version,
        dynamic=any(isinstance(new, NewDynamic) for new in change.add),
        group=change.device_group is not None,
        numa_cores=change.cores_per_numa_node is not None,
        device_node=any(isinstance(new, NewVgpu) and new.numa_node is not None for new in change.add),
    )
    if beyond is not None:
        raise Refused(beyond, hint="leave that option out, or use a newer vCenter")


def overriding(session: Session, step: SetVmDrs, inventory: Inventory) -> tuple[Callable[..., Any], Any, bool]:
    """Return the call, with its arguments, that adds, changes or removes the DRS override of the VM only.

    vCenter refuses to add an override that exists. Raises Refused if the present ones cannot be read (vSphere API
    reference, ReconfigureComputeResource_Task with `modify`, ClusterDrsVmConfigSpec).
    """
    vm = inventory.vm(step.vm)
    cluster = inventory.cluster_of(vm)
    if cluster is None or cluster.drs_enabled is None:
        raise Refused(f"{vm.name}: what DRS does in its cluster cannot be read, so it is not changed")
    target = session.managed_object("ClusterComputeResource", cluster.ref)
    return target.ReconfigureComputeResource_Task, override_spec(step, exists=cluster.has_override(step.vm)), True


def override_spec(step: SetVmDrs, *, exists: bool) -> Any:
    """Return the ClusterConfigSpecEx of the step. `exists` is whether the VM has an override."""
    from pyVmomi import vim

    key = vim.VirtualMachine(step.vm)
    if step.drs is VmDrs.CLUSTER:
        change = vim.cluster.DrsVmConfigSpec(operation="remove", removeKey=key)
    else:
        behavior: Any = {} if step.drs is VmDrs.OFF else {"behavior": step.drs.value}
        override = vim.cluster.DrsVmConfigInfo(key=key, enabled=step.drs is not VmDrs.OFF, **behavior)
        change = vim.cluster.DrsVmConfigSpec(operation="edit" if exists else "add", info=override)
    return vim.cluster.ConfigSpecEx(drsVmConfigSpec=[change])
