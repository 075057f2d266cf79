"""Overrides of DRS of the VMs that the removal of a cluster leaves: they are somebody else's now, or could not be
removed.

With a VM that is removed goes its override (vSphere API reference, ClusterConfigInfoEx.drsVmConfig, which has VMs of
the cluster alone). Of the others the journal knows which ones a cluster has set; the markers of VMs that were renamed
would tell of copies too, whose overrides are their owners'.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpuops.execute.cluster.run import CLUSTER
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.record import Kind
from gpuops.execute.journal.step_json import load_step
from gpuops.execute.site import Site
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.nights.rotation import Limits
from gpuops.model.stored import stored_name
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm, VmDrs
from gpuops.plan.cluster.members import marked_vms
from gpuops.plan.core.plan import Plan, Verdict, Wave
from gpuops.plan.core.steps import SetVmDrs


def overridden(name: str, inventory: Inventory, journal: Journal | None) -> tuple[Vm, ...]:
    """The VMs that are there with the override that the cluster has set, by name."""
    setters = _setters(journal)
    marked = {each.vm.ref for each in marked_vms(inventory, name)}
    ours = {vm for vm in (*marked, *setters) if setters.get(vm, name if vm in marked else None) == name}
    found = [vm for vm in inventory.vms.values() if vm.ref in ours and inventory.drs_of(vm) is VmDrs.MANUAL]
    return tuple(sorted(found, key=lambda vm: (vm.name, vm.ref)))


def take_back(
    vms: tuple[Vm, ...], inventory: Inventory, journal: Journal, run: Run, site: Site
) -> Iterator[tuple[str, str]]:
    """Takes the overrides away: the name of each VM, and why its override stays; empty = it is taken back.

    Raises NotConnected.
    """
    names = {vm.ref: vm.name for vm in vms}
    executor = VmExecutor(site.vcenter, journal, run, inventory, passed_s=site.passed_s)
    plan = Plan((Wave("leave to DRS", tuple(SetVmDrs(ref, VmDrs.CLUSTER) for ref in names)),))
    for each in execute(plan, executor, Limits(), site.progress, in_flight=site.in_flight) if vms else ():
        done = each.verdict in (Verdict.DONE, Verdict.ALREADY)
        yield names[each.step.vm], "" if done else f"its override of DRS stays: {each.reason or each.verdict}"


def _setters(journal: Journal | None) -> dict[str, str | None]:
    """VM -> the cluster that was the last to set its override; None = a night has since, or it was taken back: one that
    is there now is its owner's. As long as its run is open, nobody knows whether it was taken back."""
    clusters: dict[str, str] = {}
    last: dict[str, str | None] = {}
    taken_back: dict[str, set[str]] = {}
    for record in journal.records() if journal is not None else ():
        if record.kind is Kind.BEGUN and record.body["kind"] == CLUSTER:
            clusters[record.run] = json.loads(record.body.get("order") or "{}").get("cluster", "")
        elif record.kind is Kind.INTENT and stored_name(SetVmDrs) in record.body["step"]:
            step = load_step(record.body["step"])
            if isinstance(step, SetVmDrs):
                last[step.vm] = clusters.get(record.run)
                if step.drs is VmDrs.CLUSTER:
                    taken_back.setdefault(record.run, set()).add(step.vm)
        elif record.kind is Kind.ENDED:
            last |= dict.fromkeys(taken_back.pop(record.run, ()))
    return last
