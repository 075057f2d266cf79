"""The VMs cloned from a template for jobs: during the day, outside the windows, while no desktop is suspended.

A pass removes the VMs that no job needs any more, clones the missing ones, and gives each its vGPU. It may be
interrupted at any point: a clone has its marker from the start, so the next pass finds it by its name, which is unique
in a folder, and adds a missing vGPU. The machine's lock is shared while a change is sent, and not held while disks are
copied: a rotation that starts meanwhile goes first, and a pass that meets a rotation ends.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuops.api.vms import run
from gpuops.errors import GpuopsError, Locked, NotConnected, UsageError
from gpuops.execute.runs import NightVms
from gpuops.execute.site import catalog_of
from gpuops.execute.steps.vm_runs import (
    CREATION_S,
    end_cut_off_runs,
    execute_steps,
    request_vms,
    settle_steps,
    settled_run,
    step_failure,
)
from gpuops.extras.jobs.job_turns import JobVmDeed
from gpuops.extras.jobs.nightly import job_store
from gpuops.extras.jobs.template_vms import FittedPlan, GiveProfile, desktops_of, fitted_plan, unread_vms
from gpuops.plan.core.plan import Verdict
from gpuops.plan.core.step_checks import NOT_MADE
from gpuops.plan.core.steps import RemoveVm

if TYPE_CHECKING:
    from gpuops.execute.journal import Journal
    from gpuops.execute.site import Site
    from gpuops.extras.jobs.job import SubmittedJob
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.workloads.job_rules import JobRules, JobTemplate

JOB_VMS: Final = "job run"
"""The kind of run that makes or removes VMs, in journals."""


def tend_job_vms(policy: Policy, site: Site) -> tuple[JobVmDeed, ...]:
    """Clone VMs for jobs, give them vGPUs and remove unneeded ones; return the outcome for each VM.

    Does nothing during a night, and after it until all its VMs are returned. An error in the template is an outcome and
    is not raised. Raises Refused for a saved inventory, NotConnected, StateDamaged.
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
        plan = tending.look()[0].plan
        if not (plan.new or plan.bare or plan.unneeded):  # nothing to do, so no lock is needed
            return ()
        with locked(site.state_dir, f"{site.vcenter.uuid}-job-vms", site.clock(), alone=True, doing="job run"):
            tending.run()
    except Locked as held:
        site.say(f"VMs for jobs wait for the next gpuops job run: {held.message}")
    except UsageError as error:
        tending.note_failure(rules.template.name, error)
    return tuple(tending.deeds)


def with_devices(
    site: Site, template: JobTemplate, submitted: Sequence[SubmittedJob], inventory: Inventory
) -> Inventory:
    """Return the snapshot with the details that VMs for jobs need. Raises UsageError for an unusable template."""
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
        """Remove, equip and clone VMs. Raises Locked while a rotation runs.

        VMs without a vGPU get theirs before another VM is cloned, so that the new VM is not placed on their GPUs.
        """
        self._remove_unneeded()
        self._equip()
        new_names = self._make_missing()
        if new_names:
            self._equip(new_names)

    def may_go_on(self, journal: Journal | None) -> bool:
        """Return whether it is day: no window is open, and no VM of a night still has to be returned."""
        if self.policy.night_at(self.site.clock()) is not None:
            return False
        return journal is None or not any(night_vm.taken for night_vm in NightVms(journal).all())

    def look(self) -> tuple[FittedPlan, Inventory]:
        """Return the plan for the current inventory and list of jobs, and that inventory."""
        submitted = job_store(self.site).read()
        inventory = self.site.vcenter.inventory()
        if self.policy.needs_tags:
            inventory = self.site.vcenter.with_tags(inventory)
        inventory = with_devices(self.site, self.template, submitted, inventory)
        return fitted_plan(submitted, self.policy, inventory, catalog_of(inventory), self.site.clock()), inventory

    @contextmanager
    def _changing(self) -> Iterator[Journal | None]:
        """Yield the journal under the shared lock; None if the day has ended. Raises Locked."""
        with self.site.locked_journal(self.site.vcenter.uuid, alone=False) as journal:
            yield journal if self.may_go_on(journal) else None

    def _remove_unneeded(self) -> None:
        """Remove the VMs that no job needs. The plan names only VMs that are powered off."""
        with self._changing() as journal:
            if journal is None:
                return
            fitted, inventory = self.look()
            steps = [RemoveVm(made.vm.ref, made.vm.name, made.marker.notes) for made in fitted.plan.unneeded]
            if not steps:
                return
            with settled_run(JOB_VMS, inventory, journal, self.site) as run:
                outcomes = execute_steps(steps, inventory, journal, run, self.site)
        for step in steps:
            failure = step_failure(outcomes[step.vm])
            if failure:
                # such a VM has other notes than gpuops gave it: an admin may have taken it over
                hint = " (look at its notes)" if failure.endswith(NOT_MADE) else ""
                self.deeds.append(JobVmDeed(step.name, f"{failure}{hint}", failed=True))
            else:
                self._note(step.name, "removed: no job needs it")

    def _make_missing(self) -> set[str]:
        """Clone the VMs that jobs lack, and return their names, also of failed clones.

        Does nothing while the template is being cloned: a clone in progress may be one that an interrupted pass
        requested, and its VM would be made twice.
        """
        with self._changing() as journal:
            if journal is None:
                return set()
            fitted, inventory = self.look()
            if not fitted.clones:
                return set()
            if any("clone" in task.name.lower() for task in inventory.find_vm(self.template.name).tasks):
                self._note(
                    fitted.clones[0].name,
                    f"{self.template.name} is already being cloned: the next gpuops job run continues",
                )
                return set()
            # The run below stays open after the lock is released, until its clones are made. By this `order`
            # `_remove_unneeded` knows that it was not cut off, and does not end it.
            order = f"clones {socket.gethostname()}"
            end_cut_off_runs(JOB_VMS, order, inventory, journal, self.site)
            run = journal.begin(JOB_VMS, order=order)
            ended_at_once, inventory = request_vms(fitted.clones, inventory, journal, run, self.site)
        with self.site.unlocked_journal() as journal:
            outcomes, _ = settle_steps(inventory, journal, run, self.site, timeout_s=CREATION_S)
            journal.end(run)
        outcomes = ended_at_once | outcomes
        for clone in fitted.clones:
            failure = step_failure(outcomes[clone.vm]) if clone.vm in outcomes else ""
            if failure:
                self.deeds.append(JobVmDeed(clone.name, failure, failed=True))
            else:
                self._note(clone.name, f"made of {self.template.name}")
        return {clone.name for clone in fitted.clones}

    def _equip(self, only: Collection[str] | None = None) -> None:
        """Give each VM without a vGPU the one that its job needs; `only`: these VMs (names), None = all."""
        fitted, inventory = self.look()
        for vm, job in fitted.plan.bare:
            if only is not None and vm.name not in only:
                continue
            with self.site.journal_to_read(self.site.vcenter.uuid) as journal:
                if not self.may_go_on(journal):  # a night may have begun since the last VM
                    return
            request = GiveProfile(f"moid:{vm.ref}", job.job, desktops_of(self.policy, inventory))
            try:
                report = run(request, self.site, apply=True)
            except (NotConnected, Locked):
                raise
            except GpuopsError as error:
                self.note_failure(vm.name, error)
                continue
            problems = [rejection.line for rejection in report.plan.rejections]
            problems += [
                outcome.reason or str(outcome.verdict)
                for outcome in report.outcomes
                if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)
            ]
            if problems:
                self.deeds.append(JobVmDeed(vm.name, f"{job.job.profile}: {'; '.join(problems)}", failed=True))
            else:
                self._note(vm.name, f"has {job.job.profile} for job {job.job.name}")

    def _note(self, vm: str, deed: str) -> None:
        self.deeds.append(JobVmDeed(vm, deed))

    def note_failure(self, vm: str, error: GpuopsError) -> None:
        self.deeds.append(JobVmDeed(vm, error.line, failed=True))
