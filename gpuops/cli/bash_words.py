"""Completion in bash of words with `:`, `=` or `@` in them: bash breaks words there too (COMP_WORDBREAKS).

For `--vcenter sim:la` bash passes `--vcenter`, `sim`, `:`, `la`, and it replaces `la` by the answer. So the pieces are
joined before gpuops reads them, and the prefix that bash keeps is removed from the answers. If COMP_WORDBREAKS has no
colon, or the cursor is inside quotes, bash breaks nothing, and nothing is joined.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

_VARIABLE: Final = "_GPUOPS_COMPLETE"
_BREAKS: Final = frozenset(":=@")


def completing(call: Callable[[], int]) -> int:
    """Run the call and return its exit code; if the shell asks for a completion, adjust the words for bash.

    Errors are dropped: they would appear in the middle of the typed line.
    """
    if not os.environ.get(_VARIABLE, "").startswith("complete_"):
        return call()
    prefix = joined_words(os.environ) if os.environ[_VARIABLE] == "complete_bash" else ""
    answer = io.StringIO()
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(answer):
            return call()
    finally:
        sys.stdout.write("\n".join(line.removeprefix(prefix) for line in answer.getvalue().split("\n")))


def joined_words(environ: MutableMapping[str, str]) -> str:
    """Join the words in COMP_WORDS; return the part of the completed value that bash keeps, '' = nothing."""
    pieces = environ.get("COMP_WORDS", "").split("\n")
    cursor = environ.get("COMP_CWORD", "")
    if len(pieces) == 1 or not cursor.isascii() or not cursor.isdigit() or int(cursor) >= len(pieces):
        return ""
    words = join_pieces(pieces[: int(cursor) + 1])
    environ["COMP_WORDS"] = "\n".join(words)
    environ["COMP_CWORD"] = str(len(words) - 1)
    last = pieces[int(cursor)]
    prefix = words[-1] if _is_break(last) else words[-1].removesuffix(last)
    # for an option with its value, `--vcenter=sim:`, only the value is answered
    return prefix.partition("=")[2] if prefix.startswith("-") else prefix


def join_pieces(pieces: Sequence[str]) -> list[str]:
    """Return the words that bash split into these pieces; an empty piece is a new, empty word."""
    words: list[str] = []
    open_end = False
    for piece in pieces:
        if words and piece and (open_end or _is_break(piece)):
            words[-1] += piece
        else:
            words.append(piece)
        open_end = _is_break(piece)
    return words


def _is_break(piece: str) -> bool:
    return bool(piece) and _BREAKS.issuperset(piece)
