"""Completion in bash of words with `:`, `=` or `@` in them: bash breaks words there too (COMP_WORDBREAKS).

What bash says of `--vcenter sim:la` is `--vcenter`, `sim`, `:`, `la`, and it replaces `la` by what it is answered. So
the pieces are put together again before gpuops reads them, and what bash keeps is taken off its answers. Where somebody
took the colon out of COMP_WORDBREAKS, or is inside quotes, bash breaks nothing and neither is done.
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
    """The exit code of the call, which answers the shell when it asks for the completion of a word.

    In bash its words are gpuops' own. An error is no answer: it would stand in the middle of the line being typed.
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
    """Puts the words in COMP_WORDS together; what bash keeps of the value that is completed, '' = nothing."""
    pieces = environ.get("COMP_WORDS", "").split("\n")
    cursor = environ.get("COMP_CWORD", "")
    if len(pieces) == 1 or not cursor.isascii() or not cursor.isdigit() or int(cursor) >= len(pieces):
        return ""
    words = join_pieces(pieces[: int(cursor) + 1])
    environ["COMP_WORDS"] = "\n".join(words)
    environ["COMP_CWORD"] = str(len(words) - 1)
    last = pieces[int(cursor)]
    prefix = words[-1] if _is_break(last) else words[-1].removesuffix(last)
    # of an option with its value, `--vcenter=sim:`, the value alone is answered
    return prefix.partition("=")[2] if prefix.startswith("-") else prefix


def join_pieces(pieces: Sequence[str]) -> list[str]:
    """The words that bash broke into these pieces; an empty piece is a word that is not begun yet."""
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
