"""com.vmware.vcenter.vm.power: the power state of a VM, and the operations that change it and wait for the end.

`vapi.py` calls it for both wires. Which state an operation refuses, and by which error, is said in the vSphere
Automation API reference (vcenter.vm.power); what a fault of the task becomes follows the meanings given there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.call import Call
from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.vcenter.vapi_values import (
    TEXT,
    OptionalValue,
    Struct,
    VapiFault,
    check,
    operation_input,
    operation_not_found,
    structure,
)
from gpuops.sim.wire.automation import vm_values

if TYPE_CHECKING:
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.world import World

POWER: Final = "com.vmware.vcenter.vm.power"
_ALREADY: Final = "already_in_desired_state"
_NOT_NOW: Final = "not_allowed_in_current_state"
_OPERATIONS: Final = {
    "start": ("PowerOn", {"POWERED_ON": _ALREADY}),
    "stop": ("PowerOff", {"POWERED_OFF": _ALREADY}),
    "suspend": ("Suspend", {"SUSPENDED": _ALREADY, "POWERED_OFF": _NOT_NOW}),
    "reset": ("Reset", {"POWERED_OFF": _NOT_NOW, "SUSPENDED": _NOT_NOW}),
}
"""(privilege below VirtualMachine.Interact and start of the method's name, error by the state that refuses it)."""
_ERRORS: Final = (
    (vim.fault.NoPermission, "unauthorized"),
    (vim.fault.TaskInProgress, "resource_busy"),
    (vim.fault.InsufficientResourcesFault, "unable_to_allocate_resource"),
    (vmodl.fault.NotSupported, "unsupported"),
)


class PowerService:
    """The operations of the service in one simulated vCenter."""

    def __init__(self, world: World, find_vm: Callable[[str, str], ManagedObject]) -> None:
        """`find_vm(identifier, user)` is the VM; it raises VapiFault for one that the user does not get."""
        self._world = world
        self._find_vm = find_vm

    def invoke(self, session: ClientSession, operation: str, parameters: object) -> Any:
        """The result of one operation; of those that change the state, None after the end. Raises VapiFault."""
        if operation != "get" and operation not in _OPERATIONS:
            raise operation_not_found(POWER, operation)
        check(parameters, operation_input(vm=TEXT))
        vm = self._find_vm(structure(parameters)["vm"], session.user)
        return _info(vm) if operation == "get" else self._change(vm, session, operation)

    def _change(self, vm: ManagedObject, session: ClientSession, operation: str) -> None:
        verb, refused = _OPERATIONS[operation]
        method = f"{verb}VM_Task"
        call = Call(method=method, version=self._world.api_version, session=session)
        try:
            self._world.authority.require(call, vm, f"VirtualMachine.Interact.{verb}")
            self._world.tasks.refuse_if_busy(vm)
            state = vm_values.power_state(vm)
            if state in refused:
                raise VapiFault(refused[state], f"The virtual machine {vm.display_name} is {state}.", args=(vm.moid,))
            task = getattr(vm, method)(call)
        except vmodl.MethodFault as fault:
            raise _error(fault) from None
        if self._world.wait(lambda: task if task.ended else None, None) is None:
            raise VapiFault("service_unavailable", "The simulated vCenter ends.")
        if task.error is not None:
            raise _error(task.error)


def _info(vm: ManagedObject) -> Struct:
    state = vm_values.power_state(vm)
    clean = bool(vm.read("runtime").cleanPowerOff) if state == "POWERED_OFF" else None
    return Struct(f"{POWER}.info", {"state": state, "clean_power_off": OptionalValue(clean)})


def _error(fault: Any) -> VapiFault:
    kind = next((name for cause, name in _ERRORS if isinstance(fault, cause)), "error")
    return VapiFault(kind, str(fault.msg))
