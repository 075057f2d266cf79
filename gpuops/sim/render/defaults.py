"""Makes objects of the API from `defaults.yaml`: the fields that every host, VM or switch has alike when it is new.

The table has an object by the name of its type, and its fields with plain values; the type tables of pyVmomi say what
each value becomes. An object in a field of a more general type names its own type as `_type`.

Where no table says it, a required field gets the plainest value of its type, nested objects included: pyVmomi refuses a
reply with an empty enum, which vcsim sent for four releases.
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
    """A new object of this type with the fields of the table and with `values`, which win.

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


def _fields(kind: Any, plain: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(kind._GetPropertyInfo(name).type, value) for name, value in plain.items() if name != "_type"}


def _value(kind: Any, plain: Any) -> Any:
    if isinstance(plain, list):
        return kind([_value(kind.Item, item) for item in plain])
    if isinstance(plain, dict):
        value_type = vmomi_type(plain["_type"]) if "_type" in plain else kind
        return filled(value_type, **_fields(value_type, plain))
    return kind(plain) if issubclass(kind, VmomiSupport.Enum) else plain


EPOCH: Final = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)
"""A required time of which nothing is known."""

PLAIN_ENUM: Final[dict[str, str]] = {
    "ManagedEntityStatus": "green",
    "SharesLevel": "normal",
    "LatencySensitivitySensitivityLevel": "normal",
    "VirtualMachineConnectionState": "connected",
    "VirtualMachineFaultToleranceState": "notConfigured",
    "VirtualMachineRecordReplayState": "inactive",
}
"""Enums whose first value is not the plainest."""


def filled(kind: Any, **values: Any) -> Any:
    """Return a vmomi value of type `kind` with these fields; other required fields get plain values (0, "", empty).

    A field given as None is left unset if it is optional. The types of the values are checked only when a set of field
    names is first used for `kind`: pyVmomi's constructor checks them every time, and would take longer than the rest of
    a bulk read.
    """
    blank = _blank(kind)
    instance = kind.__new__(kind)
    fields = instance.__dict__
    fields.update(blank.plain)
    for name, make in blank.factories:
        if values.get(name) is None:
            fields[name] = make()
    shape = (kind, *values)
    if shape not in _checked:
        _check(instance, values)
        _checked.add(shape)
    for name, value in values.items():
        if value is not None:
            fields[name] = value
    return instance


def plain_value(kind: Any) -> Any:
    """The plainest value of a type: a list without elements, a false boolean, an object with only what it must have."""
    if issubclass(kind, VmomiSupport.Enum):
        return _plain_enum(kind)
    if issubclass(kind, VmomiSupport.DataObject):
        return filled(kind)
    return EPOCH if kind is datetime else kind()


_checked: Final[set[tuple[Any, ...]]] = set()


class _Blank(NamedTuple):
    """The fields of a new value before its own are set: plain values, and factories of lists and nested objects.

    The factories are called for each value, so that two values never share a list or an object.
    """

    plain: dict[str, Any]
    factories: tuple[tuple[str, Callable[[], Any]], ...]


@cache
def _blank(kind: Any) -> _Blank:
    plain: dict[str, Any] = dict(kind().__dict__)
    makers: list[tuple[str, Callable[[], Any]]] = []
    for field in kind._GetPropertyList():
        name, optional = field.name, field.flags & VmomiSupport.F_OPTIONAL
        if issubclass(field.type, list):
            makers.append((name, field.type))
        elif optional or issubclass(field.type, VmomiSupport.ManagedObject):
            continue
        elif issubclass(field.type, VmomiSupport.Enum):
            plain[name] = _plain_enum(field.type)
        elif issubclass(field.type, VmomiSupport.DataObject):
            makers.append((name, partial(filled, field.type)))
        elif field.type is datetime:
            plain[name] = EPOCH
    return _Blank(plain, tuple(makers))


def _check(instance: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is not None:
            VmomiSupport.CheckField(instance._GetPropertyInfo(name), value)


def _plain_enum(kind: Any) -> Any:
    name = VmomiSupport.GetWsdlName(kind)
    return kind(PLAIN_ENUM.get(name, kind.values[0]))
