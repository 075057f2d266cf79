"""Complete vmomi values: every required field set, so that no client ever meets an empty enum.

pyvmomi refuses a reply with an empty enum, and vcsim sent such replies for four releases: here a required field that
the caller left out is filled with the plainest value its type has, nested objects included.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

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


def filled(kind: type, **values: Any) -> Any:
    """A vmomi value of `kind` with these fields, and plain values for the required ones left out.

    A field given as None or as an empty list is left unset when it is optional.
    """
    made = kind()
    for name, value in values.items():
        if value is not None:
            setattr(made, name, value)
    for name, plain in _required(kind):
        if name not in values:
            setattr(made, name, plain() if isinstance(plain, _Nested) else plain)
    return made


class _Nested:
    """Makes a fresh nested value, since vmomi objects are mutable."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __call__(self) -> Any:
        return filled(self.kind)


@cache
def _required(kind: Any) -> tuple[tuple[str, Any], ...]:
    found = []
    for field in kind._GetPropertyList():
        if field.flags & VmomiSupport.F_OPTIONAL or issubclass(field.type, VmomiSupport.ManagedObject):
            continue
        if issubclass(field.type, VmomiSupport.Enum):
            found.append((field.name, _plain_enum(field.type)))
        elif issubclass(field.type, VmomiSupport.DataObject):
            found.append((field.name, _Nested(field.type)))
        elif field.type is datetime:
            found.append((field.name, EPOCH))
    return tuple(found)


def _plain_enum(kind: Any) -> Any:
    name = VmomiSupport.GetWsdlName(kind)
    return kind(PLAIN_ENUM.get(name, kind.values[0]))
