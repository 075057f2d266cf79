"""Starts, looks at, checkpoints and stops the container of a job in its guest, by `job.sh` in guest operations.

An attempt at a job has a directory of its own in the home directory of the guest's user, `~/.gpuops-jobs/ATTEMPT`,
which only that user can read, with its output and its end. The container goes on when gpuops ends. Every method may be
called again after gpuops was killed in it: an attempt runs at most once, and a second call finishes what the first one
began. No password of gpuops reaches a guest. Secrets of a job are files in that directory until its container ends."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from gpuops.config.vcenter.login_settings import read_password_file
from gpuops.errors import OutcomeUnknown, ProtocolError, Refused, UsageError
from gpuops.execute.site.guest_work import GuestWork, ScriptRunner
from gpuops.extras.jobs.container_command import checkpoint_words, run_words
from gpuops.extras.jobs.job import ContainerJob, ContainerRuntime
from gpuops.guest_scripts.script_commands import home_directory, script_text, shell_command
from gpuops.model.guests.guest import (
    CHECKPOINT_REFUSALS,
    CheckpointEnd,
    CommandEnd,
    ContainerPhase,
    ContainerState,
)
from gpuops.model.vcenter.target import Secret
from gpuops.model.vcenter.vm import Vm

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


def secrets_directory(home: str, attempt: str) -> str:
    """Return the directory of the guest with the secrets of an attempt, which `prepare` of `job.sh` makes."""
    return f"{home}/{DIRECTORY}/{_valid_attempt(attempt)}/secrets"


def read_secrets(job: ContainerJob) -> dict[str, Secret]:
    """Return the secrets of the job by name, from files of this machine. Raises TargetError for an unusable file."""
    return {
        name: read_password_file(Path(path), private=True, content_name="secret", several_lines=True)
        for name, path in job.secrets.items()
    }


def probe() -> str:
    """Return a command that prints the home directory, the available runtimes and the missing tools."""
    return shell_command("job", "probe")


class GuestFacts(NamedTuple):
    """The facts of a guest that a container needs."""

    home: str
    """Path of the home directory."""
    runtimes: frozenset[ContainerRuntime]
    lacks: tuple[str, ...]
    """The missing tools."""


def parse_probe(printed: str) -> GuestFacts:
    """Return the facts that `probe` printed. Raises ProtocolError."""
    runtimes = frozenset(runtime for runtime in ContainerRuntime if f"\nruntime {runtime.value}\n" in printed)
    lacks = tuple(re.findall(r"^lacks ([a-z]{1,20})$", printed, re.MULTILINE))
    return GuestFacts(home_directory(printed), runtimes, lacks)


def too_long(command: str) -> str:
    """Return why the command is too long for a guest operation, which quotes it; "" = it is not."""
    size = len(shlex.quote(command).encode())
    return "" if size <= MOST_TEXT else f"its command line takes {size} bytes, quoted; {MOST_TEXT} can be sent"


def state_of(printed: str) -> ContainerState:
    """Parse the state that an action of `job.sh` has printed, such as `ended 0 began 1764500000 ended 1764500100`.

    The numbers after `began` and `ended` are seconds since 1970 by the guest's clock. Raises ProtocolError for any
    other text.
    """
    match = re.fullmatch(
        r"(absent|running|ended)(?: (\d{1,3}))?(?: began (\d{1,12}))?(?: ended (\d{1,12}))?( asked)?\n", printed
    )
    if match is None:
        raise ProtocolError("its guest printed a state of the job that gpuops cannot read")
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
        raise UsageError(
            f"{attempt!r} is not the name of an attempt", hint="use lower-case letters, digits and -, at most 100"
        )
    return attempt


def _moment(seconds: str | None) -> datetime | None:
    return datetime.fromtimestamp(int(seconds), UTC) if seconds is not None else None


SCRIPT_S: Final = 120.0
"""Seconds that a script may take in a guest, in addition to what it waits for."""
_LOOK: Final = "look at the guest"


class GuestContainers:
    """The containers of jobs in the guests of one vCenter; `guest_work(site.vcenter)` is the port.

    Every method raises Refused if there is no login for guests or a guest refuses, with the reason; StepFailed if
    VMware Tools do not answer; OutcomeUnknown if the outcome is unknown, which the same call then finds out; and
    NotConnected.
    """

    def __init__(self, port: GuestWork, left_s: Callable[[], float] = lambda: math.inf) -> None:
        """`left_s`: the remaining seconds for calls to guests; without any, methods raise Refused."""
        self._port = port
        self._left_s = left_s
        self._runner = ScriptRunner(port, PREFIX, CHECKPOINT_REFUSALS)
        self._facts: dict[str, GuestFacts] = {}

    def runtime(self, vm: Vm, wish: ContainerRuntime | None = None) -> ContainerRuntime | None:
        """Return a container runtime of the guest, the requested one if it exists; None = it has none."""
        runtimes = self._guest(vm).runtimes
        return next((runtime for runtime in (wish, *ContainerRuntime) if runtime in runtimes), None)

    def start(self, vm: Vm, job: ContainerJob, attempt: str, *, resume: bool) -> None:
        """Start the container under the name `gpuops-ATTEMPT`, unless this attempt was started before.

        `attempt`: at most 100 lower-case letters, digits and `-`. `resume`: set the variable `GPUOPS_JOB_RESUMED=1`, so
        that the job continues from its checkpoint. A missing image is pulled in the guest after this returns. Raises
        Refused if the guest has no runtime for the job, or if its command is too long or has control characters.
        """
        ready = replace(job, runtime=self._runtime_of(vm, job))
        secrets = secrets_directory(self._guest(vm).home, attempt)
        words = run_words(ready, container(attempt), resumed=resume, secrets=secrets)
        script = start(attempt, ready.runtime, _sendable(vm, words))
        if why := too_long(script):
            raise Refused(f"{vm.name}: {why}", hint="put the command into a script in the image")
        self._put_secrets(vm, attempt, secrets, read_secrets(job))
        end = self._run(vm, script)
        if end.exit_code != 0:
            raise Refused(f"{vm.name}: its job was not started: {self._runner.failure(end)}", hint=_LOOK)

    def _put_secrets(self, vm: Vm, attempt: str, directory: str, secrets: Mapping[str, Secret]) -> None:
        """Put the secrets into the directory of the attempt, unless it has begun: then it has or had them."""
        if not secrets:
            return
        end = self._run(vm, job_command("prepare", attempt))
        if end.exit_code != 0:
            raise Refused(f"{vm.name}: its job gets no secrets: {self._runner.failure(end)}", hint=_LOOK)
        for name, secret in secrets.items() if end.printed == "ready\n" else ():
            self._time_for(vm)
            self._port.put_guest_file(vm.ref, vm.name, f"{directory}/{name}", secret)

    def look(self, vm: Vm, attempt: str) -> ContainerState:
        return self._state(vm, self._run(vm, job_command("look", attempt)))

    def revoke(self, vm: Vm, attempt: str) -> ContainerState:
        """Prevent the start of an attempt, also by a running call. Return its state; absent = it will not start.

        Raises Refused if it is not decided yet whether it starts.
        """
        end = self._run(vm, job_command("revoke", attempt))
        if end.exit_code == UNDECIDED:
            raise Refused(
                f"{vm.name}: its job is about to be started",
                hint="wait a minute, then run gpuops job run --policy FILE",
            )
        return self._state(vm, end)

    def output(self, vm: Vm, attempt: str, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of the job's output, from the byte `offset` on; b"" = there are no more yet.

        The bytes are as the job wrote them; callers must escape them. The guest keeps the first 4 MiB and, after the
        job has ended, also the last 256 to 512 KiB of longer output, with a line between them about the omitted bytes.
        """
        home, pieces, remaining_bytes = self._guest(vm).home, [], limit
        while remaining_bytes > 0:
            self._time_for(vm)
            # the output is in files of PART bytes; the last one, HEAD_PARTS, holds the end of a longer output
            number = min(offset // PART, HEAD_PARTS)
            text = self._port.guest_file_if_there(vm.ref, vm.name, log_part(home, attempt, number)) or b""
            at = offset - number * PART
            # cut, because the next part begins at PART whatever the guest's file holds
            part = text if number == HEAD_PARTS else text[:PART]
            piece = part[at : at + remaining_bytes]
            pieces.append(piece)
            offset, remaining_bytes = offset + len(piece), remaining_bytes - len(piece)
            if len(part) < PART or number == HEAD_PARTS:  # the job has written no more yet
                break
        return b"".join(pieces)

    def checkpoint(self, vm: Vm, job: ContainerJob, attempt: str, limit: timedelta) -> CheckpointEnd:
        """Run the checkpoint command in the container, for at most `limit`, and return whether it saved the state.

        If not (no command, it failed, it took too long, no container runs), the result has the reason.
        """
        if not job.checkpoint:
            return CheckpointEnd(saved=False, reason="it has no checkpoint command")
        ready = replace(job, runtime=self._runtime_of(vm, job))
        limit_s = max(1, math.ceil(limit.total_seconds()))
        words = _sendable(vm, checkpoint_words(ready, container(attempt)))
        script = job_command("checkpoint", attempt, limit_s, *words)
        if why := too_long(script):
            return CheckpointEnd(saved=False, reason=why)
        end = self._run(vm, script, limit_s)
        if end.exit_code in (124, 137):  # ended or killed by timeout(1) in the guest
            return CheckpointEnd(saved=False, reason=f"its checkpoint command took longer than {limit_s} s")
        if end.exit_code == NOTHING_RUNS:
            return CheckpointEnd(saved=False, reason="it does not run")
        if end.exit_code != 0:
            return CheckpointEnd(saved=False, reason=f"its checkpoint command failed: {self._runner.failure(end)}")
        return CheckpointEnd(saved=True)

    def stop(self, vm: Vm, attempt: str, grace: timedelta) -> ContainerState:
        """Ask the container to end, and kill it after `grace`. Raises Refused if it still runs then.

        An attempt that never began is `absent`, and may still be started.
        """
        grace_s = max(0, math.ceil(grace.total_seconds()))
        end = self._run(vm, job_command("stop", attempt, grace_s), grace_s)
        state = self._state(vm, end)
        if state.state is ContainerPhase.RUNNING:
            raise Refused(f"{vm.name}: its job still runs after the request to end", hint="power the VM off to end it")
        return state

    def clear(self, vm: Vm, attempt: str) -> None:
        """Remove the files and the container of an attempt that has ended, which cannot be started again for a week.
        Raises Refused if it runs."""
        end = self._run(vm, job_command("clear", attempt))
        if end.exit_code == RUNS_STILL:
            raise Refused(f"{vm.name}: its job still runs, so its files stay", hint="stop it first")
        if end.exit_code != 0:
            raise Refused(
                f"{vm.name}: the files of its job could not be removed from its guest: {self._runner.failure(end)}",
                hint=_LOOK,
            )

    def _guest(self, vm: Vm) -> GuestFacts:
        """Return the facts of the guest; they are read again while something is missing. Raises Refused."""
        facts = self._facts.get(vm.ref)
        if facts is not None and facts.runtimes and not facts.lacks:
            return facts
        end = self._run(vm, probe())
        if end.exit_code != 0:
            raise Refused(f"{vm.name}: its guest could not be examined: {self._runner.failure(end)}", hint=_LOOK)
        self._facts[vm.ref] = facts = parse_probe(end.printed)
        return facts

    def _runtime_of(self, vm: Vm, job: ContainerJob) -> ContainerRuntime:
        """Return the runtime that the job names, or another one if the guest lacks it.

        Raises Refused if the guest has no suitable runtime or lacks a tool.
        """
        facts = self._guest(vm)
        if facts.lacks:
            missing = f"{vm.name}: its guest lacks {', '.join(facts.lacks)}"
            raise Refused(missing, hint="install util-linux and coreutils, or busybox, in the template")
        # apptainer cannot run a second command in a running container
        unfit = {ContainerRuntime.APPTAINER} if job.checkpoint else set[ContainerRuntime]()
        preferred: list[ContainerRuntime] = [job.runtime, *ContainerRuntime]
        runtime = next((runtime for runtime in preferred if runtime in facts.runtimes - unfit), None)
        if runtime is None and not facts.runtimes:
            missing = f"{vm.name}: its guest has none of {', '.join(ContainerRuntime)}"
            raise Refused(missing, hint="install one of them in the template")
        if runtime is None:
            missing = (
                f"{vm.name}: its guest has only apptainer, which cannot run a checkpoint command in a running container"
            )
            raise Refused(missing, hint="install podman in the template")
        return runtime

    def _state(self, vm: Vm, end: CommandEnd) -> ContainerState:
        """Return the state that a script has printed. Raises Refused if it failed."""
        if end.exit_code not in (0, 1):
            raise Refused(
                f"{vm.name}: the state of its job could not be read in its guest: {self._runner.failure(end)}",
                hint=_LOOK,
            )
        if end.exit_code == 1:  # `job stop`: it still runs
            return ContainerState(ContainerPhase.RUNNING)
        return state_of(end.printed)

    def _run(self, vm: Vm, script: str, waits_s: float = 0.0) -> CommandEnd:
        """Return how a script ended. Raises OutcomeUnknown with the reason, Refused, NotConnected."""
        self._time_for(vm)
        command = self._runner.start(vm.ref, vm.name, script)
        end = self._runner.wait(command, max(0.0, min(SCRIPT_S + waits_s, self._left_s())))
        if end.exit_code is None:
            raise OutcomeUnknown(f"{vm.name}: {self._runner.failure(end)}", hint="run the same command again")
        return end

    def _time_for(self, vm: Vm) -> None:
        """Raise Refused if no time remains to ask its guest."""
        if self._left_s() <= 0:
            raise Refused(
                f"{vm.name}: no time is left for its guest", hint="wait a minute, then run gpuops job run --policy FILE"
            )


def _sendable(vm: Vm, words: Sequence[str]) -> Sequence[str]:
    """Return the words. Raises Refused for a word that SOAP or a process cannot take."""
    for word in words:
        if not word.isprintable():
            raise Refused(
                f"{vm.name}: {word[:60]!r} has a control character in it",
                hint="put that text into a script in the image",
            )
    return words
