"""The VMs that are made of a template for jobs: which are missing, which nobody needs any more, and whose one is. Pure.

Each carries a marker from its first moment, in its configuration and in its notes: its own name, and for which job of
which list of jobs it was made. So a copy of it under another name is nobody's of ours, and neither is one that was made
for the jobs of another machine's list: of those nothing is known here, nor what waits for them.

    job 4 lacks a VM  -->  gpuops-job-01 is made, then given its vGPU  -->  nights run jobs in it  -->  it is removed
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import ClassVar, Final, TypeAlias

from gpuops.advise.managed_vms import managed_elsewhere
from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.nights.fair_share import FairShare
from gpuops.model.nights.rotation import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.job_record import SubmittedJob
from gpuops.model.workloads.job_rules import JobRules, JobTemplate
from gpuops.plan.core.plan import Plan, Rejection
from gpuops.plan.core.steps import PowerOnVm, SuspendVm
from gpuops.plan.devices.requested import profile_meant
from gpuops.plan.jobs.turns import JobTurn, job_turns, vm_of
from gpuops.plan.placement.project import project
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.clone import Clone, NewClone
from gpuops.plan.vm.power import MoveMode

MARKER_KEY: Final = "gpuops.jobs"
"""In extraConfig."""
_MARKER: Final = re.compile(r"v1 (\S+) ([0-9a-f]{16})")
_MOST_NUMBERS: Final = 99
_Shape: TypeAlias = tuple[str, int, int]
"""Profile, vCPUs and memory in MiB: jobs of one shape fit in the same places."""


@dataclass(frozen=True, slots=True)
class JobVmMarker:
    """What a VM that was made for jobs says of itself."""

    vm: str
    id: str
    """Of the job that it was made for, in the list that has it."""

    @property
    def text(self) -> str:
        """As extraConfig keeps it: `v1 gpuops-job-01 0123456789abcdef`."""
        return f"v1 {self.vm} {self.id}"

    @property
    def notes(self) -> str:
        """What the notes of the VM say. Only a VM with them is removed."""
        return f"Made by gpuops job run, {self.vm} for job {self.id}; it is removed when no job needs it."


@dataclass(frozen=True, slots=True)
class MadeVm:
    """A VM with its marker."""

    vm: Vm
    marker: JobVmMarker


@dataclass(frozen=True, slots=True)
class JobVmPlan:
    """What is to be done now about the VMs of the template."""

    new: tuple[tuple[str, SubmittedJob], ...] = ()
    """Names of VMs to make, each with the job that lacks it, in the order in which they are served."""
    bare: tuple[tuple[Vm, SubmittedJob], ...] = ()
    """VMs without their vGPU yet, each with the job that it is for."""
    gone: tuple[MadeVm, ...] = ()
    """VMs to remove."""
    waits: Mapping[int, str] = field(default_factory=dict)
    """By number of the job, what it waits for."""


@dataclass(frozen=True, slots=True)
class FittedPlan:
    """The plan for jobs that fit somewhere, and how its VMs are made."""

    plan: JobVmPlan
    clones: tuple[NewClone, ...] = ()
    """Those of `plan.new`, in that order."""


@dataclass(frozen=True, slots=True)
class FittedClone:
    """A VM to make, and the snapshot with it and its vGPU."""

    new: NewClone
    after: Inventory


def marker_for(name: str, job: SubmittedJob) -> JobVmMarker:
    return JobVmMarker(name, _id(job))


def marker_of(vm: Vm) -> JobVmMarker | None:
    """None = the VM was not made for jobs, or is a copy under another name."""
    found = _MARKER.fullmatch((vm.extra_config or {}).get(MARKER_KEY, ""))
    return JobVmMarker(*found.groups()) if found is not None and found[1] == vm.name else None


def made_vms(template: JobTemplate, submitted: Sequence[SubmittedJob], inventory: Inventory) -> tuple[MadeVm, ...]:
    """The VMs that were made for these jobs, by name; of two that say the same of themselves neither."""
    ids = {_id(job) for job in submitted}
    own = re.compile(re.escape(template.prefix) + "[0-9]{2}")
    found = [
        MadeVm(vm, marker)
        for vm in inventory.vms.values()
        if (marker := marker_of(vm)) is not None
        and vm.template is False
        and marker.id in ids
        and own.fullmatch(vm.name)
    ]
    names = Counter(each.vm.name for each in found)
    return tuple(sorted((each for each in found if names[each.vm.name] == 1), key=lambda each: each.vm.name))


def unread_vms(template: JobTemplate, submitted: Sequence[SubmittedJob], inventory: Inventory) -> list[str]:
    """The VMs (refs) whose devices must be known to plan, and are not: the bulk read leaves out those on hosts without
    GPUs. Raises VmNotFound, VmAmbiguous for the template."""
    wanted = [inventory.find_vm(template.name), *(each.vm for each in made_vms(template, submitted, inventory))]
    return [vm.ref for vm in wanted if vm.devices is None]


def job_vm_plan(
    submitted: Sequence[SubmittedJob],
    rules: JobRules,
    inventory: Inventory,
    catalog: Catalog,
    now: datetime,
    share: FairShare | None = None,
    unfit: Mapping[_Shape, str] | None = None,
) -> JobVmPlan:
    """What is to be done so that each job that waits has a VM, as far as the policy lets it; without a template
    nothing. `unfit`: why no VM is made for jobs that ask for these.

    The snapshot must know the devices of VMs that were made for jobs.
    """
    template = rules.template
    if template is None:
        return JobVmPlan()
    turns = job_turns(submitted, rules, inventory, catalog, now, share=share)
    made = made_vms(template, submitted, inventory)
    needed = {turn.vm.ref for turn in turns if turn.vm is not None}
    needed |= {vm.ref for job in submitted if not job.ended and (vm := vm_of(job, inventory)) is not None}
    spare = [each for each in made if each.vm.ref not in needed]
    # one with a profile that means nothing, or that fits nowhere, keeps nobody else from a VM
    wrong = {
        turn.job.number: why
        for turn in turns
        if turn.lacks_vm and (why := (unfit or {}).get(_shape(turn.job)) or _wrong_profile(turn, inventory, catalog))
    }
    lacking = _lacking([turn for turn in turns if turn.job.number not in wrong], rules)
    bare = list[tuple[Vm, SubmittedJob]]()
    for job in lacking:
        of_its_size = (each for each in spare if not each.vm.profiles and _has_size(each.vm, job))
        found = next(of_its_size, None)
        if found is not None:
            spare.remove(found)
            bare.append((found.vm, job))
    served = {job.number for _, job in bare}
    unserved = [job for job in lacking if job.number not in served]
    gone = [each for each in spare if _removable(each.vm)]
    if template.keep:
        gone.sort(key=lambda each: bool(each.vm.profiles))
        gone = gone[: max(0, len(unserved) + len(made) - template.at_most)]
    names = _free_names(template, inventory, {each.vm.ref for each in gone})
    left = max(0, template.at_most - (len(made) - len(gone)))
    new = tuple(zip(names[:left], unserved, strict=False))
    waits = {job.number: _waits_for(name, template) for name, job in new}
    waits |= {job.number: _waits_for(vm.name, template) for vm, job in bare} | wrong
    for job in unserved[len(new) :]:
        waits[job.number] = f"no VM of template {template.name} is left for it: at most {template.at_most} are made"
    return JobVmPlan(new, tuple(bare), tuple(gone), waits)


def fitted_plan(
    submitted: Sequence[SubmittedJob], policy: Policy, inventory: Inventory, catalog: Catalog, now: datetime
) -> FittedPlan:
    """The same, where a job that fits nowhere leaves its place to the next one.

    The snapshot must know the devices of the template too. Raises UsageError for a template that means nothing.
    """
    rules = policy.jobs
    if rules is None or rules.template is None:
        return FittedPlan(JobVmPlan())
    unfit = dict[_Shape, str]()
    while True:
        plan = job_vm_plan(submitted, rules, inventory, catalog, now, policy.fair_share, unfit)
        known = len(unfit)
        gone = {each.vm.ref for each in plan.gone}
        world = replace(inventory, vms={ref: vm for ref, vm in inventory.vms.items() if ref not in gone})
        clones = list[NewClone]()
        # one that is there is given its vGPU where it is; one that would fit nowhere else either is another's
        tried = [(f"{rules.template.prefix}00", job, vm) for vm, job in plan.bare]
        for name, job, there in (*tried, *((name, job, None) for name, job in plan.new)):
            if there is not None:
                after = _equipped_in(there, job, policy, world, catalog, now)
                if after is not None:
                    world = after
                    continue
            found = clone_planned(name, job, policy, rules.template, world, catalog, now)
            if not isinstance(found, FittedClone):
                unfit[_shape(job)] = "; ".join(each.line for each in found)
            elif there is None:
                world = found.after
                clones.append(found.new)
        if len(unfit) == known:
            return FittedPlan(plan, tuple(clones))


def clone_planned(
    name: str, job: SubmittedJob, policy: Policy, template: JobTemplate, inventory: Inventory, catalog: Catalog,
    now: datetime,
) -> FittedClone | tuple[Rejection, ...]:  # fmt: skip
    """The clone of the template on the host where the job's vGPU fits in a night, and the snapshot with it and its
    vGPU; or every reason against it.

    The snapshot must know the devices of the template. Raises UsageError for names that mean nothing.
    """
    spec = job.job
    wanted = Clone(name, template.name, vcpus=spec.vcpus, memory_mib=spec.memory_mib)
    cloning = wanted.planned(inventory, None)
    if cloning.new is None:
        return cloning.rejections or (Rejection(name, "another VM has its name"),)
    marker = marker_for(name, job)
    new = replace(cloning.new, notes=marker.notes, settings={MARKER_KEY: marker.text})
    foreseen = new.made_in(inventory)
    made = foreseen.find_vm(new.path)
    request = GiveProfile(f"moid:{made.ref}", spec.profile, desktops_of(policy, inventory), MoveMode.COLD)
    plan = request.plan(foreseen, catalog, now)
    if not plan.feasible:
        return plan.rejections
    for step in plan.steps:
        foreseen = project(step, foreseen, catalog)
    return FittedClone(replace(new, host=foreseen.vm(made.ref).host or new.host), foreseen)


def _equipped_in(
    vm: Vm, job: SubmittedJob, policy: Policy, inventory: Inventory, catalog: Catalog, now: datetime
) -> Inventory | None:
    """The snapshot with its vGPU; None = it fits not where the VM is."""
    plan = GiveProfile(f"moid:{vm.ref}", job.job.profile, desktops_of(policy, inventory)).plan(inventory, catalog, now)
    if not plan.feasible:
        return None
    for step in plan.steps:
        inventory = project(step, inventory, catalog)
    return inventory


def desktops_of(policy: Policy, inventory: Inventory) -> frozenset[str]:
    """The VMs (refs) of its pools that run."""
    vms = inventory.vms.values()
    return frozenset(vm.ref for vm in vms if vm.power is PowerState.ON and policy.pool_of(vm) is not None)


@dataclass(frozen=True, slots=True)
class GiveProfile:
    """The one vGPU of a VM that is off, where it fits while these desktops give way.

    VMs that were made for jobs count as if they ran, so that those of one night do not all fit the same GPU.
    """

    run_kind: ClassVar[str] = "giveprofile"

    vm: str
    profile: str
    desktops: frozenset[str]
    move: MoveMode | None = None

    def vm_details(self, inventory: Inventory) -> Collection[str]:
        return self._attach.vm_details(inventory)

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        return self._attach.config_targets(inventory)

    def plan(self, inventory: Inventory, catalog: Catalog, now: datetime) -> Plan:
        own = inventory.find_vm(self.vm).ref
        return self._attach.plan(_in_a_night(self.desktops, inventory, catalog, own), catalog, now)

    @property
    def _attach(self) -> Attach:
        return Attach(self.vm, profile=self.profile, move=self.move)


def _in_a_night(desktops: frozenset[str], inventory: Inventory, catalog: Catalog, but: str) -> Inventory:
    """The snapshot with all desktops suspended and the VMs of jobs on."""
    for vm in tuple(inventory.vms.values()):
        if vm.power is PowerState.ON and vm.ref in desktops:
            inventory = project(SuspendVm(vm.ref), inventory, catalog)
    for vm in tuple(inventory.vms.values()):
        if vm.ref != but and vm.power is PowerState.OFF and vm.profiles and marker_of(vm) is not None:
            inventory = project(PowerOnVm(vm.ref, vm.host), inventory, catalog)
    return inventory


def _lacking(turns: Sequence[JobTurn], rules: JobRules) -> list[SubmittedJob]:
    """The jobs that lack nothing but a VM, as many of an owner as may run at once beside those that have one."""
    at_once = Counter(turn.job.job.owner for turn in turns if turn.vm is not None)
    found = list[SubmittedJob]()
    for turn in turns:
        owner = turn.job.job.owner
        quota = rules.quota(owner)
        if turn.lacks_vm and quota is not None and (quota.running is None or at_once[owner] < quota.running):
            at_once[owner] += 1
            found.append(turn.job)
    return found


def _wrong_profile(turn: JobTurn, inventory: Inventory, catalog: Catalog) -> str:
    """Why no VM can be given what the job asks for; empty = it may fit somewhere."""
    try:
        profile_meant(turn.job.job.profile, Vm(ref="", name=""), None, inventory, catalog)
    except UsageError as error:
        return error.message
    return ""


def _id(job: SubmittedJob) -> str:
    """Of a job in whichever list: no two lists have one of the same number, moment and person."""
    told = f"{job.number} {job.submitted_at.astimezone(UTC).isoformat()} {job.by}"
    return hashlib.sha256(told.encode("utf-8")).hexdigest()[:16]


def _shape(job: SubmittedJob) -> _Shape:
    return job.job.profile, job.job.vcpus, job.job.memory_mib


def _has_size(vm: Vm, job: SubmittedJob) -> bool:
    return (vm.vcpus or 0) >= job.job.vcpus and (vm.memory_mib or 0) >= job.job.memory_mib


def _removable(vm: Vm) -> bool:
    """Whether it is certainly off, and nobody else has laid a hand on it."""
    return vm.power is PowerState.OFF and not vm.snapshots and not vm.tasks and managed_elsewhere(vm) is None


def _free_names(template: JobTemplate, inventory: Inventory, gone: Collection[str]) -> list[str]:
    taken = {vm.name for vm in inventory.vms.values() if vm.ref not in gone}
    names = (f"{template.prefix}{number:02}" for number in range(1, _MOST_NUMBERS + 1))
    return [name for name in names if name not in taken]


def _waits_for(name: str, template: JobTemplate) -> str:
    return f"waits for {name}, which job run makes of template {template.name} outside of the night"
