"""Writes vmomi values as VI/JSON of one API version, by the same type tables as the XML of SOAP.

The form is that of vCenter 8.0 U1 and later (Broadcom, Virtual Infrastructure JSON API): `_typeName` in each data
object; a value of a simple type or an array in a field of any type is boxed, `{"_typeName": "string", "_value": ...}`;
a fault in a field is the fault itself with its message in `faultstring`, without the LocalizedMethodFault around it
that SOAP has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple

from pyVmomi import VmomiSupport, vmodl

from gpuops.sim.core.encoder import EncodeError, Parts, array_names, other_text, simple_type
from gpuops.sim.core.managed_object import ManagedObject

TYPE_NAME: Final = "_typeName"
VALUE: Final = "_value"
FAULT_MESSAGE: Final = "faultstring"
REFERENCE: Final = "ManagedObjectReference"

_OTHER_NAMES: Final = {"base64Binary": "binary", "ArrayOfBase64Binary": "ArrayOfBinary"}
"""Names of types that differ between XML Schema and VI/JSON."""

Write = Callable[[str], object]


class _JsonField(NamedTuple):
    name: str
    head: str
    declared_type: Any
    is_link: bool
    is_list: bool
    required: bool


class _JsonPlan(NamedTuple):
    """How a data object type is written in a version."""

    head: str
    fields: tuple[_JsonField, ...]


class JsonEncoder:
    """Writes values as a client of `version` knows them: newer fields and types do not appear."""

    property_tail: Final = b"},"

    def __init__(self, version: str) -> None:
        self.version = version
        self._known = VmomiSupport.parentMap[version]
        self._plans: dict[type, _JsonPlan] = {}

    # --- what replies are joined from -------------------------------------------------------------------------------

    def fragment(self, vmomi_value: Any) -> bytes:
        return self.document(vmomi_value, object) if vmomi_value is not None else b""

    def text(self, vmomi_value: str) -> str:
        return encode_basestring(vmomi_value)[1:-1]

    def property_head(self, path: str) -> bytes:
        return f'{{"{TYPE_NAME}":"DynamicProperty","name":{encode_basestring(path)},"val":'.encode()

    def properties(self, parts: Parts) -> Parts:
        return [b'"propSet":[', *parts[:-1], b"}]"]

    def member(self, tag: str, vmomi_value: Any, declared_type: Any) -> Parts:
        return [f'"{tag}":'.encode(), self.document(vmomi_value, declared_type)]

    def value_member(self, fragment: bytes) -> Parts:
        return [b'"val":', fragment]

    def reference(self, tag: str, obj_type: str, moid: str) -> Parts:
        return [f'"{tag}":{_reference(obj_type, moid)}'.encode()]

    def structure(self, tag: str, name: str, members: Iterable[Parts]) -> Parts:
        return [f'{{"{TYPE_NAME}":"{name}",'.encode(), *_join_with_commas(members), b"}"]

    def repeated(self, tag: str, items: Iterable[Parts]) -> Parts:
        return [f'"{tag}":['.encode(), *_join_with_commas(items), b"]"]

    def listing(self, items: Iterable[Parts]) -> Parts:
        return [b"[", *_join_with_commas(items), b"]"]

    # --- values -----------------------------------------------------------------------------------------------------

    def document(self, vmomi_value: Any, declared_type: Any) -> bytes:
        """Return the JSON of a value in a field of this declared type."""
        parts: list[str] = []
        self._write(parts.append, vmomi_value, declared_type)
        return "".join(parts).encode()

    def _write(self, write: Write, vmomi_value: Any, declared_type: Any) -> None:
        """Write a value by its class; in a field of any type, a simple value is boxed with its type's name."""
        if isinstance(vmomi_value, list):
            self._write_list(write, vmomi_value, declared_type)
        elif isinstance(vmomi_value, (vmodl.MethodFault, VmomiSupport.DataObject)):
            self._write_structure(write, vmomi_value)
        elif isinstance(vmomi_value, VmomiSupport.ManagedObject):
            write(_reference(vmomi_value._wsdlName, vmomi_value._moId))
        elif isinstance(vmomi_value, ManagedObject):
            write(_reference(vmomi_value.wsdl_name, vmomi_value.moid))
        elif declared_type is object:
            write(f'{{"{TYPE_NAME}":"{_simple_name(vmomi_value.__class__)}","{VALUE}":{_json_of_simple(vmomi_value)}}}')
        else:
            write(_json_of_simple(vmomi_value))

    def _write_list(self, write: Write, values: list[Any], declared: Any) -> None:
        """Write a list; in a field of any type, it is boxed with the name of its array type."""
        boxed = declared is object
        if boxed:
            if not isinstance(values, VmomiSupport.Array):
                raise EncodeError("a list in a field of any type must be a vmomi Array, which has an item type")
            write(f'{{"{TYPE_NAME}":"{_array_name(values.Item)}","{VALUE}":')
            declared = type(values)
        write("[")
        for number, element in enumerate(values):
            if number:
                write(",")
            self._write(write, element, declared.Item)
        write("]}" if boxed else "]")

    def _write_structure(self, write: Write, vmomi_value: Any) -> None:
        """Write a data object or fault with its type name and its set fields."""
        plan = self._plan(type(vmomi_value))
        write(plan.head)
        read_field = vmomi_value.__dict__.get
        message = read_field("msg") if isinstance(vmomi_value, vmodl.MethodFault) else None
        if message:
            write(f',"{FAULT_MESSAGE}":{encode_basestring(message)}')
        for name, head, declared_type, is_link, is_list, required in plan.fields:
            item = read_field(name)
            # an unset optional field and an empty optional list are left out; a required list is written as []
            if item is None or (is_list and not item):
                if not required:
                    continue
                if not is_list:
                    raise EncodeError(f"{type(vmomi_value).__name__}.{name} is required and unset")
                item = ()
            write(head)
            if is_link:
                write(_json_of_simple(getattr(item, "key", item)))
            elif is_list and not item:
                write("[]")
            else:
                self._write(write, item, declared_type)
        write("}")

    def _plan(self, cls: Any) -> _JsonPlan:
        plan = self._plans.get(cls)
        if plan is None:
            name = VmomiSupport.GetWsdlName(VmomiSupport.GetCompatibleType(cls, self.version))
            properties = (info for info in cls._GetPropertyList() if info.version in self._known)
            fields = tuple(
                _field(info) for info in properties if not (issubclass(cls, vmodl.MethodFault) and info.name == "msg")
            )
            plan = self._plans[cls] = _JsonPlan(f'{{"{TYPE_NAME}":"{name}"', fields)
        return plan


def _join_with_commas(items: Iterable[Parts]) -> Parts:
    """Return the pieces of all items, with a comma between items."""
    parts: Parts = []
    for item_parts in items:
        parts += item_parts
        parts.append(b",")
    return parts[:-1]


def without_box(fragment: bytes) -> bytes:
    """Return a fragment without the box (`_typeName` and `_value`) around a simple value or an array, if it has one."""
    head, colon, vmomi_value = fragment.partition(f'","{VALUE}":'.encode())
    # the head of a box is `{"_typeName":"string`: three quotes, so that no field stands before `_value`
    is_box = colon and head.startswith(f'{{"{TYPE_NAME}":"'.encode()) and head.count(b'"') == 3
    return vmomi_value[:-1] if is_box else fragment


def _field(info: Any) -> _JsonField:
    is_list = issubclass(info.type, list)
    is_link = bool(info.flags & VmomiSupport.F_LINK) and not is_list
    required = not info.flags & VmomiSupport.F_OPTIONAL
    return _JsonField(info.name, f',"{info.name}":', info.type, is_link, is_list, required)


def _reference(obj_type: str, moid: str) -> str:
    return f'{{"{TYPE_NAME}":"{REFERENCE}","type":"{obj_type}","value":{encode_basestring(moid)}}}'


@cache
def _simple_name(cls: Any) -> str:
    name = simple_type(cls).removeprefix("xsd:")
    return _OTHER_NAMES.get(name, name)


@cache
def _array_name(item_type: Any) -> str:
    name, _ = array_names(item_type)
    return _OTHER_NAMES.get(name, name)


def _json_of_simple(vmomi_value: Any) -> str:
    if isinstance(vmomi_value, str):
        return encode_basestring(vmomi_value)
    text = other_text(vmomi_value)
    return text if isinstance(vmomi_value, (bool, int, float)) else f'"{text}"'


@cache
def json_encoder(version: str) -> JsonEncoder:
    """The encoder of an API version, with its compiled plans."""
    return JsonEncoder(version)
