"""Does several things in parallel for a limited time, so that one that hangs does not delay the others.

A call can hang where its own timeout does not apply: in the middle of a TLS record, on a disk that does not respond,
behind a lock of a database. When the time is up, such a call stays in a thread that does not keep the process alive;
the work itself must then do nothing further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from gpuops import clock

AT_A_TIME: Final = 32
"""The limit for parallel work, which also limits the connections to vCenter (our own choice)."""


def side_by_side(works: Sequence[Callable[[], object]], limit_s: float) -> bool:
    """Run all works in parallel and return whether all have ended within `limit_s` seconds.

    Raises the first error of a work after all have ended; other exceptions, such as that of a signal, at once.
    """
    waiting = SimpleQueue[Callable[[], object]]()
    ended = SimpleQueue[BaseException | None]()
    for work in works:
        waiting.put(work)
    until_s = clock.passed_s() + limit_s
    for number in range(min(AT_A_TIME, len(works))):
        name = f"bounded-work-{number}"
        Thread(target=_do_those_that_wait, args=(waiting, ended), name=name, daemon=True).start()
    errors = list[Exception]()
    for _ in works:
        try:
            error = ended.get(timeout=max(0.0, until_s - clock.passed_s()))
        except Empty:
            return False
        if isinstance(error, Exception):
            errors.append(error)
        elif error is not None:
            raise error
    if errors:
        raise errors[0]
    return True


def _do_those_that_wait(waiting: SimpleQueue[Callable[[], object]], ended: SimpleQueue[BaseException | None]) -> None:
    while True:
        try:
            work = waiting.get_nowait()
        except Empty:
            return
        try:
            work()
        except BaseException as error:  # raised in the thread that waits
            ended.put(error)
        else:
            ended.put(None)
