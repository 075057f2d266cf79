"""The VMs that are made of a template for jobs: by day, outside of the windows, while no desktop and no ML VM is away.

A pass removes those that no job needs any more, makes those that jobs lack, and gives each its vGPU. It may be cut off
anywhere: a clone carries its marker from the first, so that the next pass finds it, by its name, of which vCenter makes
no two in a folder; one without its vGPU is given it then. The machine's lock is shared while something is asked for,
and never held while disks are copied: a rotation that comes meanwhile goes first, and a pass that meets one ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuops.api.vms import run
from gpuops.errors import GpuopsError, Locked, NotConnected, UsageError
from gpuops.execute.cloning import start_clone, wait_for_clone
from gpuops.execute.jobs.night_jobs import job_store
from gpuops.execute.runs.nights import NightVms
from gpuops.execute.site import catalog_of
from gpuops.execute.vm_removal import execute_removals, removal_failure, removal_run
from gpuops.model.vcenter.task import TaskRef
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.step_checks import NOT_MADE
from gpuops.plan.core.steps import RemoveVm
from gpuops.plan.jobs.job_answers import JobVmDeed
from gpuops.plan.jobs.template_vms import FittedPlan, GiveProfile, desktops_of, fitted_plan, unread_vms

if TYPE_CHECKING:
    from gpuops.execute.journal import Journal
    from gpuops.execute.site import Site
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.workloads.job_record import SubmittedJob
    from gpuops.model.workloads.job_rules import JobRules, JobTemplate

JOB_VMS: Final = "job run"
"""The kind of run that removes VMs, in journals."""


def tend_job_vms(policy: Policy, site: Site) -> tuple[JobVmDeed, ...]:
    """What became of each VM that was made, given its vGPU, or removed; nothing in a night, or while VMs are away.

    What is wrong with the template is told, for whom the pass has looked after jobs before. Raises Refused for a saved
    inventory, NotConnected, StateDamaged.
    """
    from gpuops.execute.state.lock import locked

    rules = policy.jobs
    if rules is None or rules.template is None or policy.night_at(site.clock()) is not None:
        return ()
    if not job_store(site).read():
        return ()
    tending = _Tending(policy, rules, rules.template, site)
    with site.journal_to_read(site.vcenter.uuid) as journal:
        if not tending.may_go_on(journal):
            return ()
    try:
        plan = tending.looked()[0].plan
        if not (plan.new or plan.bare or plan.unneeded):
            return ()
        with locked(site.state_dir, f"{site.vcenter.uuid}-job-vms", site.clock(), alone=True, doing="job run"):
            tending.run()
    except Locked as held:
        site.say(f"VMs for jobs are left to the next pass: {held.message}")
    except UsageError as error:
        tending.failed(rules.template.name, error)
    return tuple(tending.deeds)


def with_devices(
    site: Site, template: JobTemplate, submitted: Sequence[SubmittedJob], inventory: Inventory
) -> Inventory:
    """The snapshot with what VMs for jobs are planned by. Raises UsageError for a template that means nothing."""
    unread = unread_vms(template, submitted, inventory)
    return site.with_vgpus(site.vcenter.observe(inventory, unread) if unread else inventory)


@dataclass(slots=True)
class _Tending:
    """One pass."""

    policy: Policy
    rules: JobRules
    template: JobTemplate
    site: Site
    deeds: list[JobVmDeed] = field(default_factory=list)

    def run(self) -> None:
        """Raises Locked where a rotation runs.

        What has no vGPU yet gets it before another VM is placed: that one finds no room there any more.
        """
        self._removed()
        self._equipped()
        made = self._made()
        if made:
            self._equipped(made)

    def may_go_on(self, journal: Journal | None) -> bool:
        """Whether it is day: no window is open, and nothing of a night is left to return."""
        if self.policy.night_at(self.site.clock()) is not None:
            return False
        return journal is None or not any(each.taken for each in NightVms(journal).all())

    def looked(self) -> tuple[FittedPlan, Inventory]:
        """The plan by what vCenter and the list of jobs show now."""
        submitted = job_store(self.site).read()
        inventory = self.site.vcenter.inventory()
        if self.policy.needs_tags:
            inventory = self.site.vcenter.with_tags(inventory)
        inventory = with_devices(self.site, self.template, submitted, inventory)
        return fitted_plan(submitted, self.policy, inventory, catalog_of(inventory), self.site.clock()), inventory

    @contextmanager
    def _changing(self) -> Iterator[Journal | None]:
        """The journal, while the lock is shared; None if it is day no more. Raises Locked."""
        with self.site.locked_journal(self.site.vcenter.uuid, alone=False) as journal:
            yield journal if self.may_go_on(journal) else None

    def _removed(self) -> None:
        """Remove the VMs that no job needs, as long as they are off."""
        with self._changing() as journal:
            if journal is None:
                return
            fitted, inventory = self.looked()
            steps = [RemoveVm(each.vm.ref, each.vm.name, each.marker.notes) for each in fitted.plan.unneeded]
            if not steps:
                return
            with removal_run(JOB_VMS, inventory, journal, self.site) as run:
                outcomes = execute_removals(steps, inventory, journal, run, self.site)
        for step in steps:
            failure = removal_failure(outcomes[step.vm])
            if failure:
                hint = " (look at its notes)" if failure.endswith(NOT_MADE) else ""
                self.deeds.append(JobVmDeed(step.name, f"{failure}{hint}", failed=True))
            else:
                self._note(step.name, "removed: no job needs it")

    def _made(self) -> set[str]:
        """Those that jobs lack; their names. While vCenter clones the template, for whomever, a later pass goes on."""
        tasks = list[tuple[str, TaskRef | None]]()
        with self._changing() as journal:
            if journal is None:
                return set()
            found, world = self.looked()
            new = found.plan.new
            if not new:
                return set()
            if any("clone" in task.name.lower() for task in world.find_vm(self.template.name).tasks):
                self._note(new[0][0], f"{self.template.name} is being cloned: the next pass goes on")
                return set()
            for (name, _), clone in zip(new, found.clones, strict=True):
                tasks.append((name, start_clone(clone, self.site)))
        for name, task in tasks:
            try:
                wait_for_clone(task, self.site)
            except NotConnected:
                raise
            except GpuopsError as error:
                self.failed(name, error)
            else:
                self._note(name, f"made of {self.template.name}")
        return {name for name, _ in tasks}

    def _equipped(self, only: Collection[str] | None = None) -> None:
        """Its vGPU for each, or of these, that has none."""
        found, world = self.looked()
        for vm, job in found.plan.bare:
            if only is not None and vm.name not in only:
                continue
            with self.site.journal_to_read(self.site.vcenter.uuid) as journal:
                if not self.may_go_on(journal):
                    return
            request = GiveProfile(f"moid:{vm.ref}", job.job.profile, desktops_of(self.policy, world))
            try:
                report = run(request, self.site, apply=True)
            except (NotConnected, Locked):
                raise
            except GpuopsError as error:
                self.failed(vm.name, error)
                continue
            against = [each.line for each in report.plan.rejections]
            against += [
                each.reason or str(each.verdict)
                for each in report.outcomes
                if each.verdict not in (Verdict.DONE, Verdict.ALREADY)
            ]
            if against:
                self.deeds.append(JobVmDeed(vm.name, f"{job.job.profile}: {'; '.join(against)}", failed=True))
            else:
                self._note(vm.name, f"has {job.job.profile} for job {job.job.name}")

    def _note(self, vm: str, what: str) -> None:
        self.deeds.append(JobVmDeed(vm, what))

    def failed(self, vm: str, error: GpuopsError) -> None:
        self.deeds.append(JobVmDeed(vm, error.line, failed=True))
