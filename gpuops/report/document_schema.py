"""JSON Schemas of the documents that `--output json` prints, made from their classes (`gpuops/report/document.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from importlib import import_module
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from gpuops.extensions import import_documents
from gpuops.report.document import DOCUMENTS, SCHEMA_VERSION, DocumentRecord, Moment, PrintedDocument

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE_TYPES: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    Moment: {"type": "string", "format": "date-time"},
}
_DEFINITIONS: Final = "#/$defs/"
_MODULES: Final = (
    "document",
    "plan_json",
    "advice.capacity_view",
    "advice.gpu_profiles_view",
    "advice.placement_view",
    "first_steps.config_view",
    "first_contact_view",
    "first_steps.manual_view",
    "first_steps.simulator_view",
    "sites",
    "monitoring.doctor_view",
    "monitoring.inventory_view",
    "monitoring.readiness_view",
    "nights.desktop_use_view",
    "hosts.change_view",
    "hosts.device_modes_view",
    "hosts.host_plan_view",
    "hosts.host_settings_view",
    "nights.history_view",
    "nights.ml_queue_view",
    "nights.rotation_plan_view",
    "nights.rotation_setup_view",
    "nights.rotation_status_view",
    "nights.watch_view",
    "vms.defrag_view",
)
"""The modules of `gpuops.report` that contain classes of documents."""


def document_kinds() -> dict[str, type[PrintedDocument]]:
    """Return the class of every kind of document by its name, in the order of the names."""
    for name in _MODULES:
        import_module(f"gpuops.report.{name}")
    import_documents()
    return dict(sorted(DOCUMENTS.items()))


def document_title(document: type[PrintedDocument]) -> str:
    return _docstring(document).removesuffix(".")


class _Heading(DocumentRecord, frozen=True):
    """What every document begins with."""

    schema_version: Annotated[
        int, "higher where a key was taken away or means something else; a new key changes nothing"
    ]
    kind: Annotated[str, "which document it is"]


def document_schema(document: type[PrintedDocument]) -> Schema:
    """Return the schema of one kind. It allows further keys: later releases may add some."""
    maker = _SchemaMaker()
    heading, body = maker.record(_Heading), maker.record(document)
    for key, constant in (("schema_version", SCHEMA_VERSION), ("kind", document.kind_name)):
        heading["properties"][key]["const"] = constant
    body["properties"] = heading["properties"] | body["properties"]
    body["required"] = heading["required"] + body["required"]
    schema: Schema = {
        "$schema": DIALECT,
        "$id": f"urn:gpuops:schema:{document.kind_name}:{SCHEMA_VERSION}",
        "title": document_title(document),
        "description": f"Printed by {document.printed_by}.",
        **body,
    }
    if maker.definitions:
        schema["$defs"] = {name: maker.definitions[name] for name in sorted(maker.definitions)}
    return schema


class _SchemaMaker:
    """Makes the schema of one document; `definitions` collects the schemas of the records in it, by name."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def _any_of(self, choices: list[Schema]) -> Schema:
        if len(choices) == 1:
            return choices[0]
        # choices without further keywords become a list of types: {"type": ["string", "null"]}
        are_simple = all(set(choice) == {"type"} and isinstance(choice["type"], str) for choice in choices)
        return {"type": [choice["type"] for choice in choices]} if are_simple else {"anyOf": choices}

    def record(self, kind: type[DocumentRecord]) -> Schema:
        """Return the schema of a class of records."""
        hints = get_type_hints(kind, include_extras=True)
        fields = msgspec.structs.fields(kind)
        return {
            "type": "object",
            "properties": {field.encode_name: self._of_type(hints[field.name]) for field in fields},
            "required": [field.encode_name for field in fields if field.default is not msgspec.UNSET],
        }

    def _named_record(self, kind: type[DocumentRecord]) -> Schema:
        name = kind.__name__.removesuffix("Record")
        if name not in self.definitions:
            self.definitions[name] = {}  # a record may contain others of its class
            self.definitions[name] = {"description": _docstring(kind), **self.record(kind)}
        return {"$ref": f"{_DEFINITIONS}{name}"}

    def _of_type(self, kind: Any) -> Schema:
        """Return the schema of the JSON that a value of this type becomes."""
        arguments = get_args(kind)
        if get_origin(kind) is Annotated:
            return {**self._of_type(arguments[0]), "description": arguments[-1]}
        if kind in _SIMPLE_TYPES:
            return dict(_SIMPLE_TYPES[kind])
        if get_origin(kind) in (Union, UnionType):
            return self._any_of([self._of_type(choice) for choice in arguments if choice is not msgspec.UnsetType])
        if kind == dict[str, Any]:
            return {"type": "object"}
        if get_origin(kind) is dict:
            return {"type": "object", "additionalProperties": self._of_type(arguments[1])}
        if isinstance(kind, type) and issubclass(kind, DocumentRecord):
            return self._named_record(kind)
        if get_origin(kind) in (tuple, list, frozenset, Iterable):
            return {"type": "array", "items": self._of_type(arguments[0])}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"type": "string", "enum": [member.value for member in kind]}
        if is_dataclass(kind):
            return self._fields_of(kind)
        return {"type": "string"}

    def _fields_of(self, kind: Any) -> Schema:
        hints = get_type_hints(kind)
        # fields with repr=False, such as secrets, are left out of documents
        properties = {field.name: self._of_type(hints[field.name]) for field in fields(kind) if field.repr}
        return {"type": "object", "properties": properties, "required": list(properties)}


def _docstring(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())
