"""Runs programs and shell commands in guests, through VMware Tools or SSH, and transfers files of guests.

A program: its output is not read, only its exit code counts, so a guest cannot send text of any size (vSphere API
reference, GuestProcessManager: StartProgramInGuest returns a process id, ListProcessesInGuest its exit code, for five
minutes after the end). There is no notification of the end, so the process list is read every few seconds.

A shell command, in Linux guests: it has a temporary directory of its own in its guest, which is removed when its end
has been read. The script `run_command.sh` writes the output there, of which the last 64 KiB are read, and measures the
duration with the clock of the guest in nanoseconds: GuestProcessInfo has whole seconds (from memory), and the calls
themselves take time too.

A file: InitiateFileTransferFromGuest and InitiateFileTransferToGuest return a URL for one request, GET or PUT. The URL
leads to the ESXi host, whose certificate must be the one that vCenter has for the host (vSphere API reference,
GuestFileManager). `*` in place of a host name means this vCenter (from memory, govmomi does so).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shlex
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, ProtocolError, Refused, StepFailed
from gpuops.guest_scripts.script_commands import SHELL, script_text
from gpuops.model.guests.guest import CHECKPOINT_REFUSALS, CommandEnd, RunningCommand
from gpuops.model.vcenter.target import Secret, Target
from gpuops.model.vcenter.task import TaskEnd, TaskRef
from gpuops.model.vcenter.vm import PowerState
from gpuops.vsphere.transport import network
from gpuops.vsphere.transport.exchange import HttpReply, exchange
from gpuops.vsphere.watches import POWER

if TYPE_CHECKING:
    from gpuops.plan.core.steps import RunInGuest
    from gpuops.vsphere.connection import Connection

MOST_BYTES: Final = 1 << 20
"""A longer file is not read at all."""
TRANSFER_S: Final = 60.0
"""The limit for one file."""


class HostUnreached(Refused):
    """The ESXi host that has the file of a guest does not answer: files of its other VMs cannot be fetched either."""


def read_guest_file(session: Connection, vm: str, name: str, path: str) -> bytes:
    """Return the content of a file in the guest. `vm` is the managed object id, `name` the name in errors.

    Raises Refused for a file that is too long or cannot be fetched; the error of vCenter's fault; NotConnected if
    vCenter cannot be reached.
    """
    target = session.vm(vm)
    transfer = session.guests.read(session.guests.files.InitiateFileTransferFromGuest, vm, name, path)
    with session.decoding("InitiateFileTransferFromGuest"):
        url, size = str(transfer.url), int(transfer.size)
    if size > MOST_BYTES:
        raise Refused(
            f"{name}: {path} in its guest is larger than {MOST_BYTES >> 20} MiB, so gpuops did not read it",
            hint="make the file smaller",
        )
    return _transfer(session, target, url, "GET").body


def put_guest_file(session: Connection, vm: str, name: str, path: str, content: Secret) -> None:
    """Write a file of the guest, which its user may read and write, and others may read. Its directory must exist.

    Raises as `read_guest_file`. The content is sent to the ESXi host and is in no log of vCenter.
    """
    from pyVmomi import vim

    attributes = vim.vm.guest.FileManager.PosixFileAttributes(permissions=0o644)
    body, op_id = content.reveal().encode(), f"gpuops-put-{secrets.token_hex(8)}"
    upload = session.guests.files.InitiateFileTransferToGuest
    url = session.guests.change(upload, vm, name, path, attributes, len(body), True, op_id=op_id)
    _transfer(session, session.vm(vm), str(url), "PUT", body)


def _transfer(session: Connection, vm: Any, url: str, verb: str, body: bytes | None = None) -> HttpReply:
    """Send the one request that vCenter made this URL for, and return the reply. Raises Refused if it fails."""
    try:
        transfer_target, path_of_url = _locate(session, url, vm)
        host_connection = network.open_connection(transfer_target, network.tls_context(transfer_target))
    except ValueError as error:
        raise Refused(
            f"vCenter returned no usable URL for the file of the guest: {error}",
            hint="check in vCenter that the host is connected",
        ) from error
    try:
        with closing(host_connection):
            until = clock.passed_s() + TRANSFER_S
            reply = exchange(host_connection, verb, path_of_url, until=until, body=body, largest=MOST_BYTES)
    except (*network.LOST_ERRORS, network.UnreadableReply) as error:
        connection_lost = network.connection_error(transfer_target, error)
        hint = "allow connections from this machine to port 443 of the ESXi hosts"
        raise HostUnreached(connection_lost.message, hint=hint) from error
    if reply.status != 200:
        raise Refused(
            f"{transfer_target.address} answers the request for the file of the guest with HTTP status {reply.status}",
            hint="run the command again",
        )
    return reply


def guest_file_if_there(session: Connection, vm: str, name: str, path: str) -> bytes | None:
    """Return the content of a file in the guest; None if it does not exist (vSphere API reference, FileNotFound)."""
    from pyVmomi import vim

    try:
        return read_guest_file(session, vm, name, path)
    except GpuopsError as error:
        if isinstance(error.__cause__, vim.fault.FileNotFound):
            return None
        raise


def _locate(session: Connection, url: str, vm: Any) -> tuple[Target, str]:
    """Return the server of the URL, with the certificate it must present, and the path with the query.

    Raises ValueError for a URL that cannot be used.
    """
    vcenter, parts = session.target, urlsplit(url)
    if parts.scheme != "https" and vcenter.tls:
        raise ValueError("it is not https")
    path = f"{parts.path}?{parts.query}"
    if not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError("it is not valid")
    port = parts.port
    if parts.hostname == "*":  # the client fills in the address of vCenter
        return replace(vcenter, port=port or vcenter.port), path
    if not parts.hostname:
        raise ValueError("it names no host")
    # an ESXi host gets no password of gpuops, and must present the certificate that vCenter has of it
    pin = _pin(session, vm) if vcenter.tls and vcenter.verify else None
    host_target = replace(vcenter, host=parts.hostname, port=port or 443, username="", password=Secret(""), guest=None)
    return replace(host_target, verify=False, pin=pin), path


def _pin(session: Connection, vm: Any) -> str:
    """Return the SHA-256 of the certificate that vCenter has for the VM's host. Raises Refused."""
    host = session.read(lambda: vm.runtime.host)
    properties_by_host = session.read_properties([host], ["config.certificate"])
    certificate = next(iter(properties_by_host.values()), {}).get("config.certificate")
    if not certificate:
        hint = "give this login System.Read on the hosts"
        raise Refused("the certificate of its ESXi host cannot be read, so nothing is fetched from it", hint=hint)
    return _sha256(certificate)


def _sha256(certificate: Any) -> str:
    """Return the SHA-256 of a certificate in PEM, whose bytes vSphere sends as signed numbers. Raises Refused."""
    try:
        text = bytes(signed_byte & 0xFF for signed_byte in certificate).decode("ascii")
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text.strip())).hexdigest()
    except (TypeError, ValueError) as error:
        raise Refused("vCenter returns no valid certificate of its ESXi host") from error


POLLS_S: Final[tuple[float, ...]] = (0.1, 0.2, 0.4, 0.8, 1.0)
"""Pauses between reads; the last one repeats. The first ones are short, because most scripts end at once."""
OUTPUT_BYTES: Final = 64 * 1024
"""Bytes of the end of the output that are read."""
_PREFIX: Final = "gpuops-"
_EXIT_AND_TIMES: Final = re.compile(r"(\d{1,3}) (\d{1,20}) (\d{1,20})\s*")
"""What run_command.sh writes: exit code, start and end in nanoseconds."""


def start_command(
    session: Connection, vm: str, name: str, command: str, op_id: str, prefix: str = _PREFIX, refusals: int = 1
) -> RunningCommand:
    """Start a command in a new temporary directory of the guest, whose name begins with `prefix`.

    `vm` is the managed object id, `name` the name in errors. After `refusals` refused logins in a row, no further guest
    is tried. Raises Refused without a login for guests, OutcomeUnknown if a reply was lost.
    """
    from pyVmomi import vim

    create_directory = session.guests.files.CreateTemporaryDirectoryInGuest
    directory = session.guests.change(create_directory, vm, name, prefix, "", op_id=op_id, refusals=refusals)
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise ProtocolError(
            f"{name}: vCenter returned no path of a new directory in its guest", hint="run the command again"
        )
    arguments = shlex.join(["-c", script_text("run_command.sh"), "run_command", command, str(OUTPUT_BYTES)])
    spec = vim.vm.guest.ProcessManager.ProgramSpec(programPath=SHELL, arguments=arguments, workingDirectory=directory)
    # without `refusals`: the guest has just accepted the login
    pid = session.guests.change(session.guests.processes.StartProgramInGuest, vm, name, spec, op_id=op_id)
    if not isinstance(pid, int):
        raise OutcomeUnknown(f"{name}: vCenter returned no process id; whether the command was started is not known")
    return RunningCommand(vm, name, int(pid), directory)


def wait_for_commands(
    session: Connection, commands: Sequence[RunningCommand], timeout_s: float
) -> Iterator[CommandEnd]:
    """Yield how each command ended. One that still runs after `timeout_s` seconds is terminated, with an error.

    Raises NotConnected; other errors of a guest are in its `CommandEnd`.
    """
    running = list(commands)
    for _ in clock.rounds(POLLS_S, timeout_s):
        for command in list(running):
            end = command_end(session, command)
            if end is not None:
                running.remove(command)
                yield end
        if not running:
            break
    for command in running:
        end_command(session, command)
        yield CommandEnd(command.name, error=f"it still ran after {timeout_s:.0f} s, and was terminated")


def command_end(session: Connection, command: RunningCommand) -> CommandEnd | None:
    """Return how the command ended and remove its directory; None = it still runs. Raises NotConnected."""
    name = command.name
    try:
        listed = session.guests.read(session.guests.processes.ListProcessesInGuest, command.vm, name, [command.pid])
        process = next((process for process in listed or () if process.pid == command.pid), None)
        if process is not None and process.endTime is None:
            return None
        # it has ended, also if it is not listed: vCenter lists ended programs only for some minutes
        match = _EXIT_AND_TIMES.fullmatch(
            read_guest_file(session, command.vm, name, f"{command.directory}/told").decode("ascii")
        )
        output = read_guest_file(session, command.vm, name, f"{command.directory}/printed.last")
    except NotConnected:
        raise
    except (GpuopsError, UnicodeDecodeError) as error:
        why = error.message if isinstance(error, GpuopsError) else "its exit code cannot be read"
        return CommandEnd(name, error=why)
    _remove_directory(session, command)
    if match is None:
        return CommandEnd(
            name, error="its shell wrote no exit code and times: the guest needs a date command that knows +%s%N"
        )
    took_s = (int(match[3]) - int(match[2])) / 1e9
    code = int(match[1])
    failure = f"it ended with exit code {code}" if code else ""
    if not code and took_s <= 0:
        failure = "its clock went back meanwhile"
    return CommandEnd(name, took_s, code, output.decode("utf-8", "replace"), failure)


def end_command(session: Connection, command: RunningCommand) -> None:
    """Terminate the process of the command. Processes that it started continue."""
    call, op_id = session.guests.processes.TerminateProcessInGuest, f"{_PREFIX}end-{command.pid}"
    # an error has no effect: the VM is removed next, or another command ends all of its processes
    with suppress(GpuopsError):
        session.guests.change(call, command.vm, command.name, command.pid, op_id=op_id)


def _remove_directory(session: Connection, command: RunningCommand) -> None:
    """Remove the temporary directory of the command, if vCenter and the guest permit it."""
    call, op_id = session.guests.files.DeleteDirectoryInGuest, f"{_PREFIX}clear-{command.pid}"
    # an error has no effect: the VM is removed next, and its disk with it
    with suppress(GpuopsError):
        session.guests.change(call, command.vm, command.name, command.directory, True, op_id=op_id)


POLL_S: Final = 5.0
"""Pause between reads of the process list."""
_PROGRAM_REF: Final = re.compile(r"guest-(process|ssh):([^:]+):([0-9]+)")
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
    programs = {task: program.groups() for task in running if (program := _PROGRAM_REF.fullmatch(task.ref)) is not None}
    tasks = [task for task in running if task not in programs]
    left_s = max(timeout_s, 0.0)
    while True:
        for end in [end for task, program in programs.items() if (end := _program_end(session, task, *program))]:
            del programs[end.task]
            yield end
        if left_s <= 0 or not (programs or tasks):
            return
        # vCenter reports the ends of tasks but not of programs, so programs are read again after each slice
        slice_s, began_s, has_ended = min(POLL_S, left_s) if programs else left_s, clock.passed_s(), False
        only_ssh = all(kind == "ssh" for kind, _, _ in programs.values())
        vms = [] if only_ssh else [vm for _, vm, _ in programs.values()]
        for end in _wait_for_an_end(session, tasks, vms, slice_s):
            has_ended = True
            tasks.remove(end.task)
            yield end
        left_s -= max(0.0 if has_ended else slice_s, clock.passed_s() - began_s)


def withdraw(session: Connection, running: Sequence[TaskRef]) -> None:
    """Cancel the tasks that were queued at their last wait. Programs in guests are never queued."""
    session.tasks.withdraw([task for task in running if _PROGRAM_REF.fullmatch(task.ref) is None])


def _wait_for_an_end(
    session: Connection, tasks: Sequence[TaskRef], vms: Iterable[str], slice_s: float
) -> Iterator[TaskEnd]:
    """Wait for this time, or until a task ends (which is yielded), a VM powers off, or a program over SSH ends."""
    if tasks:
        yield from session.tasks.wait(tuple(tasks), slice_s)
    elif not vms and session.guest_shell is not None:
        session.guest_shell.wait(slice_s)
    else:
        session.states.wait(POWER, dict.fromkeys(vms, PowerState.OFF.value), slice_s)


def _program_end(session: Connection, task: TaskRef, kind: str, vm: str, number: str) -> TaskEnd | None:
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
        message = f"{vm}: vCenter does not list the program in its guest any more, so its exit code is not known"
        return TaskEnd(task, OutcomeUnknown(message))
    if process.endTime is None:
        return None
    began = process.startTime
    with session.decoding("ListProcessesInGuest"):
        duration_s = (process.endTime - began).total_seconds() if began else None
    if process.exitCode:
        return TaskEnd(task, StepFailed(f"its program ended with exit code {int(process.exitCode)}"), duration_s)
    return TaskEnd(task, None, duration_s)
