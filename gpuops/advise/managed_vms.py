"""Finds VMs that gpuops must leave alone: another product manages them, they lend their GPUs, or a mark forbids it.

gpuops never reconfigures, moves, suspends, stops or starts a VM that another product manages through vCenter's API: the
product compares the VM with its own declaration, and would undo, repeat or break the change. The vGPUs of such a VM
count as used.

Sources: vSphere API, VirtualMachineConfigInfo.managedBy and ManagedByInfo; vm-operator, api/v1alpha1
(`ManagedByExtensionKey`); VMware vSphere docs, vSphere Cluster Services, whose agents belong to the ESX Agent Manager;
VMware Live Site Recovery docs, placeholder VMs. A VM with an unlisted key counts as managed, under the name of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuops.model.nights.rotation_policy import DirectPath, Policy, Pool
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
"""The keys of extensions that are the same at every site."""


def manager_of(vm: Vm) -> VmManager | None:
    """Return the product that manages the VM; None = no product does, as far as this login can read it."""
    if vm.managed_by is None:
        return None
    key = vm.managed_by.extension
    return _KNOWN.get(key) or VmManager(f"the vCenter extension {key}", "the product of that extension")


def managed_elsewhere(vm: Vm) -> str | None:
    """Return which product manages the VM and where to change it; None as in `manager_of`."""
    manager = manager_of(vm)
    return None if manager is None else f"is managed by {manager.name}: changed through {manager.changed_through}"


def left_to_manager(vm: Vm) -> str | None:
    """Return `managed_elsewhere`, or that the manager cannot be read: such a VM must be left alone, too."""
    managed = managed_elsewhere(vm)
    if managed is not None:
        return managed
    return "whether another product manages it cannot be read" if PATH in vm.unreadable else None


def is_cluster_agent(vm: Vm) -> bool:
    """Return whether vCenter itself takes it off a host that enters maintenance mode: an agent without devices."""
    is_agent = vm.managed_by is not None and vm.managed_by.extension == CLUSTER_AGENTS
    return (is_agent or vm.name.startswith("vCLS-")) and not vm.devices


POOL_MARK: Final = "gpuops.pool"
"""The custom attribute that `gpuops pool` sets on each VM that serves a pool, and clears once the VM lends nothing any
more. Every command sees it, also in a saved inventory and on other machines, without the book of the pool."""


def lending_reason(vm: Vm) -> str | None:
    """Return that the VM lends its GPUs over the network now, and for which pool; None = it does not."""
    pool = vm.attributes.get(POOL_MARK, "")
    return f"lends its GPUs over the network (pool {pool})" if pool else None


def kept_by_marks(policy: Policy, pool: Pool, vm: Vm) -> str | None:
    """Return why `rotate night` must not take this desktop of the pool, idle or not; None = no mark is against it.

    A mark that cannot be read counts as a refusal.
    """
    # either function returns its reason to leave the VM alone: another product manages it, or it lends its GPUs
    manager_reason = left_to_manager(vm) or lending_reason(vm)
    if manager_reason is not None:
        return manager_reason
    opted_out = policy.opt_out.on(vm)
    if opted_out is not False:
        return f"opted out ({policy.opt_out})" if opted_out else f"{policy.opt_out} cannot be read"
    if pool.owner is not None and pool.owner.on(vm) is not True:
        return f"its owner has not agreed ({pool.owner})"
    if any(queued.names_vm(vm) for queued in policy.ml):
        return "is in the ML queue of the same policy"
    return None


def never_taken(policy: Policy, pool: Pool, vm: Vm) -> bool:
    """Return whether no night takes this desktop of the pool: by its marks, because it is a template, or because it has
    a passthrough device (so it cannot be suspended) and its pool does not allow to shut down guests."""
    return (
        vm.template is True
        or kept_by_marks(policy, pool, vm) is not None
        or (vm.has_passthrough is not False and pool.directpath is DirectPath.LEAVE)
    )
