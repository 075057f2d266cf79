"""CustomFieldsManager: custom attributes and their values on entities."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport, vim, vmodl

from gpuops.sim.managed_object import ManagedObject, method, prop

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.world import World

FIRST_KEY: Final = 101


@dataclass(slots=True)
class Field:
    """One definition; `applies_to` is a managed object type's WSDL name, '' for all."""

    key: int
    name: str
    applies_to: str


class CustomFieldsManager(ManagedObject):
    """Definitions by key. Values are kept by the entities (`attributes`, changed with `set_attribute`)."""

    wsdl_name = "CustomFieldsManager"

    def __init__(self, world: World, moid: str) -> None:
        super().__init__(world, moid)
        self.fields: dict[int, Field] = {}
        self._keys = itertools.count(FIRST_KEY)

    def define(self, name: str, applies_to: str = "VirtualMachine") -> int:
        """The key of a field of that name and type, made if need be."""
        for field in self.fields.values():
            if (field.name, field.applies_to) == (name, applies_to):
                return field.key
        field = Field(next(self._keys), name, applies_to)
        self.fields[field.key] = field
        self.touch("field")
        return field.key

    def load(self, saved: list[dict[str, Any]]) -> None:
        """Take over definitions that were saved as the fields of `Field`."""
        self.fields = {field["key"]: Field(**field) for field in saved}
        self._keys = itertools.count(max(self.fields, default=FIRST_KEY - 1) + 1)
        self.touch("field")

    @prop("field")
    def _field(self) -> list[Any]:
        return [_definition(field) for field in self.fields.values()]

    @method
    def AddCustomFieldDef(
        self, call: Call, name: str, moType: Any, fieldDefPolicy: Any = None, fieldPolicy: Any = None
    ) -> Any:
        self._refuse_duplicate(name)
        applies_to = VmomiSupport.GetWsdlName(moType) if moType else ""
        key = self.define(name, applies_to)
        self.world.ledger.record(call, self, before={}, after={name: {"key": key, "type": applies_to}})
        return _definition(self.fields[key])

    @method
    def RemoveCustomFieldDef(self, call: Call, key: int) -> None:
        field = self._get(key)
        for entity in self.world.by_type("ManagedEntity"):
            if key in getattr(entity, "attributes", {}):
                entity.set_attribute(key, "")
        del self.fields[key]
        self.touch("field")
        self.world.ledger.record(call, self, before={field.name: {"key": key}}, after={})

    @method
    def RenameCustomFieldDef(self, call: Call, key: int, name: str) -> None:
        field = self._get(key)
        if field.name != name:
            self._refuse_duplicate(name)
        before, field.name = field.name, name
        self.touch("field")
        self.world.ledger.record(call, self, before={"name": before}, after={"name": name})

    @method
    def SetField(self, call: Call, entity: Any, key: int, value: str) -> None:
        field = self._get(key)
        target = self.world.get(entity)
        if field.applies_to and target.wsdl_name != field.applies_to:
            raise vmodl.fault.InvalidArgument(
                msg=f"{field.name} is a field of {field.applies_to}", invalidProperty="entity"
            )
        # declared by no method of the API, checked all the same (vSphere security guide, required privileges)
        self.world.authority.require(call, target, "Global.SetCustomField")
        before = target.attributes.get(key, "")
        target.set_attribute(key, value)
        self.world.ledger.record(call, target, before={field.name: before}, after={field.name: value})

    def _get(self, key: int) -> Field:
        field = self.fields.get(key)
        if field is None:
            raise vmodl.fault.InvalidArgument(msg=f"There is no custom field {key}", invalidProperty="key")
        return field

    def _refuse_duplicate(self, name: str) -> None:
        for field in self.fields.values():
            if field.name == name:
                raise vim.fault.DuplicateName(msg=f"The name '{name}' already exists.", name=name, object=self.ref)


def _definition(field: Field) -> Any:
    made = vim.CustomFieldsManager.FieldDef(key=field.key, name=field.name, type=str)
    if field.applies_to:
        made.managedObjectType = VmomiSupport.GetWsdlType("urn:vim25", field.applies_to)
    return made
