"""Names under which classes and fields are stored: in journals, state files, books of pools, VMs, saved inventories.

`stored_as` above a class is the table of its stored names. They never change: journals of earlier
versions have them, and earlier versions read what this one writes. To rename a class or a field in Python, rename it
and the keyword in `stored_as`, and leave the text:

    @stored_as("SuspendVm", vm="vm", yields="gives_way")

A new field gets a stored name of its own; tests/model/stored_names.yaml lists all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

Class = TypeVar("Class")
_NAMES: Final = "__stored_names__"
NOT_STORED: Final[Mapping[str, bool]] = {"exclude": True}
"""Metadata of a field that is never stored, so it has no stored name: pydantic leaves it out by this key."""


class StoredNames(NamedTuple):
    """The stored names of one class."""

    name: str
    """Of the class itself. Journals have it for a step; of other classes only the fields are stored."""
    fields: Mapping[str, str]
    """Name of the field in Python -> stored name."""


def stored_as(name: str, /, **fields_as: str) -> Callable[[type[Class]], type[Class]]:
    """Give a dataclass its stored names. Raises TypeError for a field without one, and for a name without a field."""

    def attach_names(kind: type[Class]) -> type[Class]:
        declared = {field.name for field in fields(kind) if field.metadata != NOT_STORED}  # type: ignore[arg-type]  # a dataclass, which mypy cannot say
        if declared != fields_as.keys():
            differing = ", ".join(sorted(declared ^ fields_as.keys()))
            raise TypeError(f"stored_as of {kind.__qualname__} and its fields differ: {differing}")
        setattr(kind, _NAMES, StoredNames(name, fields_as))
        # pydantic looks for this, and then reads and writes these fields under their stored names, at any depth
        aliases = {field.name: fields_as.get(field.name, field.name) for field in fields(kind)}  # type: ignore[arg-type]
        kind.__pydantic_config__ = {"alias_generator": aliases.__getitem__, "serialize_by_alias": True}  # type: ignore[attr-defined]
        return kind

    return attach_names


def names_of(kind: type) -> StoredNames:
    """Return the stored names of a class. Raises TypeError for a class that has none of its own."""
    names = vars(kind).get(_NAMES)
    if not isinstance(names, StoredNames):
        raise TypeError(f"{kind.__qualname__} has no stored names: write stored_as above it")
    return names


def stored_name(kind: type) -> str:
    """Return the stored name of a class: `SuspendVm`."""
    return names_of(kind).name


def to_stored(fact: Any) -> Any:
    """Return what `dataclasses.asdict` returns, under stored names: a dict for a dataclass, at any depth."""
    if is_dataclass(fact) and not isinstance(fact, type):
        return {stored: to_stored(getattr(fact, field)) for field, stored in _in_order(type(fact)).items()}
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


def with_field_names(kind: Any, body: Any) -> Any:
    """Return decoded JSON of a type that `to_stored` made, with the names that its fields have in Python, at any depth.

    Names that are not stored are left out: a later version may have written them.
    """
    if get_origin(kind) in (Union, UnionType):
        [kind] = [option for option in get_args(kind) if option is not NoneType]
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(body, dict):
        hints, names = _hints(kind), names_of(kind).fields
        return {name: with_field_names(hints[name], body[key]) for name, key in names.items() if key in body}
    elements = [argument for argument in get_args(kind) if argument is not Ellipsis]
    if elements and isinstance(body, list):
        return [with_field_names(elements[-1], element) for element in body]
    if elements and isinstance(body, dict):
        return {key: with_field_names(elements[-1], element) for key, element in body.items()}
    return body


def _in_order(kind: type) -> dict[str, str]:
    """Return the stored names by field, in the order in which the class declares the fields, as `asdict` has them."""
    names = names_of(kind).fields
    return {field.name: names[field.name] for field in fields(kind) if field.name in names}


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
