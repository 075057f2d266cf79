"""The definitions of custom attributes; their values are kept by the objects that have them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gpuops.sim.core.registry import Registry

MOID: Final = "CustomFieldsManager"
FIRST_KEY: Final = 101


@dataclass(slots=True)
class CustomField:
    """One definition; `applies_to` is a managed object type's WSDL name, '' for all."""

    key: int
    name: str
    applies_to: str


class CustomFields:
    """Definitions by key."""

    def __init__(self, registry: Registry) -> None:
        self.fields: dict[int, CustomField] = {}
        self._registry = registry
        self._keys = itertools.count(FIRST_KEY)

    def define(self, name: str, applies_to: str = "VirtualMachine") -> int:
        """The key of a field of that name and type, made if need be."""
        for field in self.fields.values():
            if (field.name, field.applies_to) == (name, applies_to):
                return field.key
        field = CustomField(next(self._keys), name, applies_to)
        self.fields[field.key] = field
        self.changed()
        return field.key

    def load(self, saved: list[dict[str, Any]]) -> None:
        """Take over definitions that were saved as the fields of `CustomField`."""
        self.fields = {field["key"]: CustomField(**field) for field in saved}
        self._keys = itertools.count(max(self.fields, default=FIRST_KEY - 1) + 1)
        self.changed()

    def key(self) -> tuple[tuple[int, str, str], ...]:
        """All that the definitions say."""
        return tuple((field.key, field.name, field.applies_to) for field in self.fields.values())

    def changed(self) -> None:
        """Tell the readers of the manager's list of definitions."""
        manager = self._registry.find(MOID)
        if manager is not None:
            manager.touch("field")
