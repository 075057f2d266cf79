"""Makes a line on stderr and an exit code of each exception that ends a command. No traceback reaches a user."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Final

import typer

from gpuops.console import output
from gpuops.errors import GpuopsError, UsageError, applied_before

INTERRUPTED: Final = 130
READER_GONE: Final = 141
OUT_OF_MEMORY: Final = "out-of-memory"
NOT_WRITTEN: Final = "result-not-written"


Say = Callable[[str, str, int, str, "bool | None"], int]
"""Reports why a command ended: message, hint, exit code, code, and whether vCenter was changed; returns the code."""


def run_guarded(command: Callable[[], object], say: Say | None = None) -> int:
    """Run a command and return its exit code; report an exception in one line, with the next move.

    `say` is called with the exception's text; None = it is printed.
    """
    say = say or _say
    try:
        returned: object = command()
        output.results().flush()
    except (BrokenPipeError, output.ResultNotWritten) as error:
        return _end_unwritten(error)
    except SystemExit as leaving:
        # typer turns a broken pipe into exit code 1, which is ours for a bug
        if isinstance(leaving.__context__, BrokenPipeError):
            return READER_GONE
        raise
    except GpuopsError as error:
        return say(error.message, error.hint, error.exit_code, error.code, applied_before(error))
    except typer.TyperException as error:
        if _is_help(error):
            typer.echo(error.format_message(), err=True)
            return UsageError.exit_code
        # pydantic puts this before the words of our own checks
        message = error.format_message().replace("Value error, ", "")
        return say(message, _usage_hint(error), UsageError.exit_code, UsageError.code, False)
    except (KeyboardInterrupt, typer.Abort):
        returned = INTERRUPTED
    except Exception as error:  # a bug: the user gets one line, not our insides
        return _bug(error, say)
    if returned == INTERRUPTED:  # typer too turns Ctrl-C into this code
        sys.stderr.write("interrupted\n")
    return returned if isinstance(returned, int) else 0


def _bug(error: Exception, say: Say) -> int:
    applied = applied_before(error)
    if isinstance(error, MemoryError):
        hint = "give it more; gpuops rotate resume ends what was begun"
        return say("out of memory", hint, GpuopsError.exit_code, OUT_OF_MEMORY, applied)
    message = f"internal error: {type(error).__name__}: {error}"
    hint = "GPUOPS_DEBUG=1 shows where; please report it"
    return say(message, hint, GpuopsError.exit_code, GpuopsError.code, applied)


def _say(message: str, hint: str, exit_code: int, code: str, applied: bool | None = False) -> int:
    if os.environ.get("GPUOPS_DEBUG") == "1":
        traceback.print_exc()
    output.error(message, hint, exit_code, code, applied)
    return exit_code


def _usage_hint(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path} --help" if context is not None else "gpuops --help"


def _is_help(error: typer.TyperException) -> bool:
    """Return whether the exception is the help of a group that was called without a command."""
    context = getattr(error, "ctx", None)
    return context is not None and error.format_message() == context.get_help()


def _end_unwritten(error: BrokenPipeError | output.ResultNotWritten) -> int:
    """Return the exit code after a lost reader (`gpuops inventory | head`), quietly; a full disk is reported.

    The code is not 0, since the outcome was not printed. The rest of stdout's buffer is dropped, so that it does not
    fail again when the process ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.results().fileno())
    if isinstance(error, output.ResultNotWritten):
        _say(str(error), "what was done stays done; gpuops rotate status shows a rotation", READER_GONE, NOT_WRITTEN)
    return READER_GONE
