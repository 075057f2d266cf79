"""The services of the vSphere Automation API, as its two wires call them (`rest.py`).

Both wires authenticate with the same users as SOAP, and clients get a `vmware-api-session-id`. Which power states an
operation of com.vmware.vcenter.vm.power refuses, and with which error: vSphere Automation API reference
(vcenter.vm.power). The error for each fault of a task follows from the meanings given there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
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
from gpuops.sim.wire.automation import inventory_reads, vm_values
from gpuops.sim.wire.automation.direct_path_devices import DEVICES, TASKS, DirectPathDevices

if TYPE_CHECKING:
    from gpuops.sim.core.sessions import ClientSession
    from gpuops.sim.world import World

SESSION: Final = "com.vmware.cis.session"
ERRORS: Final = "com.vmware.vapi.std.errors"


class VapiServices:
    """Sessions, tags, reads of the inventory, the power of VMs and DirectPath devices of one simulated vCenter."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._inventory = inventory_reads.InventoryReads(world)
        self._power = PowerService(world, partial(self._inventory.one, inventory_reads.BY_PATH["vm"]))
        self._devices = DirectPathDevices(world, partial(self._inventory.one, inventory_reads.BY_PATH["host"]))

    def log_in(self, user: str, password: str) -> str:
        """The id of a new session. Raises VapiFault of kind unauthenticated."""
        sessions = self._world.sessions
        if not sessions.accepts(user, password):
            raise VapiFault("unauthenticated", "Authentication required.")
        session = sessions.open(user)
        if self._world.current_call is not None:
            self._world.current_call.opened = session
        return session.cookie

    def invoke(self, session_id: str, service: str, operation: str, parameters: object) -> Any:
        """Return the result of one operation: Struct, list, str, int, bool or None. Raises VapiFault.

        Any other exception is a bug of the simulator: it is recorded and reported as internal_server_error.
        """
        session = self.require_session(session_id)
        try:
            if service == SESSION:
                return self._session_operation(session, operation)
            if service in inventory_reads.BY_NAME:
                reads = inventory_reads.BY_NAME[service]
                return self._inventory.invoke(reads, operation, parameters, session.user)
            if service == POWER:
                return self._power.invoke(session, operation, parameters)
            if service in (DEVICES, TASKS) and self._devices.is_offered:
                return self._devices.invoke(session, service, operation, parameters)
            return self._world.tags.invoke(service, operation, parameters)
        except VapiFault:
            raise
        except Exception as bug:
            self._world.record_bug(bug)
            raise VapiFault(
                "internal_server_error", "The simulated vCenter failed to carry out the call: a bug of the simulator."
            ) from bug

    def require_session(self, session_id: str) -> ClientSession:
        """Return the session of that id, marked as active now. Raises VapiFault of kind unauthenticated."""
        session = self._world.sessions.find(session_id)
        if session is None:
            raise VapiFault("unauthenticated", "This method requires authentication.")
        session.active_at = self._world.clock.now()
        call = self._world.current_call
        if call is not None:
            call.session = session  # the ledger then knows who attached a tag
        return session

    def _session_operation(self, session: ClientSession, operation: str) -> Any:
        """Delete a session, or return its user and times. Raises VapiFault."""
        match operation:
            case "delete":
                self._world.sessions.close(session)
                return None
            case "get":
                times = {
                    "created_time": _format_time(session.login_at),
                    "last_accessed_time": _format_time(session.active_at),
                }
                return Struct(f"{SESSION}.info", {"user": session.user, **times})
            case _:
                raise operation_not_found(SESSION, operation)


def _format_time(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")[:23] + "Z"


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
        """`find_vm(identifier, user)` returns the VM; it raises VapiFault for one that the user may not see."""
        self._world = world
        self._find_vm = find_vm

    def invoke(self, session: ClientSession, operation: str, parameters: object) -> Any:
        """Return the power state for `get`; for a change, return None after it has ended. Raises VapiFault."""
        if operation != "get" and operation not in _OPERATIONS:
            raise operation_not_found(POWER, operation)
        check(parameters, operation_input(vm=TEXT))
        vm = self._find_vm(structure(parameters)["vm"], session.user)
        return _info(vm) if operation == "get" else self._change(vm, session, operation)

    def _change(self, vm: ManagedObject, session: ClientSession, operation: str) -> None:
        """Start a power task and wait until it has ended: this API has no tasks for power. Raises VapiFault."""
        verb, refused_states = _OPERATIONS[operation]
        method = f"{verb}VM_Task"
        call = Call(method=method, version=self._world.api_version, session=session)
        try:
            self._world.authority.require(call, vm, f"VirtualMachine.Interact.{verb}")
            self._world.tasks.refuse_if_busy(vm)
            state = vm_values.power_state(vm)
            if state in refused_states:
                raise VapiFault(
                    refused_states[state], f"The virtual machine {vm.display_name} is {state}.", args=(vm.moid,)
                )
            task = getattr(vm, method)(call)
        except vmodl.MethodFault as fault:
            raise _error(fault) from None
        if self._world.wait(lambda: task if task.ended else None, None) is None:
            raise VapiFault("service_unavailable", "The simulated vCenter is shutting down.")
        if task.error is not None:
            raise _error(task.error)


def _info(vm: ManagedObject) -> Struct:
    state = vm_values.power_state(vm)
    clean = bool(vm.read("runtime").cleanPowerOff) if state == "POWERED_OFF" else None
    return Struct(f"{POWER}.info", {"state": state, "clean_power_off": OptionalValue(clean)})


def _error(fault: Any) -> VapiFault:
    kind = next((name for cause, name in _ERRORS if isinstance(fault, cause)), "error")
    return VapiFault(kind, str(fault.msg))
