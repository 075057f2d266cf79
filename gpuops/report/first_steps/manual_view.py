"""Documents of the manual, of templates and of schemas."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, UnsetType

from gpuops.report.document import DocumentRecord, PrintedDocument, printed


@printed("help", by="gpuops help")
class HelpDocument(PrintedDocument, frozen=True):
    """The manual."""

    topics: Annotated[dict[str, str] | UnsetType, "their titles, where no topic was named"] = UNSET
    topic: str | UnsetType = UNSET
    text: str | UnsetType = UNSET


@printed("template-list", by="gpuops template list")
class TemplateListDocument(PrintedDocument, frozen=True):
    """The templates that come with gpuops."""

    templates: Annotated[dict[str, str], "what each is, by its name"]


@printed("template-show", by="gpuops template show")
class TemplateShowDocument(PrintedDocument, frozen=True):
    """One template."""

    template: Annotated[str, "its name"]
    text: str


@printed("template-write", by="gpuops template write")
class TemplateWriteDocument(PrintedDocument, frozen=True):
    """The templates that were written."""

    written: Annotated[list[str], "paths; what was there already is left out"]


class ListedSchemaRecord(DocumentRecord, frozen=True):
    """A schema."""

    name: str
    of: Annotated[str, "output, or input for a file that people write"]
    title: str


@printed("schema-list", by="gpuops schema")
class SchemaListDocument(PrintedDocument, frozen=True):
    """The JSON Schemas that come with gpuops."""

    schemas: list[ListedSchemaRecord]
