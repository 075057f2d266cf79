"""Defines custom attributes of VMs by name, and writes their values.

The keys of the definitions are cached in `session.attribute_keys`: by each inventory, or by a read of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import GpuopsError, OutcomeUnknown, Refused, StepFailed

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session

_OTHER_NAME_HINT: Final = (
    "name another attribute in the policy, or rename that one in the vSphere Client (Tags & Custom Attributes, Custom "
    "Attributes) and run the command again"
)


def set_attribute(session: Session, ref: str, name: str, attribute_text: str, *, subject: str, op_id: str) -> None:
    """Set the attribute of the VM; '' clears it. Raises OutcomeUnknown, NoPermission."""
    if name not in session.attribute_keys:
        defined_attributes(session)
    if name not in session.attribute_keys:
        if not attribute_text:
            return  # an attribute that is not defined is clear everywhere
        define_attribute(session, name, op_id)
    key = session.attribute_keys[name]
    session.change(_manager(session).SetField, session.vm(ref), key, attribute_text, subject=subject, op_id=op_id)


def defined_attributes(session: Session) -> frozenset[str]:
    """Read and return the names of the attributes that a VM can have."""
    session.attribute_keys = _read_keys(session)
    return frozenset(session.attribute_keys)


def check_attribute_names(session: Session, names: Collection[str]) -> None:
    """Raise Refused if an attribute of one of these names is defined for other objects than VMs.

    Names are unique over all types of objects (vSphere API, AddCustomFieldDef: DuplicateName), and the type of an
    attribute cannot be changed.
    """
    undefined = set(names) - defined_attributes(session)
    for name, object_type in _object_types(session).items() if undefined else ():
        if name in undefined:
            raise Refused(_other_type_message(name, object_type), hint=_OTHER_NAME_HINT)


def define_attribute(session: Session, name: str, op_id: str) -> None:
    """Define an attribute of that name for VMs, unless it exists. Raises OutcomeUnknown, NoPermission."""
    from pyVmomi import vim

    add = _manager(session).AddCustomFieldDef
    try:
        # None, None: the attribute needs no other privileges than all attributes need
        field = session.change(add, name, vim.VirtualMachine, None, None, subject=f"attribute {name}", op_id=op_id)
    except GpuopsError as error:
        if not isinstance(error.__cause__, vim.fault.DuplicateName):
            raise
        # another user was faster, or defined it for another type of object
        if name not in defined_attributes(session):
            object_type = _object_types(session).get(name)
            if object_type is None:
                raise  # it was removed again, or this login cannot see it
            raise StepFailed(_other_type_message(name, object_type), hint=_OTHER_NAME_HINT) from error
    else:
        if field is None:
            raise OutcomeUnknown(
                f"attribute {name}: vCenter does not return its definition, so it may not exist",
                hint="run the command again: it reads the attributes first",
            )
        session.attribute_keys[name] = field.key


def _read_keys(session: Session) -> dict[str, int]:
    """Return the keys by name; an attribute for VMs takes precedence over one for all types of objects."""
    from pyVmomi import vim

    fields = session.read(lambda: _manager(session).field) or ()
    for_all_types = {field.name: field.key for field in fields if field.managedObjectType is None}
    for_vms = {field.name: field.key for field in fields if field.managedObjectType is vim.VirtualMachine}
    return {**for_all_types, **for_vms}


def _object_types(session: Session) -> dict[str, str]:
    """Return the type of object by attribute name, without attributes for all types."""
    from pyVmomi import VmomiSupport

    fields = session.read(lambda: _manager(session).field) or ()
    return {
        field.name: VmomiSupport.GetWsdlName(field.managedObjectType)
        for field in fields
        if field.managedObjectType is not None
    }


def _other_type_message(name: str, object_type: str) -> str:
    return f"custom attribute {name} is defined for objects of type {object_type}, so VMs cannot have it"


def _manager(session: Session) -> Any:
    manager = session.content.customFieldsManager
    if manager is None:
        raise Refused("this vCenter offers no custom attributes", hint="check that the address is that of a vCenter")
    return manager
