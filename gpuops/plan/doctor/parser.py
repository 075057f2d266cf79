"""Finding of the XML parser that this Python brings: an old libexpat has known weaknesses.

Source: Python documentation, XML security (libexpat 2.7.2 or later); CVE-2024-8176. Vendors of systems mend older
versions without giving them another number, so this is never more than a note.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.plan.doctor.finding import Finding, Severity

OLDEST_SOUND: Final = (2, 7, 2)


def of_parser(version: tuple[int, ...]) -> Iterator[Finding]:
    """A note for a libexpat older than the one without known weaknesses."""
    if version < OLDEST_SOUND:
        shown, wanted = (".".join(map(str, each)) for each in (version, OLDEST_SOUND))
        reason = (
            f"this Python reads XML with it; before {wanted} it has known weaknesses, unless its vendor mended them"
        )
        fix = "update Python or the system's libexpat; gpuops refuses entities and deep nesting before it sees them"
        yield Finding(Severity.NOTE, f"libexpat {shown}", reason, fix)
