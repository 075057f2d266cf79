"""Delays signals that end the process by an exception until a block has ended.

An exception from a handler (SIGINT's own, the command line's for SIGTERM and SIGHUP) may be raised between any two
instructions. In the middle of a commit, or of closing a database, the code cannot handle it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any, Final, TypeVar

T = TypeVar("T")

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Run the block to its end; a signal that arrived meanwhile is handled then.

    Does nothing in any thread but the main one, since Python runs handlers only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Callable[[], object]] = []
    try:
        with ExitStack() as stack:
            for number in ENDING:
                handler = signal.getsignal(number)
                if callable(handler):
                    stack.callback(signal.signal, number, handler)
                    signal.signal(number, _later(handler, came))
            yield
    finally:
        for handle in came:
            handle()


@contextmanager
def with_uninterrupted_ends(block: AbstractContextManager[T]) -> Iterator[T]:
    """Return the block with its beginning and end protected; the part between them may be interrupted."""

    def leave(*raised: Any) -> bool | None:
        with uninterrupted():
            return block.__exit__(*raised)

    with ExitStack() as stack:
        with uninterrupted():
            entered = block.__enter__()
            stack.push(leave)
        yield entered


def _later(
    handler: Callable[[int, FrameType | None], object], came: list[Callable[[], object]]
) -> Callable[[int, FrameType | None], None]:
    def note(number: int, frame: FrameType | None) -> None:
        came.append(lambda: handler(number, frame))

    return note
