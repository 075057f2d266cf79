"""Signals that end the process by an exception wait until a block has ended.

An exception of a handler (SIGINT's own, the command line's for SIGTERM and SIGHUP) may come between any two
instructions. In the midst of a commit, or of closing a database, it meets code that cannot take it.
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
    """Runs the block to its end; a signal that came meanwhile is handled then.

    In another thread than the main one it does nothing, since Python runs handlers in that one alone.
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
    """The block, whose beginning and end run to their ends; what is between may be interrupted."""

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
