"""Signals end the process by an exception in the main thread, so that files and the session are closed.

SIGTERM, SIGHUP and SIGINT wait a moment where an exception would be lost or would break something: while pyVmomi is
imported or creates a type, which it cannot repeat after an interruption; while pydantic works, which turns every
exception into an error of a schema; and while Python destroys an object.

Services also set here how often garbage is collected.
"""

from __future__ import annotations

import gc
import signal
import sys
from types import FrameType
from typing import Final

RETRY_S: Final = 0.01
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_TYPES_MODULE: Final = "pyVmomi.VmomiSupport"
"""The module of pyVmomi that creates types when they are first used."""


def install() -> None:
    """Install the handlers: from now on these signals end the process."""
    signal.signal(signal.SIGTERM, _end_process)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        signal.signal(signal.SIGHUP, _end_process)
    sys.unraisablehook = _raise_dropped_exit


def _end_process(number: int, frame: FrameType | None) -> None:
    """End the process by SystemExit, with the exit code that shells use for this signal.

    Then ignore further signals: `timeout` and some supervisors send two, and a second one would interrupt the closing.
    """
    if _is_in_critical_code(frame):
        _raise_again(number)
        return
    for ending_signal in ENDING_SIGNALS:
        signal.signal(ending_signal, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt for Ctrl-C."""
    if _is_in_critical_code(frame):
        _raise_again(number)
        return
    raise KeyboardInterrupt


def _is_in_critical_code(frame: FrameType | None) -> bool:
    """Return whether the signal interrupted pydantic, or pyVmomi while it is imported or loads its types.

    An exception there would leave half-made types. A request of pyVmomi may be interrupted.
    """
    # skip the frames of this module: the handler of `_raise_again` runs on top of the code that it interrupted
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    if frame is not None and frame.f_globals.get("__name__") == _TYPES_MODULE:
        return True
    while frame is not None:
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if (
            (module.partition(".")[0] == "pydantic")
            or (module == _TYPES_MODULE and function.startswith("Load"))
            or (module.partition(".")[0] == "pyVmomi" and function == "<module>")
        ):
            return True
        frame = frame.f_back
    return False


def _raise_again(number: int) -> None:
    """Raise the same signal again, a moment later."""
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, RETRY_S)


def _raise_dropped_exit(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise the exception of a signal again, a moment later, if Python dropped it while it freed an object."""
    dropped_exit = unraisable.exc_value
    if not isinstance(dropped_exit, SystemExit | KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    if sys.is_finalizing():
        return  # the process ends already

    def raise_dropped(number: int, frame: FrameType | None) -> None:
        raise dropped_exit

    signal.signal(signal.SIGALRM, raise_dropped)
    signal.setitimer(signal.ITIMER_REAL, RETRY_S)


SERVICE_THRESHOLDS: Final = (700, 10, 10)
"""Python's own thresholds; a command that ends soon has a higher one (`gpuops.cli.app`)."""


def collect_garbage_often() -> None:
    """Free unreachable cycles as often as Python does by default: a service runs for months.

    What was imported until now stays, so the garbage collector need not look at it.
    """
    gc.freeze()
    gc.set_threshold(*SERVICE_THRESHOLDS)
