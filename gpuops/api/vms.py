"""The functions about VMs: attach, detach, clone, place, capacity, and moves that free GPUs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gpuops.errors import UsageError
from gpuops.execute.site import Consent, Site, agreed, catalog_of
from gpuops.model.vcenter.vm import PowerState, is_gpu

if TYPE_CHECKING:
    from datetime import datetime

    from gpuops.advise.idle import JudgedVm
    from gpuops.advise.replay import Replay
    from gpuops.advise.run_out import RunOut
    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.fleet_change import ApplyLayout
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.capacity.capacity_request import Capacity, CapacityRequest
    from gpuops.plan.capacity.sizing import SizeRequest, SizingAnswer
    from gpuops.plan.core.plan import Report, Request
    from gpuops.plan.moving.defrag import Defrag, Defragmentation
    from gpuops.plan.queue.place import Place, Placements
    from gpuops.plan.vm.clone import Clone, Cloning

STALE: Final = timedelta(seconds=60)
"""A plan this old is made again before it is done: a prompt may have waited for its answer for hours."""


def place(request: Place, site: Site, layout: ApplyLayout | None = None) -> Placements:
    """Where VMs that do not exist yet would go on this site, and why. Nothing is ever written.

    `layout`: the answer is as if GPUs had its GPU instances and no others. Raises ProfileUnknown, ProfileAmbiguous, and
    with a layout UsageError and HostNotFound.
    """
    inventory = site.vcenter.inventory()
    if request.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    hosts = request.config_targets(inventory)
    if hosts:
        inventory = site.vcenter.with_config_targets(inventory, hosts)
    inventory = site.with_vgpus(inventory)
    catalog = catalog_of(inventory)
    if layout is not None:
        return _on_layout(request, layout, inventory, catalog)
    request.check_profiles(inventory, catalog)
    return request.placements(inventory, catalog)


def _on_layout(request: Place, layout: ApplyLayout, inventory: Inventory, catalog: Catalog) -> Placements:
    from gpuops.plan.what_if.fleet import changed_fleet

    fleet = changed_fleet((layout,), inventory, catalog, None, 1)
    request.check_profiles(fleet.inventory, catalog)
    answer = request.placements(fleet.inventory, catalog)
    return replace(answer, before=inventory, doubts=(*fleet.in_words, *answer.doubts))


def idle(
    inventory: Inventory, site: Site, policy: Policy | None, *, pool: str | None = None, vm: str | None = None
) -> tuple[Inventory, tuple[JudgedVm, ...]]:
    """The verdict on each desktop of the policy, or of one pool, or on one VM; and the inventory with what it was given
    by. Without a policy: on each running VM with a GPU device.

    Raises UsageError for a pool that there is not, VmNotFound, VmAmbiguous.
    """
    from gpuops.advise.idle import judge_vms

    _refuse_unknown_pool(policy, pool)
    if policy is not None and policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    if vm is not None:
        meant = [inventory.find_vm(vm)]
    elif policy is not None:
        found = ((each, policy.pool_of(each)) for each in inventory.vms.values())
        meant = [each for each, its in found if its is not None and pool in (None, its.name)]
    else:
        meant = [
            each
            for each in inventory.vms.values()
            if any(map(is_gpu, each.devices or ())) and each.power is PowerState.ON
        ]
    refs = [each.ref for each in meant]
    if policy is not None:
        inventory = site.judged(inventory, policy, refs)
    return inventory, judge_vms([inventory.vms[ref] for ref in refs], policy)


def idle_replay(
    inventory: Inventory, site: Site, policy: Policy, since: datetime, *, pool: str | None = None
) -> Replay:
    """What the nights of this policy since then would have had taken, by the store of measurements. Changes nothing.

    Which desktops are in a pool is as vCenter shows it now. Raises UsageError for a pool that there is not, for what
    cannot be replayed, and where nothing was measured; StateDamaged.
    """
    from gpuops.execute.measurements.replaying import replay

    _refuse_unknown_pool(policy, pool)
    if policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    return replay(*site.measurements_store, inventory, policy, since, pool)


def _refuse_unknown_pool(policy: Policy | None, pool: str | None) -> None:
    """Raises UsageError for a pool that there is not."""
    pools = [each.name for each in policy.pools] if policy is not None else []
    if pool is not None and pool not in pools:
        said = f"pools there: {', '.join(pools)}" if policy is not None else "say --policy FILE, which has the pools"
        raise UsageError(f"there is no pool {pool!r}", hint=said)


def run(request: Request, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """What the request would change on this site, and with `apply` what became of it.

    An infeasible plan is an answer, not an error: `report.plan.rejections`. Raises UsageError for a request that
    means nothing here, NotConnected, Locked while a rotation runs.
    """
    looked_at = site.clock()
    report = _look(request, site)
    if not apply or not report.plan.feasible or not report.plan.steps:
        return replace(report, applied=apply)
    from gpuops.execute.steps.plan_executor import execute
    from gpuops.execute.steps.vm_executor import VmExecutor
    from gpuops.model.nights.rotation import Limits

    while True:
        consent(report)  # not under the lock: while somebody thinks it over, a return of desktops may begin
        agreed_to = report.plan
        with site.locked_journal(report.before.vcenter, alone=False) as journal:
            changed, now = journal.last_change(), site.clock()
            if now - looked_at > STALE or (changed is not None and changed > looked_at):
                looked_at, report = now, _look(request, site)
                if not report.plan.feasible:
                    return replace(report, applied=True)
                if report.plan != agreed_to:
                    continue
            began = journal.begin(request.run_kind)
            executor = VmExecutor(site.vcenter, journal, began, report.before, passed_s=site.passed_s)
            outcomes = execute(report.plan, executor, Limits(), site.progress, in_flight=site.in_flight)
            journal.end(began)
        return replace(report, outcomes=outcomes, applied=True, after=executor.inventory)


def _look(request: Request, site: Site) -> Report:
    from gpuops.plan.core.plan import Report
    from gpuops.plan.rotation.marks import RotateMark

    before = site.vcenter.inventory()
    if isinstance(request, RotateMark) and request.policy.needs_tags:
        before = site.vcenter.with_tags(before)
    vms = request.vm_details(before)
    if vms:
        before = site.vcenter.observe(before, vms)
    hosts = request.config_targets(before)
    if hosts:
        before = site.vcenter.with_config_targets(before, hosts)
    before = site.with_vgpus(before)
    return Report(request, before, site.permitted(request.plan(before, catalog_of(before), site.clock()), before))


def clone(request: Clone, site: Site, *, apply: bool) -> tuple[Cloning, Inventory]:
    """What there was to do so that the VM is there, and the vCenter as it is then: foreseen unless `apply`.

    A template that cannot be used is an answer: `rejections`. Raises UsageError, NotConnected, Locked while a rotation
    runs.
    """
    from gpuops.execute.cloning import clone as make

    return make(request, site, apply=apply)


def foresee(request: Request, after: Clone, site: Site) -> Report:
    """What the request would change once that VM is made, if it is not there yet. Nothing is ever written.

    Raises as `run` and `clone` do, and Refused where the clone would be.
    """
    from gpuops.execute.cloning import foreseen

    return foreseen(request, after, site) or run(request, site, apply=False)


def capacity(request: CapacityRequest, inventory: Inventory, site: Site, policy: Policy | None = None) -> Capacity:
    """How many more vGPUs and whole GPUs fit; with a policy also when all desktops that it may take are suspended.

    Raises UsageError for a profile, host or cluster that is not there.
    """
    from gpuops.plan.capacity.capacity_request import capacity as ask

    if policy is None:
        return ask(inventory, catalog_of(inventory), request.scope, profile=request.profile)
    from gpuops.execute.rotation.rotation import may_take

    desktops = may_take(policy, site, inventory).free_to_take
    return ask(inventory, catalog_of(inventory), request.scope, desktops, profile=request.profile)


def capacity_forecast(request: CapacityRequest, inventory: Inventory, site: Site) -> tuple[RunOut, ...]:
    """When each vGPU profile, or the one of the request, runs out by the history of `observe`.

    Raises UsageError for a profile that is not there, StateDamaged.
    """
    from gpuops.execute.measurements.running_out import run_outs

    found = capacity(request, inventory, site)
    fit = {name: each.slots for name, each in found.now.fits.items()}
    return run_outs(site.measurements_store, inventory, fit, found.profile)


def size(
    request: SizeRequest,
    inventory: Inventory,
    site: Site,
    policy: Policy | None = None,
    *,
    pool: str | None = None,
    since: datetime | None = None,
) -> SizingAnswer:
    """How many of these VMs may share a GPU, by the history of `observe` since then. Changes nothing.

    Raises UsageError for VMs that nothing says, that are not there, or without history; ProfileUnknown, and Refused for
    a profile that no host offers; VmNotFound, VmAmbiguous, StateDamaged.
    """
    from gpuops.execute.measurements.busy_shares import busy_history
    from gpuops.plan.capacity.sizing import size_history, sizing_pool

    _refuse_unknown_pool(policy, pool)
    if request.tag is not None or (policy is not None and policy.needs_tags):
        inventory = site.vcenter.with_tags(inventory)
    asked = sizing_pool(request, inventory, catalog_of(inventory), policy, pool)
    history = busy_history(site.measurements_store, inventory, asked.vms, asked.together, since)
    return size_history(request, asked, history, inventory)


def defrag(request: Defrag, inventory: Inventory) -> Defragmentation:
    """The fewest moves that free the most whole GPUs or slots, and why the other VMs stay. Nothing is moved.

    Raises UsageError for a host or cluster that is not there, ProfileUnknown, and Refused for a profile that no host
    offers.
    """
    return request.find_moves(inventory, catalog_of(inventory))
