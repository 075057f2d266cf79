"""Shows clusters, and removes their VMs and no others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, Protocol, runtime_checkable

from gpuops.errors import Refused, UsageError
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.orders import load_cluster_order
from gpuops.execute.journal.record import Kind, load_step
from gpuops.execute.site import Site, agreed
from gpuops.execute.site.agreement import Agreement, ask_until_agreed
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.execute.steps.vm_runs import execute_steps, next_removal_step, settle_steps, step_failure
from gpuops.extras.clusters.answers import ClusterRemoved
from gpuops.extras.clusters.cluster_members import REMOVE_PRIVILEGES, MarkedVm, marked_vms, removal_refusals
from gpuops.extras.clusters.run import (
    CLUSTER,
    PROGRAM,
    alone_with,
    begin,
    changing,
    end_cut_off_programs,
    keep_runs_away,
    open_runs,
    require_unused,
    wait_for_tasks,
)
from gpuops.extras.clusters.view import ShownTrainingClusterRecord, ShownTrainingVmRecord
from gpuops.model.devices.other_device import Networks
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.stored import stored_name
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm, VmDrs
from gpuops.plan.core.plan import Plan, Verdict, Wave
from gpuops.plan.core.privileges import privilege_rejection
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import SetVmDrs
from gpuops.report.document import NamedRecord


def vms_with_override(name: str, inventory: Inventory, journal: Journal | None) -> tuple[Vm, ...]:
    """Return the VMs that still have the override that the cluster has set, sorted by name."""
    setters = _last_setters(journal)
    marked = {member.vm.ref for member in marked_vms(inventory, name)}
    cluster_vms = {vm for vm in (*marked, *setters) if setters.get(vm, name if vm in marked else None) == name}
    vms = [vm for vm in inventory.vms.values() if vm.ref in cluster_vms and inventory.drs_of(vm) is VmDrs.MANUAL]
    return tuple(sorted(vms, key=lambda vm: (vm.name, vm.ref)))


def remove_overrides(
    vms: tuple[Vm, ...], inventory: Inventory, journal: Journal, run: Run, site: Site
) -> Iterator[tuple[str, str]]:
    """Remove the DRS overrides of these VMs. Yield the name of each VM, and why its override stays or "" if removed.

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
    """Return by VM (ref) the name of the training cluster that last set its DRS override, by the journal.

    None means that the override, if the VM has one now, is not a cluster's. Either another run of gpuops, such as a
    night, has set it since, or gpuops removed the cluster's override and an admin has set a new one. VMs whose override
    gpuops never set are missing.

    If a cluster's run removes an override, it still counts as the cluster's until the run has ended, because the
    removal may fail.
    """
    clusters: dict[str, str] = {}
    last_setters: dict[str, str | None] = {}
    removals_by_run: dict[str, set[str]] = {}
    for record in journal.records() if journal is not None else ():
        if record.kind is Kind.BEGUN and record.body["kind"] == CLUSTER:
            clusters[record.run] = load_cluster_order(record.body.get("order", "")).cluster
        elif record.kind is Kind.INTENT and stored_name(SetVmDrs) in record.body["step"]:
            step = load_step(record.body["step"])
            if isinstance(step, SetVmDrs):
                last_setters[step.vm] = clusters.get(record.run)
                if step.drs is VmDrs.CLUSTER:
                    removals_by_run.setdefault(record.run, set()).add(step.vm)
        elif record.kind is Kind.ENDED:
            last_setters |= dict.fromkeys(removals_by_run.pop(record.run, ()))  # None: this run removed the overrides
    return last_setters


@runtime_checkable
class ClusterPort(Protocol):
    """A vCenter in which clusters are made and removed."""

    def networks(self) -> Networks:
        """Return the distributed switches and the RDMA devices of the hosts."""
        ...

    def guest_id(self, vm: str) -> str:
        """Return the guest OS type of the VM, for example `ubuntu64Guest`; empty if it cannot be read."""
        ...


def cluster_port(site: Site) -> ClusterPort:
    """Return the vCenter of the site as a ClusterPort. Raises Refused for a saved inventory."""
    vcenter = site.vcenter
    if not isinstance(vcenter, ClusterPort):
        raise Refused("clusters cannot be made or removed on a saved inventory", hint="use --vcenter")
    return vcenter


ROUNDS: Final = 4
"""One round to power off, one to remove, and two more for VMs that were being started meanwhile."""
A_COPY: Final = "has the same marker as another VM: rename the copy, gpuops never removes a VM with another name"


def delete_cluster(
    name: str, site: Site, *, apply: bool, consent: Callable[[ClusterRemoved], None] = agreed
) -> ClusterRemoved:
    """Plan the removal of the cluster's VMs; with `apply` carry it out, and end the cluster's runs in the journal.

    Returns the VMs, those that remain with the reason, and the removed DRS overrides. Also removes the VMs that an
    interrupted `cluster create` is still cloning, as soon as vCenter has made them. Raises Locked, NotConnected; the
    same call then continues.
    """
    cluster_port(site)  # refuses a saved inventory
    with site.journal_to_read(site.vcenter.uuid) as journal:
        planned, inventory = _read_and_plan(name, site, journal)
    if planned.rejections or not apply:
        return planned

    def begin_removal(agreement: Agreement[ClusterRemoved]) -> Run | ClusterRemoved:
        nonlocal inventory
        with changing(site) as journal:
            current, inventory = _read_and_plan(name, site, journal)
            if current.rejections:
                return current
            agreement.require(current)
            if not (current.changed or open_runs(journal, name) or open_runs(journal, name, PROGRAM)):
                return replace(current, applied=True)
            members = current.vms
            return begin(journal, name, members[0].marker.id if members else "", [member.vm.ref for member in members])

    with alone_with(site, name, "cluster-delete"):
        require_unused(name, inventory, site)
        run = ask_until_agreed(planned, consent, begin_removal)
        if isinstance(run, ClusterRemoved):
            return run
        wait_for_tasks(site, name, inventory)  # without the lock: `rotate day` must not wait for a clone
        with changing(site, waits=True) as journal:
            settle_steps(inventory, journal, run, site)
            inventory = site.vcenter.inventory()
            members = marked_vms(inventory, name)
            refusals = removal_refusals(members)  # an admin may have made a copy meanwhile
            if refusals:
                return ClusterRemoved(name, members, rejections=refusals)
            with keep_runs_away(site, name, members, inventory):
                remaining_vms, inventory = remove_vms(members, inventory, journal, run, site)
            overrides = list(
                remove_overrides(vms_with_override(name, inventory, journal), inventory, journal, run, site)
            )
            remaining_vms += tuple(f"{vm}: {why}" for vm, why in overrides if why)
            if not remaining_vms:
                # nothing of the cluster is left, so an interrupted `cluster create` has nothing to continue
                end_cut_off_programs(journal, name)  # their processes ended with their VMs
                for open_run in open_runs(journal, name):
                    journal.end(open_run, cut_off=open_run.id != run.id)
    return ClusterRemoved(
        name, members, remaining_vms, applied=True, overrides=tuple(vm for vm, why in overrides if not why)
    )


def _read_and_plan(name: str, site: Site, journal: Journal | None) -> tuple[ClusterRemoved, Inventory]:
    """Return what is to be removed, and the inventory that was read."""
    inventory = site.vcenter.inventory()
    members = marked_vms(inventory, name)
    refs = {member.vm.ref for member in members}
    overrides = tuple(vm.name for vm in vms_with_override(name, inventory, journal) if vm.ref not in refs)
    refusals = removal_refusals(members) + _missing_privileges(members, site)
    return ClusterRemoved(name, members, rejections=refusals, overrides=overrides), inventory


def _missing_privileges(members: tuple[MarkedVm, ...], site: Site) -> tuple[Rejection, ...]:
    lacking = site.vcenter.lacking({member.vm.ref: REMOVE_PRIVILEGES for member in members}) if members else {}
    names = {member.vm.ref: member.vm.name for member in members}
    return tuple(privilege_rejection(names[ref], missing) for ref, missing in lacking.items() if missing)


def remove_vms(
    members: tuple[MarkedVm, ...],
    inventory: Inventory,
    journal: Journal,
    run: Run,
    site: Site,
    *,
    but: Collection[str] = (),
) -> tuple[tuple[str, ...], Inventory]:
    """Power these VMs off and remove them. Return the remaining VMs with reasons, and the latest inventory.

    Also removes VMs of the same clusters that appear meanwhile, for example from clones in progress. Never removes VMs
    whose managed object id is in `but`, nor a VM whose rank another VM has or had: one of the two is a copy that an
    admin may need. Raises NotConnected.
    """
    failures: dict[str, str] = {}
    ref_of: dict[tuple[str, int], str] = {}  # by cluster id and rank; filled by `_vms_of_shared_ranks`
    clusters = sorted({(member.marker.cluster, member.marker.id) for member in members})

    def find_remaining() -> list[MarkedVm]:
        # also marks copies in `failures`, so that no step removes them
        candidates = [member for cluster in clusters for member in marked_vms(inventory, *cluster)]
        failures.update((member.vm.ref, A_COPY) for member in _vms_of_shared_ranks(candidates, ref_of))
        return [member for member in candidates if member.vm.ref not in but]

    for _ in range(ROUNDS):  # each round sends one request per VM: power off, then remove
        to_remove = [member for member in find_remaining() if failures.get(member.vm.ref) != A_COPY]
        if not to_remove:
            break
        steps = [next_removal_step(member.vm, member.marker.notes) for member in to_remove]
        outcomes = execute_steps(steps, inventory, journal, run, site)
        failures.update((ref, failure) for ref, outcome in outcomes.items() if (failure := step_failure(outcome)))
        inventory = site.vcenter.inventory()
    return tuple(
        f"{member.vm.name}: {failures.get(member.vm.ref) or 'it is still there'}" for member in find_remaining()
    ), inventory


def _vms_of_shared_ranks(candidates: Sequence[MarkedVm], ref_of: dict[tuple[str, int], str]) -> Iterator[MarkedVm]:
    """Yield the VMs whose rank is, or was, also the rank of another VM.

    `ref_of` holds the first VM seen with each rank and is extended here; empty if two VMs had the rank at once.
    """
    ranks = [(candidate.marker.id, candidate.marker.rank) for candidate in candidates]
    for rank, candidate in zip(ranks, candidates, strict=True):
        if ref_of.setdefault(rank, candidate.vm.ref if ranks.count(rank) == 1 else "") != candidate.vm.ref:
            yield candidate


def read_clusters(name: str | None, site: Site) -> list[ShownTrainingClusterRecord]:
    """Return the clusters of this vCenter, or the one of this name. Raises UsageError if it does not exist."""
    inventory = site.vcenter.inventory()
    marked = marked_vms(inventory, name)
    if name is not None and not marked:
        raise UsageError(
            f"there is no cluster {name!r}", hint="gpuops cluster show lists the clusters that gpuops made"
        )
    ordered = sorted(marked, key=lambda member: (member.marker.cluster, member.marker.id, member.marker.rank))
    groups = groupby(ordered, key=lambda member: (member.marker.cluster, member.marker.id))
    return [_show_group(list(group), inventory, site) for _, group in groups]


def _show_group(group: list[MarkedVm], inventory: Inventory, site: Site) -> ShownTrainingClusterRecord:
    first = group[0].marker
    members = [_member(member, inventory, site) for member in group]
    problems = list(_problems(group, inventory, site))
    return ShownTrainingClusterRecord(first.cluster, first.id, first.nodes, not problems, problems, members)


def _member(member: MarkedVm, inventory: Inventory, site: Site) -> ShownTrainingVmRecord:
    """Return the row of one VM; its address is known only if VMware Tools report one now."""
    host = inventory.host_of(member.vm)
    running = member.vm.power is PowerState.ON
    address = site.vcenter.wait_for_guest(member.vm.ref, 0.0, address=True).address if running else None
    return ShownTrainingVmRecord(
        member.marker.rank,
        NamedRecord(member.vm.ref, member.vm.name),
        host.name if host is not None else None,
        member.vm.power,
        len(member.vm.devices or ()),
        address,
        member.marker.rdma,
    )


def _problems(group: list[MarkedVm], inventory: Inventory, site: Site) -> Iterator[str]:
    """Yield the differences from the cluster as it was made: interrupted calls, missing VMs, VMs that do not run."""
    first = group[0].marker
    with site.journal_to_read(inventory.vcenter) as journal:
        if open_runs(journal, first.cluster):
            yield "it was not completely made or removed: run gpuops cluster create or delete again to continue"
    missing = sorted(set(range(first.nodes)) - {member.marker.rank for member in group})
    if missing:
        yield f"rank {', '.join(map(str, missing))} is missing"
    for member in group:
        if member.vm.power is not PowerState.ON:
            yield f"{member.vm.name} does not run"
        present_devices, expected_devices = len(member.vm.devices or ()), member.marker.devices
        if member.vm.devices is None:
            yield f"{member.vm.name}: its devices cannot be read"
        elif present_devices < expected_devices:
            yield f"{member.vm.name} has {present_devices} of the {expected_devices} devices that it was made with"
