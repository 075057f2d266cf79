"""Encodes stored facts as JSON, and decodes them with msgspec.

msgspec cannot decode a choice between classes, because stored facts have no tags, and it does not know stored names of
fields. For each such type it gets a twin: an empty class with a function `decode`, which msgspec calls in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from gpuops.model.stored import field_names

Class = TypeVar("Class")
Decode = Callable[[Any], Any]
_PLACE: Final = " - at $"
"""The text with which msgspec begins the place of a mistake."""


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
    """Return a new twin, for which msgspec calls `decode`."""
    return _Twin("object", (), {"decode": staticmethod(decode)})


def _convert(kind: Any, body: Any) -> Any:
    # not strict, as earlier versions read them: 1.0 is an int, and 1 is true
    return msgspec.convert(body, kind, strict=False, str_keys=True, dec_hook=_decode_as_twin)


def _decode_as_twin(twin: Any, body: Any) -> Any:
    """Return the value that the twin decodes. Raises ValueError, to which msgspec adds the place of `body`."""
    try:
        return twin.decode(body)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


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

    msgspec can decode mappings, but it does not name the key of a mistake. Limits are for files that people write.
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
    """Return the decoder of a dataclass: a struct with its stored names, types and defaults decodes the fields."""
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
    """Return the decoder of a union of classes: it tries them, first the one that shares the most field names."""
    options = [(_decodable(kind), frozenset(field_names(kind).values())) for kind in classes]

    def decode(body: Any) -> Any:
        if not isinstance(body, dict):
            raise ValueError(f"Expected `object`, got `{type(body).__name__}`")
        mistakes = []
        # several classes may have the same fields, so a class whose values do not fit is not the end
        for option, _ in sorted(options, key=lambda option: len(option[1] & body.keys()), reverse=True):
            try:
                return _convert(option, body)
            except msgspec.ValidationError as error:
                mistakes.append(error)
        raise mistakes[0]  # the mistake of the most similar class

    return decode


def _mapping_decoder(key_kind: Any, kind: Any) -> Decode:
    """Return the decoder of a mapping, whose errors name the key of the mistake."""

    def decode(body: Any) -> Any:
        try:
            return _convert(dict[key_kind, kind], body)
        except msgspec.ValidationError:
            for key, part in body.items() if isinstance(body, dict) else ():
                try:
                    _convert(kind, part)
                except msgspec.ValidationError as error:  # name the key: msgspec has `[...]` in its place
                    raise ValueError(f"{error}{_PLACE}.{key}") from error
            raise

    return decode
