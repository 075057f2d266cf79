"""Rotation, DRS: kept off the ML VMs of a night where the policy wants that, and put back in the morning.

DRS might move an ML VM onto the GPUs that desktops come back to. An override of the VM's own, `manual`, keeps it where
the plan has put it; what the VM had before stands in the journal and in its marker, so that either alone can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuops.model.host import Host
from gpuops.model.inventory import Inventory
from gpuops.model.rotation import DrsOverride, Policy, Role, parse_marker
from gpuops.model.vm import Vm, VmDrs
from gpuops.plan.core.plan import Rejection
from gpuops.plan.core.steps import SetVmDrs
from gpuops.plan.rotation.ours import Ours
from gpuops.plan.rotation.start import Start


def drs_before(policy: Policy, night: str, vm: Vm, host: Host, inventory: Inventory) -> VmDrs | None:
    """What DRS did with the VM before this night took it to the host; None = it is left alone.

    A run that was cut off may have changed it already: then its marker tells.
    """
    if policy.drs_override is DrsOverride.NONE:
        return None
    marked = parse_marker(vm.attributes.get(policy.marker, ""))
    if marked is not None and (marked.night, marked.role) == (night, Role.ML) and marked.drs is not None:
        return marked.drs
    cluster = inventory.clusters.get(host.cluster or "")
    if cluster is None or cluster.drs_enabled is False:
        return None
    now = cluster.drs_of(vm.ref)
    return None if now is None or now.moves_nothing else now


def unreadable(policy: Policy, starts: Iterable[Start], inventory: Inventory) -> Iterator[Rejection]:
    """A refusal for each cluster of which this login cannot read what DRS does with the VMs that start there."""
    if policy.drs_override is DrsOverride.NONE:
        return
    hosts = {start.host.cluster: start for start in starts if start.host.cluster is not None}
    for ref, start in sorted(hosts.items()):
        cluster = inventory.clusters.get(ref)
        if cluster is None or (cluster.drs_enabled is not False and cluster.drs_of(start.vm.ref) is None):
            name = cluster.name if cluster is not None else ref
            rule = f"drs_override: {policy.drs_override}: what DRS does here cannot be read"
            yield Rejection(name, rule, hint="give this login read access to the cluster, or say `drs_override: none`")


def kept_off(before: Mapping[str, VmDrs], starts: Iterable[Start], inventory: Inventory) -> tuple[SetVmDrs, ...]:
    """The overrides of the VMs that start; one that a run which was cut off has set already is not set again."""
    found = []
    for start in starts:
        cluster = inventory.clusters.get(start.host.cluster or "")
        if start.vm.ref in before and cluster is not None and cluster.drs_of(start.vm.ref) is not VmDrs.MANUAL:
            found.append(SetVmDrs(start.vm.ref, VmDrs.MANUAL))
    return tuple(found)


def drs_is_ours(mine: Ours, inventory: Inventory) -> bool:
    """Whether the VM still has the override that the night gave it; what somebody else has set since is left alone."""
    if mine.original.drs is None or mine.vm is None:
        return False
    return inventory.drs_of(mine.vm) in (VmDrs.MANUAL, None)


def put_back(found: Iterable[Ours], inventory: Inventory) -> tuple[SetVmDrs, ...]:
    """What the VMs of nights had before."""
    return tuple(
        SetVmDrs(mine.vm.ref, mine.original.drs)
        for mine in found
        if mine.vm is not None and mine.original.drs is not None and drs_is_ours(mine, inventory)
    )
