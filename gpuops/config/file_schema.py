"""Makes the JSON Schema of a file from the class that `decoding` decodes it as."""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import cache, reduce
from inspect import getsource
from itertools import pairwise
from operator import or_
from textwrap import dedent
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gpuops.config.decoding import fields_of, is_section
from gpuops.model.file_keys import Before, Reads


def schema_of_section(section: type) -> dict[str, Any]:
    """Return the JSON Schema of a section; the schemas of sections within it are in `$defs`."""
    schema = msgspec.json.schema(_type_in_file(section), schema_hook=lambda kind: {"type": "string"})
    parts: dict[str, Any] = schema["$defs"]
    return {**parts.pop(section.__name__), "$defs": parts}


def _type_in_file(kind: Any) -> Any:
    """Return the type of the value in the file for a field of type `kind`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        reader = next((note for note in kind.__metadata__ if isinstance(note, Before | Reads)), None)
        if reader is not None:
            return _type_in_file(reader.written)
        limits = tuple(note for note in kind.__metadata__ if isinstance(note, Meta))
        return Annotated[(_type_in_file(arguments[0]), *limits)] if limits else _type_in_file(arguments[0])
    if origin in (Union, UnionType):
        return reduce(or_, map(_type_in_file, arguments))
    if origin in (list, tuple, dict):
        return origin[tuple(map(_type_in_file, arguments))]
    return _struct_for_schema(kind) if is_section(kind) else kind


@cache
def _struct_for_schema(section: type) -> type[msgspec.Struct]:
    """Return a struct with the section's keys, defaults and descriptions as a file has them."""
    fields, docstrings = [], _docstrings_of_fields(section)
    for field in fields_of(section):
        kind, default = _type_in_file(field.type), {"default": field.default, "default_factory": field.default_factory}
        notes = getattr(field.type, "__metadata__", ())
        if (
            not field.required
            and (file_default := _declared_default(field.type, field.default)) is not msgspec.NODEFAULT
        ):
            # the schema shows the default; UNSET only makes the key optional
            kind, default = _with_default(kind, file_default), {"default": UNSET}
        description = next((note for note in notes if isinstance(note, str)), docstrings.get(field.name))
        if description is not None:
            kind = Annotated[kind, Meta(description=description)]
        fields.append((field.name, kind, msgspec.field(**default)))
    rename = {field.name: field.encode_name for field in fields_of(section)}
    options: dict[str, Any] = {"rename": rename, "namespace": {"__doc__": section.__doc__}}
    return msgspec.defstruct(section.__name__, fields, kw_only=True, forbid_unknown_fields=True, **options)


def _declared_default(kind: Any, default: Any) -> Any:
    """Return the default of a field of type `kind`, or the one that its `Reads` declares for the file."""
    reader = next((note for note in getattr(kind, "__metadata__", ()) if isinstance(note, Reads)), None)
    return default if reader is None or reader.default is msgspec.NODEFAULT else reader.default


def _with_default(kind: Any, default: Any) -> Any:
    """Return the type with the default in its schema, unless the class has it in another form than a file."""
    file_default = _default_in_file(default)
    with suppress(msgspec.ValidationError):
        if msgspec.convert(file_default, kind) is not UNSET:
            kind = Annotated[kind, Meta(extra_json_schema={"default": file_default})]
    return kind | UnsetType


def _default_in_file(default: Any) -> Any:
    """Return the default as JSON values; UNSET if it cannot be written as such."""
    kind: Any = type(default)
    if is_section(kind):
        values = ((field, getattr(default, field.name)) for field in fields_of(kind))
        parts = {
            field.encode_name: _default_in_file(
                _declared_default(field.type, value) if value == field.default else value
            )
            for field, value in values
        }
        return {key: part for key, part in parts.items() if part is not UNSET}
    return msgspec.to_builtins(default) if isinstance(default, str | int | float | tuple | dict | None) else UNSET


def _docstrings_of_fields(section: type) -> dict[str, str]:
    """Return the docstring below each field of the class and of its base classes, by field."""
    docstrings = {}
    for owner in reversed(section.__mro__):
        if is_section(owner):
            tree = ast.parse(dedent(getsource(owner))).body[0]
            # the text of a field is the string expression right below it
            for statement, following in pairwise(getattr(tree, "body", ())):
                match statement, following:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                        docstrings[name] = " ".join(text.split())
                    case _:
                        pass
    return docstrings
