"""Starts a program in a guest through VMware Tools or over SSH, and waits for its end and for the ends of tasks.

Nothing of what a program prints is read: only its exit code counts, so a guest cannot send text of any size (vSphere
API reference, GuestProcessManager: StartProgramInGuest gives a process id, ListProcessesInGuest its exit code, for five
minutes after the end). Nothing is told of an end by itself, so it is looked for every few seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, Refused, StepFailed
from gpuops.model.guests.guest_command import CHECKPOINT_REFUSALS
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.vsphere.guest_login import NO_LOGIN_HINT, guest_change, guest_read
from gpuops.vsphere.waiting.states import wait_for_power

if TYPE_CHECKING:
    from gpuops.plan.core.steps import RunInGuest
    from gpuops.vsphere.connection import Connection

POLL_S: Final = 5.0
_REF: Final = re.compile(r"guest-(process|ssh):([^:]+):([0-9]+)")
NO_LOGIN: Final = "there is no login for guests (GPUOPS_GUEST_USERNAME)"
NO_SHELL: Final = "there is no way in over SSH here"


class GuestShell(Protocol):
    """Runs programs in guests over SSH, each for the time that its step gives. `hostshell.guest_ssh` implements it."""

    def no_way_in(self, hook: RunInGuest) -> str | None:
        """Why that program cannot be run, as far as can be known without trying; None = it can."""
        ...

    def start(self, hook: RunInGuest) -> TaskRef:
        """The program on its way, as a task `guest-ssh:VM:NUMBER`; whether its guest is reached shows in its end."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Lets so much time pass, or less when one ends."""
        ...

    def end(self, task: TaskRef) -> TaskEnd | None:
        """How it ended; None = it runs. One of an earlier process is not known any more."""
        ...


def no_way_in(connection: Connection, hook: RunInGuest) -> str | None:
    """Why that program cannot be run, as far as can be known without trying; None = it can."""
    if hook.ssh is None:
        return None if connection.target.guest is not None else NO_LOGIN
    return NO_SHELL if connection.guest_shell is None else connection.guest_shell.no_way_in(hook)


def start_program(connection: Connection, step: RunInGuest, name: str, op_id: str) -> TaskRef:
    """The started program, as a task of a kind of its own: vCenter makes none for it.

    Raises Refused without a login for guests, OutcomeUnknown when the reply was lost, or the error of the fault.
    """
    if step.ssh is not None:
        if connection.guest_shell is None:
            raise Refused(f"{name}: {NO_SHELL}", hint=NO_LOGIN_HINT)
        return connection.guest_shell.start(step)
    from pyVmomi import vim

    spec = vim.vm.guest.ProcessManager.ProgramSpec(programPath=step.program, arguments=step.arguments)
    start = connection.guest_processes.StartProgramInGuest
    pid = guest_change(connection, start, step.vm, name, spec, op_id=op_id, refusals=CHECKPOINT_REFUSALS)
    if not isinstance(pid, int):
        raise OutcomeUnknown(f"{name}: vCenter answered without a process; whether it was started is not known")
    return TaskRef(f"guest-process:{step.vm}:{int(pid)}")


def wait(connection: Connection, running: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
    """The end of each of these programs and tasks as it is seen; one still running when the time is up is left out.

    Time is what vCenter waited, or what passed here, whichever is more.
    """
    programs = {task: program.groups() for task in running if (program := _REF.fullmatch(task.ref)) is not None}
    tasks = [task for task in running if task not in programs]
    left_s = max(timeout_s, 0.0)
    while True:
        for end in [end for task, program in programs.items() if (end := _end(connection, task, *program))]:
            del programs[end.task]
            yield end
        if left_s <= 0 or not (programs or tasks):
            return
        slice_s, asked_at, silent = min(POLL_S, left_s) if programs else left_s, clock.passed_s(), True
        over_ssh = all(kind == "ssh" for kind, _, _ in programs.values())
        vms = [] if over_ssh else [vm for _, vm, _ in programs.values()]
        for end in _let_pass(connection, tasks, vms, slice_s):
            silent = False
            tasks.remove(end.task)
            yield end
        left_s -= max(slice_s if silent else 0.0, clock.passed_s() - asked_at)


def withdraw(connection: Connection, running: Sequence[TaskRef]) -> None:
    """Cancels those of these tasks that were queued when they were last waited for; a program in a guest never is."""
    connection.tasks.withdraw([task for task in running if _REF.fullmatch(task.ref) is None])


def _let_pass(
    connection: Connection, tasks: Sequence[TaskRef], vms: Iterable[str], slice_s: float
) -> Iterator[TaskEnd]:
    """So much time, or less when something ends: a task, or these VMs; without either, what runs over SSH."""
    if tasks:
        yield from connection.tasks.wait(tuple(tasks), slice_s)
    elif not vms and connection.guest_shell is not None:
        connection.guest_shell.wait(slice_s)
    else:
        wait_for_power(connection, frozenset(vms), PowerState.OFF, slice_s)


def _end(connection: Connection, task: TaskRef, kind: str, vm: str, number: str) -> TaskEnd | None:
    """How the program ended; None = it runs."""
    if kind == "ssh":
        return (
            connection.guest_shell.end(task)
            if connection.guest_shell is not None
            else TaskEnd(task, OutcomeUnknown(NO_SHELL))
        )
    pid = int(number)
    try:
        processes = guest_read(connection, connection.guest_processes.ListProcessesInGuest, vm, vm, [pid])
    except NotConnected:
        raise
    except GpuopsError as error:
        return TaskEnd(task, error)
    process = next((candidate for candidate in processes or () if candidate.pid == pid), None)
    if process is None:
        return TaskEnd(task, OutcomeUnknown(f"{vm}: its program is gone from the guest, nobody saw how it ended"))
    if process.endTime is None:
        return None
    began = process.startTime
    with connection.decoding("ListProcessesInGuest"):
        duration_s = (process.endTime - began).total_seconds() if began else None
    if process.exitCode:
        return TaskEnd(task, StepFailed(f"its program ended with exit code {int(process.exitCode)}"), duration_s)
    return TaskEnd(task, None, duration_s)
