"""The output of `gpuops explain`: one key of a file, and the keys below it."""

from __future__ import annotations

from collections.abc import Iterator
from json import dumps
from typing import Annotated, Self

from gpuops.config.explanation import Explanation
from gpuops.report.document import PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable


def explain_text(explanation: Explanation) -> Iterator[Shown]:
    """Yield the key, the values that it may have, the keys below it, and an example."""
    yield Text(explanation.path, "bold")
    if explanation.description:
        yield Text(f"  {explanation.description}")
    facts = TextTable()
    facts.add_row("  type", explanation.type)
    if explanation.allowed:
        facts.add_row("  allowed", ", ".join(map(_constant_text, explanation.allowed)))
    if "." in explanation.path:
        facts.add_row("  required", "yes" if explanation.required else "no")
    if explanation.default is not None:
        facts.add_row("  default", _constant_text(explanation.default))
    yield facts
    if explanation.keys:
        yield from (Text(), Text("keys", "bold"))
        table = TextTable()
        for key in explanation.keys:
            required = " (required)" if key.required else ""
            table.add_row(
                f"  {key.path.rpartition('.')[2]}",
                f"{key.description.partition('. ')[0].removesuffix('.') or key.type}{required}",
            )
        yield table
    if explanation.example:
        yield from (Text(), Text("example", "bold"))
        yield from (Text(f"  {line}") for line in explanation.example.splitlines())


def _constant_text(constant: object) -> str:
    return constant if isinstance(constant, str) else dumps(constant)


@printed("explain", by="gpuops explain")
class ExplainDocument(PrintedDocument, frozen=True):
    """A key of a file that people write."""

    path: Annotated[str, "the file and its keys"]
    description: str
    type: str
    allowed: Annotated[list[str], "empty = whatever is of the type"]
    required: bool
    default: Annotated[str | None, "as JSON if it is no text; null = there is none"]
    keys: Annotated[dict[str, str], "descriptions of the keys below it"]
    example: Annotated[str, "lines of the template that comes with gpuops; empty = without an example"]

    @classmethod
    def made_of(cls, explanation: Explanation) -> Self:
        return cls.from_attributes(
            explanation,
            allowed=list(map(_constant_text, explanation.allowed)),
            default=None if explanation.default is None else _constant_text(explanation.default),
            keys={key.path.rpartition(".")[2]: key.description for key in explanation.keys},
        )
