"""The GuestFileManager: files that programs of a scenario's guests have written can be fetched; nothing else is there.

Source: vSphere API reference, InitiateFileTransferFromGuest: a URL for one file, with a token that holds once. Here it
leads to vCenter itself, which `*` in place of its name says.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, method
from gpuops.sim.operations import guest_programs

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.world import World

GUEST_FILE_PATH: Final = "/guestFile"


class GuestFileManager(ManagedObject):
    """Files of guests; they are no part of a saved state, and gone when their guest is started anew."""

    wsdl_name = "GuestFileManager"
    world: World

    def __init__(self, world: World, moid: str) -> None:
        super().__init__(world, moid)
        self._files: dict[tuple[str, str, object], bytes] = {}
        self._tickets: dict[str, bytes] = {}

    def change(self, vm: VmEntity, path: str, content: bytes | None) -> None:
        """Writes that file of the guest, or removes it (None)."""
        if content is None:
            self._files.pop(_key(vm, path), None)
        else:
            self._files[_key(vm, path)] = content

    def paths(self, vm: VmEntity) -> list[str]:
        """The files that lie in the guest."""
        return [path for moid, path, boot in self._files if (moid, boot) == (vm.moid, vm.state.boot_time)]

    def take(self, token: str) -> bytes | None:
        """What that token was given for; None = it was given for nothing, or is used up."""
        return self._tickets.pop(token, None)

    @method
    def InitiateFileTransferFromGuest(self, call: Call, vm: Any, auth: Any, guestFilePath: str) -> Any:
        found = self.world.get(vm)
        self.world.authority.require(call, found, guest_programs.QUERY)
        guest_programs.admit(found, auth)
        content = self._files.get(_key(found, guestFilePath))
        if content is None:
            raise vim.fault.FileNotFound(msg=f"File {guestFilePath} was not found", file=guestFilePath)
        token = secrets.token_hex(16)
        self._tickets[token] = content
        return vim.vm.guest.FileManager.FileTransferInformation(
            attributes=vim.vm.guest.FileManager.FileAttributes(),
            size=len(content),
            url=f"https://*/{GUEST_FILE_PATH[1:]}?id={len(self._tickets)}&token={token}",
        )


def _key(vm: VmEntity, path: str) -> tuple[str, str, object]:
    return vm.moid, path, vm.state.boot_time
