"""Checks documents against their published JSON Schemas, closed: a key that no schema has is a mistake here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from jsonschema import Draft202012Validator, FormatChecker
from msgspec.structs import replace

from gpuops.report.document import AnyDocument, kind_of, top_level
from gpuops.report.document_schema import document_kinds, document_schema
from gpuops.report.json_and_csv import document_text

FIRST: Final = 5
LAST: Final = 3
"""So many of each list are looked at: a fleet has thousands that are made alike."""


def read_whole(document: AnyDocument) -> AnyDocument:
    """The same document with a list for each iterator, which can be read once only."""
    read = {key: list(value) for key, value in top_level(document) if isinstance(value, Iterator)}
    return {**document, **read} if isinstance(document, dict) else replace(document, **read)


def misfits(document: AnyDocument) -> list[str]:
    """What of the document is not as its schema says."""
    if isinstance(document, dict) and "$schema" in document:
        return [] if Draft202012Validator.check_schema(document) is None else ["no schema"]
    kind = kind_of(document)
    if kind not in document_kinds():
        return [f"{kind}: has no schema"]
    errors = _validator(kind).iter_errors(_some_of(json.loads(document_text(document))))
    return [f"{kind} {error.json_path}: {error.message[:300]}" for error in errors]


def _some_of(value: Any) -> Any:
    if isinstance(value, list):
        shortened = value if len(value) <= FIRST + LAST else [*value[:FIRST], *value[-LAST:]]
        return [_some_of(child) for child in shortened]
    return {key: _some_of(child) for key, child in value.items()} if isinstance(value, dict) else value


@cache
def _validator(kind: str) -> Draft202012Validator:
    schema = close_schema(document_schema(document_kinds()[kind]))
    return Draft202012Validator(schema, format_checker=FormatChecker())


def close_schema(schema: Any) -> Any:
    """The same schema with no other keys than the named ones, wherever an object has named ones."""
    if isinstance(schema, list):
        return [close_schema(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    closed_schema = {key: close_schema(value) for key, value in schema.items()}
    if closed_schema.get("type") == "object" and "required" in closed_schema:
        closed_schema.setdefault("additionalProperties", False)
    return closed_schema
