"""The OptionManager object (advanced settings of vCenter or of a host) and the CustomFieldsManager object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import VmomiSupport, vim

from gpuops.sim.core.managed_object import ManagedObject, Properties, method, prop
from gpuops.sim.inventory import faults
from gpuops.sim.inventory.managed_entity import write_attribute

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuops.sim.core.call import Call
    from gpuops.sim.vcenter.tagging import CustomField
    from gpuops.sim.world import World

VCENTER_MOID: Final = "VpxSettings"

OPEN_PREFIXES: Final = ("config.",)
"""Keys that may be added; any other unknown key is an InvalidName."""


class OptionManager(ManagedObject):
    """Settings by key; values keep their type."""

    wsdl_name = "OptionManager"
    world: World

    property_table: ClassVar[Properties] = {
        "supportedOption": lambda self: [_option_definition(key, value) for key, value in sorted(self.options.items())]
    }

    def __init__(
        self,
        world: World,
        moid: str,
        options: dict[str, Any],
        *,
        name: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called after a change, to mark other objects that show the options as changed."""
        super().__init__(world, moid)
        self.options = options
        self.changed = changed
        self.name = name or moid

    @prop("setting")
    def _setting(self) -> list[Any]:
        return [vim.option.OptionValue(key=key, value=value) for key, value in sorted(self.options.items())]

    @method
    def QueryOptions(self, call: Call, name: str | None) -> list[Any]:
        """Return the option of this name, or all options below a name that ends in a dot. Raises InvalidName."""
        options = [option for option in self._setting() if not name or _is_named(option.key, name)]
        if not options:
            raise _invalid_option_name(name)
        return options

    @method
    def UpdateOptions(self, call: Call, changedValue: list[Any]) -> None:
        """Set options. Raises InvalidName, and sets none, if a key does not exist."""
        for option in changedValue:
            if option.key not in self.options and not option.key.startswith(OPEN_PREFIXES):
                raise _invalid_option_name(option.key)
        before = {option.key: self.options.get(option.key) for option in changedValue}
        after = {option.key: _in_type_of(option.value, before[option.key]) for option in changedValue}
        self.options |= after
        self.touch("setting", "supportedOption")
        self.changed()
        self.world.ledger.record(call, self, before=before, after=after)


def _is_named(key: str, name: str) -> bool:
    return key == name or (name.endswith(".") and key.startswith(name))


def _in_type_of(value: Any, before: Any) -> Any:
    """Return the new value in the type of the old one, because clients also send booleans and numbers as text."""
    if isinstance(before, bool) and isinstance(value, str):
        return value.lower() == "true"
    if isinstance(before, int) and isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return value


def _option_definition(key: str, value: Any) -> Any:
    if isinstance(value, bool):
        kind = vim.option.BoolOption(valueIsReadonly=False, supported=True, defaultValue=value)
    elif isinstance(value, int):
        kind = vim.option.LongOption(valueIsReadonly=False, min=0, max=2**31, defaultValue=value)
    else:
        kind = vim.option.StringOption(valueIsReadonly=False, defaultValue=str(value))
    return vim.option.OptionDef(key=key, label=key, summary=key, optionType=kind)


def _invalid_option_name(name: str | None) -> Exception:
    return vim.fault.InvalidName(msg=f"A specified parameter was not correct: {name}", name=name or "")


class CustomFieldsManager(ManagedObject):
    """The definitions of custom fields on the wire. The entities store the values (`attributes`)."""

    wsdl_name = "CustomFieldsManager"
    world: World

    property_table: ClassVar[Properties] = {
        "field": lambda self: [_field_definition(field) for field in self.world.custom_fields.fields.values()]
    }

    @method
    def AddCustomFieldDef(
        self, call: Call, name: str, moType: Any, fieldDefPolicy: Any = None, fieldPolicy: Any = None
    ) -> Any:
        self._check_name(name)
        applies_to = VmomiSupport.GetWsdlName(moType) if moType else ""
        key = self.world.custom_fields.define(name, applies_to)
        self.world.ledger.record(call, self, before={}, after={name: {"key": key, "type": applies_to}})
        return _field_definition(self.world.custom_fields.fields[key])

    @method
    def RemoveCustomFieldDef(self, call: Call, key: int) -> None:
        field = self._field_by_key(key)
        for entity in self.world.by_type("ManagedEntity"):
            if key in getattr(entity, "attributes", {}):
                entity.set_attribute(key, "")
        del self.world.custom_fields.fields[key]
        self.world.custom_fields.changed()
        self.world.ledger.record(call, self, before={field.name: {"key": key}}, after={})

    @method
    def RenameCustomFieldDef(self, call: Call, key: int, name: str) -> None:
        field = self._field_by_key(key)
        if field.name != name:
            self._check_name(name)
        before, field.name = field.name, name
        self.world.custom_fields.changed()
        self.world.ledger.record(call, self, before={"name": before}, after={"name": name})

    @method
    def SetField(self, call: Call, entity: Any, key: int, value: str) -> None:
        field = self._field_by_key(key)
        target = self.world.get(entity)
        if field.applies_to and target.wsdl_name != field.applies_to:
            raise faults.wrong_argument(
                "entity", f"The field {field.name} only applies to objects of type {field.applies_to}."
            )
        # no method of the API declares this privilege; vCenter checks it (vSphere security guide, required privileges)
        self.world.authority.require(call, target, "Global.SetCustomField")
        write_attribute(call, target, key, field.name, value)

    def _field_by_key(self, key: int) -> CustomField:
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


def _field_definition(field: CustomField) -> Any:
    definition = vim.CustomFieldsManager.FieldDef(key=field.key, name=field.name, type=str)
    if field.applies_to:
        definition.managedObjectType = VmomiSupport.GetWsdlType("urn:vim25", field.applies_to)
    return definition
