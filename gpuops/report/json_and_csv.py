"""Documents as JSON text, piece by piece, and tables as CSV text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from gpuops.report.document import AnyDocument, str_of_subclass, top_level
from gpuops.report.layout import visible

_INDENT: Final = 2


class DocumentTexts(dict[str, str]):
    """Documents by name, as text from `document_text`: they are copied into another document without being parsed."""


def document_text(document: AnyDocument) -> str:
    """Return the complete text of a document."""
    return "".join(document_pieces(document))


def document_pieces(document: AnyDocument) -> Iterator[str]:
    """Yield the document as JSON text, key by key. Its iterators are read record by record, and empty afterwards."""
    separator = "{"  # before the first key; a comma before each further one
    for key, content in top_level(document):
        yield f"{separator}\n  {_encode(key)}: "
        if isinstance(content, Iterator | list | tuple):
            yield from _records(content)
        elif isinstance(content, DocumentTexts):
            yield from _documents(content)
        else:
            yield _indent_further_lines(_encode(content), _INDENT)
        separator = ","
    yield "\n}\n"


def _records(records: Iterable[Any]) -> Iterator[str]:
    separator = "["
    for record in records:
        yield f"{separator}\n    {_indent_further_lines(_encode(record), 2 * _INDENT)}"
        separator = ","
    yield "[]" if separator == "[" else "\n  ]"


def _documents(documents: DocumentTexts) -> Iterator[str]:
    separator = "{"
    for name, text in documents.items():
        yield f"{separator}\n    {_encode(name)}: {_indent_further_lines(text.rstrip(), 2 * _INDENT)}"
        separator = ","
    yield "{}" if separator == "{" else "\n  }"


def _indent_further_lines(text: str, indent: int) -> str:
    return text.replace("\n", "\n" + " " * indent)


_NON_ASCII: Final = re.compile(r"[^\x00-\x7e]+")
"""Also DEL (0x7f), which msgspec does not escape."""


def _encode(content: Any) -> str:
    try:
        text = msgspec.json.format(msgspec.json.encode(content, enc_hook=str_of_subclass), indent=_INDENT).decode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return _escape(content)
    if text.isascii() and "\x7f" not in text:
        return text
    return _NON_ASCII.sub(lambda match: _escape(match.group())[1:-1], text)


def _escape(content: Any) -> str:
    import json

    return json.dumps(msgspec.to_builtins(content, enc_hook=str_of_subclass), indent=_INDENT)


Cell: TypeAlias = "str | int | float | bool | datetime | None"
"""None is an empty cell: unknown."""

_FORMULA_SIGNS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""The signs in OWASP's list, and the full-width ones, which some spreadsheets treat in the same way."""


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return the table as CSV text, with the header first.

    >>> csv_text(("vm", "gpus"), [("=1+1", 0.5), ("ml, 1", None)])
    'vm,gpus\\n\\'=1+1,0.5\\n"ml, 1",\\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell_text(cell) for cell in row] for row in rows)
    return out.getvalue()


def cell_text(cell: Cell) -> str:
    """Return the text of a cell, before commas and quotes are escaped."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return cell.isoformat()
    if not isinstance(cell, str):
        return str(cell)
    # an apostrophe makes a spreadsheet read the cell as text, not as a formula
    apostrophe = "'" if cell.lstrip(" ").startswith(_FORMULA_SIGNS) else ""
    return apostrophe + visible(cell)
