"""The GuestFileManager: files of guests that are real, and what declared programs of a scenario have written.

Source: vSphere API reference, InitiateFileTransferFromGuest: a URL for one file, with a token that holds once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Methods, method
from gpuops.sim.guests.file_transfers import FileTransfer
from gpuops.sim.operations.guests import guest_files, guest_programs

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
    def MakeDirectoryInGuest(
        self, call: Call, vm: Any, auth: Any, directoryPath: str, createParentDirectories: bool
    ) -> None:
        found = self._entered(call, vm, auth, guest_programs.MODIFY)
        guest_files.make_directory(found, directoryPath, parents=createParentDirectories)

    method_table: ClassVar[Methods] = {
        "DeleteFileInGuest": lambda self, call, vm, auth, filePath: guest_files.delete_file(
            self._entered(call, vm, auth, guest_programs.MODIFY), filePath
        ),
    }

    @method
    def DeleteDirectoryInGuest(self, call: Call, vm: Any, auth: Any, directoryPath: str, recursive: bool) -> None:
        found = self._entered(call, vm, auth, guest_programs.MODIFY)
        guest_files.delete_directory(found, directoryPath, recursive=recursive)

    @method
    def MoveFileInGuest(
        self, call: Call, vm: Any, auth: Any, srcFilePath: str, dstFilePath: str, overwrite: bool
    ) -> None:
        found = self._entered(call, vm, auth, guest_programs.MODIFY)
        guest_files.move(found, srcFilePath, dstFilePath, overwrite=overwrite)

    @method
    def MoveDirectoryInGuest(
        self, call: Call, vm: Any, auth: Any, srcDirectoryPath: str, dstDirectoryPath: str
    ) -> None:
        found = self._entered(call, vm, auth, guest_programs.MODIFY)
        guest_files.move(found, srcDirectoryPath, dstDirectoryPath, overwrite=False)

    @method
    def CreateTemporaryFileInGuest(
        self, call: Call, vm: Any, auth: Any, prefix: str, suffix: str, directoryPath: str | None
    ) -> str:
        found = self._entered(call, vm, auth, guest_programs.MODIFY)
        return guest_files.temporary(found, prefix, suffix, directoryPath, lambda place: place.touch(0o600, False))

    @method
    def CreateTemporaryDirectoryInGuest(
        self, call: Call, vm: Any, auth: Any, prefix: str, suffix: str, directoryPath: str | None
    ) -> str:
        found = self._entered(call, vm, auth, guest_programs.MODIFY)
        return guest_files.temporary(found, prefix, suffix, directoryPath, lambda place: place.mkdir(0o700))

    @method
    def ChangeFileAttributesInGuest(
        self, call: Call, vm: Any, auth: Any, guestFilePath: str, fileAttributes: Any
    ) -> None:
        found = self._entered(call, vm, auth, guest_programs.MODIFY)
        guest_files.change_attributes(found, guestFilePath, fileAttributes)

    @method
    def ListFilesInGuest(
        self,
        call: Call,
        vm: Any,
        auth: Any,
        filePath: str,
        index: int | None,
        maxResults: int | None,
        matchPattern: str | None,
    ) -> Any:
        found = self._entered(call, vm, auth, guest_programs.QUERY)
        return guest_files.listed(found, filePath, index or 0, maxResults, matchPattern)

    @method
    def InitiateFileTransferFromGuest(self, call: Call, vm: Any, auth: Any, guestFilePath: str) -> Any:
        found = self._entered(call, vm, auth, guest_programs.QUERY)
        if found.state.template.real_processes:
            return guest_files.download(found, guestFilePath)
        content = self._printed.get(_key(found, guestFilePath))
        if content is None:
            raise vim.fault.FileNotFound(msg=f"File {guestFilePath} was not found", file=guestFilePath)
        return vim.vm.guest.FileManager.FileTransferInformation(
            attributes=vim.vm.guest.FileManager.FileAttributes(),
            size=len(content),
            url=self.world.guests.transfers.begin(FileTransfer(content=content)),
        )

    @method
    def InitiateFileTransferToGuest(
        self,
        call: Call,
        vm: Any,
        auth: Any,
        guestFilePath: str,
        fileAttributes: Any,
        fileSize: int,
        overwrite: bool,
    ) -> str:
        found = self._entered(call, vm, auth, guest_programs.MODIFY)
        return guest_files.upload(found, guestFilePath, fileAttributes, fileSize, overwrite=overwrite)

    def _entered(self, call: Call, vm: Any, auth: Any, privilege: str) -> Any:
        """The VM, where this login may do that and its guest lets the user in."""
        found = self.world.get(vm)
        self.world.authority.require(call, found, privilege)
        guest_programs.admit(found, auth)
        return found


def _key(vm: VmEntity, path: str) -> tuple[str, str, object]:
    return vm.moid, path, vm.state.boot_time
