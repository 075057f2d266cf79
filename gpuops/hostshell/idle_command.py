"""Runs the operator's own command that tells which desktops are used: JSON lines in, JSON lines out.

It is run as it stands, without a shell, in an environment without gpuops's variables: no password reaches it. What it
prints is not believed further than a count, a yes or no and ages; nothing else of it is kept or shown, since it may
name users. Whatever it does not tell, tells wrongly or tells too late is unknown.
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
"""So long it may take in all: a desktop is taken by a look that is at most 25 s old."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The answer for 100,000 VMs has a third of it."""
MOST: Final = 10**9
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME")
"""Variables that it gets; no others, for they may hold passwords."""


class CommandFailedError(Exception):
    """Why the command tells nothing, in words that hold nothing of what it printed."""


class IdleCommand:
    """Implements `SessionSource` by a command. One process for each question, whatever number of VMs it is about."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        say: Callable[[str], None] = lambda line: None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`say` is told once of each way in which it fails."""
        self._command = tuple(command)
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self.say = say
        self._timeout_s = timeout_s
        self._said: set[str] = set()

    def sessions(self, vms: Sequence[Vm], inventory: Inventory) -> Mapping[str, SessionCount]:
        """By VM (ref), what the command tells of it; of each of these VMs something, unknown included."""
        asked = inventory.taken_at
        try:
            printed = self._run(_questions(vms))
        except CommandFailedError as failed:
            self._tell(str(failed))
            return {vm.ref: SessionCount(None, None, asked, because=str(failed)) for vm in vms}
        found, garbled = _answers(printed, vms, asked)
        if garbled:
            self._tell("the command printed lines that are no answer")
        missing = SessionCount(None, None, asked, because="the command does not tell of it")
        return {vm.ref: found.get(vm.ref, missing) for vm in vms}

    def _tell(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self.say(f"idle_command: {why} (gpuops help idle)")

    def _run(self, question: bytes) -> bytes:
        """What it prints. Raises CommandFailedError."""
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
                why = error.strerror if isinstance(error, OSError) else "its arguments"
                raise CommandFailedError(f"the command cannot be started: {why}") from error
        assert process.stdout is not None
        try:
            return self._finished(process, process.stdout)
        finally:
            _end(process)
            process.stdout.close()

    def _finished(self, process: subprocess.Popen[bytes], stdout: IO[bytes]) -> bytes:
        until_s, chunks, size = clock.passed_s() + self._timeout_s, [], 0
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                left_s = until_s - clock.passed_s()
                if left_s <= 0 or not selector.select(left_s):
                    raise CommandFailedError(f"the command took longer than {self._timeout_s:g} s")
                chunk = os.read(stdout.fileno(), 65536)
                if not chunk:
                    break
                size += len(chunk)
                if size > MOST_BYTES:
                    raise CommandFailedError(f"the command printed more than {MOST_BYTES // 1024 // 1024} MiB")
                chunks.append(chunk)
        try:
            code = process.wait(max(until_s - clock.passed_s(), 0.1))
        except subprocess.TimeoutExpired as late:
            raise CommandFailedError(f"the command took longer than {self._timeout_s:g} s") from late
        if code != 0:
            raise CommandFailedError(f"the command ended with exit code {code}")
        return b"".join(chunks)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command that has not ended, with all that it started: until it is waited for, its group is its own."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _questions(vms: Sequence[Vm]) -> bytes:
    lines = (json.dumps({"vm": vm.name, "uuid": vm.instance_uuid}) for vm in vms)
    return "".join(f"{line}\n" for line in lines).encode()


def _answers(printed: bytes, vms: Sequence[Vm], asked: datetime) -> tuple[dict[str, SessionCount], bool]:
    """By VM (ref) what was told, and whether anything was no answer. Of two answers the one that says used counts."""
    names = Counter(vm.name for vm in vms)
    refs = {vm.name: vm.ref for vm in vms if names[vm.name] == 1}
    refs |= {vm.instance_uuid: vm.ref for vm in vms if vm.instance_uuid is not None}
    found: dict[str, SessionCount] = {}
    garbled = False
    for answer in _lines(printed):
        told = _told(answer, asked)
        name = answer.get("uuid", answer.get("vm")) if told is not None else None
        if told is None or not isinstance(name, str):
            garbled = True
            continue
        ref = refs.get(name)  # of a VM that nobody asked for nothing is kept
        if ref is not None and not (ref in found and found[ref].used):
            found[ref] = told
    return found, garbled


def _lines(printed: bytes) -> Iterator[dict[str, Any]]:
    """Each line's object; an empty one for a line that is none."""
    for line in printed.splitlines():
        if not line.strip():
            continue
        try:
            answer = parse_json(line)
        except NOT_PARSED:
            answer = {}
        yield answer if isinstance(answer, dict) else {}


def _told(answer: Mapping[str, Any], asked: datetime) -> SessionCount | None:
    """What one line tells; None = nothing that can be understood. Keys that are not ours are not looked at."""
    sessions, busy = answer.get("sessions"), answer.get("busy")
    ages = {name: answer.get(name) for name in ("age_s", "oldest_s", "youngest_s", "disconnected_s")}
    numbers = [each for each in (sessions, *ages.values()) if each is not None]
    if not all(type(each) is int and 0 <= each <= MOST for each in numbers):
        return None
    if not (busy is None or isinstance(busy, bool)) or (sessions is None and busy is None):
        return None
    used = bool(busy) or bool(sessions)
    disconnected_s = ages["disconnected_s"] if sessions and not busy else None
    return SessionCount(sessions, used, asked, ages["age_s"] or 0, ages["oldest_s"], ages["youngest_s"], disconnected_s)
