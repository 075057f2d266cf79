"""How the records of a simulated Connection Server name machines, and how they may fail to agree with vCenter.

A record is as vCenter has the VM, unless the pool, or the test for one VM, declares another form. All forms are of
public reports about tools that join both by names, or follow from the fields that a record has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gpuops.sim.core.inventory_tree import unescaped
from gpuops.sim.state.desktop_pool import RecordForm

if TYPE_CHECKING:
    from gpuops.sim.inventory.entities import VmEntity
    from gpuops.sim.state.desktop_pool import DesktopPoolState


class VcenterList(StrEnum):
    """How a pod tells which vCenters it has."""

    WITH_UUIDS = "with-uuids"
    WITHOUT_UUIDS = "without-uuids"
    FORBIDDEN = "forbidden"
    """The account may not read them."""
    OLD_UUID = "old-uuid"
    """The vCenter was rebuilt: the pod knows it by the uuid that it had before."""
    COPIED = "copied"
    """The second vCenter is a copy of the first, with its uuid."""


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """What the server's list has of a machine, but for its state."""

    id: str
    name: str
    path: str | None
    vcenter: str | None
    """Id of its vCenter."""
    pool: DesktopPoolState
    vm: VmEntity | None
    """None = its VM is in another vCenter, or is gone."""
    managed: bool = True


def record_of(form: RecordForm, identity: str, pool: DesktopPoolState, vm: VmEntity, vcenter: str) -> MachineRecord:
    """The record of a machine in that form."""
    name, path = vm.name, inventory_path(vm)
    folder = path.rpartition("/")[0]
    match form:
        case RecordForm.NO_PATH:
            return MachineRecord(identity, name, None, vcenter, pool, vm)
        case RecordForm.OTHER_CASE:
            return MachineRecord(identity, name.upper(), path.upper(), vcenter, pool, vm)
        case RecordForm.UNESCAPED:
            return MachineRecord(identity, unescaped(name), unescaped(path), vcenter, pool, vm)
        case RecordForm.RENAMED:
            return MachineRecord(identity, f"{name}-earlier", f"{folder}/{name}-earlier", vcenter, pool, vm)
        case RecordForm.MOVED:
            return MachineRecord(identity, name, f"{folder}/earlier/{name}", vcenter, pool, vm)
        case RecordForm.NO_VCENTER:
            return MachineRecord(identity, name, path, None, pool, vm)
        case RecordForm.UNMANAGED:
            return MachineRecord(identity, f"{name}.vdi.test", None, None, pool, vm, managed=False)
        case _:
            return MachineRecord(identity, name, path, vcenter, pool, vm)


def inventory_path(vm: VmEntity) -> str:
    """Its inventory path, from the datacenter down."""
    parts, at = [vm.name], vm.world.find(vm.parent or "")
    while at is not None and getattr(at, "parent", None):
        parts.append(at.display_name)
        at = vm.world.find(str(getattr(at, "parent", "")))
    return "/" + "/".join(reversed(parts))
