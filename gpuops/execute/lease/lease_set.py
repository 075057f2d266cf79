"""The leases that one run holds, and which of them covers a change to a VM.

A night has the one of its policy. A return has one for each lock VM of the nights that it returns: where one of them is
held by another machine, the VMs of its nights are left alone and named, and the others come back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from gpuops.errors import Locked
from gpuops.execute.journal import Journal
from gpuops.execute.lease.lease import WAIT, HeldLease, RunLease, leased
from gpuops.execute.site import Site
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.rotation.returns.other_machines import lock_vm_of, policies_under


@dataclass(frozen=True, slots=True)
class VmLeases:
    """The leases that are held, and which of them a change to a VM goes under."""

    held: tuple[HeldLease, ...] = ()
    by_vm: Mapping[str, HeldLease | None] | None = None
    """None = all VMs are under the one that is held, if there is one."""

    def of(self, vm: str) -> HeldLease | None:
        """None = this machine's lock alone keeps others away from the VM."""
        if self.by_vm is None:
            return self.held[0] if self.held else None
        return self.by_vm.get(vm)

    def lock_vms(self, vms: Collection[str]) -> set[str]:
        """The managed object ids of the lock VMs that changes to these VMs go under."""
        return {held.lock_vm for vm in vms if (held := self.of(vm)) is not None}

    def saw(self, inventory: Inventory, vms: Collection[str], asked_s: float) -> None:
        for held in self.held:
            held.saw(inventory, vms, asked_s)

    def keep(self) -> None:
        for held in self.held:
            held.keep()


NO_LEASE: Final = VmLeases()


def lease_for_all_vms(held: HeldLease | None) -> VmLeases:
    """All VMs under this one."""
    return VmLeases((held,)) if held is not None else NO_LEASE


@dataclass(slots=True)
class LeaseSet:
    """What a run has of the leases that it asked for, by name of the lock VM."""

    site: Site
    journal: Journal
    stack: ExitStack
    each: dict[str, RunLease] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)
    """By name of the lock VM, who holds its lease on another machine."""

    def take(self, policies: Mapping[str, Sequence[Policy]]) -> bool:
        """Takes for a return the leases of these lock VMs, each with the policies that name it; whether any of them was
        not asked for before."""
        asked_for = sorted(policies.keys() - self.each.keys() - self.elsewhere.keys())
        for name in asked_for:
            try:
                lease = leased(self.site, name, self.journal, policies[name], returning=True)
                self.each[name] = self.stack.enter_context(lease)
            except Locked as held:
                self.elsewhere[name] = held.message
        return bool(asked_for)

    def for_vms(self, lock_vms: Mapping[str, str | None]) -> VmLeases:
        """For a return of these VMs, each with the name of the lock VM of its night."""
        held = {name: lease.held for name, lease in self.each.items()}
        by_vm = {vm: held.get(name) if name is not None else None for vm, name in lock_vms.items()}
        return VmLeases(self._held, by_vm)

    @property
    def for_all_vms(self) -> VmLeases:
        """For a night: whatever it touches is under the one."""
        return VmLeases(self._held)

    @property
    def numbered(self) -> tuple[tuple[str, int], ...]:
        """Name of the lock VM and number of each lease that is held, for the journal."""
        return tuple(lease.numbered for lease in self.each.values() if lease.numbered is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        lines = [line for lease in self.each.values() for line in lease.warnings]
        lines += [f"lock VM {name}: {held}: nothing under it is touched" for name, held in self.elsewhere.items()]
        return tuple(dict.fromkeys(lines))

    def must_be_ours(self) -> None:
        """Raises Locked when none is left: what was in flight is finished, the rest was not begun. Where one is left,
        the steps that were not sent for want of another say so."""
        if all(lease.held is not None and lease.held.lost is not None for lease in self.each.values()):
            for lease in self.each.values():
                lease.must_be_ours()

    @property
    def _held(self) -> tuple[HeldLease, ...]:
        return tuple(lease.held for lease in self.each.values() if lease.held is not None)


@contextmanager
def for_night(site: Site, journal: Journal, policy: Policy) -> Iterator[LeaseSet]:
    """The lease of a night. Raises Locked, naming who holds it."""
    with ExitStack() as stack:
        leases = LeaseSet(site, journal, stack)
        if policy.lock_vm is not None:
            lease = leased(site, policy.lock_vm, journal, (policy,), returning=False)
            leases.each[policy.lock_vm] = stack.enter_context(lease)
        yield leases


@contextmanager
def for_return(site: Site, journal: Journal, spoken: Policy, nights: Sequence[Policy]) -> Iterator[LeaseSet]:
    """The leases of a return of these nights; `spoken` is the policy that speaks for what the journal does not know.

    Raises Locked, naming who holds it, where other machines hold every lease that it needs.
    """
    with ExitStack() as stack:
        leases = LeaseSet(site, journal, stack)
        names = dict.fromkeys(lock_vm_of(policy, spoken) for policy in nights or (spoken,))
        leases.take({name: policies_under(name, (spoken, *nights), spoken) for name in names if name is not None})
        if leases.elsewhere and not leases.each and None not in names:
            raise Locked(next(iter(leases.elsewhere.values())), hint=WAIT)
        yield leases
