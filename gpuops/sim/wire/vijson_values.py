"""Reads VI/JSON values as the pyVmomi values of their declared types."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final

from pyVmomi import Iso8601, VmomiSupport, vmodl

from gpuops.sim.core.encoder import NAMESPACE
from gpuops.sim.core.json_encoder import FAULT_MESSAGE, REFERENCE, TYPE_NAME, VALUE

_NAMED: Final = {
    "binary": VmomiSupport.binary,
    "ArrayOfBinary": VmomiSupport.GetWsdlType(NAMESPACE, "ArrayOfBase64Binary"),
    f"ArrayOf{REFERENCE}": VmomiSupport.GetVmodlType("ManagedObject[]"),
}
"""Types whose names pyVmomi does not know, or knows for another one."""
_WHOLE: Final = {
    "byte": (-(1 << 7), 1 << 8),
    "short": (-(1 << 15), 1 << 15),
    "int": (-(1 << 31), 1 << 31),
    "long": (-(1 << 63), 1 << 63),
}
"""The numbers of each whole type: the first one, and the one after the last; bytes are sent signed and unsigned."""
_LARGEST: Final = 1 << 1023
"""Numbers from here on are outside the range of the API."""
_LOCALIZED: Final = "LocalizedMethodFault"


class Unreadable(ValueError):
    """A JSON value does not have the declared type, which the text names."""


class Untyped(Unreadable):
    """A JSON object without `_typeName` stands where a data object is to be; vCenter 8.0.3 takes it for a reference."""


class OfOtherType(Unreadable):
    """It says itself that it is of another type."""


def decode(json_value: object, expected: Any, version: str) -> Any:
    """The value as pyVmomi has it. Raises Unreadable."""
    if expected is object:
        return _any(json_value, version)
    if issubclass(expected, list):
        if not isinstance(json_value, list):
            raise Unreadable(f"an array of {VmomiSupport.GetWsdlName(expected.Item)} is expected")
        return expected([decode(element, expected.Item, version) for element in json_value])
    if issubclass(expected, VmomiSupport.ManagedObject):
        return _reference(json_value, expected)
    if issubclass(expected, vmodl.MethodFault):
        return _fault(json_value, expected, version)
    if issubclass(expected, VmomiSupport.DataObject):
        return _structure(json_value, expected, version)
    return _simple(json_value, expected)


def _any(json_value: object, version: str) -> Any:
    """A value of a type that it names itself."""
    fields = _fields(json_value)
    name = fields.get(TYPE_NAME)
    if not isinstance(name, str):
        raise Unreadable(f"a value of any type needs its {TYPE_NAME}")
    if name == REFERENCE:
        return _reference(json_value, VmomiSupport.ManagedObject)
    if name == _LOCALIZED:
        return _fault(json_value, vmodl.MethodFault, version)
    kind = _type(name)
    if issubclass(kind, (VmomiSupport.DataObject, vmodl.MethodFault)):
        return decode(json_value, kind, version)
    if issubclass(kind, VmomiSupport.ManagedObject) or VALUE not in fields:
        raise Unreadable(f"{name} is no value")
    return decode(fields[VALUE], kind, version)


def _reference(json_value: object, expected: Any) -> Any:
    fields = _fields(json_value)
    name, moid = fields.get("type"), fields.get("value")
    if fields.get(TYPE_NAME, REFERENCE) != REFERENCE:
        raise OfOtherType(f"a {REFERENCE} is expected")
    if not isinstance(name, str) or not isinstance(moid, str):
        raise Unreadable("a reference needs type and value")
    kind = _type(name)
    if not issubclass(kind, expected):
        raise OfOtherType(f"a reference to a {VmomiSupport.GetWsdlName(expected)} is expected")
    return kind(moid)


def _fault(json_value: object, expected: Any, version: str) -> Any:
    """A fault by itself, or in the LocalizedMethodFault of SOAP, as govmomi sends it."""
    fields = dict(_fields(json_value))
    message = fields.pop(FAULT_MESSAGE, None)
    if fields.get(TYPE_NAME) == _LOCALIZED or "fault" in fields:
        message = fields.get("localizedMessage")
        fields = dict(_fields(fields.get("fault")))
    if message is not None and not isinstance(message, str):
        raise Unreadable("the message of a fault is text")
    fault = _structure(fields, expected, version)
    fault.msg = message
    return fault


def _structure(json_value: object, expected: Any, version: str) -> Any:
    fields = dict(_fields(json_value))
    if TYPE_NAME not in fields:
        raise Untyped(f"Invalid MoRef field: {next(iter(fields), '')}")
    name = fields.pop(TYPE_NAME)
    kind = _type(name)
    if not issubclass(kind, expected):
        raise OfOtherType(f"{name} is no {VmomiSupport.GetWsdlName(expected)}")
    properties = _properties(kind, version)
    instance = kind()
    for field, field_value in fields.items():
        info = properties.get(field)
        if info is None:
            raise Unreadable(f"{VmomiSupport.GetWsdlName(kind)} has no field {field}")
        if field_value is None:
            continue
        setattr(instance, info.name, decode(field_value, info.type, version))
    return instance


@cache
def _properties(kind: Any, version: str) -> dict[str, Any]:
    versions = VmomiSupport.parentMap[version]
    return {info.name: info for info in kind._GetPropertyList() if info.version in versions}


def _simple(json_value: object, expected: Any) -> Any:
    simple_value = None
    if isinstance(json_value, bool):
        simple_value = json_value if expected is bool else None
    elif isinstance(json_value, str):
        simple_value = _of_text(json_value, expected)
    elif isinstance(json_value, (int, float)):
        simple_value = _of_number(json_value, expected)
    if simple_value is None:
        raise Unreadable(f"{_abbreviate(json_value)} is no {VmomiSupport.GetWsdlName(expected)}")
    return simple_value


def _of_number(json_value: float, expected: Any) -> Any:
    if issubclass(expected, float):
        return expected(json_value) if abs(json_value) < _LARGEST else None
    if isinstance(json_value, int) and issubclass(expected, int) and expected is not bool:
        first, end = _WHOLE[VmomiSupport.GetWsdlName(expected)]
        return expected(json_value) if first <= json_value < end else None
    return None


def _of_text(json_value: str, expected: Any) -> Any:
    if expected is datetime:
        return _moment(json_value)
    if expected is VmomiSupport.binary:
        return _binary(json_value)
    if expected is type:
        return _type(json_value)
    if expected is VmomiSupport.ManagedMethod:
        return _method(json_value)
    if issubclass(expected, VmomiSupport.Enum):
        return getattr(expected, json_value) if json_value in expected.values else None
    return expected(json_value) if issubclass(expected, str) else None


def _method(name: str) -> Any:
    try:
        return VmomiSupport.GetWsdlMethod(NAMESPACE, name)
    except KeyError:
        return None


def _moment(text: str) -> datetime | None:
    try:
        moment = Iso8601.ParseISO8601(text)
    except (ValueError, OverflowError):
        return None
    return moment if isinstance(moment, datetime) else None


def _binary(text: str) -> Any:
    try:
        return VmomiSupport.binary(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None


def _fields(json_value: object) -> Mapping[str, Any]:
    if not isinstance(json_value, dict):
        raise Unreadable("a JSON object is expected")
    return json_value


def _type(name: object) -> Any:
    """The type of that name. Raises Unreadable for one that the API does not have."""
    wire_type = _known_type(name) if isinstance(name, str) else None
    if wire_type is None:
        raise Unreadable(f"there is no type {_abbreviate(name)}")
    return wire_type


def _known_type(name: str) -> Any:
    if name in _NAMED:
        return _NAMED[name]
    for namespace in (NAMESPACE, VmomiSupport.XMLNS_XSD):
        try:
            return VmomiSupport.GetWsdlType(namespace, name)
        except KeyError:
            continue
    return None


def _abbreviate(json_value: object) -> str:
    text = repr(json_value)
    return text if len(text) <= 40 else f"{text[:37]}..."
