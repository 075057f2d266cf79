"""Pieces: the page of a bulk reply, cut between its objects, so that a parser's tree stays in the processor's cache.

A tree is ten times the XML it is made of. Whole pages would save one cut and cost a tenth more time and three times the
memory (measured: `make bench`, read). To ask for smaller pages instead would cost round trips.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

PIECE: Final = 384 * 1024
"""At least so many bytes of objects; about thirty VMs."""

_LONGEST_AROUND: Final = 64 * 1024
"""What stands in an honest reply beside its objects is a kilobyte."""

_FIRST: Final = re.compile(rb"<objects[\s>]")
_END: Final = b"</objects>"


def pieces(reply: bytes) -> Iterator[bytes]:
    """Replies that hold the same objects between them, each once, and each with all else that stands in the reply.

    In XML without comments, CDATA or a document type a "<" begins a tag and nothing else, so the cut is where it seems
    to be. A reply with any of these, without objects, or with names in another form, or much beside them, is one piece.
    """
    first, last = _FIRST.search(reply), reply.rfind(_END)
    if first is None or last < 0 or b"<!" in reply:
        yield reply
        return
    head, tail = reply[: first.start()], reply[last + len(_END) :]
    if len(head) + len(tail) > _LONGEST_AROUND:
        yield reply  # each piece would be parsed with all of it
        return
    start, stop = first.start(), last + len(_END)
    while start < stop:
        end = reply.find(_END, min(start + PIECE, last), stop) + len(_END)
        yield head + reply[start:end] + tail
        start = end
