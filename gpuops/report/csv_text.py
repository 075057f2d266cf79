"""Tables as CSV text (RFC 4180, lines that end with LF), in which spreadsheets compute nothing.

A spreadsheet computes a cell that begins with the sign of a formula, and the owners of VMs choose their names
(CWE-1236). Such a cell therefore gets an apostrophe in front, as OWASP advises ("CSV Injection"). Numbers get none.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from gpuops.report.layout import visible

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
