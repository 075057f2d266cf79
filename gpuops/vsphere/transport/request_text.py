"""Writes text and object ids into requests, so that vCenter reads exactly the same text.

XML 1.0 cannot contain most control characters, and a parser reads a bare carriage return as a line feed (sections 2.2
and 2.11). Escaping "&", "<" and ">" is not enough: pyVmomi and the standard library do not escape the rest.
"""

from __future__ import annotations

import re
from typing import Final
from xml.sax.saxutils import escape

from gpuops.errors import ProtocolError, UsageError

_UNWRITABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_UNWRITABLE_BYTES: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]")
_TYPE: Final = re.compile(r"[A-Za-z]{1,80}")

_PLAIN: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}"
_OF_A_SESSION: Final = r"session\[[0-9A-Fa-f-]{1,40}\]"
"""The prefix of ids of views, collectors and filters, which exist as long as the session."""

# pyVmomi writes the id into `_this` as it is, unescaped: anything else could carry elements of its own.
REFERENCE: Final = re.compile(f"(?:{_OF_A_SESSION})?{_PLAIN}")


def escape_text(text: str) -> str:
    """Return the text escaped for XML. Raises UsageError, without the text, if XML cannot contain it."""
    match = _UNWRITABLE.search(text)
    if match is not None:
        raise _unwritable(f"U+{ord(match[0]):04X}")
    return escape(text, {"\r": "&#13;"})


def checked_request(request: bytes) -> bytes:
    """Return a request of pyVmomi with escaped carriage returns. Raises UsageError for other control characters."""
    match = _UNWRITABLE_BYTES.search(request)
    if match is not None:
        raise _unwritable(f"U+{ord(match[0].decode()):04X}")
    return request.replace(b"\r", b"&#13;")  # its own markup has none


def reference(kind: str, moid: str) -> str:
    """Return the `_this` element of an object. Raises ProtocolError for invalid ids: they could contain elements."""
    if REFERENCE.fullmatch(moid) is None or _TYPE.fullmatch(kind) is None:
        raise ProtocolError(
            f"{moid[:80]!r} of {kind[:80]!r} is not the id of an object", hint="gpuops inventory reads the ids anew"
        )
    return f'<_this type="{kind}">{moid}</_this>'


def unwritable_surrogate() -> UsageError:
    """Return the error for a surrogate, which cannot be encoded."""
    return _unwritable("half a character")


def _unwritable(character: str) -> UsageError:
    return UsageError(
        f"a text holds {character}, which a request to vCenter cannot carry",
        hint="write names and passwords without it",
    )
