"""Targets: which hosts may take a VM, whatever room they have. Cheapest question first, as for a placement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.model.host import Cluster, DrsRule, Host
from gpuops.model.inventory import Inventory
from gpuops.model.vm import Vm
from gpuops.plan.headroom import Headroom
from gpuops.plan.placement.filters import (
    connected,
    cpu_to_reserve,
    logical_cpus,
    not_in_maintenance,
    offers,
    sees_files,
    stays_in_its_vapp,
)
from gpuops.plan.placement.wanted import Wanted, demands_of
from gpuops.plan.plan import Rejection

_FILTERS: Final[tuple[Callable[[Wanted, Host, Inventory], Rejection | None], ...]] = (
    connected,
    not_in_maintenance,
    logical_cpus,
    cpu_to_reserve,
    sees_files,
    stays_in_its_vapp,
    offers,
)


@dataclass(slots=True)
class Targets:
    """The question to the hosts of one cluster. What one VM is told holds for all that are like it."""

    hosts: Sequence[Host]
    cluster: Cluster | None
    inventory: Inventory
    _known: dict[tuple[object, ...], tuple[frozenset[str], tuple[Rejection, ...]]] = field(default_factory=dict)

    def of(self, vm: Vm, *, running: bool) -> tuple[frozenset[str], tuple[Rejection, ...]]:
        """Refs of the hosts that may take the VM, its own among them, and why each of the others may not."""
        rules = self._rules(vm)
        # Not its host: within a cluster that changes nothing but for the host itself, which sees the VM's files; and
        # has the CPU that it reserves there already.
        reserved = (vm.cpu_reservation_mhz, vm.host) if vm.cpu_reservation_mhz else None
        alike = (vm.profiles, vm.vcpus, vm.memory_mib, reserved, vm.datastores, vm.vapp, vm.unreadable, rules, running)
        if alike not in self._known:
            headroom = Headroom(vm, self.inventory)
            refused = {host.ref: next(self._refusals(vm, host, headroom, running), None) for host in self.hosts}
            self._known[alike] = (
                frozenset(ref for ref, refusal in refused.items() if refusal is None),
                tuple(refusal for refusal in refused.values() if refusal is not None),
            )
        return self._known[alike]

    def _refusals(self, vm: Vm, host: Host, headroom: Headroom, running: bool) -> Iterator[Rejection]:
        wanted = Wanted(vm, demands_of(vm.devices or (), {}), (host.ref,))
        for question in _FILTERS:
            refusal = question(wanted, host, self.inventory)
            if refusal is not None:
                yield refusal
        kept = headroom.refusal(host)
        if kept is not None:
            yield kept
        for rule in self._rules(vm):
            if not rule.allows(host.ref):
                yield Rejection(host.name, f"DRS rule {rule.name!r} keeps {vm.name} off it")
        for profile in dict.fromkeys(vm.profiles) if running else ():
            offered = host.offers(profile)
            if offered is None or offered.migrate is not True:
                yield Rejection(host.name, f"does not say that {profile} can be migrated")

    def _rules(self, vm: Vm) -> tuple[DrsRule, ...]:
        rules = self.cluster.rules if self.cluster is not None else None
        return tuple(rule for rule in rules or () if vm.ref in rule.vms)
