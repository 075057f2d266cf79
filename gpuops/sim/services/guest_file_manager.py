"""The GuestFileManager: files of guests that are real, and what declared programs of a scenario have written.

Source: vSphere API reference, InitiateFileTransferFromGuest: a URL for one file, with a token that holds once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Methods, method
from gpuops.sim.guests.file_transfers import FileTransfer
from gpuops.sim.operations.guests import guest_files, guest_programs
from gpuops.sim.services.guest_managers import enter_guest

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.world import World


class GuestFileManager(ManagedObject):
    """Of a guest whose programs are declared a client can fetch what these printed, and nothing else.

    What was printed is no part of a saved state, and gone when its guest is started anew.
    """

    wsdl_name = "GuestFileManager"
    world: World

    method_table: ClassVar[Methods] = {
        "MakeDirectoryInGuest": lambda self, call, vm, auth, directoryPath, createParentDirectories: (
            guest_files.make_directory(
                self._enter_to_modify(call, vm, auth), directoryPath, parents=createParentDirectories
            )
        ),
        "DeleteFileInGuest": lambda self, call, vm, auth, filePath: guest_files.delete_file(
            self._enter_to_modify(call, vm, auth), filePath
        ),
        "DeleteDirectoryInGuest": lambda self, call, vm, auth, directoryPath, recursive: guest_files.delete_directory(
            self._enter_to_modify(call, vm, auth), directoryPath, recursive=recursive
        ),
        "MoveFileInGuest": lambda self, call, vm, auth, srcFilePath, dstFilePath, overwrite: guest_files.move(
            self._enter_to_modify(call, vm, auth), srcFilePath, dstFilePath, overwrite=overwrite
        ),
        "CreateTemporaryFileInGuest": lambda self, call, vm, auth, prefix, suffix, directoryPath: (
            guest_files.make_temporary_file(self._enter_to_modify(call, vm, auth), prefix, suffix, directoryPath)
        ),
        "CreateTemporaryDirectoryInGuest": lambda self, call, vm, auth, prefix, suffix, directoryPath: (
            guest_files.make_temporary_directory(self._enter_to_modify(call, vm, auth), prefix, suffix, directoryPath)
        ),
        "ChangeFileAttributesInGuest": lambda self, call, vm, auth, guestFilePath, fileAttributes: (
            guest_files.change_attributes(self._enter_to_modify(call, vm, auth), guestFilePath, fileAttributes)
        ),
        "ListFilesInGuest": lambda self, call, vm, auth, filePath, index, maxResults, matchPattern: guest_files.listed(
            enter_guest(self.world, call, vm, auth, guest_programs.QUERY),
            filePath,
            index or 0,
            maxResults,
            matchPattern,
        ),
    }

    def __init__(self, world: World, moid: str) -> None:
        super().__init__(world, moid)
        self._printed: dict[tuple[str, str, object], bytes] = {}

    def change(self, vm: VmEntity, path: str, content: bytes | None) -> None:
        """Writes that file of a guest with declared programs, or removes it (None)."""
        if content is None:
            self._printed.pop(_key(vm, path), None)
        else:
            self._printed[_key(vm, path)] = content

    def paths(self, vm: VmEntity) -> list[str]:
        """The files that declared programs have left in the guest."""
        return [path for moid, path, boot in self._printed if (moid, boot) == (vm.moid, vm.state.boot_time)]

    @method
    def InitiateFileTransferFromGuest(self, call: Call, vm: Any, auth: Any, guestFilePath: str) -> Any:
        guest_vm = enter_guest(self.world, call, vm, auth, guest_programs.QUERY)
        if guest_vm.state.template.real_processes:
            return guest_files.download(guest_vm, guestFilePath)
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
        return guest_files.upload(guest_vm, guestFilePath, fileAttributes, fileSize, overwrite=overwrite)

    def _enter_to_modify(self, call: Call, vm: Any, auth: Any) -> Any:
        return enter_guest(self.world, call, vm, auth, guest_programs.MODIFY)


def _key(vm: VmEntity, path: str) -> tuple[str, str, object]:
    return vm.moid, path, vm.state.boot_time
