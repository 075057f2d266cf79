"""All findings of `gpuops doctor` about one vCenter, the worst first.

Some are not about the inventory: parts of a run that an admin abandoned, lock VMs with snapshots, and the XML parser of
this Python. An old libexpat is only a note, because Linux distributions fix it without changing its version (sources:
Python documentation, XML security: libexpat 2.7.2 or later; CVE-2024-8176).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Cluster, Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.abandonment import Missed
from gpuops.plan.core.scope import Scope
from gpuops.plan.doctor.finding import Finding, Severity
from gpuops.plan.doctor.host_findings import of_host, of_reservations, unlike_ecc
from gpuops.plan.doctor.vm_findings import of_place, of_vm
from gpuops.plan.hosts.scheduler.state import scheduler_of
from gpuops.plan.moving.vmotion_stun import EVACUATION, WHERE, balancing_obstacles, evacuation_obstacles
from gpuops.plan.rotation.lease import KEY
from gpuops.plan.rotation.setup import NO_SNAPSHOTS, snapshot_problem

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
    findings = list(_of_vcenter(inventory))
    if surplus_privileges := sorted({privilege for privileges in (surplus or {}).values() for privilege in privileges}):
        reason = f"this login also has {', '.join(surplus_privileges)}: no command needs that"
        fix = "give gpuops a role of its own, without them"
        findings.append(Finding(Severity.NOTE, inventory.user or "login", reason, fix))
    findings += also
    for cluster in sorted({host.cluster for host in hosts if host.cluster}):
        members = [host for host in hosts if host.cluster == cluster]
        if cluster in inventory.clusters:
            findings += _of_cluster(inventory.clusters[cluster], members, inventory, catalog)
    findings += of_reservations(hosts, inventory, catalog)
    for host in hosts:
        findings += of_host(host, catalog, by_roles=by_roles)
        if missing := lacking.get(host.ref):
            reason = f"this login lacks {', '.join(sorted(missing))}: it cannot set the host's GPUs"
            findings.append(
                Finding(Severity.NOTE, host.name, reason, "needed only for scheduler, mode and passthrough")
            )
        for vm in sorted(inventory.vms_on(host), key=lambda vm: vm.name):
            findings += of_vm(vm, host, catalog)
            findings += of_place(vm, host, inventory, catalog)
    order = list(Severity)
    return Examination(inventory, hosts, tuple(sorted(findings, key=lambda finding: order.index(finding.severity))))


def _of_vcenter(inventory: Inventory) -> Iterator[Finding]:
    """Check the advanced setting for vMotion of VMs with vGPUs (VMware vSphere docs, NVIDIA AI Enterprise docs)."""
    subject = "vgpu.hotmigrate.enabled"
    if inventory.hot_migrate_enabled is None:
        reason = "this login cannot read it: whether vMotion of VMs with vGPUs is possible is unknown"
        yield Finding(Severity.NOTE, subject, reason, "ask for the read-only role on vCenter's root folder")
    elif not inventory.hot_migrate_enabled:
        fix = f"govc option.set {subject} true, or the advanced settings of vCenter"
        yield Finding(Severity.WARNING, subject, "is off: a running VM with a vGPU cannot be moved", fix)


def _of_cluster(cluster: Cluster, hosts: list[Host], inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    drivers = {host.name: driver.version for host in hosts if (driver := scheduler_of(host, catalog).driver)}
    if len(set(drivers.values())) > 1:
        driver_texts = ", ".join(f"{name} {version}" for name, version in sorted(drivers.items()))
        fix = "install the same vGPU manager on all"
        yield Finding(Severity.WARNING, cluster.name, f"its hosts have different NVIDIA drivers: {driver_texts}", fix)
    yield from unlike_ecc(cluster.name, hosts)
    yield from _of_drs(cluster, hosts, inventory)


def _of_drs(cluster: Cluster, hosts: Sequence[Host], inventory: Inventory) -> Iterator[Finding]:
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


def of_given_up(missed: Iterable[Missed]) -> Iterator[Finding]:
    """Yield a warning for each host or VM that an admin abandoned: gpuops no longer repairs it, an admin must."""
    for absent in missed:
        yield Finding(Severity.WARNING, absent.given.name, absent.since, absent.move)


def of_lock_vms(names: Collection[str], inventory: Inventory) -> Iterator[Finding]:
    """Yield a warning for each lock VM that has snapshots. A lock VM is one of `names`, or carries a lease."""
    for vm in sorted(inventory.vms.values(), key=lambda vm: vm.name):
        is_lock_vm = vm.name in names or KEY in (vm.extra_config or {})
        if is_lock_vm and (problem := snapshot_problem(vm.snapshots)):
            severity = Severity.NOTE if vm.snapshots is None else Severity.WARNING
            yield Finding(severity, vm.name, f"lock VM: {problem}", NO_SNAPSHOTS)


OLDEST_SOUND: Final = (2, 7, 2)
"""The oldest libexpat without known vulnerabilities."""


def of_parser(version: tuple[int, ...]) -> Iterator[Finding]:
    """Yield a note if this Python's libexpat is older than `OLDEST_SOUND`."""
    if version < OLDEST_SOUND:
        version_text, sound_text = (".".join(map(str, numbers)) for numbers in (version, OLDEST_SOUND))
        reason = (
            f"this Python parses XML with it; versions before {sound_text} have known vulnerabilities, unless the "
            "vendor fixed them"
        )
        fix = "update Python or the system's libexpat; gpuops itself refuses entities and deep nesting beforehand"
        yield Finding(Severity.NOTE, f"libexpat {version_text}", reason, fix)
