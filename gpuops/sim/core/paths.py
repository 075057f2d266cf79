"""Reads property paths such as `config.hardware.device[13000]`, checked against the API's type tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pyVmomi import VmomiSupport, vmodl

from gpuops.sim.core.managed_object import UNSET, ManagedObject
from gpuops.sim.core.registry import vmomi_type

_SEGMENT: Final = re.compile(r'([A-Za-z_]\w*)((?:\[(?:"[^"]*"|[^\]"]+)\])?)(?:\.|$)')


@dataclass(frozen=True, slots=True)
class PropertyPath:
    """A valid path of a type: `declared` up to the first index, `steps` after it; `static` is the type there."""

    text: str
    declared: str
    static: Any
    steps: tuple[str, ...] = ()
    """What follows `declared`: an index such as `[13000]` or a name, in order."""
    required: bool = False


@lru_cache(maxsize=20000)
def resolve(wsdl_name: str, text: str, version: str) -> PropertyPath:
    """The path `text` of a managed object type. Raises vmodl.query.InvalidProperty for one it does not have."""
    segments = _segments(text)
    info = _declared_info(vmomi_type(wsdl_name), segments[0][0], version)
    names: list[str] = []
    for number, (name, index) in enumerate(segments):
        if number:
            info = info and _declared_info(info.type, name, version)
        if info is None:
            raise _invalid(text)
        names.append(name)
        if index:
            if not issubclass(info.type, list):
                raise _invalid(text)
            return PropertyPath(text, ".".join(names), info.type, _later_steps(index, segments[number + 1 :]))
    required = not info.flags & VmomiSupport.F_OPTIONAL and not issubclass(info.type, list)
    return PropertyPath(text, ".".join(names), info.type, required=required and len(segments) == 1)


@lru_cache(maxsize=2000)
def top_level(wsdl_name: str, version: str) -> tuple[str, ...]:
    """The names of all properties that this type has in this version, as `all=true` asks for them."""
    versions = VmomiSupport.parentMap[version]
    return tuple(info.name for info in vmomi_type(wsdl_name)._GetPropertyList() if info.version in versions)


def value_at(managed_object: ManagedObject, path: PropertyPath) -> tuple[Any, Any]:
    """Return the value at a path and its static type; UNSET if there is no value."""
    vmomi_value = managed_object.read(path.declared)
    static = path.static
    for step in path.steps:
        if vmomi_value is UNSET or vmomi_value is None:
            return UNSET, static
        if step.startswith("["):
            vmomi_value = _element(vmomi_value, step[1:-1].strip('"'))
            static = type(vmomi_value)
        else:
            info = _declared_info(type(vmomi_value), step, "")
            if info is None:
                raise _invalid(path.text)
            vmomi_value, static = getattr(vmomi_value, step), info.type
    return (UNSET if vmomi_value is None else vmomi_value), static


def _segments(text: str) -> list[tuple[str, str]]:
    steps: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _SEGMENT.match(text, position)
        if match is None:
            raise _invalid(text)
        steps.append((match[1], match[2]))
        position = match.end()
    if not steps or text.endswith("."):
        raise _invalid(text)
    return steps


def _later_steps(index: str, segments: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    steps = [index]
    for name, later_index in segments:
        steps.append(name)
        if later_index:
            steps.append(later_index)
    return tuple(steps)


def _declared_info(cls: Any, name: str, version: str) -> Any:
    """The table's entry for a property of a type; None if it has none, or none in this version ('' = any)."""
    if not hasattr(cls, "_GetPropertyInfo"):
        return None
    try:
        info = cls._GetPropertyInfo(name)
    except AttributeError:
        return None
    return info if not version or info.version in VmomiSupport.parentMap[version] else None


def _element(values: Any, key: str) -> Any:
    """The element whose key is `key` (`device[13000]`, `extraConfig["a.b"]`); for references, whose moid is."""
    for vmomi_value in values:
        if isinstance(vmomi_value, VmomiSupport.ManagedObject):
            found = vmomi_value._moId
        else:
            found = getattr(vmomi_value, "key", getattr(vmomi_value, "id", None))
        if str(found) == key:
            return vmomi_value
    return UNSET


def _invalid(text: str) -> Exception:
    return vmodl.query.InvalidProperty(msg=f"The property path '{text}' is not valid.", name=text)
