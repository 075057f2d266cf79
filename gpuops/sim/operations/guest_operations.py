"""Logs in to guests, starts programs there, shows their processes, and works on their files.

Faults as the vSphere API reference declares them (GuestProcessManager, GuestAuthManager, GuestFileManager). A guest
without a declared user raises OperationDisabledByGuest, as VMware Tools do when guest operations are disabled. If a
scenario says so, programs really run (`guests`); a program that the guest's own directory does not have is taken from
this machine. A guest whose processes are not real has no files and raises NotSupported.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.guests.marked_processes import end_all
from gpuops.sim.guests.real_guests import (
    MAX_TRANSFER_BYTES,
    FileTransfer,
    RealProcess,
    follow_in_guest,
    locate_in_guest,
    temporary_name,
)
from gpuops.sim.inventory import faults
from gpuops.sim.render.devices import identity
from gpuops.sim.state.vm_state import Power

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity

DEFAULT_LISTING_LENGTH: Final = 50
"""Files in a listing if the client sets no number (vSphere API reference, ListFilesInGuest)."""


def fault_of(error: Exception, path: str) -> Exception:
    """Return the vim fault with which VMware Tools report an error of the guest's operating system about `path`."""
    error_number = getattr(error, "errno", None)
    fault: Exception
    if isinstance(error, PermissionError):
        fault = vim.fault.GuestPermissionDenied(msg=f"The guest user does not have access to {path}.")
    elif isinstance(error, FileNotFoundError):
        fault = vim.fault.FileNotFound(msg=f"File {path} was not found", file=path)
    elif isinstance(error, FileExistsError):
        fault = vim.fault.FileAlreadyExists(msg=f"File {path} already exists", file=path)
    elif isinstance(error, NotADirectoryError):
        fault = vim.fault.NotADirectory(msg=f"File {path} is not a directory", file=path)
    elif error_number == errno.ENOTEMPTY:
        fault = vim.fault.DirectoryNotEmpty(msg=f"Directory {path} is not empty", file=path)
    else:
        fault = vim.fault.CannotAccessFile(msg=f"Unable to access file {path}", file=path)
    return fault


def root_of(vm: VmEntity) -> Path:
    """Return the directory with the guest's files. Raises NotSupported for a guest that has no files."""
    if not vm.state.template.real_processes:
        raise faults.not_supported("The guest has no files: its processes are not real in this scenario.")
    root: Path = vm.world.guests.guest(vm.moid).root
    return root


def make_directory(vm: VmEntity, path: str, *, parents: bool) -> None:
    """Make a directory; with `parents`, also the missing directories above it. Raises FileAlreadyExists."""
    with _guest_faults(path):
        locate_in_guest(root_of(vm), path).mkdir(parents=parents)


def delete_file(vm: VmEntity, path: str) -> None:
    """Delete a file or a link. Raises FileNotFound, NotAFile for a directory."""
    with _guest_faults(path):
        place = locate_in_guest(root_of(vm), path)
        if place.is_dir() and not place.is_symlink():
            raise vim.fault.NotAFile(msg=f"{path} is a directory", file=path)
        place.unlink()


def delete_directory(vm: VmEntity, path: str, *, recursive: bool) -> None:
    """Delete a directory; with `recursive`, also its content. Raises DirectoryNotEmpty."""
    with _guest_faults(path):
        root = root_of(vm)
        place = locate_in_guest(root, path)
        if place == root.resolve():
            raise PermissionError(path)
        if recursive:
            shutil.rmtree(place)
        else:
            place.rmdir()


def move(vm: VmEntity, source: str, target: str, *, overwrite: bool) -> None:
    """Move a file or a directory to another path. Raises FileAlreadyExists unless `overwrite` is set."""
    with _guest_faults(source):
        root = root_of(vm)
        place, target_place = locate_in_guest(root, source), locate_in_guest(root, target)
        place.lstat()  # raises FileNotFoundError
        if target_place.exists() and not overwrite:
            raise vim.fault.FileAlreadyExists(msg=f"File {target} already exists", file=target)
        place.rename(target_place)


def make_temporary_file(vm: VmEntity, prefix: str, suffix: str, directory: str | None) -> str:
    """Make a file with a free name. Return its path on this machine, so that a shell in the guest finds it."""
    with _guest_faults(directory or "/tmp"):  # noqa: S108 - a path of the guest
        place = _free_place(vm, prefix, suffix, directory)
        place.touch(0o600, exist_ok=False)
        return str(place)


def make_temporary_directory(vm: VmEntity, prefix: str, suffix: str, directory: str | None) -> str:
    """Make a directory with a free name. Return its path on this machine."""
    with _guest_faults(directory or "/tmp"):  # noqa: S108 - a path of the guest
        place = _free_place(vm, prefix, suffix, directory)
        place.mkdir(0o700)
        return str(place)


def _free_place(vm: VmEntity, prefix: str, suffix: str, directory: str | None) -> Path:
    parent = follow_in_guest(root_of(vm), directory or "/tmp")  # noqa: S108 - a path of the guest
    return parent / temporary_name(vm.world.guests.next_number(), prefix, suffix)


def change_attributes(vm: VmEntity, path: str, attributes: Any) -> None:
    """Set the permissions and times of a guest file; the owner is not changed. Raises FileNotFound."""
    with _guest_faults(path):
        place = follow_in_guest(root_of(vm), path)
        status = place.stat()
        times = [attributes.accessTime, attributes.modificationTime]
        if any(times):
            access_time, modification_time = times
            os.utime(
                place, (_timestamp_or(access_time, status.st_atime), _timestamp_or(modification_time, status.st_mtime))
            )
        permissions = getattr(attributes, "permissions", None)
        if permissions is not None:
            place.chmod(permissions & 0o7777)


def list_files(vm: VmEntity, path: str, first: int, most: int | None, pattern: str | None) -> Any:
    """Return the ListFileInfo of a file, or of a directory's entries from index `first`, at most `most` of them.

    `pattern` is a regular expression that names must contain. Raises InvalidArgument if it is not valid.
    """
    with _guest_faults(path):
        place = follow_in_guest(root_of(vm), path)
        if place.is_dir():
            names = [(".", place), ("..", place.parent), *((child.name, child) for child in sorted(place.iterdir()))]
        else:
            place.stat()  # raises FileNotFoundError
            names = [(path, place)]
        try:
            name_pattern = re.compile(pattern or ".*")
        except re.error:
            raise faults.wrong_argument("matchPattern") from None
        files = [_file_info(name, file) for name, file in names if name_pattern.search(name)]
    page = files[first : first + (DEFAULT_LISTING_LENGTH if most is None else most)]
    return vim.vm.guest.FileManager.ListFileInfo(files=page, remaining=max(0, len(files) - first - len(page)))


def download(vm: VmEntity, path: str) -> Any:
    """Return the FileTransferInformation with the URL of a download.

    Raises FileNotFound, NotAFile for anything but a regular file, FileTooLarge.
    """
    with _guest_faults(path):
        place = follow_in_guest(root_of(vm), path)
        status = place.stat()
        if not stat.S_ISREG(status.st_mode):
            raise vim.fault.NotAFile(msg=f"{path} is not a regular file", file=path)
        if status.st_size > MAX_TRANSFER_BYTES:
            raise vim.fault.FileTooLarge(
                msg=f"{path} is too large",
                file=path,
                datastore="",
                fileSize=status.st_size,
                maxFileSize=MAX_TRANSFER_BYTES,
            )
        url = vm.world.guests.transfers.begin(FileTransfer(place, upload=False))
        return vim.vm.guest.FileManager.FileTransferInformation(
            attributes=_attributes(place, status), size=status.st_size, url=url
        )


def upload(vm: VmEntity, path: str, attributes: Any, size: int, *, overwrite: bool) -> str:
    """Return the URL for an upload. Raises FileAlreadyExists, and FileNotFound if the directory does not exist."""
    with _guest_faults(path):
        place = follow_in_guest(root_of(vm), path)
        if place.is_dir() or (place.exists() and not overwrite):
            raise FileExistsError(path)
        place.parent.stat()  # raises FileNotFoundError
        permissions = getattr(attributes, "permissions", None)
        transfer = FileTransfer(place, upload=True, size=size, permissions=permissions, overwrite=overwrite)
        url: str = vm.world.guests.transfers.begin(transfer)
        return url


@contextmanager
def _guest_faults(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise fault_of(error, path) from error


def _file_info(name: str, place: Path) -> Any:
    status = place.lstat()
    kind = "directory" if stat.S_ISDIR(status.st_mode) else "symlink" if stat.S_ISLNK(status.st_mode) else "file"
    return vim.vm.guest.FileManager.FileInfo(
        path=name, type=kind, size=status.st_size, attributes=_attributes(place, status)
    )


def _attributes(place: Path, status: os.stat_result) -> Any:
    return vim.vm.guest.FileManager.PosixFileAttributes(
        modificationTime=datetime.fromtimestamp(int(status.st_mtime), UTC),
        accessTime=datetime.fromtimestamp(int(status.st_atime), UTC),
        symlinkTarget=str(place.readlink()) if place.is_symlink() else "",
        ownerId=status.st_uid,
        groupId=status.st_gid,
        permissions=stat.S_IMODE(status.st_mode),
    )


def _timestamp_or(moment: datetime | None, default_s: float) -> float:
    return default_s if moment is None else moment.timestamp()


REPORTED_AFTER_END: Final = timedelta(minutes=5)
"""How long a process is listed after its end (vSphere API reference, ListProcessesInGuest)."""
QUERY: Final = "VirtualMachine.GuestOperations.Query"
EXECUTE: Final = "VirtualMachine.GuestOperations.Execute"
MODIFY: Final = "VirtualMachine.GuestOperations.Modify"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is only simulated; it ends at `ends_at`, or with the guest that it runs in."""

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
    """Return the name of the guest user who logs in. Raises a vim fault if the VM is off, Tools do not run, or the
    guest refuses the login."""
    vm.refuse_while_question_pending()
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
    """Return (path, content) of the guest file that a program writes; content None means that it removes the file.

    Returns None if the program changes no file. Only the programs that a scenario declares change files: no shell is
    simulated, and the change is made at once when the program starts.
    """
    program = next((candidate for candidate in vm.state.template.programs if candidate.path == spec.programPath), None)
    # the path is the last word: of `-c "date > /tmp/marker"` it is /tmp/marker, without the closing quote
    words = (spec.arguments or "").rstrip("\"'").split()
    if program is None or not words:
        return None
    if program.prints is None or "> " not in spec.arguments:  # without a redirect no output reaches a file
        return (words[-1], None) if program.removes else None
    epoch = int(vm.world.clock.now().timestamp() + vm.state.template.clock_ahead_s)
    return words[-1], program.prints.replace("@EPOCH@", str(epoch)).encode()


def start_program(vm: VmEntity, pid: int, owner: str, spec: Any) -> Process:
    """Return a new simulated process of a declared program. Raises FileNotFound for a program that is not declared."""
    program = next((candidate for candidate in vm.state.template.programs if candidate.path == spec.programPath), None)
    if program is None:
        raise vim.fault.FileNotFound(msg=f"File {spec.programPath} was not found", file=spec.programPath)
    now = vm.world.clock.now()
    ends_at = None if program.takes_s is None else now + timedelta(seconds=program.takes_s)
    return Process(
        vm.moid, pid, program.path, spec.arguments or "", owner, vm.state.boot_time, now, ends_at, program.exit_code
    )


def resident_processes(vm: VmEntity) -> list[Any]:
    """Return the GuestProcessInfo of the first system process and of one process for each user with a session."""
    linux, boot_time = vm.state.template.linux, vm.state.boot_time
    first, first_owner = ("systemd", "root") if linux else ("System", "NT AUTHORITY\\SYSTEM")
    shell, command = (
        ("systemd", "/usr/lib/systemd/systemd --user") if linux else ("explorer.exe", "C:\\Windows\\Explorer.EXE")
    )
    of_users = [
        (shell, guest_user.name, command, guest_user.since)
        for guest_user in vm.state.guest_users
        if guest_user.boot_time == boot_time  # sessions from before the last boot have ended
    ]
    return [
        vim.vm.guest.ProcessManager.ProcessInfo(name=name, pid=pid, owner=owner, cmdLine=line, startTime=since)
        for pid, (name, owner, line, since) in enumerate(
            [(first, first_owner, first, boot_time or vm.state.created_at), *of_users], 1
        )
    ]


def process_info(process: Process, vm: VmEntity) -> Any:
    """Return the GuestProcessInfo of a simulated process; None if it ended long ago, or its guest has booted since."""
    now = vm.world.clock.now()
    if vm.state.boot_time != process.boot_time:
        return None
    ended_at = process.ends_at if process.ends_at is not None and process.ends_at <= now else None
    return _process_info(process, f"{process.path} {process.arguments}".rstrip(), ended_at, now)


def real_process_info(process: RealProcess, now: datetime) -> Any:
    """Return the GuestProcessInfo of a real process; None if it ended long ago."""
    return _process_info(process, process.command, process.ended_at, now)


def _process_info(process: Process | RealProcess, command: str, ended_at: datetime | None, now: datetime) -> Any:
    """Return a GuestProcessInfo; None for a process that ended so long ago that Tools no longer report it."""
    if ended_at is not None and now - ended_at > REPORTED_AFTER_END:
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


def start_real_program(vm: VmEntity, owner: str, spec: Any) -> RealProcess:
    """Start the program of a GuestProgramSpec as a process of this machine and return it.

    Raises FileNotFound, CannotAccessFile or GuestPermissionDenied.
    """
    guests = vm.world.guests
    root = guests.guest(vm.moid).root
    try:
        program = _executable(root, spec.programPath)
        directory = follow_in_guest(root, spec.workingDirectory) if spec.workingDirectory else root / "root"
        if not directory.is_dir():
            raise FileNotFoundError(spec.workingDirectory)
        # "NAME=text" becomes ("NAME", "text")
        variables = dict(assignment.partition("=")[::2] for assignment in spec.envVariables)
        environment = {**guests.environment(vm.moid), **_guest_variables(vm), **variables}
        arguments = spec.arguments or ""
        return guests.start(
            vm.moid, vm.state.boot_time, owner, (spec.programPath, program, arguments), directory, environment
        )
    except (OSError, ValueError) as error:
        raise fault_of(error, spec.programPath) from error


def terminate_process(vm: VmEntity, pid: int) -> None:
    """End a real process and the processes that it started. Raises GuestProcessNotFound."""
    process = next((candidate for candidate in vm.world.guests.processes(vm.moid) if candidate.pid == pid), None)
    if process is None or process.ended_at is not None:
        raise vim.fault.GuestProcessNotFound(msg=f"There is no process {pid} in the guest.", pid=pid)
    end_all(process.mark)


def variables(vm: VmEntity, names: list[str]) -> list[str]:
    """Return `NAME=value` of the environment variables of guest programs: those in `names`, or all without names."""
    environment = {**vm.world.guests.environment(vm.moid), **_guest_variables(vm)}
    return [f"{name}={environment[name]}" for name in names or sorted(environment) if name in environment]


def _guest_variables(vm: VmEntity) -> dict[str, str]:
    """Return the variables that describe a guest: name, address, and its GPUs as `HOST/GPU/PROFILE` or `HOST/GPU/`."""
    host, state = vm.host().name, vm.state
    vgpus = [f"{host}/{seat.pci_id}/{seat.type.name}" for seat in state.seats]
    whole_gpus = [f"{host}/{pci_id}/" for _, pci_id in state.held if vm.host().state.gpu(pci_id) is not None]
    return {
        "GPUOPS_GUEST_NAME": state.name,
        "GPUOPS_GUEST_ADDRESS": identity(state).address,
        "GPUOPS_GUEST_GPUS": " ".join([*vgpus, *whole_gpus]),
    }


def _executable(root: Path, path: str) -> Path:
    """Return the program's path in the guest's directory, else on this machine. Raises OSError if it cannot run."""
    guest_path = locate_in_guest(root, path) if path.startswith("/") else None
    executable = guest_path if guest_path is not None and guest_path.exists() else Path(path)
    if not executable.is_absolute() or not executable.is_file():
        raise FileNotFoundError(path)
    if not os.access(executable, os.X_OK):
        raise PermissionError(path)
    return executable
