"""Commands for the container of a job in its guest (`job.sh`), and the parsing of what they print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from gpuops.errors import ProtocolError, UsageError
from gpuops.extras.jobs.job import ContainerRuntime
from gpuops.guest_scripts.commands import home_directory, script_text, shell_command
from gpuops.model.guests.container_state import ContainerPhase, ContainerState

DIRECTORY: Final = ".gpuops-jobs"
PREFIX: Final = "gpuops-job-"
"""Prefix of temporary directories in guests, and of ids of operations."""
PART: Final = 512 * 1024
"""Bytes of one part of the output of a container, as in `job_container.sh`; so are `HEAD_PARTS` and `TAIL`."""
HEAD_PARTS: Final = 8
TAIL: Final = 256 * 1024
"""Bytes; of output that is longer than the first parts, between one and two times this much of its end is kept."""
LOG_LIMIT: Final = HEAD_PARTS * PART + 2 * TAIL
"""Bytes of output that a guest keeps at most, without the line that reports the omitted bytes."""
MOST_TEXT: Final = 60_000
"""Bytes of a command as VMware Tools get it; they take 60,536 (open-vm-tools, vixCommands.h,
VIX_COMMAND_MAX_USER_INPUT_SIZE)."""
RUNS_STILL: Final = 75
"""Exit code if the attempt to clear still runs."""
UNDECIDED: Final = 2
"""Exit code of a revocation that cannot decide whether the attempt begins."""
NOTHING_RUNS: Final = 76
"""Exit code of a checkpoint if the attempt does not run."""
_ATTEMPT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,99}")


def job_command(action: str, attempt: str, *arguments: str | int) -> str:
    """Return the command for an action of `job.sh`. Raises UsageError if `attempt` is not a valid name."""
    return shell_command("job", action, _valid_attempt(attempt), *arguments)


def start(attempt: str, runtime: ContainerRuntime, words: Sequence[str]) -> str:
    """Return a command that starts a container with these words, unless the attempt has begun."""
    return job_command("start", attempt, runtime.value, script_text("job_container.sh"), *words)


def probe() -> str:
    """Return a command that prints the home directory, the available runtimes and the missing tools."""
    return shell_command("job", "probe")


def parse_probe(printed: str) -> tuple[str, frozenset[ContainerRuntime], tuple[str, ...]]:
    """Return home directory, runtimes and missing tools from the output of `probe`. Raises ProtocolError."""
    runtimes = frozenset(runtime for runtime in ContainerRuntime if f"\nruntime {runtime.value}\n" in printed)
    return home_directory(printed), runtimes, tuple(re.findall(r"^lacks ([a-z]{1,20})$", printed, re.MULTILINE))


def too_long(command: str) -> str:
    """Return why the command is too long for a guest operation, which quotes it; "" = it is not."""
    size = len(shlex.quote(command).encode())
    return "" if size <= MOST_TEXT else f"its command line takes {size} bytes, quoted; {MOST_TEXT} can be sent"


def state_of(printed: str) -> ContainerState:
    """Return the state that an action has printed. Raises ProtocolError for another text."""
    match = re.fullmatch(
        r"(absent|running|ended)(?: (\d{1,3}))?(?: began (\d{1,12}))?(?: ended (\d{1,12}))?( asked)?\n", printed
    )
    if match is None:
        raise ProtocolError("its guest tells nothing of the job that can be read")
    return ContainerState(
        ContainerPhase(match[1]),
        exit_code=int(match[2]) if match[2] is not None else None,
        began=_moment(match[3]),
        ended=_moment(match[4]),
        asked_to_end=match[5] is not None,
    )


def container(attempt: str) -> str:
    """Return the name of the container of the attempt, as in `job.sh`."""
    return f"gpuops-{_valid_attempt(attempt)}"


def log_part(home: str, attempt: str, number: int) -> str:
    """Return the path of one part of its output."""
    return f"{home}/{DIRECTORY}/{_valid_attempt(attempt)}/log.{number}"


def _valid_attempt(attempt: str) -> str:
    if not _ATTEMPT.fullmatch(attempt):
        raise UsageError(f"{attempt!r} names no attempt at a job", hint="small letters, digits and -, at most 100")
    return attempt


def _moment(seconds: str | None) -> datetime | None:
    return datetime.fromtimestamp(int(seconds), UTC) if seconds is not None else None
