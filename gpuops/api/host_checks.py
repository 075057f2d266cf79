"""The functions that examine hosts: findings, whether hosts can be emptied, MIG and scheduler settings; and roles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from gpuops.errors import NoPermission
from gpuops.execute.site import Site, catalog_of
from gpuops.model.vcenter.vm import DirectPathDevice, PowerState

if TYPE_CHECKING:
    from pathlib import Path

    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.login import RoleState, RoleWish
    from gpuops.plan.core.scope import Scope
    from gpuops.plan.doctor.examination import Examination
    from gpuops.plan.doctor.host_findings import Finding
    from gpuops.plan.hosts.readiness import Readiness
    from gpuops.plan.hosts.scheduler.scheduler_state import Schedulers


def doctor(
    site: Site, scope: Scope, roles: Sequence[RoleWish] = (), policy: tuple[Policy, Path] | None = None
) -> Examination:
    """Return what blocks gpuops' commands on these hosts, their GPUs and VMs, worst first. Nothing is ever written.

    With `roles`: also the privileges of these roles that this login lacks somewhere in the vCenter, and the privileges
    that it has in addition to them. With `policy` and its file: also where the timers installed on this machine differ
    from the policy's windows. Raises UsageError, HostNotFound for an unknown name.
    """
    from gpuops.execute.roles import compare_login
    from gpuops.execute.runs import lock_vms_of, still_given_up
    from gpuops.plan.doctor.examination import (
        SURPLUS,
        WANTED_ON_HOSTS,
        examine,
        given_up_findings,
        lock_vm_findings,
        parser_findings,
    )
    from gpuops.vsphere.transport.messages import expat_version

    inventory = site.vcenter.inventory()
    scope.check(inventory)
    host_refs = [host.ref for host in scope.hosts(inventory)]
    if site.shell is None:  # a host shell reads the health of GPUs together with the settings below
        inventory = site.with_health(inventory)
    inventory = _with_directpath_targets(site.hosts.with_settings(inventory, host_refs), host_refs, site)
    missing_privileges = site.hosts.lacking(dict.fromkeys(host_refs, WANTED_ON_HOSTS)) if host_refs else {}
    # with roles, `compare_login` reports the surplus privileges
    surplus = site.hosts.read_held_privileges(host_refs, SURPLUS) if host_refs and not roles else {}
    with site.journal_to_read(inventory.vcenter) as journal:
        journal_findings = (
            *given_up_findings(still_given_up(journal, site, inventory)),
            *lock_vm_findings(lock_vms_of(journal), inventory),
        )
    other_findings = (
        *parser_findings(expat_version()),
        *compare_login(roles, site.vcenter, inventory),
        *journal_findings,
        *_rdma_findings(site, scope.hosts(inventory)),
        *(_timer_findings(*policy, site) if policy is not None else ()),
    )
    catalog = catalog_of(inventory)
    return examine(inventory, catalog, scope, missing_privileges, surplus, other_findings, by_roles=bool(roles))


def _with_directpath_targets(inventory: Inventory, hosts: Collection[str], site: Site) -> Inventory:
    """Return the snapshot with the passthrough devices that vCenter offers (QueryConfigTarget) on some of the hosts.

    These are the hosts of VMs that have DirectPath devices and do not run: `examine` looks for each device among those
    offered. Returns the same snapshot if this login lacks the privilege; `examine` then skips that comparison.
    """
    stopped_vms = (vm for vm in inventory.vms.values() if vm.power is not PowerState.ON and vm.host in hosts)
    hosts_to_ask = {
        vm.host for vm in stopped_vms if any(isinstance(device, DirectPathDevice) for device in vm.devices or ())
    }
    try:
        return site.vcenter.with_config_targets(inventory, [host for host in hosts if host in hosts_to_ask])
    except NoPermission:
        return inventory


def _timer_findings(policy: Policy, file: Path, site: Site) -> Iterator[Finding]:
    """Yield a warning for each difference between the installed timers and the windows of the policy."""
    from gpuops.execute.rotation.installed_timers import timer_misfits
    from gpuops.plan.doctor.host_findings import Finding, Severity

    for misfit in timer_misfits(policy, site, file):
        reason, _, fix = misfit.rpartition("; ")  # `timer_misfits` puts the command that corrects it last
        yield Finding(Severity.WARNING, policy.name, reason, fix)


def _rdma_findings(site: Site, hosts: Sequence[Host]) -> Iterator[Finding]:
    """Yield a finding for each missing prerequisite of paravirtual RDMA; a saved inventory has no networks to check."""
    from gpuops.plan.doctor.host_findings import Finding, Severity
    from gpuops.plan.hosts.pvrdma import pvrdma_obstacles

    for row in pvrdma_obstacles(hosts, site.vcenter.networks()):
        severity = Severity.WARNING if row.passed is False else Severity.NOTE
        yield Finding(severity, row.subject, f"paravirtual RDMA: {row.check}: {row.says}", row.next_move)


def readiness(scope: Scope, inventory: Inventory, site: Site) -> Readiness:
    """Return for each host with GPUs whether it can be emptied, and whether it can be lost. Nothing is ever written.

    Raises UsageError, HostNotFound for an unknown name, NotConnected.
    """
    from gpuops.plan.hosts.change.emptying import stun_hosts
    from gpuops.plan.hosts.readiness import readiness as judge_readiness

    scope.check(inventory)
    inventory = site.vcenter.with_config_targets(inventory, stun_hosts(scope.hosts(inventory), inventory))
    return judge_readiness(scope, site.with_vgpus(inventory), catalog_of(inventory))


def mode_show(site: Site, scope: Scope) -> tuple[Inventory, tuple[Host, ...]]:
    """Return the hosts of the scope, with the DirectPath devices that a vCenter 9.1 lists for each.

    Raises UsageError, HostNotFound for an unknown name.
    """
    inventory = site.vcenter.inventory()
    scope.check(inventory)
    inventory = site.hosts.with_devices(inventory, [host.ref for host in scope.hosts(inventory)])
    return inventory, scope.hosts(inventory)


def mig_show(site: Site, scope: Scope) -> tuple[Inventory, tuple[Host, ...]]:
    """Return the hosts of the scope, with the MIG mode reported by vCenter and, with a host shell, by nvidia-smi.

    Raises UsageError, HostNotFound for an unknown name.
    """
    inventory = site.vcenter.inventory()
    scope.check(inventory)
    if site.shell is not None:
        inventory = site.hosts.with_settings(inventory, [host.ref for host in scope.hosts(inventory)])
    return inventory, scope.hosts(inventory)


def scheduler_show(site: Site, scope: Scope) -> Schedulers:
    """Return per host and GPU the configured scheduler policy, the one in force, and whether a reboot is pending.

    Raises UsageError, HostNotFound for an unknown name.
    """
    from gpuops.plan.hosts.scheduler.scheduler_state import schedulers

    inventory = site.vcenter.inventory()
    scope.check(inventory)
    host_refs = [host.ref for host in scope.hosts(inventory)]
    inventory = site.hosts.with_settings(inventory, host_refs)
    return schedulers(inventory, catalog_of(inventory), scope)


def roles(wishes: Sequence[RoleWish], site: Site, *, apply: bool = False) -> tuple[RoleState, ...]:
    """Compare each role with vCenter's of the same name; with `apply` write those that differ.

    Raises PolicyError for a privilege that this vCenter does not know, NoPermission if nothing was changed, PartlyDone
    with the roles written before an error, Refused for a saved inventory.
    """
    from gpuops.execute.roles import applied_roles

    return applied_roles(wishes, site, apply=apply)
