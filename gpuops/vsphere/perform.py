"""Performer: a step of a plan as one call to vCenter, sent exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from gpuops.errors import OutcomeUnknown, Refused
from gpuops.model.task import TaskRef
from gpuops.model.vm import PowerState
from gpuops.plan.core.privileges import changes_pool
from gpuops.plan.core.steps import (
    PowerOffVm,
    PowerOnVm,
    ReconfigureVm,
    RelocateVm,
    ResumeVm,
    RunInGuest,
    SetAttribute,
    SetVmDrs,
    ShutDownGuest,
    Step,
    SuspendVm,
)
from gpuops.vsphere import managed
from gpuops.vsphere.attributes import Attributes
from gpuops.vsphere.overrides import overriding
from gpuops.vsphere.specs import config_spec
from gpuops.vsphere.transport.door import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuops.model.inventory import Inventory
    from gpuops.model.vm import Vm
    from gpuops.vsphere.guest_programs import GuestPrograms
    from gpuops.vsphere.session import Session


class Performer:
    """Sends the steps of one session."""

    def __init__(self, session: Session, programs: GuestPrograms) -> None:
        self._session = session
        self._programs = programs
        self.attributes = Attributes(session)

    def submit(self, step: Step, inventory: Inventory, op_id: str) -> TaskRef | None:
        """The task of the step; None for a call that has none and is done (or asked for, ShutDownGuest).

        `op_id` travels in the request's header and shows in vCenter's logs. Raises OutcomeUnknown when the reply was
        lost, Refused when the step does not fit the VM as last seen, or the error of vCenter's fault.
        """
        vm = inventory.vm(step.vm)
        target = managed.vm(self._session, step.vm)
        match step:
            case ReconfigureVm():
                return self._task(target.ReconfigVM_Task, self._spec(step, vm), vm=vm, op_id=op_id)
            case RelocateVm():
                spec = self._relocation(step, inventory)
                return self._task(target.RelocateVM_Task, spec, None, vm=vm, op_id=op_id)
            case PowerOnVm() | ResumeVm():
                return self._start(step, vm, target, op_id)
            case SuspendVm():
                return self._task(target.SuspendVM_Task, vm=vm, op_id=op_id)
            case PowerOffVm():
                # vCenter would do it, and discard what the guest had in memory
                _require(vm, vm.power is not None, "not known to run: powering it off might discard its state")
                _require(vm, vm.power is not PowerState.SUSPENDED, "suspended: powering it off would discard its state")
                return self._task(target.PowerOffVM_Task, vm=vm, op_id=op_id)
            case ShutDownGuest():
                self._session.change(target.ShutdownGuest, subject=vm.name, op_id=op_id)
                return None
            case RunInGuest():
                return self._programs.start(step, vm.name, op_id)
            case SetVmDrs():
                return self._task(*overriding(self._session, step, inventory), vm=vm, op_id=op_id)
            case SetAttribute():
                self.attributes.set(step.vm, step.name, step.value, subject=vm.name, op_id=op_id)
                return None
            case _:
                assert_never(step)

    def _start(self, step: PowerOnVm | ResumeVm, vm: Vm, target: Any, op_id: str) -> TaskRef:
        if isinstance(step, ResumeVm):
            _require(vm, vm.power is PowerState.SUSPENDED, "not suspended: resuming it would boot it")
        return self._task(target.PowerOnVM_Task, managed.host(self._session, step.host), vm=vm, op_id=op_id)

    def _task(self, call: Callable[..., Any], *arguments: Any, vm: Vm, op_id: str) -> TaskRef:
        from pyVmomi import vim

        task = self._session.change(call, *arguments, subject=vm.name, op_id=op_id)
        if not isinstance(task, vim.Task):
            raise OutcomeUnknown(f"{vm.name}: vCenter answered without a task; whether it happened is not known yet")
        return TaskRef(str(task._moId))

    def _spec(self, step: ReconfigureVm, vm: Vm) -> Any:
        """The spec, with the VM's present devices where some go or change: those must be sent back as they are."""
        devices: Any = ()
        if step.change.remove or step.change.replace_profile:
            devices = self._devices(step.vm, vm.name)
        if vm.change_version is None:
            raise Refused(f"{vm.name}: its configuration could not be read, so it is not changed")
        return config_spec(step.change, vm.change_version, devices, self._session.api_version)

    def _devices(self, ref: str, subject: str) -> Any:
        from pyVmomi import vim, vmodl

        query = vmodl.query.PropertyCollector
        spec = query.FilterSpec(
            objectSet=[query.ObjectSpec(obj=managed.vm(self._session, ref))],
            propSet=[query.PropertySpec(type=vim.VirtualMachine, pathSet=["config.hardware.device"], all=False)],
        )
        collector = self._session.content.propertyCollector
        found = self._session.read(
            collector.RetrievePropertiesEx, [spec], query.RetrieveOptions(maxObjects=1), subject=subject
        )
        with self._session.decoding("a read of devices"):
            devices = next((one.val for each in (found.objects if found else ()) for one in each.propSet), ())
            if not all(isinstance(each, vim.vm.device.VirtualDevice) for each in devices):
                raise Unreadable("something else where devices belong")
        return devices

    def _relocation(self, step: RelocateVm, inventory: Inventory) -> Any:
        """The move with nothing else changed; into another cluster it needs a resource pool there."""
        from pyVmomi import vim

        target = managed.host(self._session, step.host)
        spec = vim.vm.RelocateSpec(host=target)
        if changes_pool(step, inventory):
            wanted = inventory.hosts.get(step.host)
            subject = wanted.name if wanted is not None else step.host
            spec.pool = self._session.read(lambda: target.parent.resourcePool, subject=subject)
        return spec


def _require(vm: Vm, holds: bool, otherwise: str) -> None:
    if not holds:
        raise Refused(f"{vm.name}: it is {otherwise}")
