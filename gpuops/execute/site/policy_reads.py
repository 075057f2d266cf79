"""What a policy goes by that the bulk read does not tell: tags, performance counters and sessions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuops.execute.site.ports import SessionSource, Vcenter
    from gpuops.model.evidence import Source
    from gpuops.model.inventory import Inventory
    from gpuops.model.rotation import Policy

NO_SOURCES: Final[Mapping[Source, SessionSource]] = MappingProxyType({})


def with_policy_reads(
    vcenter: Vcenter,
    inventory: Inventory,
    policy: Policy,
    vms: Collection[str] | None = None,
    sources: Mapping[Source, SessionSource] = NO_SOURCES,
) -> Inventory:
    """The same snapshot with all of it, as far as the policy asks for it; `vms` None = of all that it is about."""
    if policy.needs_tags:
        inventory = vcenter.with_tags(inventory, vms)
    among = inventory.vms.values() if vms is None else [inventory.vms[ref] for ref in vms if ref in inventory.vms]
    measured = policy.measured(among)
    if measured:
        inventory = vcenter.with_counters(inventory, measured, policy.counters, policy.counters_for_s)
    return _with_sessions(inventory, policy.judged(among) if sources else (), sources)


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
