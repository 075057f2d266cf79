"""Logs in to guests, starts programs there, and shows their processes; `services.guest_managers` calls it.

Faults as the vSphere API reference declares them (GuestProcessManager, GuestAuthManager). A guest that declares no user
does not take part in guest operations: it answers OperationDisabledByGuest, as VMware Tools does when they are off.
Where a scenario says so programs really run (`guests`); a path that its own directory does not have is this machine's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.guests.guest_files import follow_in_guest, locate_in_guest
from gpuops.sim.guests.marked_processes import end_all
from gpuops.sim.guests.real_guests import RealProcess
from gpuops.sim.inventory import faults
from gpuops.sim.operations.guests.guest_files import fault_of
from gpuops.sim.render.devices import identity
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity

KEPT: Final = timedelta(minutes=5)
"""How long the end of a program can be asked for (vSphere API reference, ListProcessesInGuest)."""
QUERY: Final = "VirtualMachine.GuestOperations.Query"
EXECUTE: Final = "VirtualMachine.GuestOperations.Execute"
MODIFY: Final = "VirtualMachine.GuestOperations.Modify"


@dataclass(frozen=True, slots=True)
class Process:
    """One that was started; it ends by itself, or with the guest that it runs in."""

    vm: str
    pid: int
    path: str
    arguments: str
    owner: str
    boot_time: datetime | None
    started_at: datetime
    ends_at: datetime | None
    exit_code: int


def admit(vm: VmEntity, auth: Any) -> str:
    """The guest user who logs in. Raises the fault that VMware Tools, or their absence, answer with."""
    vm.refuse_while_asked()
    if vm.state.power is not Power.ON:
        raise faults.wrong_power_state(vm.state.power, Power.ON)
    template = vm.state.template
    if not vm.state.tools_run:
        raise vim.fault.GuestOperationsUnavailable(msg="The guest operations agent could not be contacted.")
    if template.login is None:
        raise vim.fault.OperationDisabledByGuest(msg="The operation has been disabled by the guest operating system.")
    if not isinstance(auth, vim.vm.guest.NamePasswordAuthentication) or (auth.username, auth.password) != (
        template.login.username,
        template.login.password,
    ):
        raise vim.fault.InvalidGuestLogin(msg="Failed to authenticate with the guest operating system.")
    return template.login.username


def file_change(vm: VmEntity, spec: Any) -> tuple[str, bytes | None] | None:
    """The file of the guest that the program writes, with its content, or removes (None); None = it touches none.

    Only what a scenario declares: no shell is modelled, and a file is there as soon as its program is started.
    """
    program = next((candidate for candidate in vm.state.template.programs if candidate.path == spec.programPath), None)
    words = (spec.arguments or "").rstrip("\"'").split()
    if program is None or not words:
        return None
    if program.prints is None or "> " not in spec.arguments:
        return (words[-1], None) if program.removes else None
    epoch = int(vm.world.clock.now().timestamp() + vm.state.template.clock_ahead_s)
    return words[-1], program.prints.replace("@EPOCH@", str(epoch)).encode()


def start_program(vm: VmEntity, pid: int, owner: str, spec: Any) -> Process:
    """The process of that program. Raises FileNotFound where the guest has none at that path."""
    program = next((candidate for candidate in vm.state.template.programs if candidate.path == spec.programPath), None)
    if program is None:
        raise vim.fault.FileNotFound(msg=f"File {spec.programPath} was not found", file=spec.programPath)
    now = vm.world.clock.now()
    ends_at = None if program.takes_s is None else now + timedelta(seconds=program.takes_s)
    return Process(
        vm.moid, pid, program.path, spec.arguments or "", owner, vm.state.boot_time, now, ends_at, program.exit_code
    )


def resident(vm: VmEntity) -> list[Any]:
    """GuestProcessInfo of what its system runs, and of what each user with a session does; all that is modelled."""
    linux, began = vm.state.template.linux, vm.state.boot_time
    first, system = ("systemd", "root") if linux else ("System", "NT AUTHORITY\\SYSTEM")
    shell, command = (
        ("systemd", "/usr/lib/systemd/systemd --user") if linux else ("explorer.exe", "C:\\Windows\\Explorer.EXE")
    )
    of_users = [
        (shell, guest_user.name, command, guest_user.since)
        for guest_user in vm.state.guest_users
        if guest_user.boot_time == began
    ]
    return [
        vim.vm.guest.ProcessManager.ProcessInfo(name=name, pid=pid, owner=owner, cmdLine=line, startTime=since)
        for pid, (name, owner, line, since) in enumerate(
            [(first, system, first, began or vm.state.created_at), *of_users], 1
        )
    ]


def process_info(process: Process, vm: VmEntity) -> Any:
    """GuestProcessInfo; None when it is forgotten, or its guest has been started anew since."""
    now = vm.world.clock.now()
    if vm.state.boot_time != process.boot_time:
        return None
    ended_at = process.ends_at if process.ends_at is not None and process.ends_at <= now else None
    return _process_info(process, f"{process.path} {process.arguments}".rstrip(), ended_at, now)


def shown_really(process: RealProcess, now: datetime) -> Any:
    """GuestProcessInfo; None when it is forgotten."""
    return _process_info(process, process.command, process.ended_at, now)


def _process_info(process: Process | RealProcess, command: str, ended_at: datetime | None, now: datetime) -> Any:
    if ended_at is not None and now - ended_at > KEPT:
        return None
    return vim.vm.guest.ProcessManager.ProcessInfo(
        name=process.path.rpartition("/")[2],
        pid=process.pid,
        owner=process.owner,
        cmdLine=command,
        startTime=process.started_at,
        endTime=ended_at,
        exitCode=process.exit_code if ended_at is not None else None,
    )


def started_really(vm: VmEntity, owner: str, spec: Any) -> RealProcess:
    """A program that runs on this machine. Raises FileNotFound, CannotAccessFile or GuestPermissionDenied."""
    guests = vm.world.guests
    root = guests.guest(vm.moid).root
    try:
        program = _program(root, spec.programPath)
        directory = follow_in_guest(root, spec.workingDirectory) if spec.workingDirectory else root / "root"
        if not directory.is_dir():
            raise FileNotFoundError(spec.workingDirectory)
        variables = dict(assignment.partition("=")[::2] for assignment in spec.envVariables)
        environment = {**guests.environment(vm.moid), **_guest_variables(vm), **variables}
        arguments = spec.arguments or ""
        return guests.start(
            vm.moid, vm.state.boot_time, owner, (spec.programPath, program, arguments), directory, environment
        )
    except (OSError, ValueError) as error:
        raise fault_of(error, spec.programPath) from error


def terminate_process(vm: VmEntity, pid: int) -> None:
    """End a process that was started, with those that it started. Raises GuestProcessNotFound."""
    process = next((candidate for candidate in vm.world.guests.processes(vm.moid) if candidate.pid == pid), None)
    if process is None or process.ended_at is not None:
        raise vim.fault.GuestProcessNotFound(msg=f"There is no process {pid} in the guest.", pid=pid)
    end_all(process.mark)


def variables(vm: VmEntity, names: list[str]) -> list[str]:
    """`NAME=value` of those that every program in the guest has; of all without names."""
    environment = {**vm.world.guests.environment(vm.moid), **_guest_variables(vm)}
    return [f"{name}={environment[name]}" for name in names or sorted(environment) if name in environment]


def _guest_variables(vm: VmEntity) -> dict[str, str]:
    """What a guest knows of itself: its name, its address, and `HOST/GPU/PROFILE` of each GPU that it has."""
    host, state = vm.host().name, vm.state
    shared = [f"{host}/{seat.pci_id}/{seat.type.name}" for seat in state.seats]
    whole = [f"{host}/{pci_id}/" for _, pci_id in state.held if vm.host().state.gpu(pci_id) is not None]
    return {
        "GPUOPS_GUEST_NAME": state.name,
        "GPUOPS_GUEST_ADDRESS": identity(state).address,
        "GPUOPS_GUEST_GPUS": " ".join([*shared, *whole]),
    }


def _program(root: Path, path: str) -> Path:
    """Where it is: in the directory of the guest, else on this machine. Raises OSError."""
    guest_path = locate_in_guest(root, path) if path.startswith("/") else None
    executable = guest_path if guest_path is not None and guest_path.exists() else Path(path)
    if not executable.is_absolute() or not executable.is_file():
        raise FileNotFoundError(path)
    if not os.access(executable, os.X_OK):
        raise PermissionError(path)
    return executable
