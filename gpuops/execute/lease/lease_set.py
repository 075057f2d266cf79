"""The leases that one run holds, and which of them covers a change to a VM.

A night holds the lease of its policy. A return holds one for each lock VM of the nights that it returns: if another
machine holds one of them, the return leaves the VMs of its nights alone, names them, and brings back the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from gpuops.errors import Locked
from gpuops.execute.journal import Journal
from gpuops.execute.lease.lease import WAIT_HINT, HeldLease, RunLease, lease_during_run
from gpuops.execute.site import Site
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.returns.foreign_nights import lock_vm_of, policies_under


@dataclass(frozen=True, slots=True)
class VmLeases:
    """The leases that a run holds, and which of them covers each VM."""

    held: tuple[HeldLease, ...] = ()
    by_vm: Mapping[str, HeldLease | None] | None = None
    """None: the one lease that is held, if any, covers all VMs."""

    def of(self, vm: str) -> HeldLease | None:
        """Return the lease that covers the VM. None: only this machine's lock keeps other runs away from it."""
        if self.by_vm is None:
            return self.held[0] if self.held else None
        return self.by_vm.get(vm)

    def lock_vms(self, vms: Collection[str]) -> set[str]:
        """Return the managed object ids of the lock VMs whose leases cover these VMs."""
        return {lease.lock_vm for vm in vms if (lease := self.of(vm)) is not None}

    def note_look(self, inventory: Inventory, vms: Collection[str], asked_s: float) -> None:
        for lease in self.held:
            lease.note_look(inventory, vms, asked_s)

    def renew_if_due(self) -> None:
        for lease in self.held:
            lease.renew_if_due()


NO_LEASE: Final = VmLeases()


def lease_for_all_vms(lease: HeldLease | None) -> VmLeases:
    """Return a set in which this lease covers all VMs."""
    return VmLeases((lease,)) if lease is not None else NO_LEASE


@dataclass(slots=True)
class LeaseSet:
    """The leases that a run asked for, by name of the lock VM."""

    site: Site
    journal: Journal
    stack: ExitStack
    by_lock_vm: dict[str, RunLease] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    """By name of the lock VM, which run on another machine holds its lease."""

    def take(self, policies: Mapping[str, Sequence[Policy]]) -> bool:
        """Take the leases of these lock VMs for a return.

        `policies`: by lock VM, the policies that name it. Return whether any of these lock VMs is new to this set.
        """
        new_names = sorted(policies.keys() - self.by_lock_vm.keys() - self.elsewhere.keys())
        for name in new_names:
            try:
                lease = lease_during_run(self.site, name, self.journal, policies[name], returning=True)
                self.by_lock_vm[name] = self.stack.enter_context(lease)
            except Locked as held:
                self.elsewhere[name] = held.message
        return bool(new_names)

    def for_vms(self, lock_vms: Mapping[str, str | None]) -> VmLeases:
        """Return the leases for a return. `lock_vms`: VM (ref) -> name of the lock VM of its night, or None."""
        lease_by_name = {name: lease.held for name, lease in self.by_lock_vm.items()}
        by_vm = {vm: lease_by_name.get(name) if name is not None else None for vm, name in lock_vms.items()}
        return VmLeases(self._held_leases, by_vm)

    @property
    def for_all_vms(self) -> VmLeases:
        """The leases of a night: its one lease covers every VM."""
        return VmLeases(self._held_leases)

    @property
    def numbered(self) -> tuple[tuple[str, int], ...]:
        """Name of the lock VM and number of each lease that is held, for the journal."""
        return tuple(lease.numbered for lease in self.by_lock_vm.values() if lease.numbered is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        lines = [line for lease in self.by_lock_vm.values() for line in lease.warnings]
        lines += [
            f"lock VM {name}: {holder}: this run leaves the VMs of its nights alone"
            for name, holder in self.elsewhere.items()
        ]
        return tuple(dict.fromkeys(lines))

    def require_one_left(self) -> None:
        """Raise Locked if every lease was lost: the steps in flight are finished, the others were not begun.

        If one lease is left, the steps that were not sent because of a lost lease report that.
        """
        if all(lease.held is not None and lease.held.lost is not None for lease in self.by_lock_vm.values()):
            for lease in self.by_lock_vm.values():
                lease.require_not_lost()

    @property
    def _held_leases(self) -> tuple[HeldLease, ...]:
        return tuple(lease.held for lease in self.by_lock_vm.values() if lease.held is not None)


@contextmanager
def for_night(site: Site, journal: Journal, policy: Policy) -> Iterator[LeaseSet]:
    """Hold the lease of a night. Raises Locked, naming the holder."""
    with ExitStack() as stack:
        leases = LeaseSet(site, journal, stack)
        if policy.lock_vm is not None:
            lease = lease_during_run(site, policy.lock_vm, journal, (policy,), returning=False)
            leases.by_lock_vm[policy.lock_vm] = stack.enter_context(lease)
        yield leases


@contextmanager
def for_return(site: Site, journal: Journal, default_policy: Policy, nights: Sequence[Policy]) -> Iterator[LeaseSet]:
    """Hold the leases of a return of these nights.

    `default_policy` is the policy for VMs that the journal does not know.

    Raises Locked, naming a holder, if other machines hold every lease that the return needs.
    """
    with ExitStack() as stack:
        leases = LeaseSet(site, journal, stack)
        names = dict.fromkeys(lock_vm_of(policy, default_policy) for policy in nights or (default_policy,))
        policies = (default_policy, *nights)
        leases.take({name: policies_under(name, policies, default_policy) for name in names if name is not None})
        # VMs of the other nights, and of nights without a lock VM, can still be returned
        if leases.elsewhere and not leases.by_lock_vm and None not in names:
            raise Locked(next(iter(leases.elsewhere.values())), hint=WAIT_HINT)
        yield leases
