"""Makes the vmomi specs of planned changes for `steps`; nothing is sent here.

pyVmomi leaves out, silently, every field that is newer than the negotiated API version; so a change that needs such a
field is refused here, by name, rather than half applied there.
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
    """The one vim.vm.ConfigSpec of a change: everything in it happens, or nothing does.

    `devices` are the VM's present vim devices, whose objects a removal or an edit must carry. `change_version` makes
    vCenter refuse the spec (ConcurrentAccess) if somebody changed the VM since it was read. Raises Refused for what
    this vCenter's API version cannot say, or for a device that is not there any more.
    """
    from pyVmomi import vim

    _check_version(change, api_version)
    spec = vim.vm.ConfigSpec(changeVersion=change_version)
    spec.deviceChange = [*_edits(change, devices), *_removals(change, devices), *_additions(change)]
    spec.extraConfig = [
        vim.option.OptionValue(key=key, value=value) for key, value in sorted(change.extra_config.items())
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
    """A PCI id as vSphere's signed 16-bit fields hold it: 0x10de stays, 0xa100 turns negative."""
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

    for position, wanted in enumerate(change.add):
        device = vim.vm.device.VirtualPCIPassthrough(key=FIRST_NEW_KEY - position, backing=_backing(wanted))
        if isinstance(wanted, NewVgpu) and wanted.numa_node is not None:
            device.numaNode = wanted.numa_node
        if change.device_group is not None:
            device.deviceGroupInfo = vim.vm.device.VirtualDevice.DeviceGroupInfo(
                groupInstanceKey=DEVICE_GROUP_KEY,
                sequenceId=position if wanted.sequence_id is None else wanted.sequence_id,
            )
        yield vim.vm.device.VirtualDeviceSpec(operation="add", device=device)


def _backing(wanted: NewDevice) -> Any:
    from pyVmomi import vim

    kinds = vim.vm.device.VirtualPCIPassthrough
    match wanted:
        case NewVgpu():
            return kinds.VmiopBackingInfo(vgpu=wanted.profile)
        case NewDirectPath():
            return kinds.DeviceBackingInfo(
                deviceName=wanted.name,
                id=str(wanted.address),
                systemId=wanted.system_id,
                # a string of hexadecimal digits without 0x: a decimal one passes here and fails at power-on
                deviceId=f"{wanted.device_id & 0xFFFF:x}",
                vendorId=signed_short(wanted.vendor_id),
            )
        case NewDynamic():
            allowed = [kinds.AllowedDevice(vendorId=vendor, deviceId=device) for vendor, device in wanted.allowed]
            return kinds.DynamicBackingInfo(deviceName="", allowedDevice=allowed, customLabel=wanted.label)


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
    """The call that makes, changes or removes the VM's override, and its arguments; all else stays as it is.

    Which of the three depends on what is there: to add one that exists is refused. Raises Refused where that cannot be
    read (vSphere API reference, ReconfigureComputeResource_Task with `modify`, ClusterDrsVmConfigSpec).
    """
    vm = inventory.vm(step.vm)
    cluster = inventory.cluster_of(vm)
    if cluster is None or cluster.drs_enabled is None:
        raise Refused(f"{vm.name}: what DRS does in its cluster cannot be read, so it is not changed")
    target = session.managed("ClusterComputeResource", cluster.ref)
    return target.ReconfigureComputeResource_Task, override_spec(step, there=cluster.has_override(step.vm)), True


def override_spec(step: SetVmDrs, *, there: bool) -> Any:
    """The ClusterConfigSpecEx of the step; `there`: the VM has an override already."""
    from pyVmomi import vim

    key = vim.VirtualMachine(step.vm)
    if step.drs is VmDrs.CLUSTER:
        change = vim.cluster.DrsVmConfigSpec(operation="remove", removeKey=key)
    else:
        said: Any = {} if step.drs is VmDrs.OFF else {"behavior": step.drs.value}
        info = vim.cluster.DrsVmConfigInfo(key=key, enabled=step.drs is not VmDrs.OFF, **said)
        change = vim.cluster.DrsVmConfigSpec(operation="edit" if there else "add", info=info)
    return vim.cluster.ConfigSpecEx(drsVmConfigSpec=[change])
