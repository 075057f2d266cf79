"""Makes a cluster, completely or not at all: clones, devices, overrides of DRS, starts and guest addresses.

A clone has its marker from the start, so the same call finds what an interrupted call has made: it waits for requests
in flight, reads the inventory and plans what is missing. The id of the cluster is in the journal before the first
clone. If the call fails, it removes what it made, unless the caller asks to keep it. VMs that existed before are never
removed.

The call holds the lock of the machine while it decides and changes something. It does not hold it while disks are
copied, guests boot or a question is open, so that rotations can run meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuops.errors import GpuopsError, Locked, NotConnected, OutcomeUnknown, Refused, StepFailed
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.orders import load_cluster_order
from gpuops.execute.site import Site, catalog_of
from gpuops.execute.site.agreement import Agreement, ask_until_agreed
from gpuops.execute.steps.plan_executor import execute
from gpuops.execute.steps.vm_executor import VmExecutor
from gpuops.execute.steps.vm_runs import CREATION_S, creation_error, request_vms, settle_steps
from gpuops.extras.clusters.answers import ClusterMade
from gpuops.extras.clusters.cluster_members import REMOVE_PRIVILEGES, marked_vms
from gpuops.extras.clusters.cluster_plan import ClusterPlan, ClusterQuestion
from gpuops.extras.clusters.existing import ClusterPort, cluster_port, remove_vms
from gpuops.extras.clusters.run import (
    alone_with,
    begin,
    changing,
    end,
    keep_runs_away,
    known_id,
    require_unused,
    wait_for_tasks,
)
from gpuops.model.devices.other_device import Networks
from gpuops.model.nights.rotation_policy import Limits
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.login import ASSIGN_TO_POOL, ObjectKind
from gpuops.model.workloads.cluster import ClusterWish
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.privileges import EDIT_CLUSTER, pool_owner, privilege_rejection
from gpuops.plan.core.steps import CloneVm, SetVmDrs

CREATE_PRIVILEGES: Final = (
    "VirtualMachine.Provisioning.DeployTemplate",
    "VirtualMachine.Config.AddRemoveDevice",
    "VirtualMachine.Config.AdvancedConfig",
    "VirtualMachine.Config.Annotation",
    "VirtualMachine.Config.CPUCount",
    "VirtualMachine.Config.Memory",
    "VirtualMachine.Config.Resource",
    "VirtualMachine.Interact.PowerOn",
    *REMOVE_PRIVILEGES,  # a VM that could not be completed is removed again
)
"""Required for each new VM; looked up on the template."""
MAKE_IN_FOLDER: Final = frozenset({"VirtualMachine.Inventory.CreateFromExisting"})
ALLOCATE_SPACE: Final = frozenset({"Datastore.AllocateSpace"})
ASSIGN_NETWORK: Final = frozenset({"Network.Assign"})


def _refuse_without_privileges(plan: ClusterPlan, folder: str | None, inventory: Inventory, site: Site) -> ClusterPlan:
    """Return the plan, with one refusal for each object on which the login lacks privileges that the plan needs.

    The new VMs do not exist yet, so the privileges on them are checked on the template (vSphere API reference,
    privileges of each method and of each field of ConfigSpec). The other privileges are checked on the cluster, folder,
    resource pool, datastores and port group that the new VMs use (vSphere security guide, required privileges for
    common tasks: deploy a virtual machine from a template).

    `folder`: managed object id of the folder for the new VMs. None = the template's folder; its privileges are checked
    on the template, which inherits them. Raises VmNotFound, VmAmbiguous.
    """
    if not plan.changes:
        return plan
    needed: dict[ObjectKind, dict[str, frozenset[str]]] = {kind: {} for kind in ObjectKind}
    names: dict[str, str] = {}

    def need(kind: ObjectKind, ref: str | None, name: str | None, privileges: Collection[str]) -> None:
        if ref is not None:
            needed[kind][ref] = needed[kind].get(ref, frozenset()) | frozenset(privileges)
            names[ref] = name or ref

    template = inventory.find_vm(plan.wish.template)
    need(ObjectKind.TEMPLATE, template.ref, template.name, CREATE_PRIVILEGES)
    for member in plan.members:
        cluster = inventory.clusters.get(member.host.cluster or "")
        if cluster is not None and any(isinstance(step, SetVmDrs) for step in member.steps):
            need(ObjectKind.CLUSTER, member.host.cluster, cluster.name, EDIT_CLUSTER)
        if member.new is None:
            continue
        if folder is None:
            need(ObjectKind.TEMPLATE, template.ref, template.name, MAKE_IN_FOLDER)
        else:
            need(ObjectKind.FOLDER, folder, plan.wish.folder, MAKE_IN_FOLDER)
        need(*pool_owner(member.host), cluster.name if cluster is not None else member.host.name, ASSIGN_TO_POOL)
        for ref in template.datastores if member.new.datastore is None else (member.new.datastore,):
            name = inventory.datastores[ref].name if ref in inventory.datastores else None
            need(ObjectKind.DATASTORE, ref, name, ALLOCATE_SPACE)
        if member.new.card is not None:
            need(ObjectKind.PORT_GROUP, member.new.card.port_group, plan.wish.port_group, ASSIGN_NETWORK)
    lacking = site.vcenter.lacking_on_objects({kind: by_object for kind, by_object in needed.items() if by_object})
    refusals = (
        privilege_rejection(names[ref], missing, hint=f"ask for a role with it on the {kind}")
        for kind, by_object in needed.items()
        for ref in by_object
        if (missing := lacking.get(ref))
    )
    return replace(plan, rejections=(*plan.rejections, *refusals))


BOOT_S: Final = 900.0
"""The time from the last start until the last guest has an address."""
CLONE_TRIES: Final = 2
"""A clone whose task was lost is requested once more: vCenter refuses a second one of the same name."""
CONTINUE_OR_DELETE: Final = "run the same command again to continue, or gpuops cluster delete to remove them"

ClusterConsent = Callable[[ClusterPlan], None]
"""Called with the plan before anything is made. If it raises, the call ends and nothing is changed."""


def create_cluster(wish: ClusterWish, site: Site, *, apply: bool, keep: bool, consent: ClusterConsent) -> ClusterMade:
    """Plan the cluster and, with `apply`, make it; return the plan and the outcome.

    `keep`: keep the VMs that were made if a later step fails; otherwise they are removed. Raises UsageError for unknown
    names, Refused, Locked while a rotation runs, NotConnected; after NotConnected the same call continues.
    """
    port = cluster_port(site)
    inventory = site.vcenter.inventory()
    cluster_id, cut_off = known_id(wish.name, inventory, site)
    if cut_off and apply:  # clones that an interrupted call requested may still appear
        with alone_with(site, wish.name, "cluster-create"):
            wait_for_tasks(site, wish.name, inventory)
        inventory = site.vcenter.inventory()
        cluster_id, _ = known_id(wish.name, inventory, site)
    plan, _ = _read_and_plan(wish, cluster_id, site, port, inventory)
    # after an interruption go on even if nothing is missing: the open run in the journal must be ended
    if not plan.feasible or not apply or not (plan.changes or cut_off):
        return ClusterMade(plan, applied=apply and plan.feasible)

    def begin_creation(agreement: Agreement[ClusterPlan]) -> _ClusterCreation | ClusterMade:
        with changing(site) as journal:
            current_plan, inventory = _read_and_plan(wish, cluster_id, site, port)
            if not current_plan.feasible:
                return ClusterMade(current_plan, applied=False)
            agreement.require(current_plan)  # if it differs from the plan that was agreed to, ask again
            require_unused(wish.name, inventory, site)
            existing_vms = marked_vms(inventory, wish.name)
            run = begin(journal, wish.name, current_plan.id, [member.vm.ref for member in existing_vms])
            return _ClusterCreation(wish, current_plan, inventory, site, port, run)

    with alone_with(site, wish.name, "cluster-create"):
        begun = ask_until_agreed(plan, consent, begin_creation)
        return begun if isinstance(begun, ClusterMade) else begun.create_vms(keep=keep)


def _read_and_plan(
    wish: ClusterWish, cluster_id: str, site: Site, port: ClusterPort, inventory: Inventory | None = None
) -> tuple[ClusterPlan, Inventory]:
    """Return the plan, with refusals for missing privileges, and the inventory that it was made on.

    Reads the inventory unless one is given, and the devices of the template and of the cluster's VMs.
    """
    vcenter = site.vcenter
    inventory = inventory or vcenter.inventory()
    template = inventory.find_vm(wish.template)
    cluster_vms = (member.vm for member in marked_vms(inventory, wish.name))
    unread_vms = [vm.ref for vm in (template, *cluster_vms) if vm.devices is None]
    if unread_vms:
        inventory = vcenter.observe(inventory, unread_vms)
    if wish.device is not None:  # config targets show where this network adapter is available to VMs
        inventory = vcenter.with_config_targets(inventory, [host.ref for host in inventory.hosts.values() if host.gpus])
    question = ClusterQuestion(
        wish,
        cluster_id,
        port.networks() if wish.port_group is not None else Networks(),
        port.guest_id(template.ref),
        vcenter.folder_at(wish.folder) if wish.folder is not None else None,
    )
    inventory = site.with_vgpus(inventory)
    plan = question.plan(inventory, catalog_of(inventory), site.clock())
    return _refuse_without_privileges(plan, question.folder, inventory, site), inventory


@dataclass(slots=True)
class _ClusterCreation:
    """One call of `create` that changes the vCenter."""

    wish: ClusterWish
    plan: ClusterPlan
    inventory: Inventory
    """The inventory that was read last."""
    site: Site
    port: ClusterPort
    run: Run

    def create_vms(self, *, keep: bool) -> ClusterMade:
        """Make the cluster and return the outcome. Raises NotConnected, Locked if a rotation does not end."""
        try:
            return self._create_or_undo(keep=keep)
        except (NotConnected, Locked, KeyboardInterrupt, SystemExit):
            self.site.say(f"cluster {self.wish.name} was cut off, and its VMs stay: {CONTINUE_OR_DELETE}")
            raise

    def _create_or_undo(self, *, keep: bool) -> ClusterMade:
        """Make the cluster; after an error remove the VMs that were made, unless `keep` is set."""
        try:
            addresses = self._create_all()
        except (NotConnected, Locked):
            raise  # nothing can be removed now: the same call continues later
        except GpuopsError as error:
            # nothing is removed if a request may still take effect later, or if only an address was missing: then the
            # VMs may be in use
            if keep or isinstance(error, OutcomeUnknown) or not self.plan.changes:
                return ClusterMade(self.plan, applied=True, failed=error.line)
            remaining_vms = self._remove_created_vms()
            if not remaining_vms:
                end(self.site, self.run)
            return ClusterMade(self.plan, applied=True, failed=error.line, undone=not remaining_vms, left=remaining_vms)
        end(self.site, self.run)
        return ClusterMade(self.plan, applied=True, addresses=addresses)

    def _remove_created_vms(self) -> tuple[str, ...]:
        """Remove the VMs made since the run began, and return those that could not be removed."""
        earlier_vms = load_cluster_order(self.run.order).earlier_vms
        self.site.say(f"cluster {self.wish.name} failed: the VMs that were made are removed")
        wait_for_tasks(self.site, self.wish.name, self.site.vcenter.inventory())
        with changing(self.site, waits=True) as journal:
            inventory = self.site.vcenter.inventory()
            made_vms = marked_vms(inventory, self.wish.name, self.plan.id)
            with keep_runs_away(self.site, self.wish.name, made_vms, inventory):
                return remove_vms(made_vms, inventory, journal, self.run, self.site, but=earlier_vms)[0]

    def _create_all(self) -> dict[str, str]:
        """Make and start all VMs and return the address of each guest, by VM name. Raises the first error.

        Requests the missing clones and plans again, until no VM is missing; a clone whose task was lost is requested a
        second time only if the VM still does not exist.
        """
        with changing(self.site, waits=True) as journal:
            settle_steps(self.inventory, journal, self.run, self.site)
        for tries_left in reversed(range(CLONE_TRIES + 1)):  # the last pass clones nothing
            with changing(self.site, waits=True) as journal:
                plan = self._plan_again()
                if not plan.new:
                    self._set_up(plan, journal)
                    break
                if not tries_left:
                    names = ", ".join(clone.name for clone in plan.new)
                    reason = f"{names}: vCenter does not show what was cloned"
                    raise OutcomeUnknown(reason, hint="run the same command again")
                ended, self.inventory = request_vms(plan.new, self.inventory, journal, self.run, self.site)
            self._wait_for_clones(plan.new, ended)
        return self._addresses()

    def _set_up(self, plan: ClusterPlan, journal: Journal) -> None:
        """Configure the VMs, which all exist, and start them. Raises the first error."""
        site = self.site
        executor = VmExecutor(site.vcenter, journal, self.run, self.inventory, passed_s=site.passed_s)
        outcomes = execute(plan.steps, executor, Limits(), site.progress, in_flight=site.in_flight)
        failure = next(
            (outcome for outcome in outcomes if outcome.verdict not in (Verdict.DONE, Verdict.ALREADY)), None
        )
        if failure is not None:
            name = executor.inventory.vms[failure.step.vm].name if failure.step.vm in executor.inventory.vms else "a VM"
            raise StepFailed(f"{name}: {failure.step.noun}: {failure.reason or failure.verdict}")

    def _plan_again(self) -> ClusterPlan:
        """Read the inventory again and return the plan. Raises Refused if the plan is not feasible."""
        plan, self.inventory = _read_and_plan(self.wish, self.plan.id, self.site, self.port)
        if not plan.feasible:
            raise Refused("; ".join(plan.reasons))
        return plan

    def _wait_for_clones(self, clones: Sequence[CloneVm], ended: Mapping[str, Outcome]) -> None:
        """Wait until vCenter has made the clones. Raises the error of the first clone that certainly failed.

        `ended`: outcomes that were known before. A clone with an unknown outcome is requested again if the next plan
        does not find its VM.
        """
        self.site.say(f"{len(clones)} VMs are being cloned of {self.wish.template}")
        with self.site.unlocked_journal() as journal:
            outcomes, self.inventory = settle_steps(self.inventory, journal, self.run, self.site, timeout_s=CREATION_S)
        latest = {**ended, **outcomes}
        for clone in clones:
            outcome = latest.get(clone.vm)
            if outcome is not None and outcome.verdict in (Verdict.FAILED, Verdict.SKIPPED):
                raise creation_error(clone.name, outcome)
        if any(outcome.verdict is Verdict.UNKNOWN for outcome in latest.values()):  # the task of a clone was lost
            wait_for_tasks(self.site, self.wish.name, self.site.vcenter.inventory())

    def _addresses(self) -> dict[str, str]:
        """Return the address of each guest, by VM name. Raises StepFailed for a guest without one after `BOOT_S`."""
        started_s, addresses = self.site.passed_s(), {}
        for member in marked_vms(self.inventory, self.wish.name):
            left_s = max(0.0, started_s + BOOT_S - self.site.passed_s())
            guest = self.site.vcenter.wait_for_guest(member.vm.ref, left_s, address=True)
            if guest.address is None:
                lacks = "IP address" if guest.tools_running else "running VMware Tools"
                raise StepFailed(
                    f"{member.vm.name}: its guest reports no {lacks} {BOOT_S:.0f} s after its start",
                    hint="check in its console whether it booted and has a network",
                )
            addresses[member.vm.name] = guest.address
        return addresses
