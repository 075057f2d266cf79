"""Removes overrides of DRS from VMs that stay when a cluster is removed: another user has them, or the removal failed.

vCenter removes an override together with its VM (vSphere API reference, ClusterConfigInfoEx.drsVmConfig: only VMs of
the cluster). For the other VMs the journal shows which overrides a cluster has set. Markers cannot show it: copies of
a VM have the same marker, and their overrides belong to their owners.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.orders import load_cluster_order
from gpuops.execute.journal.record import Kind
from gpuops.execute.journal.step_json import load_step
from gpuops.execute.site import Site
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.extras.clusters.members import marked_vms
from gpuops.extras.clusters.run import CLUSTER
from gpuops.model.nights.rotation import Limits
from gpuops.model.stored import stored_name
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm, VmDrs
from gpuops.plan.core.plan import Plan, Verdict, Wave
from gpuops.plan.core.steps import SetVmDrs


def vms_with_override(name: str, inventory: Inventory, journal: Journal | None) -> tuple[Vm, ...]:
    """Return the VMs that still have the override that the cluster has set, sorted by name."""
    setters = _last_setters(journal)
    marked = {member.vm.ref for member in marked_vms(inventory, name)}
    cluster_vms = {vm for vm in (*marked, *setters) if setters.get(vm, name if vm in marked else None) == name}
    vms = [vm for vm in inventory.vms.values() if vm.ref in cluster_vms and inventory.drs_of(vm) is VmDrs.MANUAL]
    return tuple(sorted(vms, key=lambda vm: (vm.name, vm.ref)))


def take_back(
    vms: tuple[Vm, ...], inventory: Inventory, journal: Journal, run: Run, site: Site
) -> Iterator[tuple[str, str]]:
    """Remove the overrides. Yield the name of each VM and why its override stays; empty if it was removed.

    Raises NotConnected.
    """
    names = {vm.ref: vm.name for vm in vms}
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    plan = Plan((Wave("leave to DRS", tuple(SetVmDrs(ref, VmDrs.CLUSTER) for ref in names)),))
    for outcome in execute(plan, executor, Limits(), site.progress, in_flight=site.in_flight) if vms else ():
        is_done = outcome.verdict in (Verdict.DONE, Verdict.ALREADY)
        yield (
            names[outcome.step.vm],
            "" if is_done else f"its override of DRS stays: {outcome.reason or outcome.verdict}",
        )


def _last_setters(journal: Journal | None) -> dict[str, str | None]:
    """Return the cluster that last set the override, by VM.

    None: a night has set it since, or it was removed; an override that exists now was set by the owner. A removal
    counts when its run has ended, because before that it may not have happened.
    """
    clusters: dict[str, str] = {}
    last: dict[str, str | None] = {}
    taken_back: dict[str, set[str]] = {}
    for record in journal.records() if journal is not None else ():
        if record.kind is Kind.BEGUN and record.body["kind"] == CLUSTER:
            clusters[record.run] = load_cluster_order(record.body.get("order", "")).cluster
        elif record.kind is Kind.INTENT and stored_name(SetVmDrs) in record.body["step"]:
            step = load_step(record.body["step"])
            if isinstance(step, SetVmDrs):
                last[step.vm] = clusters.get(record.run)
                if step.drs is VmDrs.CLUSTER:
                    taken_back.setdefault(record.run, set()).add(step.vm)
        elif record.kind is Kind.ENDED:
            last |= dict.fromkeys(taken_back.pop(record.run, ()))
    return last
