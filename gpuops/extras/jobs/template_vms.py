"""Plans the VMs that are created from a template for jobs: which are missing, and which are not needed. Pure.

Each VM is created with a marker in its configuration and its notes: its own name, and the job and list of jobs for
which it was created. A copy under another name is therefore not managed here, and neither is a VM for the jobs of
another machine: its jobs are unknown here.

    job 4 lacks a VM  -->  gpuops-job-01 is created, gets its vGPU  -->  nights run jobs in it  -->  it is removed

`job_vm_room` predicts which jobs get a VM of a policy: an existing one, or one that is created from its template. The
jobs are treated as submitted now, after the existing ones. Their order, quotas and VMs are decided as for a night
(`job_turns.py`), and new VMs are planned as during the day.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Final, TypeAlias

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.errors import UsageError
from gpuops.extras.jobs.dependencies import required_numbers
from gpuops.extras.jobs.job import ContainerJob, SubmittedJob
from gpuops.extras.jobs.job_turns import JobTurn, job_turns, vm_of, with_owners
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.fair_share import FairShare
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.time_text import format_iso_utc
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.job_rules import JobRules, JobTemplate, Submitter
from gpuops.plan.core.plan import Plan
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import CloneVm, PowerOnVm, SuspendVm
from gpuops.plan.devices.goal import profile_meant
from gpuops.plan.placement.project import project
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.clone import Clone
from gpuops.plan.vm.vm_blockers import MoveMode

MARKER_KEY: Final = "gpuops.jobs"
"""The key of the marker in extraConfig."""
_MARKER: Final = re.compile(r"v1 (\S+) ([0-9a-f]{16})")
_MOST_NUMBERS: Final = 99
_Shape: TypeAlias = tuple[str, int, int, int]
"""Profile, vGPUs, vCPUs and memory in MiB: jobs of one shape fit in the same places."""


@dataclass(frozen=True, slots=True)
class JobVmMarker:
    """The marker of a VM that was created for jobs."""

    vm: str
    id: str
    """Id of the job for which it was created, within its list of jobs."""

    @property
    def text(self) -> str:
        """The text in extraConfig: `v1 gpuops-job-01 0123456789abcdef`."""
        return f"v1 {self.vm} {self.id}"

    @property
    def notes(self) -> str:
        """The notes of the VM. Only a VM with these notes is removed."""
        return f"Made by gpuops job run, {self.vm} for job {self.id}; it is removed when no job needs it."


@dataclass(frozen=True, slots=True)
class MadeVm:
    """A VM with its marker."""

    vm: Vm
    marker: JobVmMarker


@dataclass(frozen=True, slots=True)
class JobVmPlan:
    """Which VMs of the template to create, equip and remove now."""

    new: tuple[tuple[str, SubmittedJob], ...] = ()
    """Names of VMs to create, each with the job that needs it, in the order in which jobs are served."""
    bare: tuple[tuple[Vm, SubmittedJob], ...] = ()
    """VMs that still lack their vGPU, each with its job."""
    unneeded: tuple[MadeVm, ...] = ()
    """VMs to remove."""
    waits: Mapping[int, str] = field(default_factory=dict)
    """Job number -> what the job waits for."""


@dataclass(frozen=True, slots=True)
class FittedPlan:
    """The plan for jobs that fit somewhere, and the clones of its new VMs."""

    plan: JobVmPlan
    clones: tuple[CloneVm, ...] = ()
    """The clones for `plan.new`, in that order."""


@dataclass(frozen=True, slots=True)
class FittedClone:
    """A VM to create, and the snapshot with it and its vGPU."""

    new: CloneVm
    after: Inventory


def marker_for(name: str, job: SubmittedJob) -> JobVmMarker:
    return JobVmMarker(name, _id(job))


def marker_of(vm: Vm) -> JobVmMarker | None:
    """Return its marker; None = the VM was not created for jobs, or is a copy under another name."""
    match = _MARKER.fullmatch((vm.extra_config or {}).get(MARKER_KEY, ""))
    return JobVmMarker(*match.groups()) if match is not None and match[1] == vm.name else None


def made_vms(template: JobTemplate, submitted: Sequence[SubmittedJob], inventory: Inventory) -> tuple[MadeVm, ...]:
    """Return the VMs that were created from the template for these jobs, sorted by name.

    If two such VMs have the same name, both are left out: one of them is a copy.
    """
    ids = {_id(job) for job in submitted}
    own_name = re.compile(re.escape(template.prefix) + "[0-9]{2}")
    marked_vms = [
        MadeVm(vm, marker)
        for vm in inventory.vms.values()
        if (marker := marker_of(vm)) is not None
        and vm.template is False
        and marker.id in ids
        and own_name.fullmatch(vm.name)
    ]
    names = Counter(made_vm.vm.name for made_vm in marked_vms)
    unique_vms = (made_vm for made_vm in marked_vms if names[made_vm.vm.name] == 1)
    return tuple(sorted(unique_vms, key=lambda made_vm: made_vm.vm.name))


def unread_vms(template: JobTemplate, submitted: Sequence[SubmittedJob], inventory: Inventory) -> list[str]:
    """Return the VMs (refs) whose devices are needed and unknown: the bulk read omits those on hosts without GPUs.

    Raises VmNotFound, VmAmbiguous for the template.
    """
    created_vms = (made_vm.vm for made_vm in made_vms(template, submitted, inventory))
    return [vm.ref for vm in (inventory.find_vm(template.name), *created_vms) if vm.devices is None]


def job_vm_plan(
    submitted: Sequence[SubmittedJob],
    rules: JobRules,
    inventory: Inventory,
    catalog: Catalog,
    now: datetime,
    share: FairShare | None = None,
    unfit: Mapping[_Shape, str] | None = None,
) -> JobVmPlan:
    """Return which VMs to create, to equip and to remove, so that each waiting job gets a VM.

    Keeps the limits of the policy; an empty plan if it has no template. `unfit`: shapes of jobs for which no VM is
    created, with the reason. The snapshot must have the devices of VMs that were created for jobs.
    """
    template = rules.template
    if template is None:
        return JobVmPlan()
    turns = job_turns(submitted, rules, inventory, catalog, now, share=share)
    created = made_vms(template, submitted, inventory)
    needed = {turn.vm.ref for turn in turns if turn.vm is not None}
    needed |= {vm.ref for job in submitted if not job.ended and (vm := vm_of(job, inventory)) is not None}
    spare = [made_vm for made_vm in created if made_vm.vm.ref not in needed]
    # a job with an unknown profile, or that fits nowhere, does not block a VM for others
    unfit_reasons = {
        turn.job.number: reason
        for turn in turns
        if turn.lacks_vm and (reason := (unfit or {}).get(_shape(turn.job)) or _wrong_profile(turn, inventory, catalog))
    }
    # first give them spare VMs that have no vGPU yet
    lacking = _jobs_without_vm([turn for turn in turns if turn.job.number not in unfit_reasons], rules)
    bare = list[tuple[Vm, SubmittedJob]]()
    for job in lacking:
        bare_of_size = (made_vm for made_vm in spare if not made_vm.vm.profiles and _has_size(made_vm.vm, job))
        suitable = next(bare_of_size, None)
        if suitable is not None:
            spare.remove(suitable)
            bare.append((suitable.vm, job))
    served = {job.number for _, job in bare}
    unserved = [job for job in lacking if job.number not in served]
    unneeded = [made_vm for made_vm in spare if _removable(made_vm.vm)]
    # with `keep`, remove only as many as must make room for new VMs: those without a vGPU first
    if template.keep:
        unneeded.sort(key=lambda made_vm: bool(made_vm.vm.profiles))
        unneeded = unneeded[: max(0, len(unserved) + len(created) - template.at_most)]
    names = _free_names(template, inventory, {made_vm.vm.ref for made_vm in unneeded})
    remaining = max(0, template.at_most - (len(created) - len(unneeded)))
    new = tuple(zip(names[:remaining], unserved, strict=False))
    waits = {job.number: _waits_for(name, template) for name, job in new}
    waits |= {job.number: _waits_for(vm.name, template) for vm, job in bare} | unfit_reasons
    for job in unserved[len(new) :]:
        waits[job.number] = f"no VM of template {template.name} is left for it: at most {template.at_most} are made"
    return JobVmPlan(new, tuple(bare), tuple(unneeded), waits)


def fitted_plan(
    submitted: Sequence[SubmittedJob], policy: Policy, inventory: Inventory, catalog: Catalog, now: datetime
) -> FittedPlan:
    """Return the plan and its clones; a job whose vGPU fits nowhere leaves its VM to the next job.

    The snapshot must have the devices of the template and of VMs that were created for jobs. Raises UsageError for an
    invalid template.
    """
    rules = policy.jobs
    if rules is None or rules.template is None:
        return FittedPlan(JobVmPlan())
    unfit = dict[_Shape, str]()
    while True:  # plan again without the shapes that did not fit, until all planned jobs fit
        plan = job_vm_plan(submitted, rules, inventory, catalog, now, policy.fair_share, unfit)
        unfit_before = len(unfit)
        unneeded_refs = {made_vm.vm.ref for made_vm in plan.unneeded}
        world = replace(inventory, vms={ref: vm for ref, vm in inventory.vms.items() if ref not in unneeded_refs})
        clones = list[CloneVm]()
        # an existing VM gets its vGPU on its host if that has room; if not, and a clone would not fit anywhere either,
        # the shape of its job is unfit and the next plan gives the VM to another job
        # 00 is never the name of a VM for jobs: it is only for a trial clone
        tried = [(f"{rules.template.prefix}00", job, vm) for vm, job in plan.bare]
        for name, job, existing_vm in (*tried, *((name, job, None) for name, job in plan.new)):
            if existing_vm is not None:
                request = GiveProfile(f"moid:{existing_vm.ref}", job.job, desktops_of(policy, world))
                after = request.project(world, catalog, now)
                if isinstance(after, Inventory):
                    world = after
                    continue
            clone = plan_clone(name, job, policy, rules.template, world, catalog, now)
            if not isinstance(clone, FittedClone):
                unfit[_shape(job)] = "; ".join(refusal.line for refusal in clone)
            elif existing_vm is None:
                world = clone.after
                clones.append(clone.new)
        if len(unfit) == unfit_before:
            return FittedPlan(plan, tuple(clones))


def plan_clone(
    name: str, job: SubmittedJob, policy: Policy, template: JobTemplate, inventory: Inventory, catalog: Catalog,
    now: datetime,
) -> FittedClone | tuple[Rejection, ...]:  # fmt: skip
    """Return the clone for this job on a host where its vGPU fits at night, or all refusals.

    The result also has the snapshot with the clone and its vGPU. The snapshot must have the devices of the template.
    Raises UsageError for invalid names.
    """
    spec = job.job
    clone_request = Clone(name, template.name, vcpus=spec.vcpus, memory_mib=spec.memory_mib)
    cloning = clone_request.planned(inventory, None)
    if cloning.new is None:
        return cloning.rejections or (Rejection(name, "another VM has this name", hint="rename that VM"),)
    marker = marker_for(name, job)
    new = replace(cloning.new, notes=marker.notes, settings={MARKER_KEY: marker.text})
    request = GiveProfile(f"moid:{new.vm}", spec, desktops_of(policy, inventory), MoveMode.COLD)
    foreseen = request.project(project(new, inventory), catalog, now)
    if not isinstance(foreseen, Inventory):
        return foreseen
    # to make room for its vGPU, `GiveProfile` may have moved it to another host
    return FittedClone(replace(new, host=foreseen.vm(new.vm).host or new.host), foreseen)


def desktops_of(policy: Policy, inventory: Inventory) -> frozenset[str]:
    """Return the running VMs (refs) of its pools."""
    vms = inventory.vms.values()
    return frozenset(vm.ref for vm in vms if vm.power is PowerState.ON and policy.pool_of(vm) is not None)


@dataclass(frozen=True, slots=True)
class GiveProfile:
    """Give a powered-off VM the vGPUs of a job where they fit while these desktops are suspended.

    VMs that were created for jobs count as running, so that those of one night are not all planned for the same GPU.
    """

    run_kind: ClassVar[str] = "giveprofile"

    vm: str
    job: ContainerJob
    desktops: frozenset[str]
    move: MoveMode | None = None

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        return self._attach.vm_details(inventory)

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return self._attach.config_targets(inventory)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        own_ref = inventory.find_vm(self.vm).ref
        return self._attach.plan(_in_a_night(self.desktops, inventory, catalog, own_ref), catalog, now)

    def project(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Inventory | tuple[Rejection, ...]:
        """Return the snapshot with the vGPU of the VM, or why it does not fit."""
        plan = self.plan(inventory, catalog, now)
        if not plan.feasible:
            return plan.rejections
        for step in plan.steps:
            inventory = project(step, inventory, catalog)
        return inventory

    @property
    def _attach(self) -> Attach:
        return Attach(self.vm, profile=self.job.profile, count=self.job.gpus, move=self.move)


def _in_a_night(desktops: frozenset[str], inventory: Inventory, catalog: Catalog, but: str) -> Inventory:
    """Return the snapshot with all desktops suspended and the VMs of jobs powered on."""
    for vm in tuple(inventory.vms.values()):
        if vm.power is PowerState.ON and vm.ref in desktops:
            inventory = project(SuspendVm(vm.ref), inventory, catalog)
    for vm in tuple(inventory.vms.values()):
        if vm.ref != but and vm.power is PowerState.OFF and vm.profiles and marker_of(vm) is not None:
            inventory = project(PowerOnVm(vm.ref, vm.host), inventory, catalog)
    return inventory


def _jobs_without_vm(turns: Sequence[JobTurn], rules: JobRules) -> list[SubmittedJob]:
    """Return the jobs that only lack a VM, within the number of jobs that each owner may run at once."""
    at_once = Counter(turn.job.job.owner for turn in turns if turn.vm is not None)
    jobs = list[SubmittedJob]()
    for turn in turns:
        owner = turn.job.job.owner
        quota = rules.quota(owner)
        if turn.lacks_vm and quota is not None and (quota.running is None or at_once[owner] < quota.running):
            at_once[owner] += 1
            jobs.append(turn.job)
    return jobs


def _wrong_profile(turn: JobTurn, inventory: Inventory, catalog: Catalog) -> str:
    """Return why the profile of the job is invalid; empty = it may fit somewhere."""
    try:
        profile_meant(turn.job.job.profile, Vm(ref="", name=""), None, inventory, catalog)
    except UsageError as error:
        return error.message
    return ""


def _id(job: SubmittedJob) -> str:
    """Return the id of a job. Jobs of two lists never share number, moment and person."""
    identity = f"{job.number} {format_iso_utc(job.submitted_at)} {job.by}"
    return hashlib.sha256(identity.encode("utf-8")).hexdigest()[:16]


def _shape(job: SubmittedJob) -> _Shape:
    return job.job.profile, job.job.gpus, job.job.vcpus, job.job.memory_mib


def _has_size(vm: Vm, job: SubmittedJob) -> bool:
    return (vm.vcpus or 0) >= job.job.vcpus and (vm.memory_mib or 0) >= job.job.memory_mib


def _removable(vm: Vm) -> bool:
    """Return whether the VM is certainly off, and has no snapshot, task or other manager."""
    return vm.power is PowerState.OFF and not vm.snapshots and not vm.tasks and managed_elsewhere(vm) is None


def _free_names(template: JobTemplate, inventory: Inventory, removed: Collection[str]) -> list[str]:
    used_names = {vm.name for vm in inventory.vms.values() if vm.ref not in removed}
    names = (f"{template.prefix}{number:02}" for number in range(1, _MOST_NUMBERS + 1))
    return [name for name in names if name not in used_names]


def _waits_for(name: str, template: JobTemplate) -> str:
    return f"waits for {name}, which job run makes of template {template.name} outside of the night"


@dataclass(frozen=True, slots=True)
class JobVmRoom:
    """Names of jobs, in the order in which they are served."""

    there: tuple[str, ...]
    """Jobs that get an existing VM, which may still need its vGPU."""
    of_template: tuple[str, ...]
    """Jobs that get a new VM."""
    without: tuple[tuple[str, str], ...]
    """Jobs that wait, each with the reason."""
    template: str | None
    """The template of new VMs; None = the policy has none."""


def job_vm_room(
    jobs: Sequence[ContainerJob],
    submitted: Sequence[SubmittedJob],
    who: Submitter,
    policy: Policy,
    rules: JobRules,
    inventory: Inventory,
    catalog: Catalog,
    now: datetime,
) -> JobVmRoom:
    """Return which of these jobs would get an existing VM, which a new one, and why the others would wait.

    Jobs that are not submitted yet are treated as submitted now; a job that is submitted already counts once. The
    snapshot must have the devices of the template and of VMs that were created for jobs. Raises UsageError for an
    invalid template.
    """
    number_by_name = {job.job.name: job.number for job in submitted if not job.ended}
    last = max((job.number for job in submitted), default=0)
    new = [job for job in with_owners(jobs, rules, who) if job.name not in number_by_name]
    requested = [SubmittedJob(last + at, job, now, str(who)) for at, job in enumerate(new, 1)]
    requested = [replace(job, after=required_numbers(job.job, requested, submitted)) for job in requested]
    numbers = {job.number for job in requested}
    numbers |= {number_by_name[job.name] for job in jobs if job.name in number_by_name}
    all_jobs, share = (*submitted, *requested), policy.fair_share
    turns = job_turns(all_jobs, rules, inventory, catalog, now, share=share)
    plan = fitted_plan(all_jobs, policy, inventory, catalog, now).plan
    with_existing_vm = {turn.job.number for turn in turns if turn.vm is not None} | {job.number for _, job in plan.bare}
    with_new_vm = {job.number for _, job in plan.new}
    requested_turns = [turn for turn in turns if turn.job.number in numbers]
    return JobVmRoom(
        tuple(turn.job.job.name for turn in requested_turns if turn.job.number in with_existing_vm),
        tuple(turn.job.job.name for turn in requested_turns if turn.job.number in with_new_vm),
        tuple(
            (turn.job.job.name, plan.waits.get(turn.job.number, turn.reason))
            for turn in requested_turns
            if turn.job.number not in with_existing_vm | with_new_vm
        ),
        rules.template.name if rules.template is not None else None,
    )
