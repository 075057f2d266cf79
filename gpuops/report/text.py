"""Words of figures with their units, and text from vCenter made harmless to print. Every view calls them.

Names of VMs are written by their owners: nothing that is printed may move a cursor. Control characters (C0, C1), line
and paragraph separators, format characters (bidirectional overrides among them) and lone surrogates become `\\u{..}`
(CVE-2021-25743, CWE-117, CWE-150).
"""

from __future__ import annotations

import unicodedata
from typing import Final

PINNED: Final = (
    "pinned: pciPassthruN.cfg.gpu-pci-id stays as it is when HA or vMotion takes the VM to another host, where it "
    "names another GPU or none (--pin never)"
)


def size(mib: float | None) -> str:
    """`64 GiB`, `1.5 GiB`, `512 MiB`; `unknown` for None."""
    if mib is None:
        return "unknown"
    if mib < 1024:
        return f"{mib:g} MiB"
    return f"{round(mib / 1024, 1):g} GiB"


def count(number: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str) -> str:
    """The same text with every character that would not be seen as itself written as `\\u{9b}`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"\\u{{{ord(character):x}}}" if unicodedata.category(character) in _HIDDEN else character for character in text
    )
