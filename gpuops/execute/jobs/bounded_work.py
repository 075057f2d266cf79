"""Does several things side by side, for so long at the most: what hangs in one of them keeps nobody waiting.

A call may hang where no time-out of its own reaches: in the middle of a TLS record, on a disk that is away, behind a
lock of a database. What is still under way when the time is up is left behind in a thread that the end of the process
does not wait for; it is up to the work itself to do nothing further then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from gpuops import clock

AT_A_TIME: Final = 32
"""Our own figure: so many connections to vCenter at the most."""


def side_by_side(works: Sequence[Callable[[], object]], limit_s: float) -> bool:
    """Whether all of them have ended within `limit_s` seconds.

    Raises the first error of one of them once all have ended; what is no `Exception`, such as a signal's, at once.
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
