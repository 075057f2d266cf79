"""Turns each exception that ends a command into a line on stderr and an exit code, without a traceback."""

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


ReportError = Callable[[str, str, int, str, "bool | None"], int]
"""Called with message, hint, exit code, error code, and whether vCenter was changed; returns the exit code."""


def run_guarded(command: Callable[[], object], report_error: ReportError | None = None) -> int:
    """Run a command and return its exit code; report an exception in one line, with the next move.

    `report_error`: where an exception is reported; None = on stderr.
    """
    report_error = report_error or _print_error
    try:
        command_result: object = command()
        output.results().flush()
    except (BrokenPipeError, output.ResultNotWritten) as error:
        return _end_unwritten(error)
    except SystemExit as system_exit:
        # typer turns a broken pipe into exit code 1, which is ours for a bug
        if isinstance(system_exit.__context__, BrokenPipeError):
            return READER_GONE
        raise
    except GpuopsError as error:
        return report_error(error.message, error.hint, error.exit_code, error.code, applied_before(error))
    except typer.TyperException as error:
        if _is_help(error):
            typer.echo(error.format_message(), err=True)
            return UsageError.exit_code
        # pydantic puts "Value error, " before the words of our own checks
        message = error.format_message().replace("Value error, ", "")
        return report_error(message, _usage_hint(error), UsageError.exit_code, UsageError.code, False)
    except (KeyboardInterrupt, typer.Abort):
        command_result = INTERRUPTED
    except Exception as error:  # a bug: the user gets one line, not our insides
        return _report_bug(error, report_error)
    if command_result == INTERRUPTED:  # typer too turns Ctrl-C into this code
        sys.stderr.write("interrupted\n")
    return command_result if isinstance(command_result, int) else 0


def _report_bug(error: Exception, report_error: ReportError) -> int:
    applied = applied_before(error)
    if isinstance(error, MemoryError):
        hint = "give this process more memory; gpuops rotate resume finishes an interrupted rotation"
        return report_error("out of memory", hint, GpuopsError.exit_code, OUT_OF_MEMORY, applied)
    message = f"internal error: {type(error).__name__}: {error}"
    hint = "run the command again with GPUOPS_DEBUG=1, and report the traceback that it prints"
    return report_error(message, hint, GpuopsError.exit_code, GpuopsError.code, applied)


def _print_error(message: str, hint: str, exit_code: int, code: str, applied: bool | None = False) -> int:
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
        hint = "changes that were made stay; gpuops rotate status shows those of a rotation"
        _print_error(str(error), hint, READER_GONE, NOT_WRITTEN)
    return READER_GONE
