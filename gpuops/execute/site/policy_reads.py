"""What a policy goes by that the bulk read does not tell: tags, performance counters, sessions and gates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuops.model.evidence import Source
from gpuops.model.gate import unknown_gate

if TYPE_CHECKING:
    from gpuops.execute.site.ports import DesktopGates, SessionSource, Vcenter
    from gpuops.model.inventory import Inventory
    from gpuops.model.rotation import Policy

NO_SOURCES: Final[Mapping[Source, SessionSource]] = MappingProxyType({})


def with_policy_reads(
    vcenter: Vcenter,
    inventory: Inventory,
    policy: Policy,
    vms: Collection[str] | None = None,
    sources: Mapping[Source, SessionSource] = NO_SOURCES,
    gates: DesktopGates | None = None,
) -> Inventory:
    """The same snapshot with all of it, as far as the policy asks for it; `vms` None = of all that it is about."""
    if policy.needs_tags:
        inventory = vcenter.with_tags(inventory, vms)
    among = inventory.vms.values() if vms is None else [inventory.vms[ref] for ref in vms if ref in inventory.vms]
    measured = policy.measured(among)
    if measured:
        inventory = vcenter.with_counters(inventory, measured, policy.counters, policy.counters_for_s)
    if policy.gates:
        inventory = with_gates(inventory, dict.fromkeys(policy.behind_gates(among), ""), gates)
        sources = {Source.BROKER: gates, **sources} if gates is not None else sources
    return _with_sessions(inventory, policy.judged(among) if sources else (), sources)


def with_gates(inventory: Inventory, machines: Mapping[str, str], gates: DesktopGates | None) -> Inventory:
    """The same snapshot with the broker's gate before these VMs: by VM (ref), the id of its machine, or empty."""
    asked = [inventory.vms[ref] for ref in sorted(machines) if ref in inventory.vms]
    if not asked:
        return inventory
    if gates is None:
        found = {vm.ref: unknown_gate("no connection broker is configured for this vCenter") for vm in asked}
    else:
        found = dict(gates.gates(asked, machines))
    return replace(inventory, vms={**inventory.vms, **{vm.ref: replace(vm, gate=found[vm.ref]) for vm in asked}})


def _with_sessions(inventory: Inventory, refs: Collection[str], sources: Mapping[Source, SessionSource]) -> Inventory:
    """The same snapshot with what each source tells of these VMs: one question to each, whatever their number."""
    asked = [inventory.vms[ref] for ref in sorted(refs)]
    if not asked:
        return inventory
    told = {source: each.sessions(asked, inventory.taken_at) for source, each in sources.items()}
    by_vm = {
        vm.ref: replace(vm, sessions={source: found[vm.ref] for source, found in told.items() if vm.ref in found})
        for vm in asked
    }
    return replace(inventory, vms={**inventory.vms, **by_vm})
