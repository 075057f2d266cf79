"""Reads VI/JSON as pyVmomi values, by pyVmomi's type tables alone: the other side of a comparison."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from pyVmomi import Iso8601, VmomiSupport, vmodl

SIMPLE = {
    "string": str,
    "boolean": bool,
    "binary": VmomiSupport.binary,
    "byte": VmomiSupport.byte,
    "short": VmomiSupport.short,
    "int": int,
    "long": VmomiSupport.long,
    "float": float,
    "double": VmomiSupport.double,
    "dateTime": datetime,
    "anyURI": VmomiSupport.URI,
}


def type_named(name: str) -> Any:
    """The type of a `_typeName`."""
    if name in SIMPLE:
        return SIMPLE[name]
    if name == "ArrayOfManagedObjectReference":
        return VmomiSupport.GetVmodlType("ManagedObject[]")
    return VmomiSupport.GetWsdlType("urn:vim25", name)


def decode(value: Any, expected: Any = object) -> Any:
    """The value of a JSON document in a place of this type. Raises what Python does for one that does not fit."""
    if expected is object:
        return of_any_type(value)
    if issubclass(expected, list):
        assert type(value) is list
        return expected([decode(element, expected.Item) for element in value])
    if issubclass(expected, VmomiSupport.ManagedObject):
        assert sorted(value) == ["_typeName", "type", "value"]
        return VmomiSupport.GetWsdlType("urn:vim25", value["type"])(value["value"])
    if issubclass(expected, VmomiSupport.DataObject):
        return structure(value, expected)
    if issubclass(expected, datetime):
        return Iso8601.ParseISO8601(value)
    if issubclass(expected, VmomiSupport.binary):
        return expected(base64.b64decode(value, validate=True))
    if expected is type:
        return type_named(value)
    if expected is VmomiSupport.ManagedMethod:
        return VmomiSupport.GetWsdlMethod("urn:vim25", value)
    kinds = {bool: (bool,), int: (int,), float: (int, float)}
    allowed = next((kinds[base] for base in (bool, int, float) if issubclass(expected, base)), (str,))
    assert type(value) in allowed, (value, expected)
    return getattr(expected, value) if issubclass(expected, VmomiSupport.Enum) else expected(value)


def of_any_type(value: Any) -> Any:
    if value["_typeName"] == "ManagedObjectReference":
        return decode(value, VmomiSupport.ManagedObject)
    kind = type_named(value["_typeName"])
    if issubclass(kind, VmomiSupport.DataObject):
        return structure(value, kind)
    assert sorted(value) == ["_typeName", "_value"]
    return decode(value["_value"], kind)


def structure(value: Any, expected: Any) -> Any:
    fields = dict(value)
    kind = type_named(fields.pop("_typeName"))
    assert issubclass(kind, expected)
    structured = kind()
    if issubclass(kind, vmodl.MethodFault):
        structured.msg = fields.pop("faultstring", None)
    for name, child in fields.items():
        info = structured._GetPropertyInfo(name)
        setattr(structured, name, decode(child, info.type))
    return structured
