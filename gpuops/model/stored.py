"""The names under which classes and fields are stored in journals, state files, books of pools, VMs and inventories.

A field is stored under its name in Python unless `stored_as` above the class gives it another one. Stored names never
change: journals of earlier versions have them, and earlier versions read what this one writes. To rename a field
in Python, rename it and give its former name in `stored_as`:

    @stored_as("SuspendVm", yields="gives_way")

tests/model/stored_names.yaml lists all stored names, so a rename that forgets this fails a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar

Class = TypeVar("Class")
_NAMES: Final = "__stored_names__"
_LEAVES: Final = frozenset((str, int, bool, float, NoneType))
NOT_STORED: Final[Mapping[str, bool]] = {"stored": False}
"""Metadata of a field that is never stored, so it has no stored name."""


class StoredNames(NamedTuple):
    """The stored names of one class."""

    name: str
    """Of the class itself. Journals have it for a step; of other classes only the fields are stored."""
    fields: Mapping[str, str]
    """Name of the field in Python -> stored name, in the order in which the class declares the fields."""


def stored_as(name: str, /, **fields_as: str) -> Callable[[type[Class]], type[Class]]:
    """Give a dataclass its stored name, and stored names to the fields whose names in Python are others.

    Raises TypeError for a keyword that names no field, and if two fields would be stored under one name.
    """

    def attach_names(kind: type[Class]) -> type[Class]:
        stored_fields = [field.name for field in fields(kind) if field.metadata != NOT_STORED]  # type: ignore[arg-type]
        names = {field: fields_as.get(field, field) for field in stored_fields}
        if unknown := fields_as.keys() - names.keys():
            raise TypeError(f"stored_as of {kind.__qualname__} names no stored field: {', '.join(sorted(unknown))}")
        if len(set(names.values())) < len(names):
            raise TypeError(f"stored_as of {kind.__qualname__} gives two fields one name")
        setattr(kind, _NAMES, StoredNames(name, names))
        return kind

    return attach_names


def names_of(kind: type) -> StoredNames:
    """Return the stored names of a class. Raises TypeError for a class that has none of its own."""
    names = vars(kind).get(_NAMES)
    if not isinstance(names, StoredNames):
        raise TypeError(f"{kind.__qualname__} has no stored names: write stored_as above it")
    return names


def field_names(kind: type) -> Mapping[str, str]:
    """Return field -> name in JSON: the stored names of a class, or its own field names where it has none."""
    names = vars(kind).get(_NAMES)
    return names.fields if isinstance(names, StoredNames) else {f.name: f.name for f in fields(kind)}


def stored_name(kind: type) -> str:
    """Return the stored name of a class: `SuspendVm`."""
    return names_of(kind).name


def to_stored(fact: Any) -> Any:
    """Return what `dataclasses.asdict` returns, under stored names: a dict for a dataclass, at any depth."""
    if type(fact) in _LEAVES:  # most are: this makes it twice as fast
        return fact
    if is_dataclass(fact) and not isinstance(fact, type):
        return {stored: to_stored(getattr(fact, field)) for field, stored in names_of(type(fact)).fields.items()}
    if isinstance(fact, list | tuple):
        return [to_stored(element) for element in fact]
    if isinstance(fact, Mapping):
        return {key: to_stored(element) for key, element in fact.items()}
    return fact


def from_stored(kind: type[Class], body: Mapping[str, Any]) -> Class:
    """Return the dataclass whose fields are in `body` under their stored names. Raises TypeError for another name."""
    if not isinstance(body, Mapping):
        raise TypeError(f"the stored fields of {stored_name(kind)} are a {type(body).__name__}")
    fields_of = {stored: field for field, stored in names_of(kind).fields.items()}
    if unknown := body.keys() - fields_of.keys():
        raise TypeError(f"{stored_name(kind)} has no stored field {min(unknown)!r}")
    return kind(**{fields_of[stored]: field_value for stored, field_value in body.items()})
