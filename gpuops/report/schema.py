"""JSON Schemas of the documents that `--output json` prints, made from the files of `gpuops/schemas`.

A file there has a section for each kind of document, and `types` for what they have in common. Each property is one
line: its type, and after a semicolon what it means. All are required but those under `optional`. A type is one of

    string  integer  number  boolean  object  null  moment (a time in ISO 8601)
    Name                          a type of this file's `types`, or of types.yaml
    list of TYPE, map of TYPE     map: an object whose keys are names
    one of MODULE:CLASS           the values of an enumeration

and several of them with `or` between. `like: NAME` takes over what another kind of the file has. A type may be declared
by `record: MODULE:CLASS` too.

Kinds that have a class (`gpuops/report/document.py`) are in no file: their schemas are made of the fields of the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.resources import files
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from gpuops.report.document import DOCUMENTS, SCHEMA_VERSION, DocumentRecord, Moment, PrintedDocument

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SHARED: Final = "types"
_JSON_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "object", "null"})
_PLAIN: Final[Mapping[Any, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    Moment: {"type": "string", "format": "date-time"},
}
_DEFINED: Final = "#/$defs/"
_MODULES: Final = (
    "document",
    "plan_json",
    "advice.capacity",
    "advice.gpu_profiles",
    "advice.measured",
    "advice.placement",
    "first_steps.config",
    "first_contact",
    "first_steps.login",
    "first_steps.manual",
    "first_steps.simulator",
    "notice",
    "sites",
    "monitoring.diagnosis",
    "monitoring.doctor",
    "monitoring.guest",
    "monitoring.inventory",
    "monitoring.readiness",
    "monitoring.top_table",
    "nights.broker",
    "nights.idle",
    "nights.idle_replay",
    "advice.run_out",
    "advice.sizing",
    "advice.what_if",
    "hosts.change",
    "hosts.given_up",
    "hosts.gpu_layouts",
    "hosts.host_plan",
    "hosts.host_settings",
    "nights.adoption",
    "nights.history_rows",
    "nights.ml_queue",
    "nights.rotation_plan",
    "nights.rotation_setup",
    "nights.rotation_status",
    "nights.rotation_timers",
    "nights.watch",
    "page.fleet_report",
    "services.measurement",
    "services.metrics",
    "services.runner",
    "vms.defrag",
    "workloads.cluster",
    "workloads.cluster_run",
    "workloads.jobs",
    "workloads.submitted_jobs",
)
"""The modules of `gpuops.report` with classes of documents."""


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """One kind of document."""

    name: str
    by: str
    """The commands that print it."""
    title: str
    declared: Mapping[str, Any] | type[PrintedDocument]
    types: Mapping[str, Any]
    """What its file declares beside it."""


def document_kinds() -> dict[str, DocumentKind]:
    """Every kind by its name, in the order of the names."""
    return dict(_kinds())


@cache
def _kinds() -> tuple[tuple[str, DocumentKind], ...]:
    found = {}
    for file in files("gpuops").joinpath("schemas").iterdir():
        if not file.name.endswith(".yaml") or file.name == f"{_SHARED}.yaml":
            continue
        declared = _read(file.name)
        types = declared.pop("types", {})
        for name, own in declared.items():
            merged = _merged(own, declared)
            found[name] = DocumentKind(name, merged["by"], merged["title"], merged, types)
    for name in _MODULES:
        import_module(f"gpuops.report.{name}")
    for name, document in DOCUMENTS.items():
        assert name not in found, f"{name} has a class and a section of a file"
        found[name] = DocumentKind(name, document.printed_by, _docstring(document).removesuffix("."), document, {})
    return tuple(sorted(found.items()))


def _merged(own: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, Any]:
    """A section with what it takes over by `like`."""
    if "like" not in own:
        return dict(own)
    base = _merged(declared[own["like"]], declared)
    return {**base, **own, "properties": {**base["properties"], **own.get("properties", {})}}


def _read(name: str) -> dict[str, Any]:
    from gpuops.files.yaml_file import parse_yaml

    text = files("gpuops").joinpath("schemas", name).read_text(encoding="utf-8")
    content = parse_yaml(text, name)
    assert isinstance(content, dict)
    return content


@cache
def _shared_types() -> dict[str, Any]:
    return _read(f"{_SHARED}.yaml")


def document_schema(kind: DocumentKind) -> Schema:
    """The schema of one kind. It allows further keys: later releases may add some."""
    made = _SchemaMaker({**_shared_types(), **kind.types})
    heading = made.object_of(_shared_types()["Heading"])
    body = made.record(kind.declared) if isinstance(kind.declared, type) else made.object_of(kind.declared)
    for key, value in (("schema_version", SCHEMA_VERSION), ("kind", kind.name)):
        heading["properties"][key]["const"] = value
    body["properties"] = heading["properties"] | body["properties"]
    body["required"] = heading["required"] + body["required"]
    found: Schema = {
        "$schema": DIALECT,
        "$id": f"urn:gpuops:schema:{kind.name}:{SCHEMA_VERSION}",
        "title": kind.title,
        "description": f"Printed by {kind.by}.",
        **body,
    }
    if made.definitions:
        found["$defs"] = {name: made.definitions[name] for name in sorted(made.definitions)}
    return found


class _SchemaMaker:
    """Makes one schema, and collects the definitions that it needs."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types
        self.definitions: dict[str, Schema] = {}

    def object_of(self, declared: Mapping[str, Any]) -> Schema:
        """The schema of an object as a file declares it."""
        properties, optional = declared["properties"], declared.get("optional", [])
        return {
            "type": "object",
            "properties": {name: self._property(text) for name, text in properties.items()},
            "required": [name for name in properties if name not in optional],
        }

    def _property(self, text: str) -> Schema:
        kind, _, description = text.partition("; ")
        found = self._any_of([self._one(each) for each in kind.split(" or ")])
        return {**found, "description": description} if description else found

    def _any_of(self, found: list[Schema]) -> Schema:
        simple = all(set(each) == {"type"} and isinstance(each["type"], str) for each in found)
        if len(found) == 1:
            return found[0]
        return {"type": [each["type"] for each in found]} if simple else {"anyOf": found}

    def _one(self, text: str) -> Schema:
        first, _, rest = text.partition(" of ")
        match first:
            case "list":
                return {"type": "array", "items": self._one(rest)}
            case "map":
                return {"type": "object", "additionalProperties": self._one(rest)}
            case "one":
                return self._of_type(_imported(rest))
            case "moment":
                return dict(_PLAIN[datetime])
            case _ if first in _JSON_TYPES:
                return {"type": first}
            case _:
                return self._named(first)

    def _named(self, name: str) -> Schema:
        if name not in self.definitions:
            if "record" in self._types[name]:
                return self._named_record(_imported(self._types[name]["record"]))
            self.definitions[name] = {}  # a type may hold others of itself
            declared = self._types[name]
            self.definitions[name] = {"description": declared["description"], **self.object_of(declared)}
        return {"$ref": f"{_DEFINED}{name}"}

    def record(self, kind: type[DocumentRecord]) -> Schema:
        """The schema of a class of records."""
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
            self.definitions[name] = {}  # a record may hold others of its class
            self.definitions[name] = {"description": _docstring(kind), **self.record(kind)}
        return {"$ref": f"{_DEFINED}{name}"}

    def _of_type(self, kind: Any) -> Schema:
        """The schema of what `plain` makes of a value of this type."""
        arguments = get_args(kind)
        if get_origin(kind) is Annotated:
            return {**self._of_type(arguments[0]), "description": arguments[-1]}
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if get_origin(kind) in (Union, UnionType):
            return self._any_of([self._of_type(each) for each in arguments if each is not msgspec.UnsetType])
        if kind == dict[str, Any]:
            return {"type": "object"}
        if get_origin(kind) is dict:
            return {"type": "object", "additionalProperties": self._of_type(arguments[1])}
        if isinstance(kind, type) and issubclass(kind, DocumentRecord):
            return self._named_record(kind)
        if get_origin(kind) in (tuple, list, frozenset, Iterable):
            return {"type": "array", "items": self._of_type(arguments[0])}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"type": "string", "enum": [each.value for each in kind]}
        if is_dataclass(kind):
            return self._fields_of(kind)
        return {"type": "string"}

    def _fields_of(self, kind: Any) -> Schema:
        hints = get_type_hints(kind)
        properties = {field.name: self._of_type(hints[field.name]) for field in fields(kind) if field.repr}
        return {"type": "object", "properties": properties, "required": list(properties)}


def _docstring(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
