"""Tasks that change nothing: what is there, what still fits, and where VMs would go. The modules `*_info` call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.errors import Refused, UsageError
from gpuops.tasks.connection import NO_SHELL, ConnectionArguments, HostShellArguments, open_site
from gpuops.tasks.result import TaskResult, reasons_line

if TYPE_CHECKING:
    from gpuops.api import Site
    from gpuops.model.fleet_change import ApplyLayout
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm
    from gpuops.model.workloads.workload import Workload
    from gpuops.report.document import Document


def vm_gpu_info(
    connection: ConnectionArguments,
    *,
    vm: str | None = None,
    host: str | None = None,
    profile: str | None = None,
    guest: str | None = None,
    guest_timeout_s: float = 0.0,
) -> TaskResult:
    """This VM, or every one with GPU devices; with `guest` (`tools` or `address`) once that is there in the one VM.

    Raises VmNotFound, HostNotFound, ProfileUnknown, UsageError, and Refused for a guest of a VM that does not run.
    """
    from gpuops.api import catalog_of
    from gpuops.report.monitoring.fleet import FleetFilters, fleet
    from gpuops.report.vms.vm_state import vm_state

    if guest is not None and vm is None:
        raise UsageError("guest means nothing without a VM", hint="say vm, moid or uuid")
    site, warnings = open_site(connection)
    with site:
        seen = site.vcenter.inventory()
        if guest is not None and vm is not None:
            return _guest(seen.find_vm(vm), seen, guest, guest_timeout_s, site, warnings)
        if vm is None:
            found = fleet(seen, catalog_of(seen), FleetFilters(host=host, profile=profile)).vms
        else:
            one = seen.find_vm(vm)
            if one.devices is None:  # the bulk read leaves out VMs on hosts without GPUs
                seen = site.vcenter.observe(seen, [one.ref])
            found = (seen.vm(one.ref),)
    return _unchanged({"vms": [vm_state(each, seen) for each in found]}, warnings)


def _guest(vm: Vm, seen: Inventory, sign: str, timeout_s: float, site: Site, warnings: list[str]) -> TaskResult:
    """The VM, and what its guest tells of itself; a failure where that is not enough when the time is up."""
    from gpuops.model.vcenter.vm import PowerState
    from gpuops.report.vms.vm_state import vm_state

    if vm.power is not PowerState.ON:
        raise Refused(f"{vm.name} is {vm.power or 'in an unknown state'}: no guest runs in it", hint="start it first")
    told = site.vcenter.wait_for_guest(vm.ref, timeout_s, address=sign == "address")
    seen = site.vcenter.observe(seen, [vm.ref])
    result = {
        "vms": [vm_state(seen.vm(vm.ref), seen)],
        "guest": {"tools_running": told.tools_running, "address": told.address},
    }
    if told.address is not None if sign == "address" else told.tools_running:
        return _unchanged(result, warnings)
    lacks = "has no address" if told.tools_running else "does not run VMware Tools"
    reason = f"{vm.name}: its guest {lacks} after {timeout_s:.0f} s (next: look at its console)"
    return TaskResult({"changed": False, **result, "reasons": [reason]}, 4, reason, tuple(warnings))


def host_gpu_info(
    connection: ConnectionArguments,
    *,
    host: str | None = None,
    profile: str | None = None,
    shell: HostShellArguments = NO_SHELL,
) -> TaskResult:
    """Hosts with GPUs: NUMA nodes, GPUs, who holds them, what is free, and with a host shell the health of GPUs.

    Raises HostNotFound, ProfileUnknown, UsageError for a host shell that means nothing.
    """
    from gpuops.api import catalog_of
    from gpuops.report.document import as_values
    from gpuops.report.monitoring.fleet import FleetFilters, fleet
    from gpuops.report.monitoring.inventory import fleet_document

    site, warnings = open_site(connection, shell=shell)
    with site:
        seen = site.with_vgpus(site.vcenter.inventory())
    found = fleet_document(fleet(seen, catalog_of(seen), FleetFilters(host=host, profile=profile)))
    told = {key: found[key] for key in ("vcenter", "api_version", "hosts_without_gpus")}
    return _unchanged({**told, "hosts": [as_values(host) for host in found["hosts"]]}, warnings)


def gpu_readiness_info(
    connection: ConnectionArguments, *, cluster: str | None = None, host: str | None = None
) -> TaskResult:
    """Whether hosts can be emptied, and whether one can be lost. Raises UsageError, HostNotFound."""
    from gpuops.api import readiness
    from gpuops.plan.core.scope import Scope
    from gpuops.report.document import as_values
    from gpuops.report.monitoring.readiness import readiness_document

    site, warnings = open_site(connection)
    with site:
        found = readiness(Scope(cluster, host), site.vcenter.inventory(), site)
    return _unchanged({"readiness": as_values(readiness_document(found))}, warnings)


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
    """Whether guests are ready for work on their GPUs. Raises UsageError, VmNotFound, VmAmbiguous, Refused."""
    from gpuops.api import guest_check
    from gpuops.config.policy import load_policy
    from gpuops.model.guests.guest import GuestWay
    from gpuops.plan.guest.question import GuestQuestion, ssh_door, wanted_frameworks
    from gpuops.plan.guest.rows import GuestNeeds, MustHave
    from gpuops.report.document import as_values
    from gpuops.report.monitoring.guest import guest_check_document

    way = GuestWay(via)
    wanted = GuestNeeds(wanted_frameworks(framework or ()), frozenset(map(MustHave, expect or ())))
    question = GuestQuestion(vm, pool, wanted, ssh_door(way, ssh_user, ssh_host, ssh_port))
    question.checked(policy=policy is not None)
    rules = load_policy(Path(policy).expanduser()) if policy else None
    site, warnings = open_site(connection)
    site.say = warnings.append
    with site:
        found = guest_check(question, site.vcenter.inventory(), site, rules)
    return _unchanged({"guest_check": as_values(guest_check_document(found, way))}, warnings)


def gpu_capacity_info(
    connection: ConnectionArguments,
    *,
    profile: str | None = None,
    cluster: str | None = None,
    host: str | None = None,
    policy: str | None = None,
    shell: HostShellArguments = NO_SHELL,
) -> TaskResult:
    """How many more vGPUs and whole GPUs fit, with a policy also when its desktops are suspended. Raises UsageError."""
    from gpuops.api import capacity
    from gpuops.config.policy import load_policy
    from gpuops.plan.capacity.question import CapacityRequest
    from gpuops.report.advice.capacity import capacity_document

    night = load_policy(Path(policy).expanduser()) if policy else None
    site, warnings = open_site(connection, shell=shell)
    with site:
        seen = site.with_vgpus(site.vcenter.inventory())
        found = capacity(CapacityRequest(profile, cluster, host), seen, site, night)
    return _unchanged({"capacity": capacity_document(found, night.name if night else None)}, warnings)


def gpu_sizing_info(
    connection: ConnectionArguments,
    options: Mapping[str, Any],
    *,
    workloads: str | None = None,
    busy: str | None = None,
    overlap: str | None = None,
    policy: str | None = None,
    pool: str | None = None,
    since: str | None = None,
) -> TaskResult:
    """How many VMs may share a GPU; `options` are fields of `SizeRequest`. vCenter is asked where history says.

    Raises UsageError, PolicyError, Refused, VmNotFound, VmAmbiguous.
    """
    from gpuops.api import size
    from gpuops.api.sizing import size_stated
    from gpuops.config.date_text import parse_since
    from gpuops.config.policy import load_policy
    from gpuops.plan.capacity.sizing import SizeRequest
    from gpuops.report.advice.sizing import sizing_document

    request = SizeRequest(**{name: value for name, value in options.items() if value is not None})
    of_history = {"--policy": policy, "--pool": pool, "--since": since}
    file = Path(workloads).expanduser() if workloads else None
    stated = size_stated(request, file, busy, overlap, of_history)
    if stated is not None:
        return _unchanged({"sizing": sizing_document(stated)}, [])
    night = load_policy(Path(policy).expanduser()) if policy else None
    site, warnings = open_site(connection)
    with site:
        seen = site.vcenter.inventory()
        begin = parse_since("--since", since, seen.taken_at) if since is not None else None
        found = size(request, seen, site, night, pool=pool, since=begin)
    return _unchanged({"sizing": sizing_document(found)}, warnings)


def gpu_diagnosis_info(
    connection: ConnectionArguments, *, vm: str | None = None, host: str | None = None, since: str | None = None
) -> TaskResult:
    """Which component slows VMs down, by what `observe` has stored. Raises UsageError, VmNotFound, HostNotFound."""
    from gpuops.api.diagnosing import diagnose
    from gpuops.config.date_text import parse_since
    from gpuops.report.monitoring.diagnosis import diagnosed_document

    site, warnings = open_site(connection)
    with site:
        seen = site.vcenter.inventory()
        begin = parse_since("--since", since, seen.taken_at) if since is not None else None
        found = diagnose(seen, site, vm=vm, host=host, since=begin)
    return _unchanged({"diagnosis": diagnosed_document(found, seen)}, warnings)


def gpu_placement(
    connection: ConnectionArguments,
    requests: Sequence[Mapping[str, Any]] | None,
    file: str | None,
    options: Mapping[str, Any],
    shell: HostShellArguments = NO_SHELL,
    mig_layout: str | None = None,
) -> TaskResult:
    """A place for each request, or every reason against one; `options` are fields of `Place`.

    `mig_layout`: FILE:NAME of a layout; the answer is as if GPUs had its GPU instances. Raises UsageError, PolicyError.
    """
    from gpuops.api import catalog_of, place
    from gpuops.plan.queue.one_workload import Refusal
    from gpuops.plan.queue.place import Place
    from gpuops.report.advice.placement import placements_document
    from gpuops.report.document import as_values

    asked = Place(_workloads(requests, file), **{name: value for name, value in options.items() if value is not None})
    layout = _layout(mig_layout, asked.workloads) if mig_layout is not None else None
    site, warnings = open_site(connection, shell=shell)
    with site:
        found = place(asked, site, layout)
    document = as_values(placements_document(found, catalog_of(found.before)))
    refused = [answer for answer in found.answers if isinstance(answer, Refusal)]
    reasons = [f"{answer.workload.name}: {reason}" for answer in refused for reason in answer.rejections]
    message = reasons_line(reasons, f"{len(refused)} of {len(found.answers)} without a place") if refused else ""
    result = {"changed": False, "placement": document, "reasons": reasons}
    return TaskResult(result, found.exit_code, message, (*warnings, *found.warnings))


def _layout(text: str, workloads: Sequence[Workload]) -> ApplyLayout:
    """Return the layout of `mig_layout`, for the hosts that the requests name if all of them name the same."""
    from gpuops.config.layout_file import parse_layout_option
    from gpuops.model.fleet_change import ApplyLayout

    hosts = {workload.host for workload in workloads}
    return ApplyLayout(parse_layout_option(text, "mig_layout"), hosts.pop() if len(hosts) == 1 else None)


def _workloads(requests: Sequence[Mapping[str, Any]] | None, file: str | None) -> tuple[Workload, ...]:
    from gpuops.config.requests_file import load_requests, requests_of

    if (requests is None) == (file is None):
        raise UsageError("say either requests or file", hint="templates/requests.yaml shows what a request may say")
    if file is not None:
        return load_requests(Path(file).expanduser())
    said = requests or ()
    return requests_of([{key: value for key, value in one.items() if value is not None} for one in said], "requests")


def _unchanged(result: Document, warnings: list[str]) -> TaskResult:
    return TaskResult({"changed": False, **result}, warnings=tuple(warnings))
