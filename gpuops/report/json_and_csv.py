"""Documents as JSON text, piece by piece, and tables as CSV text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from gpuops.report.document import AnyDocument, plain_text, top_level
from gpuops.report.layout import visible

_INDENT: Final = 2


class DocumentTexts(dict[str, str]):
    """Documents by name, as text from `document_text`: they are copied into another document without being parsed."""


def document_text(document: AnyDocument) -> str:
    """Return the complete text of a document."""
    return "".join(pieces(document))


def pieces(document: AnyDocument) -> Iterator[str]:
    """Yield the document as JSON text, key by key. Its iterators are read record by record, and empty afterwards."""
    sign = "{"
    for key, content in top_level(document):
        yield f"{sign}\n  {_encode(key)}: "
        if isinstance(content, Iterator | list | tuple):
            yield from _records(content)
        elif isinstance(content, DocumentTexts):
            yield from _documents(content)
        else:
            yield _below(_encode(content), _INDENT)
        sign = ","
    yield "\n}\n"


def _records(records: Iterable[Any]) -> Iterator[str]:
    sign = "["
    for record in records:
        yield f"{sign}\n    {_below(_encode(record), 2 * _INDENT)}"
        sign = ","
    yield "[]" if sign == "[" else "\n  ]"


def _documents(documents: DocumentTexts) -> Iterator[str]:
    sign = "{"
    for name, text in documents.items():
        yield f"{sign}\n    {_encode(name)}: {_below(text.rstrip(), 2 * _INDENT)}"
        sign = ","
    yield "{}" if sign == "{" else "\n  }"


def _below(text: str, indent: int) -> str:
    return text.replace("\n", "\n" + " " * indent)


_UNSEEN: Final = re.compile(r"[^\x00-\x7e]+")


def _encode(content: Any) -> str:
    try:
        text = msgspec.json.format(msgspec.json.encode(content, enc_hook=plain_text), indent=_INDENT).decode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return _escape(content)
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNSEEN.sub(lambda match: _escape(match.group())[1:-1], text)


def _escape(content: Any) -> str:
    import json

    return json.dumps(msgspec.to_builtins(content, enc_hook=plain_text), indent=_INDENT)


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
    sign = "'" if cell.lstrip(" ").startswith(_FORMULA_SIGNS) else ""
    return sign + visible(cell)
