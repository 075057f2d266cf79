"""Keeps each property as it is written in a reply, until the property changes."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from typing import Any, Final

from pyVmomi import VmomiSupport

from gpuops.sim.core.encoder import Encoding
from gpuops.sim.core.managed_object import UNSET, ManagedObject, SharedValue
from gpuops.sim.core.paths import PropertyPath, resolve, value_at

ABSENT = b""
"""The fragment of an unset property."""


PLACEHOLDER: Final = re.compile("(\ue000[a-z]+\ue000)".encode())
"""What stands in a shared value for an object's own text (`render.devices`)."""

MOST_SHAPES: Final = 2000
"""When there are more, all are forgotten: what changes often has no shape worth keeping."""


Kept = tuple[str, Encoding]
"""The key of what is kept of an object: a path, and how its value is written."""


class RequiredValueMissing(LookupError):
    """A property that the API requires and the object does not render: a bug in the simulator."""


class Fragments:
    """The written value by object, path and encoding (wire and API version), as bytes ready to be joined."""

    def __init__(self) -> None:
        self._of_object: dict[str, dict[Kept, bytes]] = {}
        self._frozen: set[str] = set()
        self.shapes: dict[Hashable, list[bytes]] = {}
        """Written values, cut at their placeholders, by type, path, encoding and the shape's key."""

    def read(self, managed_object: ManagedObject, path: str, encoding: Encoding) -> bytes:
        """The fragment, rendered if need be; ABSENT for an unset property.

        Raises vmodl.query.InvalidProperty for a wrong path, and whatever fault the object's reader raises.
        """
        if managed_object.volatile:
            return self.render(managed_object, path, encoding)
        fragments = self.of(managed_object.moid)
        fragment = fragments.get((path, encoding))
        if fragment is None:
            fragment = fragments[path, encoding] = self.render(managed_object, path, encoding)
        return fragment

    def render(self, managed_object: ManagedObject, path: str, encoding: Encoding) -> bytes:
        """The property's value, written afresh."""
        resolved = resolve(managed_object.wsdl_name, path, encoding.version)
        shape = managed_object.shape(path)
        if shape is not None:
            return self._fill_shape(managed_object, shape, resolved, encoding)
        vmomi_value, static = value_of(managed_object, resolved)
        if vmomi_value is UNSET:
            return ABSENT
        return encoding.fragment(typed(vmomi_value, static))

    def _fill_shape(
        self, managed_object: ManagedObject, shape: SharedValue, path: PropertyPath, encoding: Encoding
    ) -> bytes:
        """What was written for the first object of this shape, with this object's own text filled in."""
        key = (managed_object.wsdl_name, path.text, encoding, shape.key)
        parts = self.shapes.get(key)
        if parts is None:
            if len(self.shapes) >= MOST_SHAPES:
                self.shapes.clear()
            parts = PLACEHOLDER.split(encoding.fragment(typed(shape.read(), path.static)))
            self.shapes[key] = parts
        if len(parts) == 1:
            return parts[0]
        fills = {
            placeholder.encode(): encoding.text(placeholder_text).encode()
            for placeholder, placeholder_text in shape.fills.items()
        }
        filled = list(parts)
        filled[1::2] = [fills.get(each, each) for each in parts[1::2]]
        return b"".join(filled)

    def of(self, moid: str) -> dict[Kept, bytes]:
        """What is kept of one object, by path and encoding, for readers that ask for many properties at once."""
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
            stem = path.split("[", 1)[0]
            stale = [key for key in by_path if overlaps(key[0].split("[", 1)[0], stem)]
            for key in stale:
                del by_path[key]

    def freeze(self, moid: str) -> None:
        """Keep what was read of this object as it is, whatever changes."""
        self._frozen.add(moid)

    def thaw(self, moid: str) -> None:
        """Read it anew from now on."""
        self._frozen.discard(moid)
        self._of_object.pop(moid, None)

    def is_frozen(self, moid: str) -> bool:
        return moid in self._frozen

    def forget(self, moid: str) -> None:
        """Forget an object that is gone."""
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
    """The value and its static type; UNSET for an optional property that the object does not render.

    Raises Unreadable for a required one.
    """
    vmomi_value, static = value_at(managed_object, path)
    if vmomi_value is UNSET and path.required:
        raise RequiredValueMissing(
            f"{managed_object.wsdl_name}.{path.text} of {managed_object.moid} is required by the API and has no value"
        )
    return vmomi_value, static


def typed(vmomi_value: Any, static: Any) -> Any:
    """The value as its declared type where Python's own is vaguer: `long` for an int, `VirtualDevice[]` for a list."""
    if type(vmomi_value) is static or static is object or static is None or vmomi_value is None:
        return vmomi_value
    if isinstance(vmomi_value, list):
        if isinstance(vmomi_value, VmomiSupport.Array) or not issubclass(static, list):
            return vmomi_value
        return static([_reference(item) for item in vmomi_value])
    if type(vmomi_value) is int and static is not int and issubclass(static, int) and static is not bool:
        return static(vmomi_value)
    if type(vmomi_value) is float and issubclass(static, float):
        return static(vmomi_value)
    if type(vmomi_value) is str and issubclass(static, str) and not issubclass(static, (VmomiSupport.Link,)):
        return static(vmomi_value)
    return vmomi_value


def _reference(item: Any) -> Any:
    return item.ref if isinstance(item, ManagedObject) else item
