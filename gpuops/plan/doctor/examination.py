"""Everything that stands in the way in one vCenter, worst first; and findings of what lies beside its inventory.

Those are of what a person gave up, of lock VMs, and of this Python's XML parser. Sources of the last: Python
documentation, XML security (libexpat 2.7.2 or later); CVE-2024-8176. Vendors of systems mend older versions without
giving them another number, so it is never more than a note. `gpuops doctor` calls all of them.
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
from gpuops.plan.rotation.setup import NO_SNAPSHOTS, may_be_reverted

WANTED_ON_HOSTS: Final = frozenset({"Host.Config.Settings", "Host.Config.PciPassthru"})
"""What `host scheduler`, `host mode` and `host passthrough` need (vSphere API reference, the methods' privileges)."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, and on how much."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Return whether nothing worse than a note was found."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)


SURPLUS: Final = frozenset(
    {
        "Authorization.ModifyPermissions",
        "Datastore.DeleteFile",
        "VirtualMachine.GuestOperations.Modify",
        "VirtualMachine.Inventory.Delete",
    }
)
"""What no command of gpuops ever needs, and what would make a stolen login worse than it must be."""


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
    """Return the hosts that are meant, their clusters and VMs.

    `lacking`: privileges of `WANTED_ON_HOSTS` missing, by host; `surplus`: those of `SURPLUS` that are there.
    `also`: what was found elsewhere, of this login and of this machine. `by_roles`: the login was compared with roles
    there, so that what it may not read or set on hosts is no more than a note.

    Raises UsageError, HostNotFound for a name that is not there.
    """
    scope.check(inventory)
    hosts = scope.hosts(inventory)
    findings = [*_of_vcenter(inventory), *_surplus(inventory, surplus or {}), *also]
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
    """vMotion of a VM with a vGPU needs vCenter's advanced setting (VMware vSphere docs, NVIDIA AI Enterprise docs)."""
    subject = "vgpu.hotmigrate.enabled"
    if inventory.hot_migrate_enabled is None:
        yield Finding(
            Severity.NOTE, subject, "cannot be read: whether vGPU VMs can be moved is not known", "ask for it"
        )
    elif not inventory.hot_migrate_enabled:
        fix = f"govc option.set {subject} true, or the advanced settings of vCenter"
        yield Finding(Severity.WARNING, subject, "is off: a running VM with a vGPU cannot be moved", fix)


def _surplus(inventory: Inventory, surplus: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    """Yield what this login may do and need not: said once, of all hosts together."""
    names = sorted({privilege for privileges in surplus.values() for privilege in privileges})
    if names:
        fix = "give gpuops a role of its own, without them"
        reason = f"this login also has {', '.join(names)}: no command needs that"
        yield Finding(Severity.NOTE, inventory.user or "login", reason, fix)


def _of_cluster(cluster: Cluster, hosts: list[Host], inventory: Inventory, catalog: Catalog) -> Iterator[Finding]:
    drivers = {host.name: driver.version for host in hosts if (driver := scheduler_of(host, catalog).driver)}
    if len(set(drivers.values())) > 1:
        driver_texts = ", ".join(f"{name} {version}" for name, version in sorted(drivers.items()))
        fix = "install the same vGPU manager on all"
        yield Finding(Severity.WARNING, cluster.name, f"its hosts have different NVIDIA drivers: {driver_texts}", fix)
    yield from unlike_ecc(cluster.name, hosts)
    yield from _of_drs(cluster, hosts, inventory)


def _of_drs(cluster: Cluster, hosts: Sequence[Host], inventory: Inventory) -> Iterator[Finding]:
    """Yield what DRS does by itself with VMs that have a vGPU, where they may be moved at all."""
    if not cluster.drs_enabled or not inventory.hot_migrate_enabled:
        return
    runs = any(vm.vgpus and vm.power is PowerState.ON for host in hosts for vm in inventory.vms_on(host))
    waits = "; ".join(evacuation_obstacles(cluster)) if runs and cluster.drs_options is not None else ""
    if waits:
        reason = f"entering maintenance mode waits for VMs with vGPUs: {waits}"
        fix = f"{EVACUATION} = -1 in {WHERE} has vCenter move them; gpuops help doctor"
        yield Finding(Severity.NOTE, cluster.name, reason, fix)
    if cluster.drs_behavior == "fullyAutomated":
        missing = "; ".join(balancing_obstacles(cluster))
        reason = "DRS moves VMs by itself, those with vGPUs only where its advanced options say so"
        fix = "drs_override: manual keeps it off a night's ML VMs (gpuops help policy)"
        yield Finding(Severity.NOTE, cluster.name, f"{reason}: {missing}" if missing else reason, fix)


def of_given_up(missed: Iterable[Missed]) -> Iterator[Finding]:
    """Yield a warning for each: gpuops does nothing about it, a person must."""
    for absent in missed:
        yield Finding(Severity.WARNING, absent.given.name, absent.since, absent.move)


def of_lock_vms(names: Collection[str], inventory: Inventory) -> Iterator[Finding]:
    """Yield a warning for each that has snapshots.

    `names`: of lock VMs that are known; what carries a lease is one too.
    """
    for vm in sorted(inventory.vms.values(), key=lambda vm: vm.name):
        if vm.name not in names and KEY not in (vm.extra_config or {}):
            continue
        wrong = may_be_reverted(vm.snapshots)
        if wrong:
            severity = Severity.NOTE if vm.snapshots is None else Severity.WARNING
            yield Finding(severity, vm.name, f"lock VM: {wrong}", NO_SNAPSHOTS)


OLDEST_SOUND: Final = (2, 7, 2)


def of_parser(version: tuple[int, ...]) -> Iterator[Finding]:
    """Yield a note for a libexpat older than the one without known weaknesses."""
    if version < OLDEST_SOUND:
        version_text, sound_text = (".".join(map(str, numbers)) for numbers in (version, OLDEST_SOUND))
        reason = (
            f"this Python reads XML with it; before {sound_text} it has known weaknesses, unless its vendor mended them"
        )
        fix = "update Python or the system's libexpat; gpuops refuses entities and deep nesting before it sees them"
        yield Finding(Severity.NOTE, f"libexpat {version_text}", reason, fix)
