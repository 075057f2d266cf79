"""Runs the operator's command that reports which desktops are used: JSON lines in, JSON lines out.

The command runs without a shell, in an environment without gpuops's variables, so no password reaches it. gpuops uses
only a count, a yes or no and ages of its output. It keeps and shows nothing else, since the output may name users.
A desktop is unknown if its line is missing, wrong or too late.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import IO, Any, Final

from gpuops import clock
from gpuops.files.file import NOT_PARSED, parse_json
from gpuops.model.desktops.evidence import SessionCount
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

TIMEOUT_S: Final = 10.0
"""The limit for the complete command: gpuops suspends a desktop only if it read it at most 25 s ago."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The limit for the output: three times as much as a command prints for 100,000 VMs."""
LARGEST_NUMBER: Final = 10**9
"""The limit for counts of sessions and ages in seconds; a line with a larger number is not used."""
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME")
"""Variables that the command gets; no others, since they may hold passwords."""


class CommandFailedError(Exception):
    """Raised if the command gives no answer; its message repeats nothing of the command's output."""


class IdleCommand:
    """Implements `SessionSource` by a command. One process answers for any number of VMs."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        say: Callable[[str], None] = lambda line: None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`say` gets one line for each new reason why the command failed."""
        self._command = tuple(command)
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self.say = say
        self._timeout_s = timeout_s
        self._reported_reasons: set[str] = set()

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """Return the sessions of each of these VMs (by ref), as the command reports them.

        A VM without an answer has an unknown count, with the reason.
        """
        asked_at = inventory.taken_at
        try:
            output = self._run(_questions(vms))
        except CommandFailedError as failed:
            self._report(str(failed))
            return {vm.ref: SessionCount(None, None, asked_at, because=str(failed)) for vm in vms}
        counts, has_unreadable_lines = _read_answers(output, vms, asked_at)
        if has_unreadable_lines:
            self._report("the command printed lines that gpuops cannot read")
        missing = SessionCount(None, None, asked_at, because="the command printed no line for this VM")
        return {vm.ref: counts.get(vm.ref, missing) for vm in vms}

    def _report(self, why: str) -> None:
        if why not in self._reported_reasons:
            self._reported_reasons.add(why)
            self.say(f"idle_command: {why} (gpuops help idle)")

    def _run(self, question: bytes) -> bytes:
        """Return the output of the command. Raises CommandFailedError."""
        # a file, not a pipe: a command that prints before it has read its input would make both processes wait
        with tempfile.TemporaryFile() as stdin:
            stdin.write(question)
            stdin.seek(0)
            try:
                process = subprocess.Popen(  # noqa: S603 (the operator's own, from a file of theirs; no shell)
                    self._command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # it may name users
                    env=self._environ,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "an invalid argument"
                raise CommandFailedError(f"the command cannot be started: {why}") from error
        assert process.stdout is not None
        try:
            return self._read_output(process, process.stdout)
        finally:
            _kill(process)
            process.stdout.close()

    def _read_output(self, process: subprocess.Popen[bytes], stdout: IO[bytes]) -> bytes:
        """Return what the command prints until it ends. Raises CommandFailedError if it is late or fails."""
        deadline_s, chunks, size = clock.passed_s() + self._timeout_s, [], 0
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                remaining_s = deadline_s - clock.passed_s()
                if remaining_s <= 0 or not selector.select(remaining_s):
                    raise CommandFailedError(f"the command took longer than {self._timeout_s:g} s")
                chunk = os.read(stdout.fileno(), 65536)
                if not chunk:
                    break
                size += len(chunk)
                if size > MOST_BYTES:
                    raise CommandFailedError(f"the command printed more than {MOST_BYTES // 1024 // 1024} MiB")
                chunks.append(chunk)
        # the output has ended, so the command is about to end: allow it 0.1 s even if the time is up
        try:
            code = process.wait(max(deadline_s - clock.passed_s(), 0.1))
        except subprocess.TimeoutExpired as late:
            raise CommandFailedError(f"the command took longer than {self._timeout_s:g} s") from late
        if code != 0:
            raise CommandFailedError(f"the command ended with exit code {code}")
        return b"".join(chunks)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command that still runs, with all that it started. Its group id is not reused before `wait`."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _questions(vms: Sequence[Vm]) -> bytes:
    """Return the input of the command: one line of JSON for each VM."""
    lines = (json.dumps({"vm": vm.name, "uuid": vm.instance_uuid}) for vm in vms)
    return "".join(f"{line}\n" for line in lines).encode()


def _read_answers(output: bytes, vms: Sequence[Vm], asked_at: datetime) -> tuple[dict[str, SessionCount], bool]:
    """Return the sessions by VM (ref), and whether a line could not be read.

    If there are two answers about a VM, one that reports use is kept.
    """
    # an answer names a VM by its UUID, or by a name that no other VM has
    names = Counter(vm.name for vm in vms)
    refs = {vm.name: vm.ref for vm in vms if names[vm.name] == 1}
    refs |= {vm.instance_uuid: vm.ref for vm in vms if vm.instance_uuid is not None}
    counts: dict[str, SessionCount] = {}
    has_unreadable_lines = False
    for answer in _parse_lines(output):
        count = _session_count(answer, asked_at)
        name = answer.get("uuid", answer.get("vm")) if count is not None else None
        if count is None or not isinstance(name, str):
            has_unreadable_lines = True
            continue
        ref = refs.get(name)  # answers about other VMs are dropped
        if ref is not None and not (ref in counts and counts[ref].used):
            counts[ref] = count
    return counts, has_unreadable_lines


def _parse_lines(output: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each line; {} for a line that is not one."""
    for line in output.splitlines():
        if not line.strip():
            continue
        try:
            answer = parse_json(line)
        except NOT_PARSED:
            answer = {}
        yield answer if isinstance(answer, dict) else {}


def _session_count(answer: Mapping[str, Any], asked_at: datetime) -> SessionCount | None:
    """Return the sessions that one line reports; None if a value is invalid. Other keys are ignored."""
    sessions, busy = answer.get("sessions"), answer.get("busy")
    ages = {name: answer.get(name) for name in ("age_s", "oldest_s", "youngest_s", "disconnected_s")}
    numbers = [number for number in (sessions, *ages.values()) if number is not None]
    # type(), because True is an instance of int
    if not all(type(number) is int and 0 <= number <= LARGEST_NUMBER for number in numbers):
        return None
    if not (busy is None or isinstance(busy, bool)) or (sessions is None and busy is None):
        return None
    used = bool(busy) or bool(sessions)
    # all sessions are disconnected only if there are some and the VM is not in use
    disconnected_s = ages["disconnected_s"] if sessions and not busy else None
    return SessionCount(
        sessions, used, asked_at, ages["age_s"] or 0, ages["oldest_s"], ages["youngest_s"], disconnected_s
    )
