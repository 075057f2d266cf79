"""Read what a policy needs beyond the bulk read: tags, performance counters, use of vGPUs, sessions and gates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpuops.advise.idle import Use, idleness
from gpuops.execute.site.broker import BrokerGates, BrokerSessions
from gpuops.model.desktops.broker import unknown_gate
from gpuops.model.desktops.evidence import SessionCount, Source

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
    """Return the snapshot with what the policy needs beyond the bulk read, for `vms`; None = for all VMs.

    `machines`: VM (ref) -> the broker's id of its machine, for machines whose record must be current.
    """
    if policy.needs_tags:
        inventory = vcenter.with_tags(inventory, vms)
    candidates = inventory.vms.values() if vms is None else [inventory.vms[ref] for ref in vms if ref in inventory.vms]
    measured = policy.running_by_counters(candidates)
    if measured:
        inventory = vcenter.with_counters(inventory, measured, policy.counters, policy.counters_for_s)
    smi = policy.by_vgpu_use(candidates) if vgpu_use is not None else ()
    if vgpu_use is not None and smi:
        vms_to_ask = [inventory.vms[ref] for ref in sorted(smi)]
        use_of_vms = vgpu_use.use(vms_to_ask, inventory)
        inventory = inventory.completed(vms=[replace(vm, vgpu_use=use_of_vms.get(vm.ref)) for vm in vms_to_ask])
    if policy.gates:
        gated = {ref: machines.get(ref, "") for ref in policy.behind_gates(candidates)}
        inventory = with_gates(inventory, gated, gates)
        sources = {**sources, Source.BROKER: gates} if gates is not None else sources
    inventory = _with_sessions(inventory, policy.running_in_pools(candidates) if sources else (), sources)
    inventory = _with_machines_not_found(inventory, sources.get(Source.BROKER))
    return _with_guest_sessions(inventory, policy, candidates, sources.get(Source.SESSIONS))


def with_gates(inventory: Inventory, machines: Mapping[str, str], gates: DesktopGates | None) -> Inventory:
    """Return the snapshot with the broker's gates of these VMs. `machines`: VM (ref) -> id of its machine, or empty."""
    vms_to_ask = [inventory.vms[ref] for ref in sorted(machines) if ref in inventory.vms]
    if not vms_to_ask:
        return inventory
    if gates is None:
        gate_of = {vm.ref: unknown_gate("no connection broker is configured for this vCenter") for vm in vms_to_ask}
    else:
        gate_of = dict(gates.gates(vms_to_ask, machines, inventory))
    return inventory.completed(vms=[replace(vm, gate=gate_of[vm.ref]) for vm in vms_to_ask])


def _with_machines_not_found(inventory: Inventory, broker: SessionSource | None) -> Inventory:
    """Return the snapshot with the broker's machines that are not certainly one of its VMs, by the last read."""
    if not isinstance(broker, BrokerSessions | BrokerGates) or broker.match is None:
        return inventory
    return inventory.with_machines_not_found(broker.match.reasons)


def _with_sessions(inventory: Inventory, refs: Collection[str], sources: Mapping[Source, SessionSource]) -> Inventory:
    """Return the snapshot with the sessions of these VMs from each source, with one request per source."""
    vms_to_ask = [inventory.vms[ref] for ref in sorted(refs)]
    if not vms_to_ask:
        return inventory
    # guests are read later, and only those that seem idle by these sources (`_with_guest_sessions`)
    at_once = {source: reader for source, reader in sources.items() if source is not Source.SESSIONS}
    counts = {source: reader.sessions(vms_to_ask, inventory) for source, reader in at_once.items()}
    return inventory.completed(
        vms=[
            replace(
                vm,
                sessions={
                    source: counts_of_source[vm.ref]
                    for source, counts_of_source in counts.items()
                    if vm.ref in counts_of_source
                },
            )
            for vm in vms_to_ask
        ]
    )


def _with_guest_sessions(
    inventory: Inventory, policy: Policy, candidates: Iterable[Vm], guests: SessionSource | None
) -> Inventory:
    """Return the snapshot with sessions read in guests: only of VMs whose pool requires it and that seem idle so far.

    No other guest is entered: the login may not exist there, and a refused login counts towards a lockout.
    """
    refs = policy.running_in_pools(candidates) if guests is not None else ()
    pooled = [(vm, policy.pool_of(vm)) for vm in (inventory.vms[ref] for ref in sorted(refs))]
    vms_with_rule = [(vm, pool.idle) for vm, pool in pooled if pool is not None and Source.SESSIONS in pool.idle.needed]
    if guests is None or not vms_with_rule:
        return inventory
    vms_to_ask = [vm for vm, rule in vms_with_rule if idleness(vm, rule).use is not Use.BUSY]
    not_asked = SessionCount(
        None, None, inventory.taken_at, because="it was not asked: another reading shows that it is in use"
    )
    counts = {vm.ref: not_asked for vm, _ in vms_with_rule} | dict(guests.sessions(vms_to_ask, inventory))
    return inventory.completed(
        vms=[replace(vm, sessions={**(vm.sessions or {}), Source.SESSIONS: counts[vm.ref]}) for vm, _ in vms_with_rule]
    )
