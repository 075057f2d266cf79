"""Has many guests at once run the program that tells how ready they are, through VMware Tools, and fetches its output.

vCenter hands no output of a program out: it goes to a file, which is fetched. The file is removed by another program,
for which the privilege to run one is enough.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, Refused
from gpuops.guest_scripts import guest_check
from gpuops.model.guests.guest import GuestReply, GuestSystem
from gpuops.plan.core.steps import RunInGuest
from gpuops.vsphere.guest_login import NO_LOGIN_HINT
from gpuops.vsphere.reading.guests.guest_file import HostUnreached, read_guest_file
from gpuops.vsphere.reading.guests.guest_systems import vcenter_time
from gpuops.vsphere.writing import guest_programs
from gpuops.vsphere.writing.guest_programs import NO_LOGIN, POLL_S

if TYPE_CHECKING:
    from gpuops.model.vcenter.task import TaskRef
    from gpuops.model.vcenter.vm import Vm
    from gpuops.vsphere.connection import Connection

AT_ONCE: Final = 32
LIMIT_S: Final = 120.0
"""nvidia-smi takes seconds; one that hangs in a broken driver is not waited for longer."""
_LOOK: Final = "look at the guest, or ask it again"
_LOGIN_MOVE: Final = "check GPUOPS_GUEST_USERNAME and its password: a further try would count towards a lockout"


@dataclass(slots=True)
class _Asked:
    """A guest in which the program runs."""

    vm: Vm
    system: GuestSystem
    path: str
    before: datetime
    waited_s: float = 0.0


class ToolsAnswers:
    """Asks guests through VMware Tools. A login that one guest refuses is tried in no other."""

    def __init__(self, connection: Connection, say: Callable[[str], None] = lambda line: None) -> None:
        """`say` is told of each file that stays in a guest. Raises Refused where there is no login for guests."""
        if connection.target.guest is None:
            raise Refused(NO_LOGIN, hint=NO_LOGIN_HINT)
        self._connection = connection
        self._say = say
        self._refused = ""
        self._found: dict[str, GuestReply] = {}
        self._unreached: dict[str, HostUnreached] = {}
        """By host (ref): each that does not answer is waited for once, not for each of its VMs."""

    def replies(self, guests: Sequence[tuple[Vm, GuestSystem]], frameworks: Sequence[str]) -> Mapping[str, GuestReply]:
        """By VM (ref), what each guest printed. Raises NotConnected in its kinds."""
        waiting = list(reversed(guests))
        running: dict[TaskRef, _Asked] = {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                self._start(*waiting.pop(), frameworks, running)
            began_s = clock.passed_s()
            ends = list(guest_programs.wait(self._connection, tuple(running), POLL_S) if running else ())
            waited_s = max(POLL_S, clock.passed_s() - began_s)
            ended = [(running.pop(end.task), end.error) for end in ends]
            # before answers are fetched, which may take long: a program that ends meanwhile has not taken so long
            for task, asked in list(running.items()):
                asked.waited_s += waited_s
                if asked.waited_s >= LIMIT_S:
                    del running[task]
                    self._found[asked.vm.ref] = self._given_up(asked)
            for asked, error in ended:
                self._found[asked.vm.ref] = self._fetched(asked, error)
        return self._found

    def _start(self, vm: Vm, system: GuestSystem, frameworks: Sequence[str], running: dict[TaskRef, _Asked]) -> None:
        from pyVmomi import vim

        if self._refused:
            self._found[vm.ref] = GuestReply(None, self._refused, _LOGIN_MOVE)
            return
        path = guest_check.answer_path(system, secrets.token_hex(16))
        asked = _Asked(vm, system, path, vcenter_time(self._connection))
        try:
            running[self._run(vm, guest_check.to_file(system, frameworks, path))] = asked
        except NotConnected:
            raise
        except GpuopsError as error:
            self._found[vm.ref] = GuestReply(None, error.message, error.hint or _LOOK)
            if isinstance(error.__cause__, vim.fault.InvalidGuestLogin):
                self._refused = "another guest has refused the login of GPUOPS_GUEST_USERNAME"
                self._found[vm.ref] = GuestReply(None, error.message, _LOGIN_MOVE)

    def _run(self, vm: Vm, call: guest_check.GuestCall) -> TaskRef:
        step = RunInGuest(vm.ref, call.program, call.arguments, int(LIMIT_S))
        return guest_programs.start_program(self._connection, step, vm.name, f"gpuops-guest-{secrets.token_hex(8)}")

    def _fetched(self, asked: _Asked, error: GpuopsError | None) -> GuestReply:
        """What the program wrote; its file is removed from the guest then, whatever became of it."""
        if isinstance(error, NotConnected):
            raise error
        reply = self._reply(asked) if error is None else GuestReply(None, error.message, error.hint or _LOOK)
        try:
            self._run(asked.vm, guest_check.removal(asked.system, asked.path))
        except NotConnected:
            raise
        except GpuopsError as failed:
            self._say(f"{asked.vm.name}: {asked.path} stays in its guest: {failed.message}")
        return reply

    def _reply(self, asked: _Asked) -> GuestReply:
        after, host = vcenter_time(self._connection), asked.vm.host or ""
        try:
            if host in self._unreached:
                raise self._unreached[host]
            text = read_guest_file(self._connection, asked.vm.ref, asked.vm.name, asked.path).decode("utf-8", "replace")
            return GuestReply(text, before=asked.before, after=after)
        except NotConnected:
            raise
        except GpuopsError as error:
            if host and isinstance(error, HostUnreached):
                self._unreached[host] = error
            return GuestReply(None, f"its answer cannot be fetched: {error.message}", error.hint or _LOOK)

    def _given_up(self, asked: _Asked) -> GuestReply:
        self._say(f"{asked.vm.name}: {asked.path} stays in its guest: its program still runs")
        move = "run nvidia-smi in the guest: a driver that hangs holds it up"
        return GuestReply(None, f"its program had not ended after {LIMIT_S:.0f} s", move)
