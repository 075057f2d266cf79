"""What a program in a guest prints, as lines that can be shown: nothing of it reaches a terminal or a document raw."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Final

from gpuops.model.vcenter.target import Secret, without_secrets
from gpuops.report.layout import visible

LONGEST_LINE: Final = 16 * 1024
"""Characters; a longer line is broken."""


class ProgramLines:
    """Takes bytes as they come and gives whole lines, with control characters written out (CWE-150).

    A carriage return ends a line, as progress bars have it. Bytes that are no UTF-8 are written as `\\xff`. `withheld`
    are passwords that gpuops knows, for it never sent them to the program: a line that has one says so in its place.
    One that is broken over two pieces is found too, one that the program has changed in any way is not.
    """

    def __init__(self, withheld: Iterable[Secret] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._unfinished = ""
        self._withheld = tuple(withheld)
        self._longest_secret = max((len(secret.reveal()) for secret in self._withheld), default=0)

    def hear(self, piece: bytes) -> Sequence[str]:
        """The lines that this piece has ended."""
        *lines, self._unfinished = (self._unfinished + self._decoder.decode(piece)).replace("\r", "\n").split("\n")
        longest = LONGEST_LINE + self._longest_secret
        while len(self._unfinished) > longest:
            # what is withheld is so before the line is broken
            self._unfinished = without_secrets(self._unfinished, self._withheld)
            if len(self._unfinished) <= longest:
                break
            lines.append(self._unfinished[:LONGEST_LINE])
            self._unfinished = self._unfinished[LONGEST_LINE:]
        return tuple(map(self._make_printable, lines))

    def end(self) -> Sequence[str]:
        """What is left without an end of line."""
        last_line = self._unfinished + self._decoder.decode(b"", final=True)
        self._unfinished = ""
        return (self._make_printable(last_line),) if last_line else ()

    def _make_printable(self, line: str) -> str:
        return "\t".join(visible(cell) for cell in without_secrets(line, self._withheld).split("\t"))
