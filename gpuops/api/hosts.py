"""The functions that look at hosts: what is wrong with them, whether they can be emptied, how MIG and the scheduler are
set; and vCenter's roles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from gpuops.errors import NoPermission
from gpuops.execute.site import Site, catalog_of

if TYPE_CHECKING:
    from pathlib import Path

    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.host import Host
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.role import RoleState, RoleWish
    from gpuops.plan.core.scope import Scope
    from gpuops.plan.doctor.examination import Examination
    from gpuops.plan.doctor.finding import Finding
    from gpuops.plan.hosts.readiness.question import Readiness
    from gpuops.plan.hosts.scheduler.state import Schedulers


def doctor(
    site: Site, scope: Scope, roles: Sequence[RoleWish] = (), policy: tuple[Policy, Path] | None = None
) -> Examination:
    """What stands in the way of the verbs on these hosts, their GPUs and VMs, worst first. Nothing is ever written.

    With `roles` also what this login lacks of them anywhere in the vCenter, and what it has beyond them. With `policy`
    and its file also where this machine's timers do not meet its windows.
    Raises UsageError, HostNotFound for a name that is not there.
    """
    from gpuops.execute.roles import compare_login
    from gpuops.execute.runs.given_up import still_given_up
    from gpuops.execute.runs.nights import lock_vms_of
    from gpuops.plan.doctor.examination import SURPLUS, WANTED_ON_HOSTS, examine, of_given_up, of_lock_vms, of_parser
    from gpuops.vsphere.transport.reply import expat_version

    inventory = site.vcenter.inventory()
    scope.check(inventory)
    meant = [host.ref for host in scope.hosts(inventory)]
    if site.shell is None:  # with one the settings have it
        inventory = site.with_health(inventory)
    inventory = _with_directpath_targets(site.hosts.with_settings(inventory, meant), meant, site)
    lacking = site.hosts.lacking(dict.fromkeys(meant, WANTED_ON_HOSTS)) if meant else {}
    held = site.hosts.read_held_privileges(meant, SURPLUS) if meant and not roles else {}
    with site.journal_to_read(inventory.vcenter) as journal:
        of_journal = (
            *of_given_up(still_given_up(journal, site, inventory)),
            *of_lock_vms(lock_vms_of(journal), inventory),
        )
    also = (
        *of_parser(expat_version()),
        *compare_login(roles, site.vcenter, inventory),
        *of_journal,
        *_of_rdma(site, scope.hosts(inventory)),
        *(_of_timers(*policy, site) if policy is not None else ()),
    )
    return examine(inventory, catalog_of(inventory), scope, lacking, held, also, by_roles=bool(roles))


def _with_directpath_targets(inventory: Inventory, hosts: Collection[str], site: Site) -> Inventory:
    """Return the snapshot with QueryConfigTarget of the hosts with VMs that have DirectPath entries and do not run.

    Returns the same snapshot if this login may not ask: such entries are then not compared.
    """
    from gpuops.model.vcenter.vm import DirectPathDevice, PowerState

    waiting = (vm for vm in inventory.vms.values() if vm.power is not PowerState.ON and vm.host in hosts)
    compared = {vm.host for vm in waiting if any(isinstance(device, DirectPathDevice) for device in vm.devices or ())}
    try:
        return site.vcenter.with_config_targets(inventory, [host for host in hosts if host in compared])
    except NoPermission:
        return inventory


def _of_timers(policy: Policy, file: Path, site: Site) -> Iterator[Finding]:
    """A warning for each way in which installed calls and windows do not meet."""
    from gpuops.execute.rotation.installed_timers import timer_misfits
    from gpuops.plan.doctor.finding import Finding, Severity

    for misfit in timer_misfits(policy, site, file):
        reason, _, fix = misfit.rpartition("; ")
        yield Finding(Severity.WARNING, policy.name, reason, fix)


def _of_rdma(site: Site, hosts: Sequence[Host]) -> Iterator[Finding]:
    """What hosts lack that are meant for paravirtual RDMA; nothing of a saved inventory, which has no networks."""
    from gpuops.plan.cluster.prepared import pvrdma_obstacles
    from gpuops.plan.doctor.finding import Finding, Severity

    for row in pvrdma_obstacles(hosts, site.vcenter.networks()):
        severity = Severity.WARNING if row.passed is False else Severity.NOTE
        yield Finding(severity, row.subject, f"paravirtual RDMA: {row.check}: {row.says}", row.next_move)


def readiness(scope: Scope, inventory: Inventory, site: Site) -> Readiness:
    """Of each host with GPUs whether it can be emptied, and whether it can be lost. Nothing is ever written.

    Raises UsageError, HostNotFound for a name that is not there, NotConnected in its kinds.
    """
    from gpuops.plan.hosts.change.emptying import stun_hosts
    from gpuops.plan.hosts.readiness.question import readiness as ask

    scope.check(inventory)
    inventory = site.vcenter.with_config_targets(inventory, stun_hosts(scope.hosts(inventory), inventory))
    return ask(scope, site.with_vgpus(inventory), catalog_of(inventory))


def mode_show(site: Site, scope: Scope) -> tuple[Inventory, tuple[Host, ...]]:
    """The hosts that are meant, with the DirectPath devices that a vCenter 9.1 lists of each.

    Raises UsageError, HostNotFound for a name that is not there.
    """
    inventory = site.vcenter.inventory()
    scope.check(inventory)
    inventory = site.hosts.with_devices(inventory, [host.ref for host in scope.hosts(inventory)])
    return inventory, scope.hosts(inventory)


def mig_show(site: Site, scope: Scope) -> tuple[Inventory, tuple[Host, ...]]:
    """The hosts that are meant, with MIG mode as vCenter tells it and, with a host shell, as their nvidia-smi does.

    Raises UsageError, HostNotFound for a name that is not there.
    """
    inventory = site.vcenter.inventory()
    scope.check(inventory)
    if site.shell is not None:
        inventory = site.hosts.with_settings(inventory, [host.ref for host in scope.hosts(inventory)])
    return inventory, scope.hosts(inventory)


def scheduler_show(site: Site, scope: Scope) -> Schedulers:
    """Per host and GPU the scheduler policy that is configured, the one in force, and whether a reboot is pending.

    Raises UsageError, HostNotFound for a name that is not there.
    """
    from gpuops.plan.hosts.scheduler.state import schedulers

    inventory = site.vcenter.inventory()
    scope.check(inventory)
    meant = [host.ref for host in scope.hosts(inventory)]
    inventory = site.hosts.with_settings(inventory, meant)
    return schedulers(inventory, catalog_of(inventory), scope)


def roles(wishes: Sequence[RoleWish], site: Site, *, apply: bool = False) -> tuple[RoleState, ...]:
    """Each wanted role beside vCenter's of the same name; with `apply` those that differ are written.

    Raises PolicyError for a privilege that this vCenter has not, NoPermission where nothing was changed, PartlyDone
    with what was written before something failed, Refused for a saved inventory.
    """
    from gpuops.execute.roles import applied_roles, roles_port

    return applied_roles(wishes, roles_port(site.vcenter), apply=apply)
