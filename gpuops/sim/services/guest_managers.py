"""The managers of guest operations: logins in guests, programs that are started there, and files; no aliases.

A file of a guest is transferred by a URL with a token that holds once (vSphere API, InitiateFileTransferFromGuest).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method
from gpuops.sim.guests.real_guests import FileTransfer
from gpuops.sim.operations import guest_operations

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.world import World

PARTS: Final = {
    "guestOperationsAliasManager": "GuestAliasManager",
    "guestOperationsWindowsRegistryManager": "GuestWindowsRegistryManager",
}
"""Moid and type of its managers that are not simulated."""


def enter_guest(world: World, call: Call, vm: Any, auth: Any, privilege: str) -> Any:
    """Return the VM. Raises NoPermission without the privilege, or a fault if the guest refuses the login."""
    guest_vm = world.get(vm)
    world.authority.require(call, guest_vm, privilege)
    guest_operations.admit(guest_vm, auth)
    return guest_vm


class GuestOperationsManager(ManagedObject):
    """Leads to the managers of guest operations."""

    wsdl_name = "GuestOperationsManager"
    world: World

    property_table: ClassVar[Properties] = {
        "processManager": lambda self: self.world.get("guestOperationsProcessManager"),
        "authManager": lambda self: self.world.get("guestOperationsAuthManager"),
        "fileManager": lambda self: self.world.get("guestOperationsFileManager"),
        "aliasManager": lambda self: self.world.get("guestOperationsAliasManager"),
        "guestWindowsRegistryManager": lambda self: self.world.get("guestOperationsWindowsRegistryManager"),
    }


class GuestAuthManager(ManagedObject):
    """User names and passwords only: no tickets, no tokens."""

    wsdl_name = "GuestAuthManager"
    world: World

    @method
    def ValidateCredentialsInGuest(self, call: Call, vm: Any, auth: Any) -> None:
        enter_guest(self.world, call, vm, auth, guest_operations.QUERY)


FIRST_PID: Final = 2001


class GuestProcessManager(ManagedObject):
    """The processes of all guests; like running tasks, they are not part of a saved state."""

    wsdl_name = "GuestProcessManager"
    world: World

    def __init__(self, world: World, moid: str) -> None:
        super().__init__(world, moid)
        self.processes: list[guest_operations.Process] = []
        self._pids = itertools.count(FIRST_PID)

    @method
    def StartProgramInGuest(self, call: Call, vm: Any, auth: Any, spec: Any) -> int:
        """Start a program and return its process id; it only runs on this machine if the guest has real processes."""
        guest_vm = enter_guest(self.world, call, vm, auth, guest_operations.EXECUTE)
        owner = guest_operations.admit(guest_vm, auth)
        if guest_vm.state.template.real_processes:
            real = guest_operations.start_real_program(guest_vm, owner, spec)
            self.world.ledger.record(call, guest_vm, before={}, after={"program": real.path})
            return real.pid
        process = guest_operations.start_program(guest_vm, next(self._pids), owner, spec)
        self.processes.append(process)
        if (change := guest_operations.file_change(guest_vm, spec)) is not None:
            self.world.get("guestOperationsFileManager").change(guest_vm, *change)
        self.world.ledger.record(call, guest_vm, before={}, after={"program": process.path})
        if process.ends_at is not None:  # a timer without effect: virtual time jumps to it when a client waits
            self.world.clock.schedule((process.ends_at - process.started_at).total_seconds(), lambda: None)
        return process.pid

    @method
    def ListProcessesInGuest(self, call: Call, vm: Any, auth: Any, pids: list[int]) -> list[Any]:
        """Return the processes with these ids, or without ids all of them and those that every guest has."""
        guest_vm = enter_guest(self.world, call, vm, auth, guest_operations.QUERY)
        requested_processes = [
            process for process in self.processes if process.vm == guest_vm.moid and (not pids or process.pid in pids)
        ]
        started = [
            info
            for process in requested_processes
            if (info := guest_operations.process_info(process, guest_vm)) is not None
        ]
        now, real = self.world.clock.now(), self.world.guests.processes(guest_vm.moid)
        real_processes = (
            guest_operations.real_process_info(process, now) for process in real if not pids or process.pid in pids
        )
        started += [info for info in real_processes if info is not None]
        return [*guest_operations.resident_processes(guest_vm), *started] if not pids else started

    @method
    def TerminateProcessInGuest(self, call: Call, vm: Any, auth: Any, pid: int) -> None:
        guest_vm = enter_guest(self.world, call, vm, auth, guest_operations.EXECUTE)
        guest_operations.terminate_process(guest_vm, pid)

    @method
    def ReadEnvironmentVariableInGuest(self, call: Call, vm: Any, auth: Any, names: list[str]) -> list[str]:
        guest_vm = enter_guest(self.world, call, vm, auth, guest_operations.QUERY)
        guest_operations.root_of(guest_vm)
        return guest_operations.variables(guest_vm, names)


class GuestFileManager(ManagedObject):
    """Files of guests. If a guest's programs are only declared, clients can fetch what these printed, and nothing else.

    What was printed is not part of a saved state, and it is lost when the guest boots again.
    """

    wsdl_name = "GuestFileManager"
    world: World

    method_table: ClassVar[Methods] = {
        "MakeDirectoryInGuest": lambda self, call, vm, auth, directoryPath, createParentDirectories: (
            guest_operations.make_directory(
                self._enter_to_modify(call, vm, auth), directoryPath, parents=createParentDirectories
            )
        ),
        "DeleteFileInGuest": lambda self, call, vm, auth, filePath: guest_operations.delete_file(
            self._enter_to_modify(call, vm, auth), filePath
        ),
        "DeleteDirectoryInGuest": lambda self, call, vm, auth, directoryPath, recursive: (
            guest_operations.delete_directory(self._enter_to_modify(call, vm, auth), directoryPath, recursive=recursive)
        ),
        "MoveFileInGuest": lambda self, call, vm, auth, srcFilePath, dstFilePath, overwrite: guest_operations.move(
            self._enter_to_modify(call, vm, auth), srcFilePath, dstFilePath, overwrite=overwrite
        ),
        "CreateTemporaryFileInGuest": lambda self, call, vm, auth, prefix, suffix, directoryPath: (
            guest_operations.make_temporary_file(self._enter_to_modify(call, vm, auth), prefix, suffix, directoryPath)
        ),
        "CreateTemporaryDirectoryInGuest": lambda self, call, vm, auth, prefix, suffix, directoryPath: (
            guest_operations.make_temporary_directory(
                self._enter_to_modify(call, vm, auth), prefix, suffix, directoryPath
            )
        ),
        "ChangeFileAttributesInGuest": lambda self, call, vm, auth, guestFilePath, fileAttributes: (
            guest_operations.change_attributes(self._enter_to_modify(call, vm, auth), guestFilePath, fileAttributes)
        ),
        "ListFilesInGuest": lambda self, call, vm, auth, filePath, index, maxResults, matchPattern: (
            guest_operations.list_files(
                enter_guest(self.world, call, vm, auth, guest_operations.QUERY),
                filePath,
                index or 0,
                maxResults,
                matchPattern,
            )
        ),
    }

    def __init__(self, world: World, moid: str) -> None:
        super().__init__(world, moid)
        self._printed: dict[tuple[str, str, object], bytes] = {}

    def change(self, vm: VmEntity, path: str, content: bytes | None) -> None:
        """Write a file of a guest with declared programs, or remove it if `content` is None."""
        if content is None:
            self._printed.pop(_key(vm, path), None)
        else:
            self._printed[_key(vm, path)] = content

    def paths(self, vm: VmEntity) -> list[str]:
        """The files that declared programs have left in the guest."""
        return [path for moid, path, boot in self._printed if (moid, boot) == (vm.moid, vm.state.boot_time)]

    @method
    def InitiateFileTransferFromGuest(self, call: Call, vm: Any, auth: Any, guestFilePath: str) -> Any:
        """Return size and URL of a download. Raises FileNotFound."""
        guest_vm = enter_guest(self.world, call, vm, auth, guest_operations.QUERY)
        if guest_vm.state.template.real_processes:
            return guest_operations.download(guest_vm, guestFilePath)
        content = self._printed.get(_key(guest_vm, guestFilePath))
        if content is None:
            raise vim.fault.FileNotFound(msg=f"File {guestFilePath} was not found", file=guestFilePath)
        return vim.vm.guest.FileManager.FileTransferInformation(
            attributes=vim.vm.guest.FileManager.FileAttributes(),
            size=len(content),
            url=self.world.guests.transfers.begin(FileTransfer(content=content)),
        )

    @method
    def InitiateFileTransferToGuest(
        self, call: Call, vm: Any, auth: Any, guestFilePath: str, fileAttributes: Any, fileSize: int, overwrite: bool
    ) -> str:
        guest_vm = self._enter_to_modify(call, vm, auth)
        return guest_operations.upload(guest_vm, guestFilePath, fileAttributes, fileSize, overwrite=overwrite)

    def _enter_to_modify(self, call: Call, vm: Any, auth: Any) -> Any:
        return enter_guest(self.world, call, vm, auth, guest_operations.MODIFY)


def _key(vm: VmEntity, path: str) -> tuple[str, str, object]:
    return vm.moid, path, vm.state.boot_time
