"""Asks many hosts the same question in parallel, so that one that does not answer does not delay the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, TypeVar

MOST: Final = 32
"""Questions that are open at the same time."""

T = TypeVar("T")
R = TypeVar("R")


def ask_in_parallel(ask: Callable[[T], R], asked: Sequence[T]) -> list[R]:
    """The answer of each, in order. Raises what the first of them raised, once all have ended."""
    waiting: SimpleQueue[int] = SimpleQueue()
    answers: dict[int, R] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while True:
            try:
                number = waiting.get_nowait()
            except Empty:
                return
            try:
                answers[number] = ask(asked[number])
            except BaseException as error:
                errors[number] = error

    for number in range(len(asked)):
        waiting.put(number)
    # daemons: Ctrl-C does not wait for a host that is silent
    threads = [Thread(target=work, name=f"at-once-{number}", daemon=True) for number in range(min(MOST, len(asked)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(asked))]
