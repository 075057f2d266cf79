"""Returns the call to vCenter for one step of a plan on a VM, with the vmomi spec of the change.

pyVmomi silently leaves out fields that are newer than the negotiated API version. A change that needs such a field is
refused, and the error names the option, because vCenter would apply only a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, assert_never

from gpuops.errors import Refused
from gpuops.model.vcenter.vm import PowerState, VmDrs
from gpuops.plan.core.privileges import changes_pool
from gpuops.plan.core.steps import (
    CloneVm,
    CreateVm,
    NewDevice,
    NewDirectPath,
    NewDynamic,
    NewVgpu,
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemoveVm,
    ResumeVm,
    SetVmDrs,
    SuspendVm,
    VmChange,
)
from gpuops.plan.core.versions import unsupported_option
from gpuops.vsphere.transport.network import UnreadableReply
from gpuops.vsphere.writing import new_vms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm
    from gpuops.vsphere.session import Session

FIRST_NEW_KEY: Final = -101
"""New devices carry unique negative keys in one spec; vCenter answers with its own."""

_PLAN_AGAIN: Final = "run the command again: it reads the VM first"

DEVICE_GROUP_KEY: Final = -1
"""The key of the one new device group of a spec; its new devices refer to it by this key."""

TaskStep = (
    ReconfigureVm
    | RelocateVm
    | PowerOnVm
    | ResumeVm
    | SuspendVm
    | PowerOffVm
    | SetVmDrs
    | CloneVm
    | CreateVm
    | PowerOffForRemoval
    | RemoveVm
)
"""A step that vCenter carries out as a task."""


def config_spec(change: VmChange, change_version: str, devices: Sequence[Any], api_version: str) -> Any:
    """Return the vim.vm.ConfigSpec of a change, which vCenter applies completely or not at all.

    `devices` are the present vim devices of the VM: a spec that removes or edits one must contain its complete object.
    With `change_version`, vCenter refuses the spec (ConcurrentAccess) if the VM was changed since it was read. Raises
    Refused for options that the API version does not have, or for a device that the VM does not have any more.
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
        device = _find_device(devices, key)
        device.backing = vim.vm.device.VirtualPCIPassthrough.VmiopBackingInfo(vgpu=profile)
        yield vim.vm.device.VirtualDeviceSpec(operation="edit", device=device)


def _removals(change: VmChange, devices: Sequence[Any]) -> Iterator[Any]:
    from pyVmomi import vim

    for key in change.remove:
        yield vim.vm.device.VirtualDeviceSpec(operation="remove", device=_find_device(devices, key))


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

    backings = vim.vm.device.VirtualPCIPassthrough
    match new_device:
        case NewVgpu():
            return backings.VmiopBackingInfo(vgpu=new_device.profile)
        case NewDirectPath():
            return backings.DeviceBackingInfo(
                deviceName=new_device.name,
                id=str(new_device.address),
                systemId=new_device.system_id,
                # hexadecimal digits without 0x: vCenter accepts decimal ones here, but the power-on then fails
                deviceId=f"{new_device.device_id & 0xFFFF:x}",
                vendorId=signed_short(new_device.vendor_id),
            )
        case NewDynamic():
            allowed = [
                backings.AllowedDevice(vendorId=vendor, deviceId=device) for vendor, device in new_device.allowed
            ]
            return backings.DynamicBackingInfo(deviceName="", allowedDevice=allowed, customLabel=new_device.label)


def _find_device(devices: Sequence[Any], key: int) -> Any:
    """Return the device of the VM with this key. Raises Refused if the VM does not have it any more."""
    for device in devices:
        if device.key == key:
            return device
    raise Refused(f"the VM does not have the device {key} any more", hint=_PLAN_AGAIN)


def _check_version(change: VmChange, api_version: str) -> None:
    """Raise Refused, with the name of the option, if the change needs a newer API version."""
    message = unsupported_option(
        api_version,
        dynamic=any(isinstance(new, NewDynamic) for new in change.add),
        group=change.device_group is not None,
        numa_cores=change.cores_per_numa_node is not None,
        device_node=any(isinstance(new, NewVgpu) and new.numa_node is not None for new in change.add),
    )
    if message is not None:
        raise Refused(message, hint="remove that option, or use a newer vCenter")


def overriding(session: Session, step: SetVmDrs, inventory: Inventory) -> tuple[Callable[..., Any], Any, bool]:
    """Return the call, its spec and `modify`, which add, change or remove only the DRS override of this VM.

    vCenter refuses to add an override that exists. Raises Refused if the present ones cannot be read (vSphere API
    reference, ReconfigureComputeResource_Task with `modify`, ClusterDrsVmConfigSpec).
    """
    vm = inventory.vm(step.vm)
    cluster = inventory.cluster_of(vm)
    if cluster is None or cluster.drs_enabled is None:
        raise Refused(
            f"{vm.name}: the DRS settings of its cluster cannot be read, so they are not changed",
            hint="give this login System.Read on the cluster",
        )
    target = session.managed_object("ClusterComputeResource", cluster.ref)
    return target.ReconfigureComputeResource_Task, override_spec(step, exists=cluster.has_override(step.vm)), True


def override_spec(step: SetVmDrs, *, exists: bool) -> Any:
    """Return the ClusterConfigSpecEx of the step. `exists` is whether the VM has an override."""
    from pyVmomi import vim

    vm = vim.VirtualMachine(step.vm)
    if step.drs is VmDrs.CLUSTER:
        change = vim.cluster.DrsVmConfigSpec(operation="remove", removeKey=vm)
    else:
        behavior: Any = {} if step.drs is VmDrs.OFF else {"behavior": step.drs.value}
        override = vim.cluster.DrsVmConfigInfo(key=vm, enabled=step.drs is not VmDrs.OFF, **behavior)
        change = vim.cluster.DrsVmConfigSpec(operation="edit" if exists else "add", info=override)
    return vim.cluster.ConfigSpecEx(drsVmConfigSpec=[change])


def call_of(session: Session, step: TaskStep, inventory: Inventory) -> tuple[Any, ...]:
    """Return the call that starts the step's task, followed by its arguments.

    Raises Refused if the step does not fit the last state of the VM.
    """
    if isinstance(step, CloneVm):
        return new_vms.cloning(session, step)
    if isinstance(step, CreateVm):
        return new_vms.creating(session, step)
    vm, target = inventory.vm(step.vm), session.vm(step.vm)
    match step:
        case ReconfigureVm():
            return target.ReconfigVM_Task, _reconfiguration(session, step, vm)
        case RelocateVm():
            return target.RelocateVM_Task, _relocation(session, step, inventory), None
        case PowerOnVm() | ResumeVm():
            return _power_on_call(session, step, vm)
        case SuspendVm():
            return (target.SuspendVM_Task,)
        case PowerOffVm():
            _refuse_to_discard_memory(vm)
            return (target.PowerOffVM_Task,)
        case SetVmDrs():
            return overriding(session, step, inventory)
        case PowerOffForRemoval() | RemoveVm():
            return new_vms.removing(session, step)
        case _:
            assert_never(step)


def _power_on_call(session: Session, step: PowerOnVm | ResumeVm, vm: Vm) -> tuple[Any, ...]:
    """Return the call that starts or resumes the VM. Raises Refused if it is to be resumed and is not suspended."""
    if (isinstance(step, ResumeVm) or step.resumes) and vm.power is not PowerState.SUSPENDED:
        raise Refused(f"{vm.name}: it is not suspended: resuming it would boot it", hint=_PLAN_AGAIN)
    return session.vm(step.vm).PowerOnVM_Task, session.host(step.host)


def _refuse_to_discard_memory(vm: Vm) -> None:
    """Raise Refused for a VM that is, or may be, suspended: vCenter powers it off and discards its guest's memory."""
    if vm.power is None:
        raise Refused(
            f"{vm.name}: its power state is unknown: powering it off might discard its memory", hint=_PLAN_AGAIN
        )
    if vm.power is PowerState.SUSPENDED:
        raise Refused(f"{vm.name}: it is suspended: powering it off would discard its memory", hint=_PLAN_AGAIN)


def _reconfiguration(session: Session, step: ReconfigureVm, vm: Vm) -> Any:
    """Return the spec. It is made from the present devices of the VM if some of them are removed or edited."""
    devices: Any = ()
    if step.change.remove or step.change.replace_profile:
        devices = _devices(session, step.vm, vm.name)
    if vm.change_version is None:
        raise Refused(
            f"{vm.name}: its configuration could not be read, so it is not changed",
            hint="give this login System.Read on the VM",
        )
    return config_spec(step.change, vm.change_version, devices, session.api_version)


def _devices(session: Session, ref: str, subject: str) -> Any:
    """Return the present vim devices of the VM."""
    from pyVmomi import vim

    properties_by_vm = session.read_properties([session.vm(ref)], ["config.hardware.device"], subject=subject)
    devices = next(iter(properties_by_vm.values()), {}).get("config.hardware.device", ())
    with session.decoding("a read of devices"):
        if not all(isinstance(device, vim.vm.device.VirtualDevice) for device in devices):
            raise UnreadableReply("another object where a device belongs")
    return devices


def _relocation(session: Session, step: RelocateVm, inventory: Inventory) -> Any:
    """Return the spec of a move without other changes. A move to another cluster needs a resource pool there."""
    from pyVmomi import vim

    target = session.host(step.host)
    spec = vim.vm.RelocateSpec(host=target)
    if changes_pool(step, inventory):
        destination = inventory.hosts.get(step.host)
        subject = destination.name if destination is not None else step.host
        spec.pool = session.read(lambda: target.parent.resourcePool, subject=subject)
    return spec
