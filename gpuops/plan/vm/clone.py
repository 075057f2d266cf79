"""Plans a clone of a template, unless a VM of that name exists. A playbook then gives the VM its GPUs.

gpuops sets only name, host, folder, datastore, cores and memory. Networks, disks and guest settings stay those of the
template.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.errors import UsageError, VmNotFound
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import NEW_VM, CloneVm
from gpuops.plan.placement.host_filters import unreachable

PRIVILEGES: Final = ("VirtualMachine.Provisioning.DeployTemplate",)
"""On the template (vSphere API reference, CloneVM_Task)."""


@dataclass(frozen=True, slots=True)
class Cloning:
    """The plan: the VM that already exists, or the clone to create, or all reasons against it."""

    existing_vm: Vm | None = None
    new: CloneVm | None = None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class Clone:
    """A request that a VM exists, cloned from a template if it does not."""

    vm: str
    template: str
    """Name, inventory path, `moid:vm-42` or `uuid:...` of a template."""
    host: str | None = None
    """None = that of the template."""
    folder: str | None = None
    """Inventory path of a folder for VMs, `/lab-dc/vm/ml`; None = that of the template."""
    datastore: str | None = None
    vcpus: int | None = None
    memory_mib: int | None = None

    def planned(self, inventory: Inventory, folder: str | None) -> Cloning:
        """Return the plan for this snapshot. `folder`: the managed object id of `self.folder`.

        An existing VM of that name is accepted, whatever it was created from. Raises UsageError for unknown names.
        """
        self._check()
        existing_vm = self._existing_vm(inventory)
        if existing_vm is not None:
            return Cloning(existing_vm, rejections=_not_usable(existing_vm))
        source = inventory.find_vm(self.template)
        host = inventory.find_host(self.host) if self.host is not None else inventory.host_of(source)
        vcpus, memory_mib = self.vcpus or source.vcpus, self.memory_mib or source.memory_mib
        if host is None or vcpus is None or memory_mib is None:
            hint = "give host, vcpus and memory"
            return Cloning(rejections=(Rejection(source.name, "its host or its size cannot be read", hint=hint),))
        datastore = self._find_datastore(host, inventory)
        rejections = tuple(self._source_rejections(source, host, datastore))
        if rejections:
            return Cloning(rejections=rejections)
        folder_path = self.folder or source.folder
        new_ref = f"{NEW_VM}{folder_path.rstrip('/')}/{self.vm}"
        return Cloning(new=CloneVm(new_ref, self.vm, source.ref, host.ref, folder, datastore, vcpus, memory_mib))

    def _source_rejections(self, source: Vm, host: Host, datastore: str | None) -> Iterator[Rejection]:
        if not source.template:
            hint = "name a template, or convert this VM to one: gpuops clones only templates"
            yield Rejection(source.name, "is not a template", hint=hint)
        out_of_reach = unreachable(host)
        if out_of_reach is not None:
            yield out_of_reach
        if self.datastore is not None and datastore is None:
            yield Rejection(host.name, f"has no datastore {self.datastore!r} that this login can see")

    def _find_datastore(self, host: Host, inventory: Inventory) -> str | None:
        """Return the id of the named datastore of the host; None if the host has no such datastore."""
        datastores = (inventory.datastores.get(ref) for ref in host.datastores or ())
        return next(
            (datastore.ref for datastore in datastores if datastore is not None and datastore.name == self.datastore),
            None,
        )

    def _check(self) -> None:
        if not self.vm or "/" in self.vm or ":" in self.vm:
            hint = "give the name without a path; `folder` is the path of its folder"
            raise UsageError(f"{self.vm!r} is not a valid name for a new VM", hint=hint)
        for name, amount in (("vcpus", self.vcpus), ("memory", self.memory_mib)):
            if amount is not None and amount < 1:
                raise UsageError(f"{name} {amount} is not valid", hint="give a number of 1 or more")

    def _existing_vm(self, inventory: Inventory) -> Vm | None:
        """Return the VM of that name, in `folder` if given. Raises VmAmbiguous if there are several."""
        try:
            return inventory.find_vm(f"{self.folder.rstrip('/')}/{self.vm}" if self.folder else self.vm)
        except VmNotFound:
            return None


def _not_usable(existing_vm: Vm) -> tuple[Rejection, ...]:
    name = existing_vm.path or existing_vm.name
    managed = managed_elsewhere(existing_vm)
    if managed is not None:
        return (Rejection(name, managed),)
    if existing_vm.template is None:
        hint = "give this login read access to the VM"
        return (Rejection(name, "this login cannot read whether it is a template", hint=hint),)
    return (Rejection(name, "is a template, not a VM"),) if existing_vm.template else ()
