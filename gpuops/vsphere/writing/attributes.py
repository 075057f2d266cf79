"""Custom attributes of VMs: defines them by name, and writes the values that steps set.

`connection.attribute_keys` keeps the keys of the definitions, which are read once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.errors import GpuopsError, OutcomeUnknown, Refused

if TYPE_CHECKING:
    from gpuops.vsphere.connection import Connection


def set_attribute(connection: Connection, ref: str, name: str, value: str, *, subject: str, op_id: str) -> None:
    """The VM's attribute of that name has the value; '' clears it. Raises OutcomeUnknown, NoPermission."""
    if name not in connection.attribute_keys:
        defined_attributes(connection)
    if name not in connection.attribute_keys:
        if not value:
            return  # an attribute that nobody defined is clear everywhere
        define_attribute(connection, name, op_id)
    key = connection.attribute_keys[name]
    connection.change(_manager(connection).SetField, connection.vm(ref), key, value, subject=subject, op_id=op_id)


def defined_attributes(connection: Connection) -> frozenset[str]:
    """Names of the attributes that a VM may carry, read anew."""
    connection.attribute_keys = _defined(connection)
    return frozenset(connection.attribute_keys)


def define_attribute(connection: Connection, name: str, op_id: str) -> None:
    """There is an attribute of that name for VMs from then on. Raises OutcomeUnknown, NoPermission."""
    from pyVmomi import vim

    add = _manager(connection).AddCustomFieldDef
    try:
        field = connection.change(add, name, vim.VirtualMachine, None, None, subject=f"attribute {name}", op_id=op_id)
    except GpuopsError as error:
        if not isinstance(error.__cause__, vim.fault.DuplicateName):
            raise
        # somebody was faster, or made it for another kind of object
        if name not in defined_attributes(connection):
            raise
    else:
        if field is None:
            raise OutcomeUnknown(f"attribute {name}: vCenter answered without it; whether it was made is not known")
        connection.attribute_keys[name] = field.key


def _defined(connection: Connection) -> dict[str, int]:
    """Keys by name; one made for VMs comes before one made for every kind of object."""
    from pyVmomi import vim

    fields = connection.read(lambda: _manager(connection).field) or ()
    general = {field.name: field.key for field in fields if field.managedObjectType is None}
    of_vms = {field.name: field.key for field in fields if field.managedObjectType is vim.VirtualMachine}
    return {**general, **of_vms}


def _manager(connection: Connection) -> Any:
    manager = connection.content.customFieldsManager
    if manager is None:
        raise Refused("this vCenter has no custom attributes")
    return manager
