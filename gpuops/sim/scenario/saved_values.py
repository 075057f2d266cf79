"""States and objects of the API as JSON values, for saved states."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import VmomiSupport

if TYPE_CHECKING:
    from pydantic import TypeAdapter

TYPE: Final = "_typeName"
REFERENCE: Final = "_reference"


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Reads and writes a state of the simulated vCenter. pydantic is imported only for it."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def dump(state: Any) -> Any:
    """Return the JSON values of a state."""
    kind: Any = type(state)
    return adapter(kind).dump_python(state, mode="json")


def to_json(value: Any) -> Any:
    """JSON values of a data object: its type, and the fields that are set."""
    match value:
        case VmomiSupport.ManagedObject():
            return {TYPE: VmomiSupport.GetWsdlName(type(value)), REFERENCE: value._moId}
        case VmomiSupport.DataObject():
            fields = {declared.name: getattr(value, declared.name) for declared in value._GetPropertyList()}
            fields_set = {name: to_json(field) for name, field in fields.items() if field is not None and field != []}
            return {TYPE: VmomiSupport.GetWsdlName(type(value)), **fields_set}
        case list():
            return [to_json(element) for element in value]
        case datetime():
            return value.isoformat()
        case bool():
            return value
        case int():
            return int(value)
        case _:
            return str(value)


def from_json(saved: Any, static: Any = None) -> Any:
    """The data object of such JSON values; `static` is the type of the field that it is in."""
    if isinstance(saved, dict):
        kind = VmomiSupport.GetWsdlType("urn:vim25", saved[TYPE])
        if REFERENCE in saved:
            return kind(saved[REFERENCE])
        instance = kind()
        for field in kind._GetPropertyList():
            if field.name in saved:
                setattr(instance, field.name, from_json(saved[field.name], field.type))
        return instance
    if isinstance(saved, list):
        return static([from_json(element, static.Item) for element in saved])
    return datetime.fromisoformat(saved) if static is datetime else saved
