"""Runs shell commands in Linux guests through VMware Tools, and reads how each ended, its duration and its output.

A command has a temporary directory of its own in its guest, which is removed when its end has been read. The script
`run_command.sh` writes the output there, of which the last 64 KiB are read, and measures the duration with the clock of
the guest in nanoseconds: GuestProcessInfo has whole seconds (from memory), and the calls themselves take time too.

Sources: vSphere API reference, GuestFileManager and GuestProcessManager.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gpuops import clock
from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, ProtocolError
from gpuops.guest_scripts.commands import SHELL, script_text
from gpuops.model.guests.guest import CommandEnd, RunningCommand
from gpuops.vsphere.guests.guest_file import read_guest_file

if TYPE_CHECKING:
    from gpuops.vsphere.connection import Connection

POLLS_S: Final[tuple[float, ...]] = (0.1, 0.2, 0.4, 0.8, 1.0)
"""Pauses between reads; the last one repeats. The first ones are short, because most scripts end at once."""
PRINTED: Final = 64 * 1024
"""Bytes of the end of the output that are read."""
_PREFIX: Final = "gpuops-"
_END: Final = re.compile(r"(\d{1,3}) (\d{1,20}) (\d{1,20})\s*")


def start_command(
    session: Connection, vm: str, name: str, command: str, op_id: str, prefix: str = _PREFIX, refusals: int = 1
) -> RunningCommand:
    """Start a command in a new temporary directory of the guest, whose name begins with `prefix`.

    `vm` is the managed object id, `name` the name in errors. After `refusals` refused logins in a row, no further guest
    is tried. Raises Refused without a login for guests, OutcomeUnknown if a reply was lost.
    """
    from pyVmomi import vim

    make = session.guests.files.CreateTemporaryDirectoryInGuest
    directory = session.guests.change(make, vm, name, prefix, "", op_id=op_id, refusals=refusals)
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise ProtocolError(f"{name}: vCenter returned no path of a new directory in its guest")
    arguments = shlex.join(["-c", script_text("run_command.sh"), "run_command", command, str(PRINTED)])
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
        # it has ended: vCenter lists ended programs only for some minutes; `told` has exit code, start and end
        match = _END.fullmatch(read_guest_file(session, command.vm, name, f"{command.directory}/told").decode("ascii"))
        printed = read_guest_file(session, command.vm, name, f"{command.directory}/printed.last")
    except NotConnected:
        raise
    except (GpuopsError, UnicodeDecodeError) as error:
        why = error.message if isinstance(error, GpuopsError) else "its exit code cannot be read"
        return CommandEnd(name, error=why)
    _remove(session, command)
    if match is None:
        return CommandEnd(name, error="its shell wrote no exit code and times: it needs date +%s%N")
    took_s = (int(match[3]) - int(match[2])) / 1e9
    code = int(match[1])
    failure = f"it ended with exit code {code}" if code else "" if took_s > 0 else "its clock went back meanwhile"
    return CommandEnd(name, took_s, code, printed.decode("utf-8", "replace"), failure)


def end_command(session: Connection, command: RunningCommand) -> None:
    """Terminate the process of the command. Processes that it started continue."""
    call, op_id = session.guests.processes.TerminateProcessInGuest, f"{_PREFIX}end-{command.pid}"
    # its VM is removed next, or all of its processes are ended by another command
    with suppress(GpuopsError):
        session.guests.change(call, command.vm, command.name, command.pid, op_id=op_id)


def _remove(session: Connection, command: RunningCommand) -> None:
    call, op_id = session.guests.files.DeleteDirectoryInGuest, f"{_PREFIX}clear-{command.pid}"
    # its VM is removed next, and its disk with it
    with suppress(GpuopsError):
        session.guests.change(call, command.vm, command.name, command.directory, True, op_id=op_id)
