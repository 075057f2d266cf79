"""Documents that `--output json` prints: one frozen class for each kind, which msgspec writes.

Each field has a type and, in `Annotated`, a description. The docstring of a document is its title, that of a record its
description. `document_schema.py` makes JSON Schemas of these classes, and lists the modules with documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import cache
from types import NoneType
from typing import Annotated, Any, ClassVar, Final, NewType, Self, TypeAlias, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import fields

from gpuops.model.devices.gpu import PciAddress

SCHEMA_VERSION: Final = 1

Moment = NewType("Moment", str)
"""In ISO 8601."""
Ref = Annotated[str, "managed object id"]


class DocumentRecord(Struct, frozen=True):
    """A JSON object of a document: its keys are the fields, in their order."""

    @classmethod
    def made_of(cls, source: Any) -> Self:
        """Make the record of the object that it describes; classes whose fields have other names override it."""
        return cls.from_attributes(source)

    @classmethod
    def from_attributes(cls, *sources: object, **keys: Any) -> Self:
        """Make a record. A field takes its value from `keys`, else from the first source with an attribute of its name.

        A field without either keeps its default. Datetimes become ISO 8601 text, durations seconds, and an object
        becomes the nested record of its field. Raises TypeError for a key that is not a field.
        """
        arguments = {}
        for name, nested in _nested_records(cls).items():
            if name in keys:
                arguments[name] = _field_value(keys.pop(name), nested)
                continue
            for source in sources:
                attribute = getattr(source, name, UNSET)
                if attribute is not UNSET:
                    arguments[name] = _field_value(attribute, nested)
                    break
        if keys:
            raise TypeError(f"{cls.__name__} has no field {min(keys)}")
        return cls(**arguments)


class PrintedDocument(DocumentRecord, frozen=True):
    """A document. Before its own keys it has the version of the schemas and its kind."""

    kind_name: ClassVar[str]
    printed_by: ClassVar[str]
    """The commands that print it."""


class VcenterDocument(PrintedDocument, frozen=True):
    """A document of a vCenter."""

    vcenter: Annotated[str, "its instance uuid"]


class SiteDocument(VcenterDocument, frozen=True):
    """A document of a vCenter as it was read."""

    read_at: Annotated[Moment, "when vCenter was read, by its clock"]


class VersionedSiteDocument(VcenterDocument, frozen=True):
    """A document of a vCenter as it was read, with the version of its API."""

    api_version: str
    read_at: Annotated[Moment, "when vCenter was read, by its clock"]


class NamedRecord(DocumentRecord, frozen=True):
    """A VM or host, by vCenter's managed object id and its name."""

    ref: Ref
    name: str


AtMost: TypeAlias = Annotated[int | None, "null = unknown"]


class SlotsRecord(DocumentRecord, frozen=True):
    """How many more fit. Equal figures are certain; otherwise the truth lies between them."""

    at_least: int
    at_most: AtMost
    because: Annotated[str, "why it is 0, or a range; empty = there is nothing to say"]

    @classmethod
    def made_of(cls, slots: Any) -> Self:
        return cls(slots.at_least, slots.at_most, slots.because)


class RangeRecord(DocumentRecord, frozen=True):
    """A figure that is certain where both are equal."""

    at_least: int
    at_most: AtMost


Document = dict[str, Any]
AnyDocument = Document | PrintedDocument
Class = TypeVar("Class", bound=type[PrintedDocument])
DOCUMENTS: Final[dict[str, type[PrintedDocument]]] = {}
"""The class of each kind, from the modules that were imported so far."""


def printed(name: str, *, by: str) -> Callable[[Class], Class]:
    """Register a class as the document of the kind `name`, which the commands `by` print."""

    def register(document: Class) -> Class:
        document.kind_name, document.printed_by = name, by
        DOCUMENTS[name] = document
        return document

    return register


def kind_of(document: AnyDocument) -> str:
    return document.kind_name if isinstance(document, PrintedDocument) else document["kind"]


def top_level(document: AnyDocument) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a document with their values."""
    if not isinstance(document, PrintedDocument):
        yield from document.items()
        return
    yield from (("schema_version", SCHEMA_VERSION), ("kind", kind_of(document)))
    for field in fields(document):
        content = getattr(document, field.name)
        if content is not UNSET:
            yield field.encode_name, content


def as_values(document: Document | DocumentRecord) -> Document:
    """Return the document or record as dicts, lists and JSON's own types, for Ansible."""
    if isinstance(document, PrintedDocument):
        parts = top_level(document)
        document = {key: list(content) if isinstance(content, Iterator) else content for key, content in parts}
    # by way of JSON, so that records become dicts and tuples lists
    values: Document = msgspec.json.decode(msgspec.json.encode(document, enc_hook=str_of_subclass))
    return values


def str_of_subclass(text: Any) -> str:
    """Return an instance of a subclass of str as str, for msgspec. Raise TypeError for any other type."""
    if isinstance(text, str):
        return str(text)
    raise TypeError(f"{type(text).__name__} is not a type of values in documents")


@cache
def _nested_records(record: type[DocumentRecord]) -> dict[str, type[DocumentRecord] | None]:
    """Return the fields of a record, each with the class of the records in it, or None."""
    hints = get_type_hints(record)
    return {name: next(_records_in(hints[name]), None) for name in record.__struct_fields__}


def _records_in(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, DocumentRecord):
        yield kind
    for argument in get_args(kind):
        yield from _records_in(argument)


_UNCHANGED_TYPES: Final = frozenset({str, int, float, bool, NoneType})


def _field_value(attribute: Any, nested: type[DocumentRecord] | None) -> Any:
    """Return the attribute as a field holds it; `nested` is the class of the field's records, None without any."""
    if type(attribute) in _UNCHANGED_TYPES:
        return attribute
    if isinstance(attribute, datetime):
        return attribute.isoformat()
    if isinstance(attribute, timedelta):
        return attribute.total_seconds()
    if isinstance(attribute, PciAddress):
        return str(attribute)
    # an iterator stays one: its records are made while the document is written
    if nested is None or isinstance(attribute, DocumentRecord | dict | Iterator):
        return attribute
    if isinstance(attribute, list | tuple):
        return [_field_value(part, nested) for part in attribute]
    return nested.made_of(attribute)


@printed("error", by="any command, in place of a result")
class ErrorDocument(PrintedDocument, frozen=True):
    """Why a command ended without a result."""

    code: Annotated[str, "which error it is; stable, and listed in gpuops help output"]
    message: Annotated[str, "what is wrong and why"]
    hint: Annotated[str, "the next move; empty = none is known"]
    exit_code: int
    applied: Annotated[bool | None, "whether something was changed before it; null = not known"]
