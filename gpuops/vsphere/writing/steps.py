"""Sends one step of a plan on a VM as one call to vCenter, exactly once; `connection` offers it to the executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from gpuops.errors import OutcomeUnknown, Refused
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.privileges import changes_pool
from gpuops.plan.core.step_checks import NOT_OFF
from gpuops.plan.core.steps import (
    PowerOffForRemoval,
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    RemovalStep,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    SuspendVm,
    VcenterStep,
)
from gpuops.vsphere.guests import guest_programs
from gpuops.vsphere.transport.network import UnreadableReply
from gpuops.vsphere.writing import new_vms
from gpuops.vsphere.writing.attributes import set_attribute
from gpuops.vsphere.writing.specs import config_spec, overriding

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.session import Session


def submit(connection: Connection, step: VcenterStep, inventory: Inventory, op_id: str) -> TaskRef | None:
    """Send the step and return its task; None for a call without a task, which is done (or requested, ShutDownGuest).

    `op_id` is in the header of the request and in vCenter's logs. Raises OutcomeUnknown if the reply was lost, Refused
    if the step does not fit the last state of the VM, or the error of vCenter's fault.
    """
    vm = inventory.vm(step.vm)
    target = connection.vm(step.vm)
    match step:
        case ReconfigureVm():
            return _task(connection, target.ReconfigVM_Task, _spec(connection, step, vm), vm=vm, op_id=op_id)
        case RelocateVm():
            spec = _relocation(connection, step, inventory)
            return _task(connection, target.RelocateVM_Task, spec, None, vm=vm, op_id=op_id)
        case PowerOnVm() | ResumeVm():
            return _start(connection, step, vm, target, op_id)
        case SuspendVm():
            return _task(connection, target.SuspendVM_Task, vm=vm, op_id=op_id)
        case PowerOffVm():
            # vCenter would do it, and discard the memory of the guest
            _require(vm, vm.power is not None, "not known to run: powering it off might discard its state")
            _require(vm, vm.power is not PowerState.SUSPENDED, "suspended: powering it off would discard its state")
            return _task(connection, target.PowerOffVM_Task, vm=vm, op_id=op_id)
        case ShutDownGuest():
            connection.change(target.ShutdownGuest, subject=vm.name, op_id=op_id)
            return None
        case RunInGuest():
            return guest_programs.start_program(connection, step, vm.name, op_id)
        case SetVmDrs():
            return _task(connection, *overriding(connection, step, inventory), vm=vm, op_id=op_id)
        case SetAttribute():
            set_attribute(connection, step.vm, step.name, step.value, subject=vm.name, op_id=op_id)
            return None
        case _:
            assert_never(step)


def submit_removal(session: Session, step: RemovalStep, inventory: Inventory, op_id: str) -> TaskRef:
    """Return the task that powers off or removes a VM that gpuops made. Name, notes and power state are read first.

    Raises Refused for another VM, and for the removal of one that is not off: vCenter would remove a suspended VM, with
    what its guest has in memory. Raises OutcomeUnknown when the reply was lost.
    """
    vm, target = inventory.vm(step.vm), session.vm(step.vm)
    power = new_vms.power_of_made(session, step.vm, step.name, step.notes)
    if isinstance(step, PowerOffForRemoval):
        return _task(session, target.PowerOffVM_Task, vm=vm, op_id=op_id)
    if power is not PowerState.OFF:
        raise Refused(f"{step.name} {NOT_OFF}")
    return _task(session, target.Destroy_Task, vm=vm, op_id=op_id)


def _start(session: Session, step: PowerOnVm | ResumeVm, vm: Vm, target: Any, op_id: str) -> TaskRef:
    if isinstance(step, ResumeVm) or step.resumes:
        _require(vm, vm.power is PowerState.SUSPENDED, "not suspended: resuming it would boot it")
    return _task(session, target.PowerOnVM_Task, session.host(step.host), vm=vm, op_id=op_id)


def _task(session: Session, call: Callable[..., Any], *arguments: Any, vm: Vm, op_id: str) -> TaskRef:
    from pyVmomi import vim

    task = session.change(call, *arguments, subject=vm.name, op_id=op_id)
    if not isinstance(task, vim.Task):
        raise OutcomeUnknown(f"{vm.name}: vCenter answered without a task; whether it happened is not known yet")
    return TaskRef(str(task._moId))


def _spec(session: Session, step: ReconfigureVm, vm: Vm) -> Any:
    """Return the spec. It is made from the present devices of the VM if some of them are removed or edited."""
    devices: Any = ()
    if step.change.remove or step.change.replace_profile:
        devices = _devices(session, step.vm, vm.name)
    if vm.change_version is None:
        raise Refused(f"{vm.name}: its configuration could not be read, so it is not changed")
    return config_spec(step.change, vm.change_version, devices, session.api_version)


def _devices(session: Session, ref: str, subject: str) -> Any:
    from pyVmomi import vim, vmodl

    query = vmodl.query.PropertyCollector
    spec = query.FilterSpec(
        objectSet=[query.ObjectSpec(obj=session.vm(ref))],
        propSet=[query.PropertySpec(type=vim.VirtualMachine, pathSet=["config.hardware.device"], all=False)],
    )
    collector = session.content.propertyCollector
    page = session.read(collector.RetrievePropertiesEx, [spec], query.RetrieveOptions(maxObjects=1), subject=subject)
    with session.decoding("a read of devices"):
        devices = next((prop.val for content in (page.objects if page else ()) for prop in content.propSet), ())
        if not all(isinstance(content, vim.vm.device.VirtualDevice) for content in devices):
            raise UnreadableReply("something else where devices belong")
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


def _require(vm: Vm, holds: bool, otherwise: str) -> None:
    if not holds:
        raise Refused(f"{vm.name}: it is {otherwise}")
