"""Documents as JSON text, piece by piece: of the ten thousand records of a fleet, only one is in memory as text.

A document may give a list of records as an iterator, which makes them when they are written. The text is printable
ASCII, so that no character in a VM's name can move a cursor. msgspec writes it with a tenth of the CPU time that the
json module needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from gpuops.report.document import AnyDocument, plain_text, top_level

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
