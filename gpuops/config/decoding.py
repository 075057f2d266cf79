"""Decodes the parsed content of a file into a class by its annotations, and collects all mistakes with their keys.

A class is a `Section`, or a frozen dataclass of `gpuops.model`. msgspec converts and checks single values; annotations
of `gpuops.model.file_keys` name functions of gpuops for other values, and keys that differ from their fields.

Messages never repeat what a file contains, because it may be a password in the wrong place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import NODEFAULT, Meta, UnsetType
from msgspec.structs import FieldInfo

from gpuops.errors import PolicyError
from gpuops.model.file_keys import Before, Key, Mistaken, Reads

Class = TypeVar("Class")
Place = tuple[object, ...]

UNKNOWN_KEY: Final = "unknown key"
MISSING: Final = "is missing"
_TYPES: Final[Mapping[object, str]] = {
    bool: "should be true or false",
    int: "should be a whole number",
    float: "should be a number",
    str: "should be text; put quotes around it",
    list: "should be a list",
    tuple: "should be a list",
    dict: "should have keys of its own: name, colon, value",
    Path: "should be the path of a file",
}
_LIMIT_MESSAGE: Final = re.compile(r"Expected `(?P<type>\w+)`(?P<length> of length)? (?P<sign>[<>]=?) (?P<number>\S+)")
_SIGNS: Final = {">=": "{} or more", ">": "more than {}", "<=": "{} or less", "<": "less than {}"}
_WAS_ACCEPTED: Final[ContextVar[bool]] = ContextVar("was_accepted", default=False)


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))  # mypy: subclasses are frozen, too
class Section(msgspec.Struct, frozen=True):
    """One mapping of a file, whose keys are the fields. `__post_init__` checks rules between keys, by ValueError."""

    removed_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that earlier versions of gpuops had, each with what to write instead."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # a file may hold a secret


class Mistake(NamedTuple):
    """One mistake of a file."""

    place: Place
    reason: str
    hint: str = ""


class WrongContent(ValueError):
    """All mistakes of a file, in the order of the keys of its class."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(self.describe(mistakes[0]))

    def describe(self, mistake: Mistake, name_of_file: str = "") -> str:
        """Return one mistake and the number of the others: `ports.first: is missing (and 1 more)`.

        `name_of_file` stands for the key of a mistake that is about the complete file.
        """
        key, others_count = ".".join(map(str, mistake.place)) or name_of_file, len(self.mistakes) - 1
        return f"{key}{': ' if key else ''}{mistake.reason}{f' (and {others_count} more)' if others_count else ''}"

    @property
    def most_telling(self) -> Mistake:
        """The first unknown key, which is often a misspelling of a missing one; else the first mistake."""
        return next((mistake for mistake in self.mistakes if mistake.reason == UNKNOWN_KEY), self.mistakes[0])


def read_as(kind: type[Class], content: object, name: str, hint: str) -> Class:
    """Return the content of a file as this class. Raises PolicyError: `name`, key, reason, `hint`."""
    try:
        return decode(kind, content)
    except WrongContent as error:
        raise PolicyError(f"{name}: {error}", hint=hint) from error


def decode(kind: type[Class], content: object, *, strict: bool = True, was_accepted: bool = False) -> Class:
    """Return the content as this class. Raises WrongContent. If not `strict`, text may stand for a number or a bool.

    `was_accepted`: an older gpuops accepted the file, so keys required only of new files may be missing.
    """
    decoder = _Decoder(strict)
    # a context variable, because `__post_init__` of sections, which checks rules between keys, reads it too
    token = _WAS_ACCEPTED.set(was_accepted)
    try:
        decoded: Class = decoder.read(kind, content, ())
    finally:
        _WAS_ACCEPTED.reset(token)
    if decoder.mistakes:
        raise WrongContent(decoder.mistakes)
    return decoded


def was_accepted() -> bool:
    """Return whether an older gpuops accepted the file that is decoded now. Newer rules then do not apply to it."""
    return _WAS_ACCEPTED.get()


def keys_at(kind: Any, place: Place) -> list[str]:
    """Return the keys that may stand at this place of a file that is decoded as `kind`."""
    section: Any = kind
    for part in place:
        # the number of an element of a list, or a name that people chose, is no field: the section stays the same
        fields = [field for field in fields_of(section) if field.encode_name == part]
        for field in fields:
            section = next(sections_of(field.type), None)
        if section is None:
            return []
    return keys_of(section)


def keys_of(section: type) -> list[str]:
    """Return the keys of a section."""
    return [field.encode_name for field in fields_of(section)]


def is_section(kind: Any) -> bool:
    """Return whether mappings of a file are decoded as this class."""
    return isinstance(kind, type) and (issubclass(kind, Section) or is_dataclass(kind))


@cache
def fields_of(section: Any) -> tuple[FieldInfo, ...]:
    """Return the fields of a section with their annotations, except those that a file cannot set."""
    if issubclass(section, Section):
        return msgspec.structs.fields(section)
    kinds = get_type_hints(section, include_extras=True)
    file_fields = []
    for field in fields(section):
        notes = getattr(kinds[field.name], "__metadata__", ())  # what stands behind the type in Annotated[...]
        key = next((note.name for note in notes if isinstance(note, Key)), field.name)
        defaults = (NODEFAULT if unset is NO_DEFAULT else unset for unset in (field.default, field.default_factory))
        # Key(None): a file cannot set the field
        if key is not None:
            file_fields.append(FieldInfo(field.name, key, kinds[field.name], *defaults))
    file_fields.sort(key=lambda field: field.name != "version")  # a wrong version explains other mistakes
    return tuple(file_fields)


def sections_of(kind: Any) -> Iterator[type]:
    """Yield the sections that a file may have for an annotation, without the sections within these."""
    # with `Reads`, the file contains the type that its function reads
    reader = next((note for note in getattr(kind, "__metadata__", ()) if isinstance(note, Reads)), None)
    if is_section(kind):
        yield kind
    for argument in get_args(kind) if reader is None else (reader.written,):
        yield from sections_of(argument)


class _Decoder:
    """Decodes one file; `mistakes` are those found so far."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.mistakes: list[Mistake] = []

    def read(self, kind: Any, content: Any, place: Place) -> Any:
        """Return the content as this type, or None after a mistake was added."""
        try:
            return self._read(kind, content, place)
        except Mistaken as error:
            self.mistakes.append(Mistake(place, str(error), error.hint))
        except ValueError as error:
            self.mistakes.append(Mistake(place, str(error)))
        return None

    def _read(self, kind: Any, content: Any, place: Place) -> Any:
        """Return the content as a value of type `kind`. `place` holds the keys that lead to it.

        Raises ValueError for a mistake in the content itself; mistakes in its parts are collected.
        """
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._annotated(arguments[0], kind.__metadata__, content, place)
        if origin in (Union, UnionType):
            is_none = content is None and NoneType in arguments
            return None if is_none else self._read(_select_option(arguments, content), content, place)
        if is_section(kind):
            return self._section(kind, content, place)
        if not arguments or origin is Literal:
            return self._convert(kind, content)
        if _is_for_msgspec(kind):
            with suppress(msgspec.ValidationError):  # if it fails, the code below finds the wrong element
                return msgspec.convert(content, kind, strict=self.strict, dec_hook=_parse)
        if origin is dict:
            if not isinstance(content, dict):
                raise ValueError(_TYPES[dict])
            key_type, value_type = arguments
            return {
                self.read(key_type, key, (*place, key, "[key]")): self.read(value_type, element, (*place, key))
                for key, element in content.items()
            }
        if not isinstance(content, list | tuple):
            raise ValueError(_TYPES[list])
        return origin([self.read(arguments[0], element, (*place, number)) for number, element in enumerate(content)])

    def _annotated(self, kind: Any, notes: Sequence[Any], content: Any, place: Place) -> Any:
        """Return the content as an `Annotated` type: prepared (`Before`), parsed (`Reads`), within limits (`Meta`)."""
        mistakes_before = len(self.mistakes)
        for note in notes:
            if isinstance(note, Before):
                content = note.prepare(content)
        reader = next((note for note in notes if isinstance(note, Reads)), None)
        if reader is not None:
            written = self.read(reader.written, content, place)
            return reader.parse(written) if len(self.mistakes) == mistakes_before else None
        limits = tuple(note for note in notes if isinstance(note, Meta))
        # limits of a union apply to the option that fits the content
        if limits and get_origin(kind) in (Union, UnionType):
            is_none = content is None and NoneType in get_args(kind)
            option = NoneType if is_none else Annotated[(_select_option(get_args(kind), content), *limits)]
            return self._read(option, content, place)
        if not get_args(kind) and _is_for_msgspec(kind):
            return self._convert(Annotated[(kind, *limits)] if limits else kind, content)
        decoded = self._read(kind, content, place)
        # the limits of a list or dict, such as its length, are checked if its elements have no mistakes
        if len(self.mistakes) == mistakes_before and limits and isinstance(decoded, list | tuple | dict):
            self._convert(Annotated[(get_origin(kind), *limits)], decoded)
        return decoded

    def _section(self, kind: Any, content: Any, place: Place) -> Any:
        """Return the section; None if it has mistakes, which are collected. Raises ValueError if not a mapping."""
        if not isinstance(content, dict):
            raise ValueError(_TYPES[dict])
        removed_keys = getattr(kind, "removed_keys", {})
        removed = [key for key in removed_keys if key in content]
        if removed and not was_accepted():
            raise Mistaken(f"`{removed[0]}` is no longer supported", removed_keys[removed[0]])
        mistakes_before = len(self.mistakes)
        # removed keys in a file that an older gpuops accepted are ignored
        decoded, known_keys = {}, {*removed}
        for field in fields_of(kind):
            key = field.encode_name
            known_keys.add(key)
            if key in content:
                decoded[field.name] = self.read(field.type, content[key], (*place, key))
            elif field.required:
                self.mistakes.append(Mistake((*place, key), MISSING))
        self.mistakes += [Mistake((*place, key), UNKNOWN_KEY) for key in content if key not in known_keys]
        return kind(**decoded) if len(self.mistakes) == mistakes_before else None

    def _convert(self, kind: Any, content: Any) -> Any:
        """Return the content as a type that msgspec converts. Raises ValueError with a reason in our words."""
        try:
            return msgspec.convert(content, kind, strict=self.strict, dec_hook=_parse)
        except msgspec.ValidationError as error:
            raise ValueError(str(error.__cause__ or _reason(kind, str(error)))) from error


def _parse(kind: type, content: Any) -> Any:
    """Return the content as a type that msgspec does not know. Raises ValueError."""
    if kind is Path and isinstance(content, str):
        return Path(content)
    raise ValueError(_TYPES.get(kind, ""))


def _select_option(options: Sequence[Any], content: Any) -> Any:
    """Return the type of a union as which this content is decoded, by the type of the content; else the first one.

    `[int, tuple[str, ...]]` and a list: the tuple.
    """
    types = [option for option in options if option not in (NoneType, UnsetType)]
    for option in types if len(types) > 1 else ():
        bare = get_args(option)[0] if get_origin(option) is Annotated else option
        if get_origin(bare) is Literal and content in get_args(bare):
            return option
        # the type of parsed content: a mapping for a section, a list for a tuple
        content_type = dict if is_section(bare) else get_origin(bare) or bare
        content_type = list if content_type is tuple else content_type
        if isinstance(content_type, type) and isinstance(content, content_type):
            return option
    return types[0]


@cache
def _is_for_msgspec(kind: Any) -> bool:
    """Return whether msgspec alone can convert the type: it contains neither sections nor functions of gpuops."""
    if is_section(kind):
        return False
    notes = getattr(kind, "__metadata__", ())
    return not any(isinstance(note, Reads | Before) for note in notes) and all(map(_is_for_msgspec, get_args(kind)))


def _reason(kind: Any, message: str) -> str:
    """Return an error message of msgspec in our words: `should be 65535 or less`.

    >>> _reason(Annotated[int, Meta(le=65535)], "Expected `int` <= 65535")
    'should be 65535 or less'
    >>> _reason(Annotated[tuple[str, ...], Meta(min_length=2)], "Expected `array` of length >= 2")
    'should have 2 entries or more'
    """
    notes = getattr(kind, "__metadata__", ())
    bare = get_args(kind)[0] if notes else kind
    bare = get_origin(bare) or bare
    is_enum = isinstance(bare, type) and issubclass(bare, Enum)
    if bare is Literal or is_enum:
        choices = [repr(member.value) for member in bare] if is_enum else list(map(repr, get_args(kind)))
        return f"should be {' or '.join(filter(None, (', '.join(choices[:-1]), choices[-1])))}"
    if "matching regex" in message:
        return f"does not have the form {next(note.pattern for note in notes if note.pattern)}"
    limit = _LIMIT_MESSAGE.fullmatch(message)
    if limit is None:
        return _TYPES.get(bare, message)
    number = limit["number"]
    if not limit["length"]:
        return f"should be {_SIGNS[limit['sign']].format(number)}"
    # a limit of the length of a text, list or mapping
    if limit["sign"] == "<=":
        return f"should have {number} {'characters' if bare is str else 'entries'} or fewer"
    if number != "1":
        return f"should have {number} {'characters' if bare is str else 'entries'} or more"
    if bare is str:
        return "should not be empty"
    return "should have at least one entry" if bare is dict else "should not be an empty list"
