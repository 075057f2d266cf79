"""Makes objects of the API with default fields from `defaults.yaml`: those that every new host, VM or switch has.

The table has an object by the name of its type, and its fields with plain values; the type tables of pyVmomi say what
each value becomes. An object in a field of a more general type names its own type as `_type`.

A required field that the table does not set gets a default value of its type, nested objects included: pyVmomi refuses
a reply with an empty enum, which vcsim sent for four releases.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyVmomi import VmomiSupport, vim

from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.sim.core.registry import vmomi_type


def default(wsdl_name: str, **values: Any) -> Any:
    """Return a new object of this type with the fields of the table; `values` replace or add fields.

    Objects in fields of the table are shared by all that is made from it: copy one before you change it.
    """
    return filled(vmomi_type(wsdl_name), **{**default_fields(wsdl_name), **values})


def described(key: str, label: str | None = None) -> Any:
    """Return the ElementDescription of a key, labelled by itself if no label is given."""
    label = key if label is None else label
    return vim.ElementDescription(key=key, label=label, summary=label)


@cache
def default_fields(wsdl_name: str) -> dict[str, Any]:
    """The fields that the table has for this type, as objects of the API."""
    return _fields(vmomi_type(wsdl_name), _table()[wsdl_name])


@cache
def _table() -> dict[str, Any]:
    path = Path(__file__).with_name("defaults.yaml")
    table: Any = parse_yaml(read_text(path), path.name)
    return dict(table)


def _fields(kind: Any, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a table entry as vmomi values of their declared types."""
    return {name: _value(kind._GetPropertyInfo(name).type, value) for name, value in entry.items() if name != "_type"}


def _value(kind: Any, yaml_value: Any) -> Any:
    if isinstance(yaml_value, list):
        return kind([_value(kind.Item, item) for item in yaml_value])
    if isinstance(yaml_value, dict):
        value_type = vmomi_type(yaml_value["_type"]) if "_type" in yaml_value else kind
        return filled(value_type, **_fields(value_type, yaml_value))
    return kind(yaml_value) if issubclass(kind, VmomiSupport.Enum) else yaml_value


EPOCH: Final = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
"""The value of required time fields that nothing sets."""

ENUM_DEFAULTS: Final[dict[str, str]] = {
    "ManagedEntityStatus": "green",
    "SharesLevel": "normal",
    "LatencySensitivitySensitivityLevel": "normal",
    "VirtualMachineConnectionState": "connected",
    "VirtualMachineFaultToleranceState": "notConfigured",
    "VirtualMachineRecordReplayState": "inactive",
}
"""The default of enums whose first value does not suit."""


def filled(kind: Any, **values: Any) -> Any:
    """Return a vmomi value of type `kind` with these fields; other required fields get default values (0, "", empty).

    A field given as None is left unset if it is optional. The types of the values are checked only when a set of field
    names is first used for `kind`: pyVmomi's constructor checks them every time, and would take longer than the rest of
    a bulk read.
    """
    field_defaults = _field_defaults(kind)
    instance = kind.__new__(kind)
    fields = instance.__dict__
    fields.update(field_defaults.constants)
    for name, factory in field_defaults.factories:
        if values.get(name) is None:
            fields[name] = factory()
    shape = (kind, *values)
    if shape not in _checked:
        _check(instance, values)
        _checked.add(shape)
    for name, value in values.items():
        if value is not None:
            fields[name] = value
    return instance


def default_value(kind: Any) -> Any:
    """Return the default value of a type: empty list, False, 0, or an object with only its required fields."""
    if issubclass(kind, VmomiSupport.Enum):
        return _default_enum(kind)
    if issubclass(kind, VmomiSupport.DataObject):
        return filled(kind)
    return EPOCH if kind is datetime else kind()


_checked: Final[set[tuple[Any, ...]]] = set()


class _FieldDefaults(NamedTuple):
    """The default fields of a type: immutable values, and factories of lists and nested objects.

    The factories are called for each value, so that two values never share a list or an object.
    """

    constants: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]


@cache
def _field_defaults(kind: Any) -> _FieldDefaults:
    """Return the defaults of a type: constants, and factories for lists and nested data objects."""
    constants: dict[str, Any] = dict(kind().__dict__)
    factories: list[tuple[str, Callable[[], Any]]] = []
    for field in kind._GetPropertyList():
        name, optional = field.name, field.flags & VmomiSupport.F_OPTIONAL
        if issubclass(field.type, list):
            factories.append((name, field.type))
        elif optional or issubclass(field.type, VmomiSupport.ManagedObject):
            continue
        elif issubclass(field.type, VmomiSupport.Enum):
            constants[name] = _default_enum(field.type)
        elif issubclass(field.type, VmomiSupport.DataObject):
            factories.append((name, partial(filled, field.type)))
        elif field.type is datetime:
            constants[name] = EPOCH
    return _FieldDefaults(constants, tuple(factories))


def _check(instance: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is not None:
            VmomiSupport.CheckField(instance._GetPropertyInfo(name), value)


def _default_enum(kind: Any) -> Any:
    name = VmomiSupport.GetWsdlName(kind)
    return kind(ENUM_DEFAULTS.get(name, kind.values[0]))
