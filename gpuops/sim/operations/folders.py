"""Folders: made, and filled with what moves in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuops.sim.operations import faults
from gpuops.sim.operations.recording import recorded
from gpuops.sim.registration import new_moid

if TYPE_CHECKING:
    from gpuops.sim.call import Call
    from gpuops.sim.entities import FolderEntity


def create(parent: FolderEntity, call: Call, name: str) -> FolderEntity:
    """CreateFolder: the new folder, of its parent's kind. Raises DuplicateName."""
    parent.refuse_duplicate(name)
    folder = type(parent)(
        parent.world, new_moid(parent.world, f"group-{parent.kind[0]}"), name, parent.moid, parent.kind
    )
    parent.world.register(folder)
    parent.add(folder)
    parent.world.ledger.record(call, folder, before={}, after={"name": name, "parent": parent.moid})
    return folder


def move_into(folder: FolderEntity, call: Call, members: list[Any]) -> Any:
    """MoveIntoFolder_Task: VMs come in."""

    def finish() -> None:
        for member in members:
            vm = folder.world.get(member)
            if vm.wsdl_name != "VirtualMachine" or folder.kind != "vm":
                raise faults.not_supported("The simulated vCenter moves only virtual machines between folders.")
            with recorded(vm, call):
                vm.move_to_folder(folder)

    return folder.world.tasks.start(call, "MoveIntoFolder_Task", folder, 0.5, finish=finish)
