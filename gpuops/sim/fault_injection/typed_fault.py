"""Makes vim faults by their names, with every required field filled in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.errors import UsageError

if TYPE_CHECKING:
    from gpuops.sim.core.managed_object import ManagedObject


def fault_type(name: str) -> Any:
    """The vim fault of that WSDL name. Raises UsageError for a name that is none."""
    from pyVmomi import VmomiSupport, vmodl

    try:
        kind = VmomiSupport.GetWsdlType("urn:vim25", name)
    except KeyError:
        kind = None
    if kind is None or not issubclass(kind, vmodl.MethodFault):
        raise UsageError(
            f"{name} is no fault of the vSphere API", hint="as it says: NoDiskSpace, NoCompatibleHost, ..."
        )
    return kind


def make_fault(name: str, receiver: ManagedObject) -> Any:
    """A vim fault of that WSDL name about `receiver`. Raises UsageError for a name that is no fault."""
    from pyVmomi import VmomiSupport

    kind = fault_type(name)
    fault = kind(msg=f"{name}, as injected")
    for info in kind._GetPropertyList():
        if getattr(fault, info.name) is None and not info.flags & VmomiSupport.F_OPTIONAL:
            setattr(fault, info.name, _plain(info.type, receiver))
    return fault


def _plain(kind: Any, receiver: ManagedObject) -> Any:
    from pyVmomi import VmomiSupport

    if issubclass(kind, VmomiSupport.ManagedObject):
        return kind(receiver.moid)
    return kind(kind.values[0]) if issubclass(kind, VmomiSupport.Enum) else kind()
