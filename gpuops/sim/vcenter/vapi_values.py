"""Values and errors of the vSphere Automation API, and the check of an operation's parameters.

The services (`tagging.py`, `wire/automation/inventory_reads.py`) declare the shape of their input with these types;
texts of messages are those of VMware's own vAPI runtime (`runtime.properties` of vmware-vapi-runtime).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Parameters = Mapping[str, Any]


class VapiFault(Exception):
    """A vAPI standard error, such as `not_found` or `invalid_argument`, with one localizable message."""

    def __init__(self, kind: str, text: str, *, message_id: str = "", args: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.kind = kind
        self.message_id = message_id or f"com.vmware.vapi.std.errors.{kind}"
        self.message_args = args

    def message(self) -> Struct:
        """Return the error as a LocalizableMessage."""
        message = {"id": self.message_id, "default_message": str(self), "args": list(self.message_args)}
        return Struct("com.vmware.vapi.std.localizable_message", message)


@dataclass(frozen=True, slots=True)
class Struct:
    """A named vAPI structure in a reply."""

    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OptionalValue:
    """An optional field of a structure in a reply; None = unset."""

    value: Any


@dataclass(frozen=True, slots=True)
class MapValue:
    """A map with text keys in a reply."""

    entries: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A string, boolean or integer."""

    name: str
    python: type

    def holds(self, vapi_value: object) -> bool:
        return isinstance(vapi_value, self.python) and (self.python is bool or not isinstance(vapi_value, bool))


@dataclass(frozen=True, slots=True)
class Enumeration:
    """A string with a fixed set of values."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list or a set."""

    of: Scalar | Enumeration | StructureType


@dataclass(frozen=True, slots=True)
class StructureType:
    """A structure: its fields, and those of them that may be left out."""

    name: str
    fields: Fields
    optional: frozenset[str] = frozenset()


Shape = Scalar | Enumeration | ListOf | StructureType
Fields = Mapping[str, Shape]
TEXT: Final = Scalar("STRING", str)
TRUTH: Final = Scalar("BOOLEAN", bool)
_NAMES: Final = {str: "STRING", bool: "BOOLEAN", int: "INTEGER", float: "DOUBLE", list: "LIST", dict: "STRUCTURE"}


def structure_type(name: str, fields: Fields, *optional: str) -> StructureType:
    """The shape of a structure; those of `optional` may be left out."""
    return StructureType(name, fields, frozenset(optional))


def operation_input(*optional: str, **fields: Shape) -> StructureType:
    """The shape of an operation's parameters."""
    return StructureType("operation-input", fields, frozenset(optional))


def operation_not_found(service: str, operation: str) -> VapiFault:
    """Return the error for an operation that the service does not have."""
    return VapiFault(
        "operation_not_found",
        f"Operation {operation} is not found in Service {service}",
        message_id="vapi.introspection.operation.not_found",
        args=(operation, service),
    )


def structure(vapi_value: object) -> dict[str, Any]:
    """The value, which must be a structure. Raises VapiFault."""
    if not isinstance(vapi_value, dict):
        raise _mismatch("STRUCTURE", vapi_value)
    return vapi_value


def operation_unsupported(service: str, operation: str) -> VapiFault:
    """The error for an operation of the API that is not simulated."""
    return VapiFault("unsupported", f"The operation {operation} of {service} is not simulated.")


def check(vapi_value: object, expected: Shape) -> None:
    """Raises VapiFault: invalid_argument if the value does not have the expected shape, unexpected_input for unknown
    fields."""
    match expected:
        case Scalar():
            if not expected.holds(vapi_value):
                raise _mismatch(expected.name, vapi_value)
        case Enumeration():
            _check_enumeration(vapi_value, expected)
        case ListOf(of):
            if not isinstance(vapi_value, list):
                raise _mismatch("LIST", vapi_value)
            for element in vapi_value:
                check(element, of)
        case StructureType():
            _check_structure(vapi_value, expected)


def _check_enumeration(vapi_value: object, expected: Enumeration) -> None:
    if not isinstance(vapi_value, str):
        raise _mismatch("ENUMERATION", vapi_value)
    if vapi_value not in expected.values:
        names = ", ".join(expected.values)
        raise VapiFault(
            "invalid_argument", f"{vapi_value} is not a value of {expected.name}, which has {names}", args=(vapi_value,)
        )


def _check_structure(vapi_value: object, expected: StructureType) -> None:
    """Check the fields of a structure: no unknown ones, and none missing except the optional ones."""
    struct_fields = structure(vapi_value)
    for name, field_value in struct_fields.items():
        # newer clients send fields that are unset (vmware-vapi-runtime, bindings/skeleton.py, check_for_unknown_fields)
        if name not in expected.fields and field_value is not None:
            text = f'Found unexpected field "{name}" in structure "{expected.name}"'
            raise VapiFault(
                "unexpected_input",
                text,
                message_id="vapi.data.structure.field.unexpected",
                args=(str(name), expected.name),
            )
    for name, shape in expected.fields.items():
        if struct_fields.get(name) is not None:
            check(struct_fields[name], shape)
        elif name not in expected.optional:
            text = f'Structure {expected.name} is missing a field "{name}"'
            raise VapiFault(
                "invalid_argument", text, message_id="vapi.data.structure.field.missing", args=(expected.name, name)
            )


def _mismatch(expected: str, vapi_value: object) -> VapiFault:
    actual_type = _NAMES.get(type(vapi_value), "VOID")
    return VapiFault(
        "invalid_argument",
        f"Type mismatch, expected an object of type {expected}, but got {actual_type}",
        message_id="vapi.data.validate.mismatch",
        args=(expected, actual_type),
    )
