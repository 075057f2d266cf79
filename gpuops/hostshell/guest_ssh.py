"""Runs programs in guests over SSH: checkpoint hooks of ML VMs, and the check of guests.

A policy names SSH in place of VMware Tools. Each checkpoint hook has its own connection and thread, which end when its
time is up: a guest that does not answer delays no other guest and no desktop. Only the exit code of a hook counts; its
output is not read. The check reads the output, of many guests at once.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from threading import Lock
from typing import TYPE_CHECKING, Final

from gpuops import clock
from gpuops.distribution import install_extra
from gpuops.errors import GpuopsError, OutcomeUnknown, StepFailed
from gpuops.model.guests.guest import GuestReply, GuestSystem
from gpuops.model.nights.ml_queue import SshDoor
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import Vm

if TYPE_CHECKING:
    from gpuops.plan.core.steps import RunInGuest

VARIABLES: Final = ("GPUOPS_GUEST_SSH_KNOWN_HOSTS", "GPUOPS_GUEST_SSH_KEY")
"""Environment variables that name another file of known guests, and another key."""
_WINDOWS_PATH: Final = re.compile(r"[A-Za-z]:\\")


class GuestSsh:
    """Implements `GuestShell` of `vsphere`: runs the checkpoint hooks of ML VMs over SSH."""

    def __init__(self, known_hosts: Path, key: Path | None = None, address_of: Callable[[str], str] = str) -> None:
        """`key` None = the keys of the agent and those in ~/.ssh. `address_of` returns the address of a host name."""
        self._known_hosts = known_hosts.expanduser()
        self._key = key
        self._address_of = address_of
        self._ends: dict[str, TaskEnd] = {}
        self._running: set[str] = set()
        self._changed = threading.Condition()

    def no_way_in(self, hook: RunInGuest) -> str | None:
        """Return why the program cannot be run over SSH; None = no reason is known before the connection is tried."""
        from gpuops.hostshell.ssh import unusable_address

        assert hook.ssh is not None
        if find_spec("asyncssh") is None:
            return f"asyncssh is not installed: {install_extra('ssh')}"
        if (why := unusable_address(hook.ssh.host)) is not None:
            return f"{hook.ssh.host[:80]!r} cannot be reached by SSH: {why}"
        if not _is_host_known(self._known_hosts, hook.ssh.host):
            return f"no SSH key of {hook.ssh.host} is in {self._known_hosts}"
        return None

    def start(self, hook: RunInGuest) -> TaskRef:
        """Start the program and return its task; whether the guest can be reached shows in its end."""
        with self._changed:
            task = TaskRef(f"guest-ssh:{hook.vm}:{len(self._ends) + len(self._running) + 1}")
            self._running.add(task.ref)
        # a daemon thread: the process can exit while it still waits for a guest
        threading.Thread(target=partial(self._run, hook, task), name=task.ref, daemon=True).start()
        return task

    def wait(self, timeout_s: float) -> None:
        """Wait until one more program ends or none runs any more, at most `timeout_s` seconds."""
        with self._changed:
            ended = len(self._ends)
            self._changed.wait_for(lambda: len(self._ends) > ended or not self._running, timeout_s)

    def end(self, task: TaskRef) -> TaskEnd | None:
        """Return how a program ended; None = it still runs.

        The end is unknown if another process of gpuops started the program.
        """
        with self._changed:
            if task.ref in self._running:
                return None
            unknown = OutcomeUnknown(
                f"{task.ref}: another process of gpuops started this program, so its exit code is not known",
                hint="look in the guest whether the program has ended",
            )
            return self._ends.get(task.ref, TaskEnd(task, unknown))

    def _run(self, hook: RunInGuest, task: TaskRef) -> None:
        """Run the program in this thread, and store its end for `end` and `wait`."""
        # stays if `_execute` raises an error that is not of gpuops: without an end, `wait` would never return
        end = TaskEnd(
            task, OutcomeUnknown(f"{task.ref}: the connection to the guest was lost before the program ended")
        )
        try:
            end = self._execute(hook, task)
        finally:
            with self._changed:
                self._ends[task.ref] = end
                self._running.discard(task.ref)
                self._changed.notify_all()

    def _execute(self, hook: RunInGuest, task: TaskRef) -> TaskEnd:
        """Run the program until it ends, and return its end with its duration or error."""
        from gpuops.hostshell.ssh import Ssh

        login, began_s = hook.ssh, clock.passed_s()
        assert login is not None
        ssh = Ssh(login.user, self._known_hosts, self._key, login.port, self._address_of, *VARIABLES)
        try:
            reply = ssh.run(login.host, _command(hook), limit_s=hook.limit_s, read_output=False)
        except GpuopsError as error:
            return TaskEnd(task, error)
        took_s = clock.passed_s() - began_s
        if reply.exit_status:
            return TaskEnd(task, StepFailed(f"its program ended with exit code {reply.exit_status}"), took_s)
        return TaskEnd(task, None, took_s)


def _command(hook: RunInGuest) -> str:
    """Return the line for the user's shell: the program as one word, and the arguments unchanged."""
    # cmd.exe of a Windows guest knows only double quotes
    program = f'"{hook.program}"' if _WINDOWS_PATH.match(hook.program) else quote(hook.program)
    return f"{program} {hook.arguments}".rstrip()


def _is_host_known(known_hosts: Path, host: str) -> bool:
    """Return whether the file holds a key of the host, or of an authority for it."""
    import asyncssh

    try:
        keys, authorities, *_ = asyncssh.match_known_hosts(str(known_hosts), host, "", None)
    except (OSError, ValueError):
        return False
    return bool(keys or authorities)


MOST_CONNECTIONS: Final = 32
"""How many guests are checked at the same time."""
CHECK_LIMIT_S: Final = 120.0
"""The limit for the check of one guest, from the connection to the end of its script."""


@dataclass(frozen=True, slots=True)
class SshAnswers:
    """Checks guests over SSH. `key` None = the keys of the agent and of ~/.ssh; `now` is vCenter's time."""

    door: SshDoor
    known_hosts: Path
    key: Path | None
    now: Callable[[], datetime]
    address_of: Callable[[str], str] = field(default=str)
    _time_lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    """Only one thread at a time reads the time of vCenter."""

    def replies(self, guests: Sequence[tuple[Vm, GuestSystem]], frameworks: Sequence[str]) -> Mapping[str, GuestReply]:
        """Return the output of each guest by VM (ref), or why it is missing. Raises NotConnected as `now` does."""
        with ThreadPoolExecutor(max_workers=MOST_CONNECTIONS, thread_name_prefix="guest-ssh") as pool:
            replies = pool.map(lambda guest: self._reply(guest[0], guest[1], frameworks), guests)
            return {vm.ref: reply for (vm, _), reply in zip(guests, replies, strict=True)}

    def _reply(self, vm: Vm, system: GuestSystem, frameworks: Sequence[str]) -> GuestReply:
        """Return the output of the check in this guest, with vCenter's time before and after it, or why it failed."""
        from gpuops.guest_scripts.script_commands import over_ssh
        from gpuops.hostshell.ssh import Ssh

        login = self.door.of(vm.name)
        ssh = Ssh(login.user, self.known_hosts.expanduser(), self.key, login.port, self.address_of, *VARIABLES)
        before = self._now()
        try:
            reply = ssh.run(login.host, over_ssh(system, frameworks), limit_s=CHECK_LIMIT_S)
        except GpuopsError as error:
            return GuestReply(None, error.message, error.hint or "look at the guest, then check it again")
        return GuestReply(reply.stdout, before=before, after=self._now())

    def _now(self) -> datetime:
        with self._time_lock:
            return self.now()
