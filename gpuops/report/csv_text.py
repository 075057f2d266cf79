"""Tables as CSV text (RFC 4180, lines that end with LF), which spreadsheets open without running anything in it.

A cell that begins with a sign of a formula would be computed by a spreadsheet, and names of VMs are written by their
owners (CWE-1236): such a cell gets an apostrophe in front, as OWASP advises ("CSV Injection"). A number is a number.
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
"""Those of OWASP's list; some spreadsheets take the full-width ones for the same."""


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """The table, its header first.

    >>> csv_text(("vm", "gpus"), [("=1+1", 0.5), ("ml, 1", None)])
    'vm,gpus\\n\\'=1+1,0.5\\n"ml, 1",\\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell_text(cell) for cell in row] for row in rows)
    return out.getvalue()


def cell_text(cell: Cell) -> str:
    """What is written of a cell, before commas and quotes are escaped."""
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return cell.isoformat()
    if not isinstance(cell, str):
        return str(cell)
    sign = "'" if cell.lstrip(" ").startswith(_FORMULA_SIGNS) else ""
    return sign + visible(cell)
