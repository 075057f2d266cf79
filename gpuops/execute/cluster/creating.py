"""Makes a cluster: clones, devices, overrides of DRS, starts, until each guest tells an address; all of it, or nothing.

A clone carries its marker from the first, so whatever a call that was cut off has made is found again, and the same
call goes on: it waits for what is in flight, looks, and plans what is missing. The journal keeps the id of the cluster
from before the first clone. What fails is undone, unless the caller wants to go on with it: VMs that stood before are
never removed.

The machine's lock is held while something is decided and changed, and by none of the long waits, for disks that are
copied, guests that boot, or a person's answer: no rotation, and no return of desktops, is kept away by those.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gpuops.errors import GpuopsError, Locked, NotConnected, OutcomeUnknown, Refused, StepFailed
from gpuops.execute.cluster.port import ClusterPort, cluster_port
from gpuops.execute.cluster.removing import removed
from gpuops.execute.cluster.run import (
    CLONES_S,
    alone_with,
    begin,
    changing,
    end,
    known_id,
    require_unused,
    stood,
    wait_for_tasks,
)
from gpuops.execute.cluster.use import kept_from_runs
from gpuops.execute.journal import Journal, Run
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.settle import settle_open
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.model.devices.rdma import Networks
from gpuops.model.nights.rotation import Limits
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import TaskRef
from gpuops.model.workloads.cluster import ClusterWish
from gpuops.plan.cluster.answers import ClusterMade
from gpuops.plan.cluster.members import marked_vms
from gpuops.plan.cluster.permission import reject_missing_privileges, required_privileges
from gpuops.plan.cluster.plan import ClusterPlan, ClusterQuestion
from gpuops.plan.core.plan import Verdict

BOOT_S: Final = 900.0
"""Until the last guest tells an address, from the last start on."""
CLONE_TRIES: Final = 2
"""A request that was lost on its way is sent once more, after a look: of two clones of one name vCenter refuses one."""
SAME_AGAIN: Final = "the same again goes on, gpuops cluster delete removes what is there"

ClusterConsent = Callable[[ClusterPlan], None]
"""Told of the plan just before anything is made; what it raises ends the call with nothing changed."""


def create(wish: ClusterWish, site: Site, *, apply: bool, keep: bool, consent: ClusterConsent) -> ClusterMade:
    """What is to be done for the cluster, and with `apply` what became of it. `keep`: what fails is not undone.

    Raises UsageError for names that mean nothing, Refused, Locked while a rotation runs, NotConnected; after the last
    the same again goes on.
    """
    port = cluster_port(site)
    inventory = site.vcenter.inventory()
    id_now, cut_off = known_id(wish.name, inventory, site)
    if cut_off and apply:
        with alone_with(site, wish.name, "cluster-create"):
            wait_for_tasks(site, wish.name)
        inventory = site.vcenter.inventory()
        id_now, _ = known_id(wish.name, inventory, site)
    plan, _ = _look(wish, id_now, site, port, inventory)
    if not plan.feasible or not apply or not (plan.changes or cut_off):
        return ClusterMade(plan, applied=apply and plan.feasible)
    with alone_with(site, wish.name, "cluster-create"):
        while True:
            consent(plan)
            with changing(site) as journal:
                again, inventory = _look(wish, id_now, site, port)
                if again.feasible and again.deeds == plan.deeds:
                    require_unused(wish.name, inventory, site)
                    there = marked_vms(inventory, wish.name)
                    run = begin(journal, wish.name, plan.id, [each.vm.ref for each in there])
                    break
            plan = again
            if not plan.feasible:
                return ClusterMade(plan, applied=False)
        return _Making(wish, again, inventory, site, port, run).made(keep=keep)


def _look(
    wish: ClusterWish, id_now: str, site: Site, port: ClusterPort, inventory: Inventory | None = None
) -> tuple[ClusterPlan, Inventory]:
    """The plan on what vCenter shows now, or has just shown, with the devices of the template and of the cluster's VMs;
    and that."""
    vcenter = site.vcenter
    inventory = inventory or vcenter.inventory()
    template = inventory.find_vm(wish.template)
    own = (each.vm for each in marked_vms(inventory, wish.name))
    unread = [vm.ref for vm in (template, *own) if vm.devices is None]
    if unread:
        inventory = vcenter.observe(inventory, unread)
    if wish.device is not None:
        inventory = vcenter.with_config_targets(inventory, [each.ref for each in inventory.hosts.values() if each.gpus])
    question = ClusterQuestion(
        wish,
        id_now,
        port.networks() if wish.port_group is not None else Networks(),
        port.guest_id(template.ref),
        vcenter.folder_at(wish.folder) if wish.folder is not None else None,
    )
    inventory = site.with_vgpus(inventory)
    plan = question.planned(inventory, catalog_of(inventory), site.clock())
    required = required_privileges(plan, question.folder, inventory)
    return reject_missing_privileges(plan, port.lacking_on_objects(required), inventory), inventory


@dataclass(slots=True)
class _Making:
    """One call on its way."""

    wish: ClusterWish
    plan: ClusterPlan
    seen: Inventory
    """The latest look."""
    site: Site
    port: ClusterPort
    run: Run

    def made(self, *, keep: bool) -> ClusterMade:
        """All of it, or what became of the rest. Raises NotConnected, Locked where a rotation does not end."""
        try:
            return self._made(keep=keep)
        except (NotConnected, Locked, KeyboardInterrupt, SystemExit):
            self.site.say(f"cluster {self.wish.name} was cut off, and its VMs stay: {SAME_AGAIN}")
            raise

    def _made(self, *, keep: bool) -> ClusterMade:
        try:
            addresses = self._all()
        except (NotConnected, Locked):
            raise
        except GpuopsError as error:
            # what may still come would be removed by nobody; what needed nothing but a guest's address may be in use
            if keep or isinstance(error, OutcomeUnknown) or not self.plan.changes:
                return ClusterMade(self.plan, applied=True, failed=error.line)
            left = self._undone()
            if not left:
                end(self.site, self.run)
            return ClusterMade(self.plan, applied=True, failed=error.line, undone=not left, left=left)
        end(self.site, self.run)
        return ClusterMade(self.plan, applied=True, addresses=addresses)

    def _undone(self) -> tuple[str, ...]:
        """Removes what was made of the cluster since its run began; those that are left."""
        self.site.say(f"cluster {self.wish.name} failed: what was made of it is removed")
        wait_for_tasks(self.site, self.wish.name)
        with changing(self.site, waits=True) as journal:
            inventory = self.site.vcenter.inventory()
            found = marked_vms(inventory, self.wish.name, self.plan.id)
            with kept_from_runs(self.site, self.wish.name, found, inventory):
                return removed(found, inventory, journal, self.run, self.site, but=stood(self.run))[0]

    def _all(self) -> dict[str, str]:
        """The address of each guest once all of it runs. Raises the error of whatever went wrong."""
        with changing(self.site, waits=True) as journal:
            settle_open(self._executor(journal), timeout_s=Limits().step_timeout_s)
        for tries_left in reversed(range(CLONE_TRIES + 1)):
            with changing(self.site, waits=True) as journal:
                plan = self._looked()
                if not plan.new:
                    self._set_up(plan, journal)
                    break
                if not tries_left:
                    names = ", ".join(each.name for each in plan.new)
                    never = f"{names}: vCenter does not show what was cloned"
                    raise OutcomeUnknown(never, hint="the same again looks anew")
                tasks = self._clones(plan)
            self._wait_for_clones(tasks, len(plan.new))
        return self._addresses()

    def _set_up(self, plan: ClusterPlan, journal: Journal) -> None:
        """Gives the VMs, which are all there, what they lack, and starts them. Raises the first error."""
        executor = self._executor(journal)
        outcomes = execute(plan.steps, executor, Limits(), self.site.progress, in_flight=self.site.in_flight)
        failed = next((each for each in outcomes if each.verdict not in (Verdict.DONE, Verdict.ALREADY)), None)
        if failed is not None:
            name = executor.inventory.vms[failed.step.vm].name if failed.step.vm in executor.inventory.vms else "a VM"
            raise StepFailed(f"{name}: {failed.step.noun}: {failed.reason or failed.verdict}")

    def _looked(self) -> ClusterPlan:
        """The plan on a new look. Raises Refused with the reasons against it."""
        plan, self.seen = _look(self.wish, self.plan.id, self.site, self.port)
        if not plan.feasible:
            raise Refused("; ".join(plan.reasons))
        return plan

    def _executor(self, journal: Journal) -> VmExecutor:
        site = self.site
        return VmExecutor(site.vcenter, journal, self.run, self.seen, passed_s=site.passed_s)

    def _clones(self, plan: ClusterPlan) -> list[TaskRef]:
        """Asks for all clones at once. One whose reply was lost is looked for by its name afterwards."""
        tasks = []
        for new in plan.new:
            with suppress(OutcomeUnknown):
                tasks.append(self.site.vcenter.clone_vm(new, f"gpuops-cluster-{secrets.token_hex(8)}"))
        if tasks:
            self.site.say(f"{len(tasks)} VMs are being cloned of {self.wish.template}")
        return tasks

    def _wait_for_clones(self, tasks: list[TaskRef], wanted: int) -> None:
        """Raises the first error that a clone ended in."""
        ends = [end.error for end in self.site.vcenter.wait(tasks, CLONES_S)]
        errors = [error for error in ends if error is not None]
        certain = next((error for error in errors if not isinstance(error, OutcomeUnknown)), None)
        if certain is not None:
            raise certain
        if errors or len(ends) < wanted:  # those whose reply, or whose task, was lost
            wait_for_tasks(self.site, self.wish.name)

    def _addresses(self) -> dict[str, str]:
        """The address of each guest. Raises StepFailed for a guest that tells none in time."""
        began_s, found = self.site.passed_s(), {}
        for each in marked_vms(self.seen, self.wish.name):
            left_s = max(0.0, began_s + BOOT_S - self.site.passed_s())
            guest = self.site.vcenter.wait_for_guest(each.vm.ref, left_s, address=True)
            if guest.address is None:
                lacks = "address" if guest.tools_running else "VMware Tools"
                raise StepFailed(f"{each.vm.name}: its guest shows no {lacks} within {BOOT_S:.0f} s of its start")
            found[each.vm.name] = guest.address
        return found
