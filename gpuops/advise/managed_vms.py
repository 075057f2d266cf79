"""Whether a VM belongs to a product that manages it through vCenter's API, and where it is to be changed then. Pure.

Such a VM is never reconfigured, moved, suspended, stopped or started by gpuops: its manager compares it with what is
declared elsewhere, and undoes, repeats or breaks what anybody else does. It holds the slots that it holds.

Sources: vSphere API, VirtualMachineConfigInfo.managedBy and ManagedByInfo; vm-operator, api/v1alpha1
(`ManagedByExtensionKey`); VMware vSphere docs, vSphere Cluster Services, whose agents belong to the ESX Agent Manager;
VMware Live Site Recovery docs, placeholder VMs. A key that is not listed is named as it is: of such a VM nothing is
assumed but that it is not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuops.model.vcenter.vm import Vm

PATH: Final = "config.managedBy"
CLUSTER_AGENTS: Final = "com.vmware.vim.eam"
VM_SERVICE: Final = "com.vmware.vcenter.wcp"


@dataclass(frozen=True, slots=True)
class VmManager:
    """A product that VMs may belong to, and where such a VM is changed."""

    name: str
    changed_through: str


_KNOWN: Final[Mapping[str, VmManager]] = {
    VM_SERVICE: VmManager("the vSphere Supervisor (VM Service)", "Kubernetes (kubectl, in its namespace)"),
    CLUSTER_AGENTS: VmManager("vSphere Cluster Services or another ESX agent", "its cluster's settings in vCenter"),
    "com.vmware.nsx.management.nsxt": VmManager("NSX", "NSX Manager"),
    "com.vmware.vShieldManager": VmManager("NSX", "NSX Manager"),
    "com.vmware.vcDr": VmManager("Live Site Recovery", "its recovery plans"),
}

KNOWN_EXTENSIONS: Final = frozenset(_KNOWN)
"""The keys of products, which are no names of a site."""


def manager_of(vm: Vm) -> VmManager | None:
    """Whose VM it is; None = no product's, as far as this login can read it."""
    if vm.managed_by is None:
        return None
    key = vm.managed_by.extension
    return _KNOWN.get(key) or VmManager(f"the vCenter extension {key}", "the product of that extension")


def managed_elsewhere(vm: Vm) -> str | None:
    """Whose the VM is and where it is changed, in one line; None = no product's, as far as this login can read it."""
    manager = manager_of(vm)
    return None if manager is None else f"is managed by {manager.name}: changed through {manager.changed_through}"


def left_to_manager(vm: Vm) -> str | None:
    """As `managed_elsewhere`; what cannot be read counts as a no."""
    managed = managed_elsewhere(vm)
    if managed is not None:
        return managed
    return "whether another product manages it cannot be read" if PATH in vm.unreadable else None


def is_cluster_agent(vm: Vm) -> bool:
    """Return whether vCenter itself takes it off a host that enters maintenance mode: an agent without devices."""
    is_agent = vm.managed_by is not None and vm.managed_by.extension == CLUSTER_AGENTS
    return (is_agent or vm.name.startswith("vCLS-")) and not vm.devices
