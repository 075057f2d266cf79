"""Collects all findings of `gpuops doctor` about one vCenter, the worst first.

It examines vCenter, clusters, hosts (`host_findings.py`) and VMs with GPU devices: their settings, their NUMA nodes,
and whether they can be moved. Some findings are not about the inventory: parts of a run that an admin abandoned, lock
VMs with snapshots, and the XML parser of this Python.

Sources: VMware vSphere docs, NUMA (a VM larger than a node is split over several, and `numa.nodeAffinity` binds it).
Python documentation, XML security: libexpat 2.7.2 or later; CVE-2024-8176. An old libexpat is only a note, because
Linux distributions fix it without changing its version."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.advise.managed_vms import manager_of
from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import (
    OtherPassthrough,
    PowerState,
    VgpuDevice,
    Vm,
    is_gpu,
    is_unreadable,
    passthru_number,
    pin_key,
    pins_of,
)
from gpuops.plan.core.abandonment import Missed
from gpuops.plan.core.command_line import called, command
from gpuops.plan.core.scope import Scope
from gpuops.plan.devices.goal import find_stale_entries, group_of
from gpuops.plan.devices.rules import Case, start_obstacles
from gpuops.plan.doctor.host_findings import (
    Finding,
    Severity,
    differing_ecc_findings,
    findings_on_host,
    reservation_findings,
)
from gpuops.plan.hosts.scheduler.scheduler_state import scheduler_of
from gpuops.plan.moving.movability import MovabilityCase, MoveMethod, judge_movability
from gpuops.plan.moving.vmotion_stun import EVACUATION, WHERE, balancing_obstacles, evacuation_obstacles
from gpuops.plan.placement.host_filters import AFFINITY_KEY
from gpuops.plan.rotation.lease_rules import KEY
from gpuops.plan.rotation.prerequisites import NO_SNAPSHOTS, snapshot_problem


def vm_findings(vm: Vm, host: Host | None, catalog: Catalog) -> Iterator[Finding]:
    """Yield the problems of a VM's settings and devices.

    A VM without GPU devices is checked only for stale DirectPath entries and unreadable devices.
    """
    if vm.devices is None:
        if host is not None and host.gpus and vm.unreadable:
            fix = "ask for the read-only role on the VM"
            yield Finding(Severity.WARNING, vm.name, "this login cannot read its devices", fix)
        return
    if vm.template:
        return
    yield from _stale_entries(vm, host)
    yield from _unreadable_devices(vm)
    if not any(is_gpu(device) or is_unreadable(device) for device in vm.devices):
        return
    yield from _unreserved_memory(vm)
    yield from _start_obstacles(vm, host, catalog)
    yield from _loose_pins(vm)
    if vm.question is not None:
        fix = "answer it in the vSphere Client"
        yield Finding(Severity.WARNING, vm.name, "waits for the answer to a question", fix)
    if host is not None and host.profiles is not None and host.readable:
        for profile in dict.fromkeys(vm.profiles):
            if host.offers(profile) is None:
                fix = f"{command('place', profile=profile)} lists hosts that offer it"
                yield Finding(Severity.ERROR, vm.name, f"{host.name} does not offer its profile {profile}", fix)


def _unreserved_memory(vm: Vm) -> Iterator[Finding]:
    """Yield a finding if a VM that is off has not reserved all its memory, which passthrough needs (vSphere docs)."""
    reserved = vm.memory_locked is True or (
        vm.memory_mib is not None and (vm.memory_reservation_mib or 0) >= vm.memory_mib
    )
    if reserved or vm.power is not PowerState.OFF:
        return
    if vm.memory_locked is None and vm.memory_reservation_mib is None:
        yield Finding(Severity.WARNING, vm.name, "its memory reservation cannot be read", "ask for the read-only role")
        return
    profile = next((device.profile for device in vm.devices or () if isinstance(device, VgpuDevice)), None)
    fix = command("attach", vm=called(vm), profile=profile) if profile else "reserve all its memory"
    yield Finding(Severity.ERROR, vm.name, "not all its memory is reserved: it does not start", fix)


def _start_obstacles(vm: Vm, host: Host | None, catalog: Catalog) -> Iterator[Finding]:
    """Yield the reasons why a stopped VM could start on no host with its devices, even an empty one.

    Nothing is yielded if its firmware or its virtual hardware version cannot be read.
    """
    if vm.may_run or vm.firmware is None or vm.hardware_version is None:
        return
    devices = vm.devices or ()
    case = Case(vm, devices, any(group_of(device) is not None for device in devices), host, catalog)
    for obstacle in start_obstacles(case):
        fix = obstacle.hint or f"{command('detach', vm=called(vm))} --all"
        yield Finding(Severity.ERROR, vm.name, f"does not start: {obstacle.reason}", fix)


def _stale_entries(vm: Vm, host: Host | None) -> Iterator[Finding]:
    """Yield the DirectPath entries with which the VM does not start on its host."""
    for device, reason in find_stale_entries(vm, host):
        fix = command("attach", vm=called(vm), device=str(device.address))
        if host is None or host.device(device.address) is None:
            fix = f"{command('detach', vm=called(vm), device=str(device.address))} removes the entry"
        yield Finding(Severity.ERROR, vm.name, f"does not start: {reason}", fix)


def _unreadable_devices(vm: Vm) -> Iterator[Finding]:
    """Report passthrough devices that vSphere did not write, such as a PCI address in the form of a VMX file."""
    labels = [device.label for device in vm.devices or () if isinstance(device, OtherPassthrough) and device.unreadable]
    if labels:
        reason = f"{', '.join(labels)} cannot be read; it may be a GPU, or keep the VM from starting"
        fix = "check the device in the vSphere Client, and remove it if it is not needed"
        yield Finding(Severity.WARNING, vm.name, reason, fix)


def _loose_pins(vm: Vm) -> Iterator[Finding]:
    """Report pins whose `pciPassthruN` is no vGPU of the VM. Old gpuops versions wrote them next to SR-IOV cards."""
    numbers = {passthru_number(device.key) for device in vm.vgpus}
    loose_pins = sorted(set(pins_of(vm)) - numbers)
    if loose_pins and numbers:
        keys = ", ".join(map(pin_key, loose_pins))
        names = ", ".join(f"pciPassthru{number}" for number in sorted(numbers))
        reason = f"{keys} binds none of its vGPUs ({names}): the host may start them on any GPU"
        fix = "remove that key from its settings; if the NUMA node matters, attach again with --numa required"
        yield Finding(Severity.WARNING, vm.name, reason, fix)


def placement_findings(vm: Vm, host: Host, inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    """Yield the problems of a VM with GPU devices on its host: its NUMA nodes and, if it runs, whether it can move."""
    if vm.template or not any(map(is_gpu, vm.devices or ())):
        return
    yield from _larger_than_numa_node(vm, host)
    yield from _bound_to_other_node(vm, host)
    if vm.power is PowerState.ON and inventory.hot_migrate_enabled:
        yield from _immovable(
            MovabilityCase(vm, host, inventory.clusters.get(host.cluster or ""), inventory, catalog, ())
        )


def _larger_than_numa_node(vm: Vm, host: Host) -> Iterator[Finding]:
    """Yield a note if the VM is larger than a NUMA node: then a part of it is not on the node of its GPU."""
    if not host.numa_nodes or vm.memory_mib is None or vm.vcpus is None:
        return
    memory_mib = max(node.memory_mib for node in host.numa_nodes)
    cpus = max(node.logical_cpus for node in host.numa_nodes)
    excesses = []
    if vm.memory_mib > memory_mib:
        excesses.append(f"{vm.memory_mib} MiB of memory, a node has {memory_mib}")
    if vm.vcpus > cpus:
        excesses.append(f"{vm.vcpus} vCPUs, a node has {cpus}")
    if excesses:
        fix = "make it smaller, or give it GPUs of several nodes (gpuops help place)"
        reason = f"is larger than a NUMA node of {host.name} ({'; '.join(excesses)}): part of it is far from its GPU"
        yield Finding(Severity.NOTE, vm.name, reason, fix)


def _bound_to_other_node(vm: Vm, host: Host) -> Iterator[Finding]:
    """Report a VM that is bound to NUMA nodes, and pinned to a GPU of another node."""
    bound_nodes = {part.strip() for part in (vm.extra_config or {}).get(AFFINITY_KEY, "").split(",") if part.strip()}
    if not bound_nodes:
        return
    for address in sorted(set(pins_of(vm).values())):
        gpu = host.gpu(address)
        if gpu is not None and gpu.numa_node is not None and str(gpu.numa_node) not in bound_nodes:
            nodes = ", ".join(sorted(bound_nodes))
            reason = f"is bound to NUMA node {nodes}, and pinned to GPU {address}, which is on node {gpu.numa_node}"
            fix = f"remove {AFFINITY_KEY} from its settings, or attach the GPU again (gpuops help attach)"
            yield Finding(Severity.WARNING, vm.name, reason, fix)


def _immovable(case: MovabilityCase) -> Iterator[Finding]:
    """Yield a note if the VM cannot be moved by vMotion."""
    movability = judge_movability(case)
    if movability.way is not MoveMethod.VMOTION and movability.reasons:
        reason = f"cannot be moved while it runs: {'; '.join(movability.reasons)}"
        fix = "use --running-vms shut-down to reboot its host (gpuops help change)"
        if manager_of(case.vm) is not None:
            fix = "move or stop it with its manager before its host is rebooted"
        yield Finding(Severity.NOTE, case.vm.name, reason, fix)


WANTED_ON_HOSTS: Final = frozenset({"Host.Config.Settings", "Host.Config.PciPassthru"})
"""Privileges for `host scheduler`, `host mode` and `host passthrough` (vSphere API reference)."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings, and the hosts that were checked."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether no finding is worse than a note."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)


SURPLUS: Final = frozenset(
    {
        "Authorization.ModifyPermissions",
        "Datastore.DeleteFile",
        "VirtualMachine.GuestOperations.Modify",
        "VirtualMachine.Inventory.Delete",
    }
)
"""Privileges that no `gpuops` command needs, and that would make a stolen login more dangerous."""


def examine(
    inventory: Inventory,
    catalog: Catalog,
    scope: Scope,
    lacking: Mapping[str, Collection[str]],
    surplus: Mapping[str, Collection[str]] | None = None,
    also: Iterable[Finding] = (),
    *,
    by_roles: bool = False,
) -> Examination:
    """Check vCenter, and the hosts of the scope with their clusters and VMs.

    `lacking`: by host the privileges of `WANTED_ON_HOSTS` that the login lacks; `surplus`: by host those of `SURPLUS`
    that it has; `also`: findings of other checks. `by_roles`: the login was also compared with a file of roles; what it
    cannot read of a host is then only a note.

    Raises UsageError, HostNotFound for an unknown name.
    """
    scope.check(inventory)
    hosts = scope.hosts(inventory)
    findings = list(_vcenter_findings(inventory))
    if surplus_privileges := sorted({privilege for privileges in (surplus or {}).values() for privilege in privileges}):
        reason = f"this login also has {', '.join(surplus_privileges)}: no command needs that"
        fix = "give gpuops a role of its own, without them"
        findings.append(Finding(Severity.NOTE, inventory.user or "login", reason, fix))
    findings += also
    for cluster in sorted({host.cluster for host in hosts if host.cluster}):
        members = [host for host in hosts if host.cluster == cluster]
        if cluster in inventory.clusters:
            findings += _cluster_findings(inventory.clusters[cluster], members, inventory, catalog)
    findings += reservation_findings(hosts, inventory, catalog)
    for host in hosts:
        findings += findings_on_host(host, catalog, by_roles=by_roles)
        if missing := lacking.get(host.ref):
            reason = f"this login lacks {', '.join(sorted(missing))}: it cannot set the host's GPUs"
            fix = "grant them only for gpuops host scheduler, host mode and host passthrough"
            findings.append(Finding(Severity.NOTE, host.name, reason, fix))
        for vm in sorted(inventory.vms_on(host), key=lambda vm: vm.name):
            findings += vm_findings(vm, host, catalog)
            findings += placement_findings(vm, host, inventory, catalog)
    order = list(Severity)
    return Examination(inventory, hosts, tuple(sorted(findings, key=lambda finding: order.index(finding.severity))))


def _vcenter_findings(inventory: Inventory) -> Iterator[Finding]:
    """Check the advanced setting for vMotion of VMs with vGPUs (VMware vSphere docs, NVIDIA AI Enterprise docs)."""
    subject = "vgpu.hotmigrate.enabled"
    if inventory.hot_migrate_enabled is None:
        reason = "this login cannot read it: whether vMotion of VMs with vGPUs is possible is unknown"
        yield Finding(Severity.NOTE, subject, reason, "ask for the read-only role on vCenter's root folder")
    elif not inventory.hot_migrate_enabled:
        fix = f"govc option.set {subject} true, or the advanced settings of vCenter"
        yield Finding(Severity.WARNING, subject, "is off: a running VM with a vGPU cannot be moved", fix)


def _cluster_findings(cluster: Cluster, hosts: list[Host], inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    """Yield differences between the hosts of a cluster, and what its DRS does with VMs that have vGPUs."""
    drivers = {host.name: driver.version for host in hosts if (driver := scheduler_of(host, catalog).driver)}
    if len(set(drivers.values())) > 1:
        driver_texts = ", ".join(f"{name} {version}" for name, version in sorted(drivers.items()))
        fix = "install the same vGPU manager on all of its hosts"
        yield Finding(Severity.WARNING, cluster.name, f"its hosts have different NVIDIA drivers: {driver_texts}", fix)
    yield from differing_ecc_findings(cluster.name, hosts)
    yield from _drs_findings(cluster, hosts, inventory)


def _drs_findings(cluster: Cluster, hosts: Sequence[Host], inventory: Inventory) -> Iterator[Finding]:
    """Note what DRS does automatically with VMs that have vGPUs, if vMotion of such VMs is possible at all."""
    if not cluster.drs_enabled or not inventory.hot_migrate_enabled:
        return
    has_running_vgpus = any(vm.vgpus and vm.power is PowerState.ON for host in hosts for vm in inventory.vms_on(host))
    if has_running_vgpus and cluster.drs_options is not None and (obstacles := tuple(evacuation_obstacles(cluster))):
        reason = f"entering maintenance mode waits for VMs with vGPUs: {'; '.join(obstacles)}"
        fix = f"set {EVACUATION} = -1 in {WHERE}: vCenter then moves them (gpuops help doctor)"
        yield Finding(Severity.NOTE, cluster.name, reason, fix)
    if cluster.drs_behavior == "fullyAutomated":
        missing = "; ".join(balancing_obstacles(cluster))
        reason = "DRS moves VMs automatically; it moves VMs with vGPUs only if its advanced options allow it"
        fix = "set drs_override: manual in the policy, and DRS leaves a night's ML VMs alone (gpuops help policy)"
        yield Finding(Severity.NOTE, cluster.name, f"{reason}: {missing}" if missing else reason, fix)


def given_up_findings(missed: Iterable[Missed]) -> Iterator[Finding]:
    """Yield a warning for each host or VM that an admin abandoned: gpuops no longer repairs it, an admin must."""
    for absent in missed:
        yield Finding(Severity.WARNING, absent.given.name, absent.since, absent.move)


def lock_vm_findings(names: Collection[str], inventory: Inventory) -> Iterator[Finding]:
    """Yield a warning for each lock VM that has snapshots. A lock VM is one of `names`, or carries a lease."""
    for vm in sorted(inventory.vms.values(), key=lambda vm: vm.name):
        is_lock_vm = vm.name in names or KEY in (vm.extra_config or {})
        if is_lock_vm and (problem := snapshot_problem(vm.snapshots)):
            severity = Severity.NOTE if vm.snapshots is None else Severity.WARNING
            yield Finding(severity, vm.name, f"lock VM: {problem}", NO_SNAPSHOTS)


OLDEST_SOUND: Final = (2, 7, 2)
"""The oldest libexpat without known vulnerabilities."""


def parser_findings(version: tuple[int, ...]) -> Iterator[Finding]:
    """Yield a note if this Python's libexpat is older than `OLDEST_SOUND`."""
    if version < OLDEST_SOUND:
        version_text, sound_text = (".".join(map(str, numbers)) for numbers in (version, OLDEST_SOUND))
        reason = (
            f"this Python parses XML with it; versions before {sound_text} have known vulnerabilities, unless the "
            "vendor fixed them"
        )
        fix = "update Python or the system's libexpat; gpuops itself refuses entities and deep nesting beforehand"
        yield Finding(Severity.NOTE, f"libexpat {version_text}", reason, fix)
