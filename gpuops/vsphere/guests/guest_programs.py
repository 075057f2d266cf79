"""Starts a program in a guest through VMware Tools or over SSH, and waits for its end and for the ends of tasks.

The output of a program is not read: only its exit code counts, so a guest cannot send text of any size (vSphere API
reference, GuestProcessManager: StartProgramInGuest returns a process id, ListProcessesInGuest its exit code, for five
minutes after the end). There is no notification of the end, so the process list is read every few seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, Refused, StepFailed
from gpuops.model.guests.guest import CHECKPOINT_REFUSALS
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.vsphere.watches import POWER

if TYPE_CHECKING:
    from gpuops.plan.core.steps import RunInGuest
    from gpuops.vsphere.connection import Connection

POLL_S: Final = 5.0
_REF: Final = re.compile(r"guest-(process|ssh):([^:]+):([0-9]+)")
NO_LOGIN: Final = "there is no login for guests (GPUOPS_GUEST_USERNAME)"
NO_SHELL: Final = "this command has no SSH connection to guests"


def no_way_in(session: Connection, hook: RunInGuest) -> str | None:
    """Return why that program cannot be run, as far as can be known without trying; None = it can."""
    if hook.ssh is None:
        return None if session.target.guest is not None else NO_LOGIN
    return NO_SHELL if session.guest_shell is None else session.guest_shell.no_way_in(hook)


def start_program(session: Connection, step: RunInGuest, name: str, op_id: str) -> TaskRef:
    """Start the program and return a reference to it for `wait`; vCenter has no task for it.

    `name` is the VM's name in errors. Raises Refused without a login for guests, OutcomeUnknown if the reply was lost,
    or the error of the fault.
    """
    if step.ssh is not None:
        if session.guest_shell is None:
            raise Refused(f"{name}: {NO_SHELL}")
        return session.guest_shell.start(step)
    from pyVmomi import vim

    spec = vim.vm.guest.ProcessManager.ProgramSpec(programPath=step.program, arguments=step.arguments)
    start = session.guests.processes.StartProgramInGuest
    pid = session.guests.change(start, step.vm, name, spec, op_id=op_id, refusals=CHECKPOINT_REFUSALS)
    if not isinstance(pid, int):
        raise OutcomeUnknown(f"{name}: vCenter returned no process id; whether the program was started is not known")
    return TaskRef(f"guest-process:{step.vm}:{int(pid)}")


def wait(session: Connection, running: Sequence[TaskRef], timeout_s: float) -> Iterator[TaskEnd]:
    """Yield the end of each of these programs and tasks within the time.

    The time is the duration of the waits in vCenter or the time that passed here, whichever is longer.
    """
    # by task: "process" or "ssh", the VM, and the process id (over SSH, the number of the start)
    programs = {task: program.groups() for task in running if (program := _REF.fullmatch(task.ref)) is not None}
    tasks = [task for task in running if task not in programs]
    left_s = max(timeout_s, 0.0)
    while True:
        for end in [end for task, program in programs.items() if (end := _end(session, task, *program))]:
            del programs[end.task]
            yield end
        if left_s <= 0 or not (programs or tasks):
            return
        # vCenter reports the ends of tasks but not of programs, so programs are read again after each slice
        slice_s, asked_at, silent = min(POLL_S, left_s) if programs else left_s, clock.passed_s(), True
        over_ssh = all(kind == "ssh" for kind, _, _ in programs.values())
        vms = [] if over_ssh else [vm for _, vm, _ in programs.values()]
        for end in _let_pass(session, tasks, vms, slice_s):
            silent = False
            tasks.remove(end.task)
            yield end
        left_s -= max(slice_s if silent else 0.0, clock.passed_s() - asked_at)


def withdraw(session: Connection, running: Sequence[TaskRef]) -> None:
    """Cancel the tasks that were queued at their last wait. Programs in guests are never queued."""
    session.tasks.withdraw([task for task in running if _REF.fullmatch(task.ref) is None])


def _let_pass(session: Connection, tasks: Sequence[TaskRef], vms: Iterable[str], slice_s: float) -> Iterator[TaskEnd]:
    """Wait for this time, or until a task ends or a VM powers off; without either, until a program over SSH ends."""
    if tasks:
        yield from session.tasks.wait(tuple(tasks), slice_s)
    elif not vms and session.guest_shell is not None:
        session.guest_shell.wait(slice_s)
    else:
        session.states.wait(POWER, dict.fromkeys(vms, PowerState.OFF.value), slice_s)


def _end(session: Connection, task: TaskRef, kind: str, vm: str, number: str) -> TaskEnd | None:
    """Return how the program ended; None = it still runs."""
    if kind == "ssh":
        shell = session.guest_shell
        return shell.end(task) if shell is not None else TaskEnd(task, OutcomeUnknown(NO_SHELL))
    pid = int(number)
    try:
        processes = session.guests.read(session.guests.processes.ListProcessesInGuest, vm, vm, [pid])
    except NotConnected:
        raise
    except GpuopsError as error:
        return TaskEnd(task, error)
    process = next((candidate for candidate in processes or () if candidate.pid == pid), None)
    if process is None:
        message = f"{vm}: vCenter does not list its program any more, so its exit code is not known"
        return TaskEnd(task, OutcomeUnknown(message))
    if process.endTime is None:
        return None
    began = process.startTime
    with session.decoding("ListProcessesInGuest"):
        duration_s = (process.endTime - began).total_seconds() if began else None
    if process.exitCode:
        return TaskEnd(task, StepFailed(f"its program ended with exit code {int(process.exitCode)}"), duration_s)
    return TaskEnd(task, None, duration_s)
