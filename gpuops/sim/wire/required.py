"""Refuses arguments in which a data object lacks a property that its type requires."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from pyVmomi import VmomiSupport, vmodl

_MADE: Final = (str, int, float)
"""Of these pyVmomi makes a value where none was sent."""


def require_whole(value: Any, version: str) -> None:
    """Looks at a value and all that is in it. Raises vmodl.fault.InvalidRequest in vCenter's words.

    Text, numbers and booleans that were not sent are empty, 0 and false to pyVmomi; references, data objects, moments
    and words of an enumeration are looked for here.
    """
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(part)
        elif isinstance(part, VmomiSupport.DataObject):
            kind: Any = type(part)
            for name, required in _properties(kind, version):
                inner = getattr(part, name)
                if inner is not None:
                    waiting.append(inner)
                elif required:
                    type_name = VmomiSupport.GetWsdlName(kind)
                    raise vmodl.fault.InvalidRequest(
                        msg=f"Required property {name} is missing from data object of type {type_name}"
                    )


@cache
def _properties(kind: Any, version: str) -> tuple[tuple[str, bool], ...]:
    """The properties that may hold data objects or be required, and whether they are required."""
    versions = VmomiSupport.parentMap[version]
    return tuple(
        (info.name, not info.flags & VmomiSupport.F_OPTIONAL and not issubclass(info.type, list))
        for info in kind._GetPropertyList()
        if info.version in versions and (issubclass(info.type, VmomiSupport.Enum) or not issubclass(info.type, _MADE))
    )
