"""Makes a VM from a template unless a VM of that name exists; for a playbook that then gives it GPUs.

It sets only what gpuops needs: name, host, folder, datastore, cores and memory. Networks, disks and the settings of the
guest are those of the template.
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
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import NEW_VM, CloneVm
from gpuops.plan.placement.host_filters import unreachable

PRIVILEGES: Final = ("VirtualMachine.Provisioning.DeployTemplate",)
"""On the template (vSphere API reference, CloneVM_Task)."""


@dataclass(frozen=True, slots=True)
class Cloning:
    """What there is to do: nothing where the VM is there, a clone, or every reason against it."""

    there: Vm | None = None
    new: CloneVm | None = None
    rejections: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True)
class Clone:
    """A VM that is to be there."""

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
        """What to do on this snapshot, where `folder` is the id of the one that is meant.

        A VM of that name is taken for the one that is meant, whatever it was made from. Raises UsageError for names
        that mean nothing.
        """
        self._check()
        existing_vm = self._existing_vm(inventory)
        if existing_vm is not None:
            return Cloning(existing_vm, rejections=_not_usable(existing_vm))
        source = inventory.find_vm(self.template)
        host = inventory.find_host(self.host) if self.host is not None else inventory.host_of(source)
        vcpus, memory_mib = self.vcpus or source.vcpus, self.memory_mib or source.memory_mib
        if host is None or vcpus is None or memory_mib is None:
            hint = "name a host, vcpus and memory"
            return Cloning(rejections=(Rejection(source.name, "its host or its size cannot be read", hint=hint),))
        store = self._store(host, inventory)
        rejections = tuple(self._against(source, host, store))
        if rejections:
            return Cloning(rejections=rejections)
        home = self.folder or source.folder
        new_ref = f"{NEW_VM}{home.rstrip('/')}/{self.vm}"
        return Cloning(new=CloneVm(new_ref, self.vm, source.ref, host.ref, folder, store, vcpus, memory_mib))

    def _against(self, source: Vm, host: Host, store: str | None) -> Iterator[Rejection]:
        if not source.template:
            hint = "name a template: no VM that somebody uses is cloned"
            yield Rejection(source.name, "is no template", hint=hint)
        out_of_reach = unreachable(host)
        if out_of_reach is not None:
            yield out_of_reach
        if self.datastore is not None and store is None:
            yield Rejection(host.name, f"has no datastore {self.datastore!r} that can be seen")

    def _store(self, host: Host, inventory: Inventory) -> str | None:
        """Return the id of the named datastore of the host; None if the host has no such datastore."""
        datastores = (inventory.datastores.get(ref) for ref in host.datastores or ())
        return next(
            (datastore.ref for datastore in datastores if datastore is not None and datastore.name == self.datastore),
            None,
        )

    def _check(self) -> None:
        if not self.vm or "/" in self.vm or ":" in self.vm:
            raise UsageError(
                f"{self.vm!r} is no name for a new VM", hint="say its name alone; folder says where it goes"
            )
        for name, amount in (("vcpus", self.vcpus), ("memory", self.memory_mib)):
            if amount is not None and amount < 1:
                raise UsageError(f"{name} {amount} means nothing here", hint="it is 1 or more")

    def _existing_vm(self, inventory: Inventory) -> Vm | None:
        """Raises VmAmbiguous where several VMs carry the name, in the folder if one is named."""
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
        return (Rejection(name, "cannot be told from a template by this login"),)
    return (Rejection(name, "is a template, no VM"),) if existing_vm.template else ()
