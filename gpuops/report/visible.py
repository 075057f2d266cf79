"""Visible: text from vCenter made harmless for a terminal, a log or a page. Nothing printed may move a cursor.

Names of VMs are written by their owners. Control characters (C0, C1), line and paragraph separators, format characters
(bidirectional overrides among them) and lone surrogates become `\\u{..}` (CVE-2021-25743, CWE-117, CWE-150).
"""

from __future__ import annotations

import unicodedata
from typing import Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    """The same text with every character that would not be seen as itself written as `\\u{9b}`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"\\u{{{ord(character):x}}}" if unicodedata.category(character) in _HIDDEN else character for character in text
    )
