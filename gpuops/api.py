"""The corridor: connect to a vCenter, run a request, rotate. Every entrance uses it; nothing else does.

    with connect(where) as site:
        report = run(Attach(vm="ml-07", profile="a100-3-20c"), site, apply=False)

`apply=False` (--dry-run, Ansible's check mode) merely stops before the doer. `consent` is called with the report so far
just before anything is changed; what it raises ends the run with nothing changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from gpuops.execute.host_shell import HostShell
from gpuops.execute.site import Consent, Site, agreed, catalog_of
from gpuops.plan.outcome import Report
from gpuops.plan.request import Request

if TYPE_CHECKING:
    from gpuops.config.sources import Destination, Simulated
    from gpuops.hostshell.guest_ssh import GuestSsh
    from gpuops.model.audit import Audit
    from gpuops.model.host import Host
    from gpuops.model.inventory import Inventory
    from gpuops.model.role import RoleState, RoleWish
    from gpuops.model.rolling import Rolling
    from gpuops.model.rotation import Policy
    from gpuops.model.target import Target
    from gpuops.plan.capacity.question import Capacity
    from gpuops.plan.change.report import ChangeReport, ChangeStatus
    from gpuops.plan.clone import Clone, Cloning
    from gpuops.plan.defrag.answer import Defragmentation
    from gpuops.plan.defrag.question import Defrag
    from gpuops.plan.doctor.examination import Examination
    from gpuops.plan.host_plan import HostReport, HostRequest
    from gpuops.plan.place import Place, Placements
    from gpuops.plan.rotation.foresight import Foresight
    from gpuops.plan.rotation.lease import Lease
    from gpuops.plan.rotation.setup import Setup
    from gpuops.plan.rotation.skip import Skip
    from gpuops.plan.rotation.status import RotationStatus
    from gpuops.plan.scheduler.state import Schedulers
    from gpuops.plan.scope import Scope

__all__ = [
    "Consent",
    "HostShell",
    "Site",
    "capacity",
    "catalog_of",
    "change",
    "change_abort",
    "change_resume",
    "change_status",
    "clone",
    "configure",
    "connect",
    "defrag",
    "defrag_execute",
    "doctor",
    "foresee",
    "mig_show",
    "offline",
    "place",
    "roles",
    "rotate_audit_verify",
    "rotate_day",
    "rotate_init",
    "rotate_night",
    "rotate_plan",
    "rotate_restore",
    "rotate_resume",
    "rotate_skip_next",
    "rotate_status",
    "rotate_unlock",
    "run",
    "scheduler_show",
    "wall_clock",
]

STALE: Final = timedelta(seconds=60)
"""A plan this old is made again before it is done: a prompt may have waited for its answer for hours."""


def wall_clock() -> datetime:
    """The time now, in UTC: the only clock of gpuops but the simulator's."""
    return datetime.now(tz=UTC)  # noqa: TID251


def connect(
    where: Destination | Simulated,
    *,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[str], str] | None = None,
    state_dir: Path | None = None,
) -> Site:
    """A logged-in site; closing it logs out. `ask` prompts a person for the password, None = nobody is there.

    `sim:SCENARIO` starts a private simulated vCenter whose journal is as short-lived as its world.
    Raises NotConnected, TargetError.
    """
    from gpuops.config.guest import guest_login
    from gpuops.config.login import login
    from gpuops.config.sources import Simulated
    from gpuops.execute.state import default_state_dir
    from gpuops.vsphere.connection import Connection

    url = ""
    with ExitStack() as closing:
        if isinstance(where, Simulated):
            target = _simulated(where, closing)
            state_dir = state_dir or Path(closing.enter_context(TemporaryDirectory(prefix="gpuops-state-")))
        else:
            url = _usable(where.journal_url or "")
            target = login(where, environ, ask)
        found = Connection(replace(target, guest=guest_login(environ)), _guest_shell(environ))
        vcenter = closing.enter_context(found)
        state_dir = state_dir or default_state_dir(environ)
        real = not vcenter.simulated
        return Site(vcenter, state_dir, wall_clock, same_time=real, closing=closing.pop_all(), journal_url=url)


def _guest_shell(environ: Mapping[str, str]) -> GuestSsh:
    """The way into guests over SSH, for hooks whose policy says so."""
    from gpuops.config.guest import guest_keys
    from gpuops.hostshell.guest_ssh import GuestSsh

    key, known = guest_keys(environ)
    return GuestSsh(known, key)


def _usable(journal_url: str) -> str:
    """The same URL. Raises UsageError here, before a login, for one that no journal can be opened by."""
    if journal_url:
        from gpuops.execute.journal.postgresql import parsed

        parsed(journal_url)
    return journal_url


def _simulated(where: Simulated, closing: ExitStack) -> Target:
    from gpuops.model.secret import Secret
    from gpuops.model.target import Target
    from gpuops.sim.server import start

    server = closing.enter_context(start(where.scenario))
    return Target(
        host="127.0.0.1",
        port=server.port,
        tls=server.ca_file is not None,
        username=server.username,
        password=Secret(server.password),
        ca_files=(server.ca_file,) if server.ca_file else (),
    )


def offline(inventory: Inventory) -> Site:
    """A site that plans on a saved inventory (`--inventory FILE`), with no vCenter; it refuses to change anything."""
    from gpuops.execute.saved import SavedVcenter
    from gpuops.execute.state import default_state_dir

    return Site(vcenter=SavedVcenter(inventory), state_dir=default_state_dir(), clock=wall_clock)


def place(request: Place, site: Site) -> Placements:
    """Where VMs that do not exist yet would go on this site, and why. Nothing is ever written."""
    inventory = site.vcenter.inventory()
    if request.needs_tags:
        inventory = site.vcenter.with_tags(inventory)
    hosts = request.config_targets(inventory)
    if hosts:
        inventory = site.vcenter.with_config_targets(inventory, hosts)
    return request.placements(inventory, catalog_of(inventory))


def run(request: Request, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """What the request would change on this site, and with `apply` what became of it.

    An infeasible plan is an answer, not an error: `report.plan.rejections`. Raises UsageError for a request that
    means nothing here, NotConnected, Locked while a rotation runs.
    """
    looked_at = site.clock()
    report = _look(request, site)
    if not apply or not report.plan.feasible or not report.plan.steps:
        return Report(request, report.before, report.plan, applied=apply)
    consent(report)
    from gpuops.execute.doer import Doer
    from gpuops.execute.executor import execute
    from gpuops.model.rotation import Limits

    with site.changing(report.before.vcenter, alone=False) as journal:
        changed = journal.last_change()
        if site.clock() - looked_at > STALE or (changed is not None and changed > looked_at):
            before, report = report, _look(request, site)
            if not report.plan.feasible:
                return Report(request, report.before, report.plan, applied=True)
            if report.plan != before.plan:
                consent(report)
        began = journal.begin(type(request).__name__.lower())
        doer = Doer(site.vcenter, journal, began, report.before, passed_s=site.passed_s)
        outcomes = execute(report.plan, doer, Limits(), site.progress)
        journal.end(began)
    return Report(request, report.before, report.plan, outcomes, applied=True)


def _look(request: Request, site: Site) -> Report:
    before = site.vcenter.inventory()
    vms = request.vm_details(before)
    if vms:
        before = site.vcenter.observe(before, vms)
    hosts = request.config_targets(before)
    if hosts:
        before = site.vcenter.with_config_targets(before, hosts)
    return Report(request, before, site.permitted(request.plan(before, catalog_of(before), site.clock()), before))


def clone(request: Clone, site: Site, *, apply: bool) -> tuple[Cloning, Inventory]:
    """What there was to do so that the VM is there, and the vCenter as it is then: foreseen unless `apply`.

    A template that cannot be used is an answer: `rejections`. Raises UsageError, NotConnected, Locked while a rotation
    runs.
    """
    from gpuops.execute.cloning import clone as make

    return make(request, site, apply=apply)


def foresee(request: Request, after: Clone, site: Site) -> Report:
    """What the request would change once that VM is made, if it is not there yet. Nothing is ever written.

    Raises as `run` and `clone` do, and Refused where the clone would be.
    """
    from gpuops.execute.cloning import foreseen

    return foreseen(request, after, site) or run(request, site, apply=False)


def capacity(
    inventory: Inventory, site: Site, scope: Scope, policy: Policy | None = None, *, profile: str | None = None
) -> Capacity:
    """How many more vGPUs and whole GPUs fit; with a policy also when all desktops that it may take are suspended.

    Raises UsageError for a profile, host or cluster that is not there.
    """
    from gpuops.plan.capacity.question import capacity as ask

    if policy is None:
        return ask(inventory, catalog_of(inventory), scope, profile=profile)
    from gpuops.execute.rotation import may_take

    return ask(inventory, catalog_of(inventory), scope, may_take(policy, site, inventory).free_to_take, profile=profile)


def defrag(request: Defrag, inventory: Inventory) -> Defragmentation:
    """The fewest moves that free the most whole GPUs or slots, and why the other VMs stay. Nothing is moved.

    Raises UsageError for a host or cluster that is not there, Refused for a profile that is none.
    """
    return request.planned(inventory, catalog_of(inventory))


def defrag_execute(request: Defrag, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """The same moves, and with `apply` what became of each: one after another, each asked about again before it.

    Raises UsageError and Refused as `defrag`, NotConnected, Refused while a change or a rotation is open, Locked.
    """
    from gpuops.execute.change.moves import carry_out

    return carry_out(request, site, apply=apply, consent=consent)


def configure(request: HostRequest, site: Site, *, apply: bool) -> HostReport:
    """What the request would change on hosts of this site, and with `apply` what became of it.

    An infeasible plan is an answer: `report.plan.rejections`. Raises UsageError, NotConnected, Locked while a rotation
    runs.
    """
    from gpuops.execute.host_settings import configure as carry_out

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
    from gpuops.execute.change.change import roll

    return roll(request, verb, rolling, site, apply=apply, consent=consent, told=told)


def change_resume(
    site: Site,
    *,
    apply: bool = True,
    consent: Callable[[ChangeReport], None] = lambda report: None,
    told: Callable[[str], None] = lambda line: None,
) -> ChangeReport | Report:
    """Goes on with the change that did not end, of hosts or of moves; an empty plan = there is none."""
    from gpuops.execute.change.change import resume

    return resume(site, apply=apply, consent=consent, told=told)


def change_abort(
    site: Site,
    *,
    apply: bool = True,
    consent: Callable[[ChangeReport], None] = lambda report: None,
    told: Callable[[str], None] = lambda line: None,
) -> ChangeReport | Report:
    """Gives the change up: hosts under way serve VMs again, with their own back; the others are left alone."""
    from gpuops.execute.change.change import abort

    return abort(site, apply=apply, consent=consent, told=told)


def change_status(site: Site) -> ChangeStatus:
    """The change of hosts that has not ended, host by host."""
    from gpuops.execute.change.change import status

    return status(site)


def doctor(site: Site, scope: Scope, roles: Sequence[RoleWish] = ()) -> Examination:
    """What stands in the way of the verbs on these hosts, their GPUs and VMs, worst first. Nothing is ever written.

    With `roles` also what this login lacks of them anywhere in the vCenter, and what it has beyond them.
    Raises UsageError, HostNotFound for a name that is not there.
    """
    from gpuops.execute.roles import beside
    from gpuops.plan.doctor.examination import SURPLUS, WANTED_ON_HOSTS, examine
    from gpuops.plan.doctor.parser import of_parser
    from gpuops.vsphere.transport.reply import expat_version

    inventory = site.vcenter.inventory()
    scope.check(inventory)
    meant = [host.ref for host in scope.hosts(inventory)]
    inventory = site.hosts.with_settings(inventory, meant)
    lacking = site.hosts.lacking(dict.fromkeys(meant, WANTED_ON_HOSTS)) if meant else {}
    held = site.hosts.held(meant, SURPLUS) if meant and not roles else {}
    also = (*of_parser(expat_version()), *beside(roles, site.vcenter, inventory))
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
    from gpuops.plan.scheduler.state import schedulers

    inventory = site.vcenter.inventory()
    scope.check(inventory)
    meant = [host.ref for host in scope.hosts(inventory)]
    inventory = site.hosts.with_settings(inventory, meant)
    return schedulers(inventory, catalog_of(inventory), scope)


def rotate_night(policy: Policy, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """Suspends the idle desktops the policy selects and starts the ML VMs that fit in their place."""
    from gpuops.execute.rotation import Half, rotate

    return rotate(Half.NIGHT, policy, site, apply=apply, consent=consent)


def rotate_plan(policy: Policy | None, site: Site, at: datetime | None = None) -> Foresight:
    """The night that would begin at this moment, if vCenter then looked as it does now. Nothing is ever written.

    `policy` None = the one of the last night in the journal. `at` None = now; one without an offset is read in the
    zone of the policy's windows. Raises UsageError for a moment or a policy that cannot be told.
    """
    from gpuops.execute.foresight import foresee

    return foresee(policy, site, at)


def rotate_day(policy: Policy | None, site: Site, *, apply: bool, consent: Consent = agreed) -> Report:
    """Stops the ML VMs that the night started and resumes every desktop that it suspended.

    `policy` None = the one of the last night in the journal. Exit code 4 when a desktop could not be returned:
    `plan.unmet` and the failed outcomes name each, with its reason and one safe command.
    """
    from gpuops.execute.rotation import Half, rotate

    return rotate(Half.DAY, policy, site, apply=apply, consent=consent)


def rotate_restore(
    policy: Policy | None,
    site: Site,
    vms: tuple[str, ...] = (),
    *,
    from_markers: bool = False,
    apply: bool,
    consent: Consent = agreed,
) -> Report:
    """Brings back now what nights took: all of it, or the VMs of these names alone.

    `from_markers` goes by vCenter's markers and by no journal; raises UsageError then without a policy. An ML VM that
    is not named runs on: a desktop that finds no room beside it is named, with who holds the GPUs (exit code 4).
    """
    from gpuops.execute.rotation import restore

    return restore(policy, site, vms, from_markers=from_markers, apply=apply, consent=consent)


def rotate_resume(site: Site, *, apply: bool = True, consent: Consent = agreed) -> Report:
    """Finishes what a killed night or day had begun, under the policy it began with; an empty plan = none was."""
    from gpuops.execute.rotation import resume

    return resume(site, apply=apply, consent=consent)


def rotate_skip_next(policy: Policy, site: Site, *, undo: bool = False) -> Skip:
    """The next night of the policy is not taken, as the journal says from then on; with `undo` it is after all.

    Raises UsageError for a policy without windows, Locked while a rotation runs.
    """
    from gpuops.execute.skipping import skip_next

    return skip_next(policy, site, skipped=not undo)


def roles(wishes: Sequence[RoleWish], site: Site, *, apply: bool = False) -> tuple[RoleState, ...]:
    """Each wanted role beside vCenter's of the same name; with `apply` those that differ are written.

    Raises PolicyError for a privilege that this vCenter has not, NoPermission where nothing was changed, PartlyDone
    with what was written before something failed, Refused for a saved inventory.
    """
    from gpuops.execute.roles import brought, keeper

    return brought(wishes, keeper(site.vcenter), apply=apply)


def rotate_init(policy: Policy, site: Site, *, apply: bool = True) -> Setup:
    """What the policy wants of the vCenter: custom attributes and the lock VM, made if `apply` where they are missing.

    For a login that may; the nights' own need not. Names the desktops that no owner has agreed to. Raises NoPermission
    and Refused where nothing was changed, PartlyDone with what was made before something failed.
    """
    from gpuops.execute.founding import found

    return found(policy, site, apply=apply)


def rotate_unlock(policy: Policy | None, site: Site, nonce: str | None, *, force: bool = False) -> Lease:
    """Gives the lease on the policy's lock VM back in its holder's place, if its id is this very one.

    For a run on another machine that is dead for certain; nobody has to, since it runs out by itself. Raises Refused,
    naming the holder, for any other id, and Locked for a lease that was renewed just now, unless by `force`.
    """
    from gpuops.execute.unlocking import unlock

    return unlock(policy, site, nonce, force=force)


def rotate_status(site: Site, policy: Policy | None = None) -> RotationStatus:
    """What the nights that are not over have taken, and where each VM is now.

    `policy` None = the one of the last night in the journal. By vCenter's markers alone where the journal is damaged:
    `journal_lost` then says why.
    """
    from gpuops.execute.status import status

    return status(site, policy)


def rotate_audit_verify(state_dir: Path, journal_url: str = "", head: str = "") -> Audit:
    """How far the journal can be trusted: the file in the state directory, or the PostgreSQL database at the URL.

    `head` is one that an earlier audit gave: it must still be there. Raises StateDamaged for what cannot be read at
    all, UsageError, and Refused for a journal that an earlier gpuops wrote.
    """
    from gpuops.execute.journal.audit import verify

    return verify(state_dir, journal_url, head)
