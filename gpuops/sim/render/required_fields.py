"""Makes vmomi values with every required field set, so that no client is ever sent an empty enum.

pyvmomi refuses a reply with an empty enum, and vcsim sent such replies for four releases: here a required field that
the caller left out is filled with the plainest value its type has, nested objects included.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final, NamedTuple

from pyVmomi import VmomiSupport

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
    """A vmomi value of `kind` with these fields, and plain values for the required ones left out.

    A field given as None is left unset when it is optional. The types of the fields are checked the first time that
    these fields of this kind are given, not for each of ten thousand VMs: pyVmomi's constructor takes longer than all
    the rest of a bulk read.
    """
    blank = _blank(kind)
    instance = kind.__new__(kind)
    fields = instance.__dict__
    fields.update(blank.plain)
    for name, make in blank.made:
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
    """What a value holds before its fields are given: plain values, and what must be made anew for each."""

    plain: dict[str, Any]
    made: tuple[tuple[str, Callable[[], Any]], ...]


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
