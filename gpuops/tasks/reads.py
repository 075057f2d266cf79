"""Tasks that only read: VMs, hosts, free capacity, placement and guests, for the modules `*_info`, `gpu_placement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuops.api import Site, capacity, catalog_of, guest_check, place, readiness
from gpuops.errors import PartlyDone, Refused, UsageError
from gpuops.model.guests.guest import GuestWay, MustHave
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.capacity.capacity_request import CapacityRequest
from gpuops.plan.core.scope import Scope
from gpuops.plan.guest.guest_check import GuestQuestion, parse_frameworks, ssh_door
from gpuops.plan.guest.rows import GuestNeeds
from gpuops.plan.queue.one_workload import Refusal
from gpuops.plan.queue.place import Place
from gpuops.report.advice.capacity_view import capacity_document
from gpuops.report.advice.placement_view import placements_document
from gpuops.report.document import Document
from gpuops.report.monitoring.doctor_view import guest_check_document
from gpuops.report.monitoring.fleet_view import FleetFilters, fleet
from gpuops.report.monitoring.inventory_view import fleet_document
from gpuops.report.monitoring.readiness_view import readiness_document
from gpuops.report.vms.vm_view import vm_state
from gpuops.tasks.perform import TaskResult, reading, task_result, unchanged_result
from gpuops.tasks.task_connection import (
    NO_SHELL,
    ConnectionArguments,
    HostShellArguments,
    open_site,
    policy_of,
    request_of,
)


def vm_gpu_info(
    connection: ConnectionArguments,
    *,
    vm: str | None = None,
    host: str | None = None,
    profile: str | None = None,
    guest: str | None = None,
    guest_timeout: float = 0.0,
) -> TaskResult:
    """Return this VM, or every VM with GPU devices; with `guest` wait for VMware Tools or an address of the one VM.

    Raises VmNotFound, HostNotFound, ProfileUnknown, UsageError, and Refused for a guest of a VM that does not run.
    """
    if guest is not None and vm is None:
        raise UsageError("guest needs a VM", hint="set vm, moid or uuid")
    site, warnings = open_site(connection)
    with site:
        inventory = site.vcenter.inventory()
        if guest is not None and vm is not None:
            return _wait_for_guest(inventory.find_vm(vm), inventory, guest, guest_timeout, site, warnings)
        if vm is None:
            vms = fleet(inventory, catalog_of(inventory), FleetFilters(host=host, profile=profile)).vms
        else:
            named_vm = inventory.find_vm(vm)
            if named_vm.devices is None:  # the bulk read leaves out VMs on hosts without GPUs
                inventory = site.vcenter.observe(inventory, [named_vm.ref])
            vms = (inventory.vm(named_vm.ref),)
    return unchanged_result({"vms": [vm_state(machine, inventory) for machine in vms]}, warnings)


def _wait_for_guest(
    vm: Vm, inventory: Inventory, sign: str, timeout_s: float, site: Site, warnings: list[str]
) -> TaskResult:
    """Wait for a sign of the guest (`tools` or `address`); return the VM and the state of its guest.

    The task fails if the sign does not appear within `timeout_s`. Raises Refused if the VM does not run.
    """
    if vm.power is not PowerState.ON:
        raise Refused(f"{vm.name} is {vm.power or 'in an unknown state'}: no guest runs in it", hint="start it first")
    state = site.vcenter.wait_for_guest(vm.ref, timeout_s, address=sign == "address")
    inventory = site.vcenter.observe(inventory, [vm.ref])
    fields = {
        "vms": [vm_state(inventory.vm(vm.ref), inventory)],
        "guest": {"tools_running": state.tools_running, "address": state.address},
    }
    has_appeared = state.address is not None if sign == "address" else state.tools_running
    if has_appeared:
        return unchanged_result(fields, warnings)
    problem = "has no address" if state.tools_running else "does not run VMware Tools"
    reason = f"{vm.name}: its guest {problem} after {timeout_s:.0f} s (next: look at its console)"
    return TaskResult({"changed": False, **fields, "reasons": [reason]}, PartlyDone.exit_code, reason, tuple(warnings))


@reading
def host_gpu_info(site: Site, host: str | None = None, profile: str | None = None) -> Document:
    """Return the hosts with GPUs: NUMA nodes, GPUs, their holders, what is free; with a host shell also their health.

    Raises HostNotFound, ProfileUnknown, UsageError for an invalid host shell.
    """
    inventory = site.with_vgpus(site.vcenter.inventory())
    document = fleet_document(fleet(inventory, catalog_of(inventory), FleetFilters(host=host, profile=profile)))
    return {
        **{key: getattr(document, key) for key in ("vcenter", "api_version", "hosts_without_gpus")},
        "hosts": list(document.hosts),
    }


@reading
def gpu_readiness_info(site: Site, cluster: str | None = None, host: str | None = None) -> Document:
    """Return whether hosts can be emptied, and whether one can be lost. Raises UsageError, HostNotFound."""
    return {"readiness": readiness_document(readiness(Scope(cluster, host), site.vcenter.inventory(), site))}


def guest_gpu_info(
    connection: ConnectionArguments,
    *,
    vm: str | None = None,
    pool: str | None = None,
    policy: str | None = None,
    via: str = "tools",
    ssh_user: str | None = None,
    ssh_host: str | None = None,
    ssh_port: int | None = None,
    framework: Sequence[str] | None = None,
    expect: Sequence[str] | None = None,
) -> TaskResult:
    """Return whether guests are ready for work on their GPUs. Raises UsageError, VmNotFound, VmAmbiguous, Refused."""
    way = GuestWay(via)
    needs = GuestNeeds(parse_frameworks(framework or ()), frozenset(map(MustHave, expect or ())))
    question = GuestQuestion(vm, pool, needs, ssh_door(way, ssh_user, ssh_host, ssh_port))
    question.checked(policy=policy is not None)
    rules = policy_of(policy)
    site, warnings = open_site(connection)
    site.say = warnings.append
    with site:
        verdicts = guest_check(question, site.vcenter.inventory(), site, rules)
    return unchanged_result({"guest_check": guest_check_document(verdicts, way)}, warnings)


@reading
def gpu_capacity_info(site: Site, policy: Policy | None = None, **options: Any) -> Document:
    """Count the vGPUs and whole GPUs that fit, with a policy also once desktops are suspended. Raises UsageError."""
    inventory = site.with_vgpus(site.vcenter.inventory())
    free_capacity = capacity(request_of(CapacityRequest, options), inventory, site, policy)
    return {"capacity": capacity_document(free_capacity, policy.name if policy else None)}


def gpu_placement(
    connection: ConnectionArguments,
    *,
    requests: Sequence[Mapping[str, Any]] | None = None,
    file: str | None = None,
    mig_layout: str | None = None,
    shell: HostShellArguments = NO_SHELL,
    **options: Any,
) -> TaskResult:
    """Return a place for each request, or every reason against one; `options` are fields of `Place`.

    `mig_layout`: FILE:NAME of a layout; the answer is as if GPUs had its GPU instances. Raises UsageError, PolicyError.
    """
    from gpuops.config.layout_file import parse_layout_option
    from gpuops.model.fleet_change import ApplyLayout

    request, layout = request_of(Place, {**options, "workloads": _workloads(requests, file)}), None
    if mig_layout is not None:  # the layout is for one host if all requests name the same one, else for all hosts
        hosts = {workload.host for workload in request.workloads}
        layout = ApplyLayout(parse_layout_option(mig_layout, "mig_layout"), hosts.pop() if len(hosts) == 1 else None)
    site, warnings = open_site(connection, shell=shell)
    with site:
        placements = place(request, site, layout)
    document = placements_document(placements, catalog_of(placements.before))
    refused = [answer for answer in placements.answers if isinstance(answer, Refusal)]
    reasons = [f"{answer.workload.name}: {reason}" for answer in refused for reason in answer.rejections]
    headline = f"{len(refused)} of {len(placements.answers)} without a place"
    return task_result(
        {"changed": False, "placement": document},
        placements.exit_code,
        reasons,
        (*warnings, *placements.warnings),
        headline if refused else "",
    )


def _workloads(requests: Sequence[Mapping[str, Any]] | None, file: str | None) -> tuple[Workload, ...]:
    from gpuops.config.requests_file import load_requests, requests_of

    if (requests is None) == (file is None):
        raise UsageError("set either requests or file", hint="templates/requests.yaml shows the keys of a request")
    if file is not None:
        return load_requests(Path(file).expanduser())
    requests_given = [
        {key: setting for key, setting in request.items() if setting is not None} for request in requests or ()
    ]
    return requests_of(requests_given, "requests")
