"""What a policy goes by that the bulk read does not tell: tags, performance counters, vGPUs, sessions and gates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuops.advise.evidence import Use
from gpuops.advise.idle import idleness
from gpuops.execute.site.broker_gates import BrokerGates
from gpuops.execute.site.broker_reads import BrokerSessions
from gpuops.model.desktops.evidence import SessionCount, Source
from gpuops.model.desktops.gate import unknown_gate

if TYPE_CHECKING:
    from gpuops.execute.site.ports import DesktopGates, SessionSource, Vcenter, VgpuUseSource
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm

NO_SOURCES: Final[Mapping[Source, SessionSource]] = MappingProxyType({})
NO_MACHINES: Final[Mapping[str, str]] = MappingProxyType({})


def with_policy_reads(
    vcenter: Vcenter,
    inventory: Inventory,
    policy: Policy,
    vms: Collection[str] | None = None,
    sources: Mapping[Source, SessionSource] = NO_SOURCES,
    gates: DesktopGates | None = None,
    machines: Mapping[str, str] = NO_MACHINES,
    vgpu_use: VgpuUseSource | None = None,
) -> Inventory:
    """The same snapshot with all of it, as far as the policy asks for it; `vms` None = of all that it is about.

    `machines`: by VM (ref), the broker's id of its machine where what is read of it must be as it is now.
    """
    if policy.needs_tags:
        inventory = vcenter.with_tags(inventory, vms)
    among = inventory.vms.values() if vms is None else [inventory.vms[ref] for ref in vms if ref in inventory.vms]
    measured = policy.running_by_counters(among)
    if measured:
        inventory = vcenter.with_counters(inventory, measured, policy.counters, policy.counters_for_s)
    smi = policy.by_vgpu_use(among) if vgpu_use is not None else ()
    if vgpu_use is not None and smi:
        asked = [inventory.vms[ref] for ref in sorted(smi)]
        told = vgpu_use.use(asked, inventory)
        inventory = inventory.completed(vms=[replace(vm, vgpu_use=told.get(vm.ref)) for vm in asked])
    if policy.gates:
        gated = {ref: machines.get(ref, "") for ref in policy.behind_gates(among)}
        inventory = with_gates(inventory, gated, gates)
        sources = {**sources, Source.BROKER: gates} if gates is not None else sources
    inventory = _with_sessions(inventory, policy.running_in_pools(among) if sources else (), sources)
    inventory = _with_machines_not_found(inventory, sources.get(Source.BROKER))
    return _with_guest_sessions(inventory, policy, among, sources.get(Source.SESSIONS))


def with_gates(inventory: Inventory, machines: Mapping[str, str], gates: DesktopGates | None) -> Inventory:
    """The same snapshot with the broker's gate before these VMs: by VM (ref), the id of its machine, or empty."""
    asked = [inventory.vms[ref] for ref in sorted(machines) if ref in inventory.vms]
    if not asked:
        return inventory
    if gates is None:
        found = {vm.ref: unknown_gate("no connection broker is configured for this vCenter") for vm in asked}
    else:
        found = dict(gates.gates(asked, machines, inventory))
    return inventory.completed(vms=[replace(vm, gate=found[vm.ref]) for vm in asked])


def _with_machines_not_found(inventory: Inventory, broker: SessionSource | None) -> Inventory:
    """The same snapshot with the machines of the broker that are not certainly one of its VMs, by the last look."""
    if not isinstance(broker, BrokerSessions | BrokerGates) or broker.match is None:
        return inventory
    return inventory.with_machines_not_found(broker.match.reasons)


def _with_sessions(inventory: Inventory, refs: Collection[str], sources: Mapping[Source, SessionSource]) -> Inventory:
    """The same snapshot with what each source tells of these VMs: one question to each, whatever their number."""
    asked = [inventory.vms[ref] for ref in sorted(refs)]
    if not asked:
        return inventory
    at_once = {source: each for source, each in sources.items() if source is not Source.SESSIONS}
    told = {source: each.sessions(asked, inventory) for source, each in at_once.items()}
    return inventory.completed(
        vms=[
            replace(vm, sessions={source: found[vm.ref] for source, found in told.items() if vm.ref in found})
            for vm in asked
        ]
    )


def _with_guest_sessions(
    inventory: Inventory, policy: Policy, among: Iterable[Vm], guests: SessionSource | None
) -> Inventory:
    """The same snapshot with what guests tell, one by one: of VMs whose pool requires it, and that nothing else keeps.

    No other guest is entered: the login there may be none of its users, and a refused one counts towards a lockout.
    """
    refs = policy.running_in_pools(among) if guests is not None else ()
    pooled = [(vm, policy.pool_of(vm)) for vm in (inventory.vms[ref] for ref in sorted(refs))]
    meant = [(vm, pool.idle) for vm, pool in pooled if pool is not None and Source.SESSIONS in pool.idle.needed]
    if guests is None or not meant:
        return inventory
    asked = [vm for vm, rule in meant if idleness(vm, rule).use is not Use.BUSY]
    kept = SessionCount(None, None, inventory.taken_at, because="it was not asked, for something else keeps it")
    told = {vm.ref: kept for vm, _ in meant} | dict(guests.sessions(asked, inventory))
    return inventory.completed(
        vms=[replace(vm, sessions={**(vm.sessions or {}), Source.SESSIONS: told[vm.ref]}) for vm, _ in meant]
    )
