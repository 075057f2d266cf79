"""Names under which classes and fields are stored (journals, state files, VMs, saved inventories), and their JSON.

A field is stored under its name in Python unless `stored_as` above the class gives it another one. Stored names never
change: journals of earlier versions have them, and earlier versions read what this one writes. To rename a field
in Python, rename it and give its former name in `stored_as`:

    @stored_as("SuspendVm", yields="gives_way")

tests/model/stored_names.yaml lists all stored names, so a rename that forgets this fails a test.

msgspec makes and decodes the JSON values, with a twin for each type that it cannot decode. It refuses a choice between
classes, because what is stored has no tags, and it knows no stored names of fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

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


Decode = Callable[[Any], Any]
_PLACE: Final = " - at $"
"""How msgspec begins the place of a mistake."""


class NotDecoded(ValueError):
    """The first mistake and its place: `vms.vm-12.devices.0.key: Expected int, got str`."""


def json_values(fact: Any) -> Any:
    """Return the JSON values of what `to_stored` returned, or of a class without stored names."""
    return msgspec.to_builtins(fact, str_keys=True, enc_hook=_without_subclass)


def json_text(fact: Any) -> str:
    """Return the same as text, for a file."""
    return msgspec.json.encode(fact, enc_hook=_without_subclass).decode()


def _without_subclass(part: Any) -> Any:
    """Return a number or text of pyVmomi, whose types msgspec does not know, as the type that it derives from."""
    for base in (int, str):
        if isinstance(part, base):
            return base(part)
    raise NotImplementedError


def decode_stored(kind: type[Class], body: Any) -> Class:
    """Return the value of this type whose stored fields are in `body`, which is decoded JSON.

    Unknown names are ignored: a later version may have written them. Raises NotDecoded.
    """
    try:
        decoded: Class = _convert(_decodable(kind), body)  # type: ignore[arg-type]  # to mypy classes are not hashable
    except msgspec.ValidationError as error:
        # each level that msgspec leaves appends its place: the innermost comes first
        reason, *inner_to_outer = str(error).replace("`", "").split(_PLACE)
        place = re.sub(r"\[(\d+)\]", r".\1", "".join(reversed(inner_to_outer))).removeprefix(".")
        raise NotDecoded(f"{place}: {reason}" if place else reason) from error
    return decoded


class _Twin(type):
    """The metaclass of twins. A twin has the static method `decode`."""

    def __instancecheck__(cls, decoded: object) -> bool:
        return True  # msgspec asks this of what `decode` returned


def _twin(decode: Decode) -> type:
    return _Twin("object", (), {"decode": staticmethod(decode)})


def _convert(kind: Any, body: Any) -> Any:
    # not strict, as earlier versions read them: 1.0 is an int, and 1 is true
    return msgspec.convert(body, kind, strict=False, str_keys=True, dec_hook=_decode_as_twin)


def _decode_as_twin(twin: Any, body: Any) -> Any:
    try:
        return twin.decode(body)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error  # to this msgspec adds the place of `body`


@cache
def _decodable(kind: Any) -> Any:
    """Return the type with a twin in place of each part that msgspec cannot decode."""
    if _is_decodable(kind):
        return kind
    if is_dataclass(kind):
        return _twin(_class_decoder(kind))
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        options = [option for option in arguments if option is not NoneType]
        choice = _decodable(options[0]) if len(options) == 1 else _twin(_choice_decoder(options))
        return choice | None if NoneType in arguments else choice
    if _is_mapping(origin):
        return _twin(_mapping_decoder(*map(_decodable, arguments)))
    return origin[tuple(argument if argument is Ellipsis else _decodable(argument) for argument in arguments)]


@cache
def _is_decodable(kind: Any) -> bool:
    """Return whether msgspec decodes the type: it holds no stored names, choices between classes, mappings or limits.

    Of mappings it decodes, but it does not say at which key a mistake is. Limits are for files that people write.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return field_names(kind) == {name: name for name in hints} and all(map(_is_decodable, hints.values()))
    arguments = get_args(kind)
    if get_origin(kind) is Annotated or _is_mapping(get_origin(kind)):
        return False
    # between two classes msgspec cannot choose: `_choice_decoder` does
    return sum(map(is_dataclass, arguments)) <= 1 and all(map(_is_decodable, arguments))


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _class_decoder(kind: Any) -> Decode:
    hints, names, twin_fields = get_type_hints(kind), field_names(kind), []
    for field in fields(kind):
        if field.name in names:
            options: dict[str, Any] = {"name": names[field.name]}
            if field.default is not MISSING:
                options["default"] = field.default
            if field.default_factory is not MISSING:
                options["default_factory"] = field.default_factory
            twin_fields.append((field.name, _decodable(hints[field.name]), msgspec.field(**options)))
    struct = msgspec.defstruct(kind.__name__, twin_fields, kw_only=True)
    return lambda body: kind(**msgspec.structs.asdict(_convert(struct, body)))


def _choice_decoder(classes: Sequence[Any]) -> Decode:
    options = [(_decodable(kind), frozenset(field_names(kind).values())) for kind in classes]

    def decode(body: Any) -> Any:
        if not isinstance(body, dict):
            raise ValueError(f"Expected `object`, got `{type(body).__name__}`")
        mistakes = []
        # first the class that has the most of these fields; several may have the same
        for option, _ in sorted(options, key=lambda option: len(option[1] & body.keys()), reverse=True):
            try:
                return _convert(option, body)
            except msgspec.ValidationError as error:
                mistakes.append(error)
        raise mistakes[0]  # that of the class with the most of these fields

    return decode


def _mapping_decoder(key_kind: Any, kind: Any) -> Decode:
    def decode(body: Any) -> Any:
        try:
            return _convert(dict[key_kind, kind], body)
        except msgspec.ValidationError:
            for key, part in body.items() if isinstance(body, dict) else ():
                try:
                    _convert(kind, part)
                except msgspec.ValidationError as error:  # says the place, which msgspec does not: `[...]`
                    raise ValueError(f"{error}{_PLACE}.{key}") from error
            raise

    return decode
