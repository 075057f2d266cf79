"""The functions about hosts: their settings, rolling changes, what is wrong with them; and vCenter's roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuops.execute.site import Site, catalog_of
from gpuops.plan.core.outcome import Report

if TYPE_CHECKING:
    from gpuops.model.host import Host
    from gpuops.model.host_settings import Rolling
    from gpuops.model.inventory import Inventory
    from gpuops.model.journal import Thing
    from gpuops.model.role import RoleState, RoleWish
    from gpuops.plan.core.given_up import Abandonment
    from gpuops.plan.core.scope import Scope
    from gpuops.plan.core.steps import HostStep
    from gpuops.plan.doctor.examination import Examination
    from gpuops.plan.hosts.change.report import ChangeReport, ChangeStatus
    from gpuops.plan.hosts.host_plan import HostRequest
    from gpuops.plan.hosts.scheduler.state import Schedulers


def configure(request: HostRequest, site: Site, *, apply: bool) -> Report[HostStep]:
    """What the request would change on hosts of this site, and with `apply` what became of it.

    An infeasible plan is an answer: `report.plan.rejections`. Raises UsageError, NotConnected, Locked while a rotation
    runs.
    """
    from gpuops.execute.change.host_settings import configure as carry_out

    return carry_out(request, site, apply=apply)


def change(
    request: HostRequest,
    verb: str,
    rolling: Rolling,
    site: Site,
    *,
    apply: bool,
    consent: Callable[[ChangeReport], None] = lambda report: None,
    told: Callable[[str], None] = lambda line: None,
) -> ChangeReport:
    """The same brought into force by rolling reboots: hosts emptied, set, rebooted, looked at and filled again.

    `verb` is the command for people (`scheduler set`), `told` is called with a line as it goes on. An infeasible plan
    is an answer. Raises UsageError, NotConnected, Refused while another change or a rotation is open, Locked.
    """
    from gpuops.execute.change.rolling_change import roll

    return roll(request, verb, rolling, site, apply=apply, consent=consent, told=told)


def change_resume(
    site: Site,
    *,
    apply: bool = True,
    consent: Callable[[ChangeReport], None] = lambda report: None,
    told: Callable[[str], None] = lambda line: None,
) -> ChangeReport | Report:
    """Goes on with the change that did not end, of hosts or of moves; an empty plan = there is none."""
    from gpuops.execute.change.rolling_change import resume

    return resume(site, apply=apply, consent=consent, told=told)


def change_abort(
    site: Site,
    *,
    apply: bool = True,
    consent: Callable[[ChangeReport], None] = lambda report: None,
    told: Callable[[str], None] = lambda line: None,
) -> ChangeReport | Report:
    """Gives the change up: hosts under way serve VMs again, with their own back; the others are left alone."""
    from gpuops.execute.change.rolling_change import abort

    return abort(site, apply=apply, consent=consent, told=told)


def change_abandon(
    site: Site,
    thing: Thing,
    name: str,
    *,
    apply: bool = True,
    consent: Callable[[Abandonment], None] = lambda found: None,
) -> Abandonment:
    """Gives up one host of the change that did not end, or one VM that it took from a host; nothing is sent to vCenter.

    Raises Refused where no change holds it, Locked while somebody is at the change.
    """
    from gpuops.execute.change.abandon import abandon

    return abandon(site, thing, name, apply=apply, consent=consent)


def change_status(site: Site) -> ChangeStatus:
    """The change of hosts that has not ended, host by host."""
    from gpuops.execute.change.rolling_change import status

    return status(site)


def doctor(site: Site, scope: Scope, roles: Sequence[RoleWish] = ()) -> Examination:
    """What stands in the way of the verbs on these hosts, their GPUs and VMs, worst first. Nothing is ever written.

    With `roles` also what this login lacks of them anywhere in the vCenter, and what it has beyond them.
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
    inventory = site.hosts.with_settings(inventory, meant)
    lacking = site.hosts.lacking(dict.fromkeys(meant, WANTED_ON_HOSTS)) if meant else {}
    held = site.hosts.held(meant, SURPLUS) if meant and not roles else {}
    with site.journal_to_read(inventory.vcenter) as journal:
        of_journal = (
            *of_given_up(still_given_up(journal, site, inventory)),
            *of_lock_vms(lock_vms_of(journal), inventory),
        )
    also = (*of_parser(expat_version()), *compare_login(roles, site.vcenter, inventory), *of_journal)
    return examine(inventory, catalog_of(inventory), scope, lacking, held, also, by_roles=bool(roles))


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
