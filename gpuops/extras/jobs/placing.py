"""How many jobs fit on GPUs, where, and how long each then takes, on one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuops.errors import Refused
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.jobs.job import ContainerJob
from gpuops.model.vcenter.vm import Vm

if TYPE_CHECKING:
    from gpuops.extras.jobs.job_plan import JobsAnswer
    from gpuops.extras.jobs.template_vms import JobVmRoom
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.inventory import Inventory


def job_plan(
    jobs: tuple[ContainerJob, ...], site: Site, policy: Policy | None = None, mounts: tuple[str, ...] = ()
) -> JobsAnswer:
    """Return places and times of these jobs. With a policy: in its current or next night. Changes nothing.

    `mounts`: directories that may be mounted; () = those of the policy. Raises Refused for windows without a night
    within a year; VmNotFound, VmAmbiguous for the VM in `like` of a job; StateDamaged.
    """
    from gpuops.extras.jobs.job_plan import JobsQuestion, planned_jobs
    from gpuops.plan.capacity.capacity_request import night_of

    inventory = site.vcenter.inventory()
    if policy is not None and policy.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    inventory = site.with_vgpus(inventory)
    inventory = site.hosts.with_settings(inventory, [host.ref for host in inventory.hosts.values() if host.gpus])
    catalog = catalog_of(inventory)
    alike = {job.name: inventory.find_vm(job.like) for job in jobs if job.like is not None}
    histories = _histories(site, inventory, list(alike.values()))
    night, desktops = None, list[Vm]()
    if policy is not None:
        from gpuops.execute.rotation.rotation import may_take

        now = site.clock()
        night = policy.night_at(now) or policy.next_night(now)
        if night is None and policy.windows:
            raise Refused("the policy has no night within a year", hint="say `windows` with opens and closes in it")
        desktops += may_take(policy, site, inventory).free_to_take
    question = JobsQuestion(
        jobs,
        desktops=None if policy is None else len(desktops),
        night=night,
        mounts=mounts or (policy.jobs.mounts if policy is not None and policy.jobs is not None else ()),
        histories=histories,
        alike={name: vm.ref for name, vm in alike.items()},
    )
    answer = planned_jobs(question, night_of(inventory, desktops, catalog), catalog)
    return answer if policy is None else replace(answer, vms=_vm_room(jobs, policy, site, inventory))


def _vm_room(jobs: tuple[ContainerJob, ...], policy: Policy, site: Site, inventory: Inventory) -> JobVmRoom | None:
    """Return which of these jobs get a VM; None if the policy has no `jobs`."""
    from gpuops.extras.jobs.job_queue import submitter
    from gpuops.extras.jobs.job_vms import with_devices
    from gpuops.extras.jobs.night_jobs import job_store
    from gpuops.extras.jobs.template_vms import job_vm_room

    rules = policy.jobs
    if rules is None:
        return None
    store = job_store(site)
    submitted = store.read()
    if rules.template is not None:
        inventory = with_devices(site, rules.template, submitted, inventory)
    catalog, now = catalog_of(inventory), site.clock()
    return job_vm_room(jobs, submitted, submitter(store), policy, rules, inventory, catalog, now)


def _histories(site: Site, inventory: Inventory, alike: list[Vm]) -> Mapping[str, float]:
    """Return by id how busy VMs with one time-sliced vGPU keep their GPU while they work; these VMs and running ones.

    VMs without a history are left out.
    """
    from gpuops.extras.sizing.size_request import sharing_groups
    from gpuops.extras.sizing.sizing import known_history
    from gpuops.model.vcenter.vm import PowerState

    catalog = catalog_of(inventory)
    running = [vm for vm in inventory.vms.values() if vm.power is PowerState.ON]
    of_one = {vm.ref: vm for vm in (*alike, *running) if len(vm.vgpus) == 1}
    vms = [
        vm for vm in of_one.values() if (facts := catalog.profile(vm.profiles[0])) is not None and not facts.mig_backed
    ]
    history = known_history(site.measurements_store, inventory, vms, sharing_groups(vms, inventory, catalog))
    if history is None:
        return {}
    measured = [vm for vm in vms if vm.name not in history.left_out]
    return {vm.ref: float(share) for vm, share in zip(measured, history.shares.working, strict=True)}
