"""The CustomFieldsManager object: definitions of custom attributes, and their values on entities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import VmomiSupport, vim

from gpuops.sim.core.managed_object import ManagedObject, Properties, method
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.managed_entity import write_attribute

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.vcenter.tagging import CustomField
    from gpuops.sim.world import World


class CustomFieldsManager(ManagedObject):
    """The definitions on the wire. Values are kept by the entities (`attributes`, changed with `set_attribute`)."""

    wsdl_name = "CustomFieldsManager"
    world: World

    property_table: ClassVar[Properties] = {
        "field": lambda self: [_definition(field) for field in self.world.custom_fields.fields.values()]
    }

    @method
    def AddCustomFieldDef(
        self, call: Call, name: str, moType: Any, fieldDefPolicy: Any = None, fieldPolicy: Any = None
    ) -> Any:
        self._check_name(name)
        applies_to = VmomiSupport.GetWsdlName(moType) if moType else ""
        key = self.world.custom_fields.define(name, applies_to)
        self.world.ledger.record(call, self, before={}, after={name: {"key": key, "type": applies_to}})
        return _definition(self.world.custom_fields.fields[key])

    @method
    def RemoveCustomFieldDef(self, call: Call, key: int) -> None:
        field = self._get(key)
        for entity in self.world.by_type("ManagedEntity"):
            if key in getattr(entity, "attributes", {}):
                entity.set_attribute(key, "")
        del self.world.custom_fields.fields[key]
        self.world.custom_fields.changed()
        self.world.ledger.record(call, self, before={field.name: {"key": key}}, after={})

    @method
    def RenameCustomFieldDef(self, call: Call, key: int, name: str) -> None:
        field = self._get(key)
        if field.name != name:
            self._check_name(name)
        before, field.name = field.name, name
        self.world.custom_fields.changed()
        self.world.ledger.record(call, self, before={"name": before}, after={"name": name})

    @method
    def SetField(self, call: Call, entity: Any, key: int, value: str) -> None:
        field = self._get(key)
        target = self.world.get(entity)
        if field.applies_to and target.wsdl_name != field.applies_to:
            raise faults.wrong_argument("entity", f"{field.name} is a field of {field.applies_to}")
        # declared by no method of the API, checked all the same (vSphere security guide, required privileges)
        self.world.authority.require(call, target, "Global.SetCustomField")
        write_attribute(call, target, key, field.name, value)

    def _get(self, key: int) -> CustomField:
        field = self.world.custom_fields.fields.get(key)
        if field is None:
            raise faults.wrong_argument("key", f"There is no custom field {key}")
        return field

    def _check_name(self, name: str) -> None:
        """Raises InvalidArgument for an empty name, DuplicateName for one that a field has."""
        if not name:
            raise faults.wrong_argument("name")
        for field in self.world.custom_fields.fields.values():
            if field.name == name:
                raise faults.duplicate_name(name, self.ref)


def _definition(field: CustomField) -> Any:
    definition = vim.CustomFieldsManager.FieldDef(key=field.key, name=field.name, type=str)
    if field.applies_to:
        definition.managedObjectType = VmomiSupport.GetWsdlType("urn:vim25", field.applies_to)
    return definition
