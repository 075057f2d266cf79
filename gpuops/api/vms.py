"""The functions about VMs: place, attach, detach and clone them, judge whether they are idle, and check their guests.

Also the capacity that is left for more VMs, and the moves of VMs that free GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Final

from gpuops.advise.idle import judge_vms
from gpuops.errors import Refused, UsageError
from gpuops.execute.site import Consent, Site, agreed, catalog_of
from gpuops.extensions import load
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.vcenter.vm import PowerState, is_gpu

if TYPE_CHECKING:
    from gpuops.advise.idle import JudgedVm
    from gpuops.execute.journal import Journal
    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.fleet_change import ApplyLayout
    from gpuops.model.guests.guest import GuestReply, GuestSystem
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm
    from gpuops.plan.capacity.capacity_request import Capacity, CapacityRequest
    from gpuops.plan.core.plan import Report, Request
    from gpuops.plan.guest.guest_check import GuestQuestion, GuestVerdicts
    from gpuops.plan.moving.defrag import Defrag, Defragmentation
    from gpuops.plan.queue.place import Place, Placements
    from gpuops.plan.vm.clone import Clone, Cloning
    from gpuops.vsphere.connection import Connection

STALE: Final = timedelta(seconds=60)
"""A plan older than this is made again before it is applied: the admin may have answered the prompt hours later."""


def place(request: Place, site: Site, layout: ApplyLayout | None = None) -> Placements:
    """Return where VMs that do not exist yet would be placed on this site, and why. Nothing is ever written.

    `layout`: return the places that there would be if this MIG layout were applied. Raises ProfileUnknown,
    ProfileAmbiguous, and with a layout UsageError and HostNotFound.
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
    """Return the placements on the hosts as they would be with this MIG layout."""
    fleet = load("gpuops.extras.sizing.what_if.changed_fleet.changed_fleet")((layout,), inventory, catalog, None, 1)
    request.check_profiles(fleet.inventory, catalog)
    placements = request.placements(fleet.inventory, catalog)
    return replace(placements, before=inventory, doubts=(*fleet.in_words, *placements.doubts))


def idle(
    inventory: Inventory, site: Site, policy: Policy | None, *, pool: str | None = None, vm: str | None = None
) -> tuple[Inventory, tuple[JudgedVm, ...]]:
    """Judge whether VMs are idle. Return the inventory with the evidence that was read, and the judged VMs.

    These are the VM `vm`, or else the desktops of the policy (only those in `pool` if it is given), or without a policy
    all running VMs with a GPU device. Raises UsageError for an unknown pool, VmNotFound, VmAmbiguous.
    """
    refuse_unknown_pool(policy, pool)
    if policy is not None and policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    if vm is not None:
        vms = [inventory.find_vm(vm)]
    elif policy is not None:
        pools_of_vms = ((candidate, policy.pool_of(candidate)) for candidate in inventory.vms.values())
        vms = [candidate for candidate, vm_pool in pools_of_vms if vm_pool is not None and pool in (None, vm_pool.name)]
    else:
        vms = [
            candidate
            for candidate in inventory.vms.values()
            if any(map(is_gpu, candidate.devices or ())) and candidate.power is PowerState.ON
        ]
    refs = [candidate.ref for candidate in vms]
    if policy is not None:
        inventory = site.read_for_policy(inventory, policy, refs)
    return inventory, judge_vms([inventory.vms[ref] for ref in refs], policy)


def refuse_unknown_pool(policy: Policy | None, pool: str | None) -> None:
    """Raise UsageError if the policy has no pool of this name; None names no pool."""
    pools = [vm_pool.name for vm_pool in policy.pools] if policy is not None else []
    if pool is not None and pool not in pools:
        hint = "add --policy FILE: a policy defines the pools"
        if policy is not None:
            hint = f"pools of this policy: {', '.join(pools)}"
        raise UsageError(f"there is no pool {pool!r}", hint=hint)


def run(request: Request, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """Plan the request on this site, carry it out with `apply`, and return the plan and its outcomes.

    An infeasible plan is not an error: `report.plan.rejections` has the reasons. Raises UsageError for a request that
    names something unknown, NotConnected, Locked while a rotation runs.
    """
    from gpuops.execute.site.agreement import apply_agreed

    if apply:
        from gpuops.execute.steps.vm_runs import end_killed_calls

        end_killed_calls(request.run_kind, site)  # their runs are still open in the journal
    looked_at = site.clock()
    report = _look_and_plan(request, site)

    def look_again(journal: Journal) -> Report:
        # the plan was made without the lock: make it again if it is old or a run of gpuops has changed something since
        nonlocal looked_at, report
        last_change, now = journal.last_change(), site.clock()
        if now - looked_at > STALE or (last_change is not None and last_change > looked_at):
            looked_at, report = now, _look_and_plan(request, site)
        return report

    def execute_plan(report: Report, journal: Journal) -> Report:
        from gpuops.execute.steps.plan_executor import execute
        from gpuops.execute.steps.vm_executor import VmExecutor

        journal_run = journal.begin(request.run_kind, order=gethostname())
        executor = VmExecutor(site.vcenter, journal, journal_run, report.before, passed_s=site.passed_s)
        outcomes = execute(report.plan, executor, Limits(), site.progress, in_flight=site.in_flight)
        journal.end(journal_run)
        return replace(report, outcomes=outcomes, applied=True, after=executor.inventory)

    lock = partial(site.locked_journal, report.before.vcenter, alone=False)
    return apply_agreed(report, consent, execute_plan, apply=apply, lock=lock, look_again=look_again)


def _look_and_plan(request: Request, site: Site) -> Report:
    """Read what the request needs, and return its plan, with refusals for missing privileges."""
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
    plan = request.plan(before, catalog_of(before), site.clock())
    return Report(request, before, site.check_privileges(plan, before))


def clone(request: Clone, site: Site, *, apply: bool) -> tuple[Cloning, Inventory]:
    """Clone a VM unless it exists. Return the clone and the inventory after it; without `apply` both are predicted.

    An unusable template is not an error: `Cloning.rejections` has the reasons. Raises UsageError, NotConnected, Locked
    while a rotation runs.
    """
    from gpuops.execute.steps.vm_runs import clone as clone_vm

    return clone_vm(request, site, apply=apply)


def foresee(request: Request, after: Clone, site: Site) -> Report:
    """Return the plan of a request on the VM that the clone `after` would make. Nothing is ever written.

    Raises the errors of `run` and `clone`, and Refused if the clone would be refused.
    """
    from gpuops.execute.steps.vm_runs import foresee_report

    return foresee_report(request, after, site) or run(request, site, apply=False)


def capacity(request: CapacityRequest, inventory: Inventory, site: Site, policy: Policy | None = None) -> Capacity:
    """Count the vGPUs and whole GPUs that still fit.

    With a policy also count those that fit after every desktop that gpuops may suspend now is suspended. Raises
    UsageError for an unknown profile, host or cluster.
    """
    from gpuops.plan.capacity.capacity_request import capacity as count_free

    if policy is None:
        return count_free(inventory, catalog_of(inventory), request.scope, profile=request.profile)
    from gpuops.execute.rotation.rotation import survey_desktops

    desktops = survey_desktops(policy, site, inventory).free_to_take
    return count_free(inventory, catalog_of(inventory), request.scope, desktops, profile=request.profile)


def defrag(request: Defrag, inventory: Inventory, site: Site) -> Defragmentation:
    """Return the moves that free the most whole GPUs or slots, as few as possible, and why other VMs stay. Moves none.

    Raises UsageError for an unknown host or cluster, ProfileUnknown, and Refused for a profile that no host offers.
    """
    from gpuops.execute.change.vm_moves import plan_moves

    return plan_moves(request, inventory, site)


def guest_check(
    question: GuestQuestion,
    inventory: Inventory,
    site: Site,
    policy: Policy | None = None,
    environ: Mapping[str, str] = os.environ,
) -> GuestVerdicts:
    """Return verdicts on driver, licence, CUDA, frameworks, RDMA and clock of the guests that `question` selects.

    Runs one program in each guest, which only reads; changes nothing in vCenter. A guest that cannot be reached gets a
    verdict with the reason. Raises UsageError, VmNotFound, VmAmbiguous, Refused without a login for guests,
    NotConnected.
    """
    from gpuops.catalog.catalog_files import load_drivers
    from gpuops.model.guests.guest import GuestReply
    from gpuops.plan.guest.guest_check import check_reachable, judge_guests, select_guests
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.guests.guest_answers import guest_systems

    if not isinstance(site.vcenter, Connection):
        raise Refused("guests cannot be checked on a saved inventory", hint="run the command with --vcenter")
    if policy is not None and policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    vms = select_guests(inventory, question, policy)
    inventory = site.hosts.with_settings(inventory, sorted({vm.host for vm in vms if vm.host and vm.vgpus}))
    systems = guest_systems(site.vcenter, [vm.ref for vm in vms])
    over_tools = question.door is None
    replies: dict[str, GuestReply] = {}
    reachable: list[tuple[Vm, GuestSystem]] = []
    for vm in vms:
        system = systems.get(vm.ref)
        unreachable = check_reachable(vm, system, tools=over_tools)
        if unreachable is None and system is not None:
            reachable.append((vm, system))
        else:
            replies[vm.ref] = unreachable or GuestReply(None, "it was not asked")
    replies.update(_ask_guests(question, site.vcenter, reachable, site, environ))
    return judge_guests(inventory, vms, lambda vm: replies[vm.ref], question.wanted, load_drivers())


def _ask_guests(
    question: GuestQuestion,
    connection: Connection,
    reachable: Sequence[tuple[Vm, GuestSystem]],
    site: Site,
    environ: Mapping[str, str],
) -> Mapping[str, GuestReply]:
    """Return the reply of each reachable guest, by VM (ref), over VMware Tools or, if `question` has a login, SSH."""
    frameworks = [framework.name for framework in question.wanted.frameworks]
    if question.door is None:
        from gpuops.vsphere.guests.guest_answers import ToolsAnswers

        return ToolsAnswers(connection, site.say).replies(reachable, frameworks)
    from gpuops.config.vcenter.login_settings import guest_keys
    from gpuops.hostshell.guest_ssh import SshAnswers
    from gpuops.vsphere.guests.guest_answers import vcenter_time

    key, known_hosts = guest_keys(environ)
    return SshAnswers(question.door, known_hosts, key, lambda: vcenter_time(connection)).replies(reachable, frameworks)
