"""The output of a program in a guest, as lines that are safe to print on a terminal or in a document."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Final

from gpuops.model.vcenter.target import Secret, without_secrets
from gpuops.report.layout import visible

LONGEST_LINE: Final = 16 * 1024
"""In characters; longer lines are broken."""


class ProgramLines:
    """Takes bytes in pieces and returns complete lines, with control characters written out (CWE-150).

    A carriage return ends a line, because progress bars use it so. Bytes that are not UTF-8 are written as `\\xff`.
    `withheld` are passwords that gpuops knows but never sent to the program: a note replaces each of them in a line. A
    password that is split over two pieces is found; one that the program has changed in any way is not.
    """

    def __init__(self, withheld: Iterable[Secret] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._unfinished = ""
        self._withheld = tuple(withheld)
        self._longest_secret = max((len(secret.reveal()) for secret in self._withheld), default=0)

    def hear(self, piece: bytes) -> Sequence[str]:
        """Return the lines that this piece completes."""
        *lines, self._unfinished = (self._unfinished + self._decoder.decode(piece)).replace("\r", "\n").split("\n")
        longest = LONGEST_LINE + self._longest_secret
        while len(self._unfinished) > longest:
            # passwords are replaced before the line is broken, or half of one could stay
            self._unfinished = without_secrets(self._unfinished, self._withheld)
            if len(self._unfinished) <= longest:
                break
            lines.append(self._unfinished[:LONGEST_LINE])
            self._unfinished = self._unfinished[LONGEST_LINE:]
        return tuple(map(self._make_printable, lines))

    def end(self) -> Sequence[str]:
        """Return the last line, if it has no end of line."""
        last_line = self._unfinished + self._decoder.decode(b"", final=True)
        self._unfinished = ""
        return (self._make_printable(last_line),) if last_line else ()

    def _make_printable(self, line: str) -> str:
        return "\t".join(visible(cell) for cell in without_secrets(line, self._withheld).split("\t"))
