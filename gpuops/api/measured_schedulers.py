"""The function that measures under several schedulers in one call: it sets each of them, and at last the first again.

A scheduler is in force after a reboot of its host: that is a rolling change of this one host (`gpuops help change`),
with all that holds for one: its window, what becomes of VMs that run there, its journal. Which GPU it is and what its
scheduler was is on disk before it is changed. A call that was cut off is gone on with by the same call, after
`gpuops change resume` where it was cut off in the middle of a change.

Each scheduler is set once at the most. No VM is shut down that was not shown to whoever agreed: hours lie between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuops.errors import Refused, report_exit_code
from gpuops.model.devices.scheduler import Frequency, VgpuScheduler
from gpuops.model.measurements.sharing_measurement import SchedulerBefore
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.hosts.change.rolling_plan import Roll

if TYPE_CHECKING:
    from gpuops.api.measuring import SharingMeasured
    from gpuops.execute.site import Site
    from gpuops.model.measurements.sharing_measurement import MeasureWish
    from gpuops.model.vcenter.host_settings import Rolling
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.capacity.measure_plan import MeasurePlan
    from gpuops.plan.hosts.change.rolling_plan import ChangeReport
    from gpuops.plan.hosts.host_plan import HostRequest
    from gpuops.plan.hosts.scheduler.state import GpuScheduler

AllConsent = Callable[["MeasurePlan", tuple["ChangeReport", ...]], None]
"""Told of the plan, and of each change of the host as it is foreseen, just before anything is made or changed."""


@dataclass(frozen=True, slots=True)
class SettingSchedulers:
    """How the host is rebooted for another scheduler, and who is told of it."""

    rolling: Rolling
    told: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SchedulersMeasured:
    """What a call came to."""

    measured: SharingMeasured
    changes: tuple[ChangeReport, ...] = ()
    """Of the host: as they are foreseen where nothing was applied, else what became of them."""
    undone: str = ""
    """Why the scheduler is not what it was before; empty = it is, or nothing was begun."""

    @property
    def exit_code(self) -> int:
        """3 = nothing was begun, 4 = counts failed or are missing, VMs are left, or the host is not set as it was."""
        refused = bool(self.measured.plan.rejections) or any(not each.plan.feasible for each in self.changes)
        if not self.measured.applied:
            return report_exit_code(refused=refused)
        wrong = refused or self.undone or self.measured.exit_code or any(map(_wrong, self.changes))
        return report_exit_code(partly=wrong)


def measure_schedulers(
    wish: MeasureWish, site: Site, setting: SettingSchedulers, *, apply: bool, consent: AllConsent
) -> SchedulersMeasured:
    """What was measured under all schedulers of `wish`, with the host set in between and at last as it was before.

    Without `apply`, and where anything is in the way, nothing is made or changed. Raises as `measure` and `change` do.
    """
    from gpuops.api.measuring import measure
    from gpuops.execute.site.kept_measurement import forget_measurement, load_measurement

    first = measure(wish, site, apply=False, consent=_asked)
    known = load_measurement(site.state_dir, site.vcenter.uuid)
    before = known.before if known is not None else None
    if first.plan.rejections and (before is None or first.plan.host is None):
        return SchedulersMeasured(first)
    run = _Changing(before or _before(first.plan, site), _host_name(first.plan), setting, site)
    undone = run.not_as_before()
    if known is not None:
        run.removed_first = tuple(vm.name for vm in site.vcenter.inventory().vms.values() if known.owns(vm.name))
    if first.plan.rejections:
        return _told(first, (), undone)
    foreseen = [run.set(VgpuScheduler(each), apply=False) for each in first.plan.later]
    if undone:
        foreseen.append(run.set_back(apply=False))
    if not apply or any(not each.plan.feasible for each in foreseen):
        return _told(first, tuple(foreseen), undone)
    consent(first.plan, tuple(foreseen))
    run.agreed = frozenset(name for each in foreseen for name in _stopped(each))
    try:
        found = _measured(run, first, wish, site)
        undone = run.not_as_before()
    except BaseException:
        if undone or run.begun:
            site.say(run.set_back_by_hand())
        raise
    whole = not found.plan.later and not found.plan.rejections and not found.failed
    if whole and not undone:
        forget_measurement(site.state_dir, site.vcenter.uuid)
    return _told(replace(found, applied=True), tuple(run.changes), undone)


def _measured(run: _Changing, first: SharingMeasured, wish: MeasureWish, site: Site) -> SharingMeasured:
    """What was measured, with each scheduler set in between, and what was before at last."""
    from gpuops.api.measuring import measure

    found = measure(wish, site, apply=True, consent=_asked, before=run.before)
    for scheduler in first.plan.later:
        if found.plan.rejections or found.failed or run.wrong:
            break
        run.set(VgpuScheduler(scheduler), apply=True)
        if not run.wrong:
            found = measure(wish, site, apply=True, consent=_asked, before=run.before)
    if not run.stopped and run.not_as_before():
        run.set_back(apply=True)
    return found


def not_as_before(before: SchedulerBefore, site: Site) -> str:
    """That the GPU is set to something else than before, or something else is in force, and what sets it back; empty =
    it is as before, or it is gone."""
    from gpuops.plan.hosts.scheduler.change import restoring_command

    inventory = site.vcenter.inventory()
    gpu = _scheduler_of(before, inventory, site)
    if gpu is None or gpu.configured == gpu.effective == before.scheduler:
        return ""
    host = inventory.hosts[before.host].name
    now = " and ".join(dict.fromkeys(str(each or "not known") for each in (gpu.configured, gpu.effective)))
    return (
        f"the scheduler of GPU {before.gpu} of {host} was {before.scheduler}, and is {now}: "
        f"{restoring_command(before, host)} sets it back"
    )


@dataclass(slots=True)
class _Changing:
    """The changes of the host, one after another."""

    before: SchedulerBefore
    host_name: str
    setting: SettingSchedulers
    site: Site
    agreed: frozenset[str] = frozenset()
    """Names of the VMs of which it was shown that they are shut down."""
    removed_first: tuple[str, ...] = ()
    """Names of the VMs that a call that was cut off has left: they are gone when the host is rebooted."""
    begun: bool = False
    """Whether a change was sent to the host, or may have been."""
    changes: list[ChangeReport] = field(default_factory=list)
    """What became of those that were applied."""

    def set(self, wanted: VgpuScheduler, *, apply: bool) -> ChangeReport:
        """Has the GPU's scheduler set, and the host rebooted; without `apply` what that would do."""
        from gpuops.plan.hosts.scheduler.change import for_gpu

        return self._changed(for_gpu(wanted, str(self.before.gpu), self.host_name), apply=apply)

    def set_back(self, *, apply: bool) -> ChangeReport:
        """The same, to what it was before."""
        from gpuops.plan.hosts.scheduler.change import RestoreScheduler

        return self._changed(RestoreScheduler(self.before, self.host_name), apply=apply)

    def not_as_before(self) -> str:
        return not_as_before(self.before, self.site)

    @property
    def wrong(self) -> bool:
        return any(map(_wrong, self.changes))

    @property
    def stopped(self) -> bool:
        """Whether a change is open: that goes first."""
        return any(each.plan.feasible and _wrong(each) for each in self.changes)

    def set_back_by_hand(self) -> str:
        """What is told where it was cut off, and vCenter cannot be asked perhaps."""
        from gpuops.plan.hosts.scheduler.change import restoring_command

        return (
            f"the scheduler of GPU {self.before.gpu} of {self.host_name} was {self.before.scheduler} before: the same "
            f"again sets it back at last, or {restoring_command(self.before, self.host_name)}"
        )

    def _changed(self, request: HostRequest, *, apply: bool) -> ChangeReport:
        from gpuops.api import change

        rolling, told = self.setting.rolling, self.setting.told
        report = change(request, "scheduler set", rolling, self.site, apply=False)
        if not apply:
            return self._without_own(report)
        self.begun = True
        others = self._not_agreed(report)
        if others is None:
            report = change(request, "scheduler set", rolling, self.site, apply=True, consent=self._agree, told=told)
        else:
            report = replace(report, plan=Roll(rejections=(others,)))
        self.changes.append(report)
        return report

    def _without_own(self, report: ChangeReport) -> ChangeReport:
        """The same, where nothing but VMs that are removed first keeps the host from being emptied."""
        against = [each for each in report.plan.rejections if not any(name in each.rule for name in self.removed_first)]
        if against or not report.plan.rejections:
            return report
        return replace(report, plan=Roll(because=(f"{', '.join(self.removed_first)}: removed before that",)))

    def _not_agreed(self, report: ChangeReport) -> Rejection | None:
        """Why it is not begun: VMs would be shut down of which nobody was told; None = there are none."""
        others = sorted(_stopped(report) - self.agreed)
        rule = f"{', '.join(others)} would be shut down now, which was not shown before"
        return Rejection(self.host_name, rule, hint="the same again shows it, and goes on") if others else None

    def _agree(self, report: ChangeReport) -> None:
        """Raises Refused where one came in between."""
        others = self._not_agreed(report)
        if others is not None:
            raise Refused(str(others), hint=others.hint)


def _told(found: SharingMeasured, changes: tuple[ChangeReport, ...], undone: str) -> SchedulersMeasured:
    notes = (*found.plan.notes, *((undone,) if undone else ()))
    return SchedulersMeasured(replace(found, plan=replace(found.plan, notes=notes)), changes, undone)


def _host_name(plan: MeasurePlan) -> str:
    assert plan.host is not None, "a plan without a host is refused"
    return plan.host.name


def _asked(plan: MeasurePlan) -> None:
    """The consent was given to all of it."""


def _wrong(report: ChangeReport) -> bool:
    return report.exit_code != 0


def _stopped(report: ChangeReport) -> frozenset[str]:
    """Names of the VMs that it shuts down."""
    from gpuops.plan.hosts.change.emptying import Leaving

    stopping = (Leaving.SHUT_DOWN, Leaving.POWER_OFF)
    return frozenset(
        away.vm.name for host in report.plan.planned_hosts for away in host.away if away.leaving in stopping
    )


def _scheduler_of(before: SchedulerBefore, inventory: Inventory, site: Site) -> GpuScheduler | None:
    """As it is now; None = the host or the GPU is gone."""
    from gpuops.execute.site import catalog_of
    from gpuops.plan.hosts.scheduler.state import scheduler_of

    if before.host not in inventory.hosts:
        return None
    read = site.hosts.with_settings(inventory, [before.host])
    gpus = scheduler_of(read.hosts[before.host], catalog_of(read)).gpus
    return next((each for each in gpus if each.gpu.address == before.gpu), None)


def _before(plan: MeasurePlan, site: Site) -> SchedulerBefore:
    """What the GPU is set to. Raises Refused for what nobody can read, or what could not be set again."""
    from gpuops.execute.site import catalog_of
    from gpuops.plan.hosts.scheduler.state import scheduler_of

    assert plan.host is not None and plan.gpu is not None, "a plan without a GPU is refused"
    read = site.hosts.with_settings(site.vcenter.inventory(), [plan.host.ref])
    gpus = scheduler_of(read.hosts[plan.host.ref], catalog_of(read)).gpus
    found = next((each.configured for each in gpus if each.gpu.address == plan.gpu.address), None)
    settings = read.hosts[plan.host.ref].settings
    options = settings.module_options if settings is not None else None
    again = isinstance(found, VgpuScheduler) and found.weighted and not _only_averaging(found)
    if not isinstance(found, VgpuScheduler) or not again or options is None:
        raise Refused(
            f"{plan.host.name}: what the scheduler of GPU {plan.gpu.address} is set to could not be set again: {found}",
            hint="leave --set-schedulers out, and set schedulers yourself: gpuops help hosts",
        )
    return SchedulerBefore(plan.host.ref, plan.gpu.address, found, options)


def _only_averaging(found: VgpuScheduler) -> bool:
    slices = found.slices
    return isinstance(slices, Frequency) and slices.frequency_hz is None and slices.averaging is not None
