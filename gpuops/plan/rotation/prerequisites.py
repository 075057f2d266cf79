"""The prerequisites of a night in a vCenter, and which of them are missing. `rotate init` creates them, and doctor
reports problems of the lock VM.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from gpuops.advise.managed_vms import left_to_manager
from gpuops.errors import Refused
from gpuops.model.nights.ml_queue import entry_of
from gpuops.model.nights.rotation_policy import DrsOverride, Policy
from gpuops.model.nights.selector import Mark
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import NEW_VM, CreateVm

LOCK_VM_NOTES: Final = (
    "Holds the lease that keeps gpuops on several machines from running at the same time. Leave it powered off, and do "
    "not delete it while a night is open."
)
"""The notes of the lock VM, which an admin sees in the vSphere Client."""

NO_SNAPSHOTS: Final = "delete its snapshots, and exclude it from backups that make them"
_NO_LOCK_VM: Final = "no VM is called {} (lock_vm)"
CHOOSE_LOCK_VM: Final = "choose an unused name (gpuops rotate init creates the VM), or a small VM that stays off"


@dataclass(frozen=True, slots=True)
class Unmarked:
    """Desktops of a pool without the mark of their owner. No night takes them."""

    pool: str
    mark: str
    desktops: tuple[str, ...]
    of: int
    """How many desktops the pool has."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The prerequisites of a policy in a vCenter, and which of them are missing."""

    policy: str
    marker: str
    attributes: tuple[str, ...]
    """Custom attributes that the policy names: the marker, and those that people set on VMs."""
    undefined: tuple[str, ...]
    """The attributes that vCenter does not have yet."""
    lock_vm: str | None
    lock_vm_missing: CreateVm | None
    unmarked: tuple[Unmarked, ...] = ()
    lock_vm_snapshots: int | None = 0
    """None = they cannot be read."""
    keeps_drs_off: bool = False
    """Whether nights override DRS for their ML VMs."""
    made: bool = False
    """Whether the missing prerequisites have been created."""

    @property
    def complete(self) -> bool:
        return not self.undefined and self.lock_vm_missing is None


def check_setup(policy: Policy, inventory: Inventory, defined: Collection[str]) -> Setup:
    """Return which prerequisites of a policy exist, and which are missing. `defined`: the custom attributes of vCenter.

    Raises Refused if there is no place for the lock VM, or if the policy names one of its desktops or ML VMs as lock
    VM.
    """
    in_use = lock_vm_in_use(policy, inventory)
    if in_use is not None:
        raise Refused(in_use, hint=CHOOSE_LOCK_VM)
    marks: list[Mark | None] = [policy.opt_out]
    unmarked: list[Unmarked] = []
    for pool in policy.pools:
        marks += [pool.owner, *pool.select.marks]
        desktops = [vm for vm in inventory.vms.values() if policy.pool_of(vm) is pool and not vm.template]
        names = sorted(vm.name for vm in desktops if pool.owner is not None and pool.owner.on(vm) is not True)
        if names:
            unmarked.append(Unmarked(pool.name, str(pool.owner), tuple(names), len(desktops)))
    of_marks = [mark.attribute for mark in marks if mark is not None and mark.attribute is not None]
    attributes = tuple(dict.fromkeys([policy.marker, *of_marks]))
    return Setup(
        policy.name,
        policy.marker,
        attributes,
        undefined=tuple(name for name in attributes if name not in defined),
        lock_vm=policy.lock_vm,
        lock_vm_missing=_plan_lock_vm(policy.lock_vm, inventory) if policy.lock_vm else None,
        unmarked=tuple(unmarked),
        lock_vm_snapshots=next((vm.snapshots for vm in inventory.vms.values() if vm.name == policy.lock_vm), 0),
        keeps_drs_off=policy.drs_override is not DrsOverride.NONE,
    )


def snapshot_problem(snapshots: int | None) -> str:
    """Return what is wrong with a lock VM that has this number of snapshots; empty = nothing."""
    if snapshots == 0:
        return ""
    if snapshots is None:
        return "its snapshots cannot be read: if it has one, a revert would set back its lease number"
    has = f"has {snapshots} snapshot{'s' if snapshots > 1 else ''}"
    return f"{has}: a revert would set back its lease number, so no night begins until they are deleted"


def missing_for_a_night(policy: Policy, inventory: Inventory, defined: Collection[str]) -> tuple[str, ...]:
    """Return the missing prerequisites that `rotate init` creates; nothing for a policy without a lock VM."""
    if policy.lock_vm is None:
        return ()
    missing = [] if _exists(policy.lock_vm, inventory) else [_NO_LOCK_VM.format(policy.lock_vm)]
    if policy.marker not in defined:
        missing.append(f"there is no custom attribute {policy.marker} (marker)")
    return tuple(missing)


def lock_vm_in_use(policy: Policy, inventory: Inventory) -> str | None:
    """Return why the lock VM is in use: as a desktop or ML VM of the policy, or by a manager; None = it is not."""
    for vm in inventory.vms.values():
        if vm.name != policy.lock_vm:
            continue
        pool, manager = policy.pool_of(vm), left_to_manager(vm)
        if pool is not None:
            return f"lock_vm: {vm.name} is a desktop of pool {pool.name}"
        if entry_of(policy.ml, vm) is not None:
            return f"lock_vm: {vm.name} is a VM of the ML queue"
        if manager is not None:
            return f"lock_vm: {vm.name} {manager}"
    return None


def find_lock_vm_problem(policy: Policy, inventory: Inventory) -> str | None:
    """Return why the lock VM cannot hold a lease, by the inventory; None = it can, or the policy has no lock VM."""
    if policy.lock_vm is None:
        return None
    if not _exists(policy.lock_vm, inventory):
        return _NO_LOCK_VM.format(policy.lock_vm)
    return lock_vm_in_use(policy, inventory)


def _exists(name: str, inventory: Inventory) -> bool:
    return any(vm.name == name for vm in inventory.vms.values())


def _plan_lock_vm(name: str, inventory: Inventory) -> CreateVm | None:
    """Return the step that creates the lock VM; None = it exists. Raises Refused if no usable host sees a datastore.

    It goes to the datastore that most usable hosts see, so that another host can run it if its own fails.
    """
    if _exists(name, inventory):
        return None
    usable = [host for host in inventory.hosts.values() if host.connected is True and host.in_maintenance is False]
    places = []
    for store in inventory.datastores.values():
        hosts = [host for host in usable if store.ref in (host.datastores or ())]
        if store.accessible is True and hosts:
            places.append((hosts, store))
    if not places:
        hint = "create a small VM of that name, and leave it powered off"
        raise Refused(f"no connected host sees a datastore for the lock VM {name}", hint=hint)
    hosts, store = max(places, key=lambda place: (len(place[0]), place[1].free_mib or 0, place[1].name))
    host = min(hosts, key=lambda host: host.name)
    return CreateVm(f"{NEW_VM}{name}", name, host.ref, host.name, store.name, LOCK_VM_NOTES)
