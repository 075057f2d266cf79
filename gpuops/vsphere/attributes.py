"""Custom attributes: their definitions by name, made when a name is first written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.errors import GpuopsError, OutcomeUnknown, Refused
from gpuops.vsphere.managed import vm

if TYPE_CHECKING:
    from gpuops.vsphere.session import Session


class Attributes:
    """The custom attributes of VMs of one vCenter; definitions are read once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._keys: dict[str, int] = {}

    def set(self, ref: str, name: str, value: str, *, subject: str, op_id: str) -> None:
        """The VM's attribute of that name has the value; '' clears it. Raises OutcomeUnknown, NoPermission."""
        key = self._key(name)
        if key is None:
            if not value:
                return  # an attribute that nobody defined is clear everywhere
            key = self.define(name, op_id)
        target = vm(self._session, ref)
        self._session.change(self._manager.SetField, target, key, value, subject=subject, op_id=op_id)

    @property
    def _manager(self) -> Any:
        manager = self._session.content.customFieldsManager
        if manager is None:
            raise Refused("this vCenter has no custom attributes")
        return manager

    def _key(self, name: str) -> int | None:
        if name not in self._keys:
            self._keys = self._defined()
        return self._keys.get(name)

    def _defined(self) -> dict[str, int]:
        """Keys by name; one made for VMs comes before one made for every kind of object."""
        from pyVmomi import vim

        fields = self._session.read(lambda: self._manager.field) or ()
        general = {field.name: field.key for field in fields if field.managedObjectType is None}
        of_vms = {field.name: field.key for field in fields if field.managedObjectType is vim.VirtualMachine}
        return {**general, **of_vms}

    def defined(self) -> frozenset[str]:
        """Names of the attributes that a VM may carry, read anew."""
        self._keys = self._defined()
        return frozenset(self._keys)

    def define(self, name: str, op_id: str) -> int:
        """The key of the attribute of that name, made if need be. Raises OutcomeUnknown, NoPermission."""
        from pyVmomi import vim

        add = self._manager.AddCustomFieldDef
        try:
            field = self._session.change(
                add, name, vim.VirtualMachine, None, None, subject=f"attribute {name}", op_id=op_id
            )
        except GpuopsError as error:
            if not isinstance(error.__cause__, vim.fault.DuplicateName):
                raise
            self._keys = self._defined()  # somebody was faster, or made it for another kind of object
            if name not in self._keys:
                raise
        else:
            if field is None:
                raise OutcomeUnknown(f"attribute {name}: vCenter answered without it; whether it was made is not known")
            self._keys[name] = field.key
        return self._keys[name]
