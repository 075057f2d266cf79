"""Reads property paths such as `config.hardware.device[13000]`, and caches the encoded value of each until it changes.

Paths are checked against the API's type tables.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pyVmomi import VmomiSupport, vmodl

from gpuops.sim.core.encoder import Encoding
from gpuops.sim.core.managed_object import UNSET, ManagedObject, SharedValue
from gpuops.sim.core.registry import vmomi_type

_SEGMENT: Final = re.compile(r'([A-Za-z_]\w*)((?:\[(?:"[^"]*"|[^\]"]+)\])?)(?:\.|$)')


@dataclass(frozen=True, slots=True)
class PropertyPath:
    """A valid path of a type: `declared` up to the first index, `steps` after it."""

    text: str
    declared: str
    declared_type: Any
    steps: tuple[str, ...] = ()
    """What follows `declared`: an index such as `[13000]` or a name, in order."""
    required: bool = False


@lru_cache(maxsize=20000)
def resolve(wsdl_name: str, text: str, version: str) -> PropertyPath:
    """Parse the property path `text` of a managed object type.

    Raises vmodl.query.InvalidProperty if the type does not have this path in that API version.
    """
    segments = _segments(text)
    info = _declared_info(vmomi_type(wsdl_name), segments[0][0], version)
    names: list[str] = []
    for number, (name, index) in enumerate(segments):
        if number:  # the entry of the first segment was looked up above
            info = info and _declared_info(info.type, name, version)
        if info is None:
            raise _invalid(text)
        names.append(name)
        if index:
            if not issubclass(info.type, list):
                raise _invalid(text)
            # the steps after an index depend on the element's own type, which only the value shows
            return PropertyPath(text, ".".join(names), info.type, _later_steps(index, segments[number + 1 :]))
    required = not info.flags & VmomiSupport.F_OPTIONAL and not issubclass(info.type, list)
    return PropertyPath(text, ".".join(names), info.type, required=required and len(segments) == 1)


@lru_cache(maxsize=2000)
def top_level(wsdl_name: str, version: str) -> tuple[str, ...]:
    """The names of all properties that this type has in this version, as `all=true` asks for them."""
    versions = VmomiSupport.parentMap[version]
    return tuple(info.name for info in vmomi_type(wsdl_name)._GetPropertyList() if info.version in versions)


def value_at(managed_object: ManagedObject, path: PropertyPath) -> tuple[Any, Any]:
    """Return the value at a path and its declared type; UNSET if there is no value."""
    vmomi_value = managed_object.read(path.declared)
    declared_type = path.declared_type
    for step in path.steps:
        if vmomi_value is UNSET or vmomi_value is None:
            return UNSET, declared_type
        if step.startswith("["):
            vmomi_value = _element(vmomi_value, step[1:-1].strip('"'))
            declared_type = type(vmomi_value)
        else:
            info = _declared_info(type(vmomi_value), step, "")  # `resolve` has checked the API version
            if info is None:
                raise _invalid(path.text)
            vmomi_value, declared_type = getattr(vmomi_value, step), info.type
    return (UNSET if vmomi_value is None else vmomi_value), declared_type


def _segments(text: str) -> list[tuple[str, str]]:
    """Return (property name, index in brackets or "") for each part of a property path."""
    segments: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _SEGMENT.match(text, position)
        if match is None:
            raise _invalid(text)
        segments.append((match[1], match[2]))
        position = match.end()
    if not segments or text.endswith("."):
        raise _invalid(text)
    return segments


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
            element_key = vmomi_value._moId
        else:
            element_key = getattr(vmomi_value, "key", getattr(vmomi_value, "id", None))
        if str(element_key) == key:
            return vmomi_value
    return UNSET


def _invalid(text: str) -> Exception:
    return vmodl.query.InvalidProperty(msg=f"The property path '{text}' is not valid.", name=text)


ABSENT = b""
"""The fragment of an unset property."""


PLACEHOLDER: Final = re.compile("(\ue000[a-z]+\ue000)".encode())
"""Matches the placeholders in a shared value, which are replaced by an object's own texts (`render.devices`)."""

MAX_SHAPES: Final = 2000
"""If there are more, all are dropped: shapes that change this often are not worth caching."""


FragmentKey = tuple[str, Encoding]
"""The key of a cached fragment of one object: a property path, and the encoder of its value."""


class RequiredValueMissing(LookupError):
    """A property that the API requires and the object does not render: a bug in the simulator."""


class Fragments:
    """The written value by object, path and encoding (wire and API version), as bytes ready to be joined."""

    def __init__(self) -> None:
        self._of_object: dict[str, dict[FragmentKey, bytes]] = {}
        self._frozen: set[str] = set()
        self.shapes: dict[Hashable, list[bytes]] = {}
        """Written values, cut at their placeholders, by type, path, encoding and the shape's key."""

    def read(self, managed_object: ManagedObject, path: str, encoding: Encoding) -> bytes:
        """Return the encoded property, from the cache if it has not changed; ABSENT for an unset property.

        Raises vmodl.query.InvalidProperty for a wrong path, and any fault that reading the object raises.
        """
        if managed_object.volatile:
            return self.render(managed_object, path, encoding)
        fragments = self.of(managed_object.moid)
        fragment = fragments.get((path, encoding))
        if fragment is None:
            fragment = fragments[path, encoding] = self.render(managed_object, path, encoding)
        return fragment

    def render(self, managed_object: ManagedObject, path: str, encoding: Encoding) -> bytes:
        """Return the encoded property without the cache; ABSENT for an unset property."""
        resolved = resolve(managed_object.wsdl_name, path, encoding.version)
        shape = managed_object.shape(path)
        if shape is not None:
            return self._fill_shape(managed_object, shape, resolved, encoding)
        vmomi_value, declared_type = value_of(managed_object, resolved)
        if vmomi_value is UNSET:
            return ABSENT
        return encoding.fragment(typed(vmomi_value, declared_type))

    def _fill_shape(
        self, managed_object: ManagedObject, shape: SharedValue, path: PropertyPath, encoding: Encoding
    ) -> bytes:
        """Return the cached encoding of this shape with the object's own texts filled in."""
        key = (managed_object.wsdl_name, path.text, encoding, shape.key)
        parts = self.shapes.get(key)
        if parts is None:
            if len(self.shapes) >= MAX_SHAPES:
                self.shapes.clear()
            parts = PLACEHOLDER.split(encoding.fragment(typed(shape.read(), path.declared_type)))
            self.shapes[key] = parts
        if len(parts) == 1:  # the shape has no placeholder
            return parts[0]
        fills = {
            placeholder.encode(): encoding.text(placeholder_text).encode()
            for placeholder, placeholder_text in shape.fills.items()
        }
        filled = list(parts)
        # re.split with a group puts the placeholders at the odd places
        filled[1::2] = [fills.get(part, part) for part in parts[1::2]]
        return b"".join(filled)

    def of(self, moid: str) -> dict[FragmentKey, bytes]:
        """The cached fragments of one object, by path and encoding, for callers that read many properties at once."""
        by_path = self._of_object.get(moid)
        if by_path is None:
            by_path = self._of_object[moid] = {}
        return by_path

    def drop(self, moid: str, paths: Iterable[str]) -> None:
        """Forget the fragments that a change at these paths makes stale: the same, the parents, the children."""
        by_path = self._of_object.get(moid)
        if not by_path or moid in self._frozen:
            return
        for path in paths:
            # indexes are cut off: a change of device[13000] makes the fragments of all devices stale
            changed_path = path.split("[", 1)[0]
            stale = [key for key in by_path if overlaps(key[0].split("[", 1)[0], changed_path)]
            for key in stale:
                del by_path[key]

    def freeze(self, moid: str) -> None:
        """Keep the cached fragments of this object although its values change."""
        self._frozen.add(moid)

    def thaw(self, moid: str) -> None:
        """Drop the cached fragments of this object and read it anew from now on."""
        self._frozen.discard(moid)
        self._of_object.pop(moid, None)

    def is_frozen(self, moid: str) -> bool:
        return moid in self._frozen

    def forget(self, moid: str) -> None:
        self._of_object.pop(moid, None)

    def clear(self) -> None:
        """Forget everything (after state was replaced from outside)."""
        self._of_object.clear()
        self.shapes.clear()


def overlaps(first_path: str, second_path: str) -> bool:
    """Whether one path is the other, or contains it."""
    return (
        first_path == second_path
        or first_path.startswith(f"{second_path}.")
        or second_path.startswith(f"{first_path}.")
    )


def value_of(managed_object: ManagedObject, path: PropertyPath) -> tuple[Any, Any]:
    """The value and its declared type; UNSET for an optional property that the object does not render.

    Raises RequiredValueMissing for a required one.
    """
    vmomi_value, declared_type = value_at(managed_object, path)
    if vmomi_value is UNSET and path.required:
        raise RequiredValueMissing(
            f"{managed_object.wsdl_name}.{path.text} of {managed_object.moid} is required by the API and has no value"
        )
    return vmomi_value, declared_type


def typed(vmomi_value: Any, declared_type: Any) -> Any:
    """Return the value as its declared vmomi type if that is more exact: `long` for int, `VirtualDevice[]` for list."""
    if type(vmomi_value) is declared_type or declared_type is object or declared_type is None or vmomi_value is None:
        return vmomi_value
    if isinstance(vmomi_value, list):
        if isinstance(vmomi_value, VmomiSupport.Array) or not issubclass(declared_type, list):
            return vmomi_value
        return declared_type([item.ref if isinstance(item, ManagedObject) else item for item in vmomi_value])
    if (
        type(vmomi_value) is int
        and declared_type is not int
        and issubclass(declared_type, int)
        and declared_type is not bool
    ):
        return declared_type(vmomi_value)
    if type(vmomi_value) is float and issubclass(declared_type, float):
        return declared_type(vmomi_value)
    if (
        type(vmomi_value) is str
        and issubclass(declared_type, str)
        and not issubclass(declared_type, (VmomiSupport.Link,))
    ):
        return declared_type(vmomi_value)
    return vmomi_value
