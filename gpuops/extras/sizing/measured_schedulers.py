"""Measure under several schedulers in one call: set each of them, and finally the first one again.

A scheduler takes effect after a reboot of its host. That is a rolling change of this one host (`gpuops help change`),
with a window, a plan for the VMs that run there, and a journal. The GPU and its scheduler are on disk before it is
changed. After an interruption the same call continues; if it was interrupted during a change, after
`gpuops change resume`.

Each scheduler is set at most once. Only VMs that the admin saw before agreeing are shut down: hours lie between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpuops.errors import Refused, report_exit_code
from gpuops.execute.site import agreed
from gpuops.execute.site.agreement import Agreement, ask_until_agreed
from gpuops.model.devices.scheduler import Frequency, VgpuScheduler
from gpuops.model.measurements.sharing_measurement import SchedulerBefore
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.hosts.change.rolling_plan import Roll

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.extras.sizing.measure_plan import MeasurePlan
    from gpuops.extras.sizing.measuring import SharingMeasured
    from gpuops.model.measurements.sharing_measurement import MeasureWish
    from gpuops.model.vcenter.host_settings import Rolling
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.hosts.change.rolling_plan import ChangeReport
    from gpuops.plan.hosts.host_plan import HostRequest
    from gpuops.plan.hosts.scheduler.scheduler_state import GpuScheduler


@dataclass(frozen=True, slots=True)
class SettingSchedulers:
    """How the host is rebooted for another scheduler, and the function that prints its progress."""

    rolling: Rolling
    hear: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SchedulersMeasured:
    """The outcome of a call."""

    measured: SharingMeasured
    changes: tuple[ChangeReport, ...] = ()
    """Changes of the host: planned ones if nothing was applied, else their outcomes."""
    undone: str = ""
    """Why the scheduler differs from the one before; empty = it does not, or nothing was started."""

    @property
    def exit_code(self) -> int:
        """Return 3 if nothing was started, 4 if counts failed or are missing, VMs remain, or the scheduler differs."""
        refused = bool(self.measured.plan.rejections) or any(not change.plan.feasible for change in self.changes)
        if not self.measured.applied:
            return report_exit_code(refused=refused)
        wrong = refused or self.undone or self.measured.exit_code or any(map(_wrong, self.changes))
        return report_exit_code(partly=wrong)

    @property
    def deeds(self) -> tuple[object, ...] | None:
        """Return what is measured, and what is done to the host and its VMs; None = something of it is refused."""
        deeds = (self.measured.deeds, *(change.deeds for change in self.changes))
        return None if None in deeds else deeds


def measure_schedulers(
    wish: MeasureWish,
    site: Site,
    setting: SettingSchedulers,
    *,
    apply: bool,
    consent: Callable[[SchedulersMeasured], None] = agreed,
) -> SchedulersMeasured:
    """Measure under all schedulers of `wish`: set each on the host in turn, and finally restore the original one.

    Without `apply`, and if anything is rejected, nothing is created or changed. Raises the errors of `measure` and
    `change`, each of which takes its own lock.
    """
    planned, host_changes = _look(wish, site, setting)
    if host_changes is None or planned.deeds is None or not apply:
        return planned

    def measure_all(agreement: Agreement[SchedulersMeasured]) -> SchedulersMeasured:
        current, host_changes = _look(wish, site, setting)
        if host_changes is None or current.deeds is None:
            return current
        agreement.require(current)
        host_changes.agreed = frozenset(name for change in current.changes for name in _vms_shut_down(change))
        return _measure_all(host_changes, current, wish, site)

    return ask_until_agreed(planned, consent, measure_all)


def _look(
    wish: MeasureWish, site: Site, setting: SettingSchedulers
) -> tuple[SchedulersMeasured, _Changing] | tuple[SchedulersMeasured, None]:
    """Return the plan, and the object that changes the scheduler of its host, with nothing changed yet.

    None instead of the object: the plan is refused, and there is no scheduler or no host to restore.
    """
    from gpuops.execute.site.kept_measurement import load_measurement
    from gpuops.extras.sizing.measuring import measure

    first = measure(wish, site, apply=False)  # only planned: nothing is measured yet
    stored = load_measurement(site.state_dir, site.vcenter.uuid)
    before = stored.before if stored is not None else None
    if first.plan.rejections and (before is None or first.plan.host is None):
        return SchedulersMeasured(first), None
    host_changes = _Changing(before or _read_scheduler_before(first.plan, site), _host_name(first.plan), setting, site)
    undone = host_changes.why_not_as_before()
    if stored is not None:
        host_changes.removed_first = tuple(
            vm.name for vm in site.vcenter.inventory().vms.values() if stored.owns(vm.name)
        )
    if first.plan.rejections:
        return _with_undone(first, (), undone), host_changes
    # one planned change of the host for each scheduler
    planned_changes = [host_changes.set(VgpuScheduler(policy), apply=False) for policy in first.plan.later]
    if undone:  # an interrupted call has left another scheduler
        planned_changes.append(host_changes.set_back(apply=False))
    return _with_undone(first, tuple(planned_changes), undone), host_changes


def _measure_all(
    host_changes: _Changing, planned: SchedulersMeasured, wish: MeasureWish, site: Site
) -> SchedulersMeasured:
    from gpuops.execute.site.kept_measurement import forget_measurement

    try:
        measured = _measure_each(host_changes, planned.measured, wish, site)
        undone = host_changes.why_not_as_before()
    except BaseException:  # also Ctrl-C: the original scheduler is not restored then
        if planned.undone or host_changes.begun:
            site.say(host_changes.restore_hint())
        raise
    # otherwise the stored measurement is kept, so that the same command continues it
    complete = not measured.plan.later and not measured.plan.rejections and not measured.failed
    if complete and not undone:
        forget_measurement(site.state_dir, site.vcenter.uuid)
    return _with_undone(replace(measured, applied=True), tuple(host_changes.changes), undone)


def _measure_each(host_changes: _Changing, first: SharingMeasured, wish: MeasureWish, site: Site) -> SharingMeasured:
    """Measure under each scheduler in turn, and finally restore the original one. Stop at the first failure."""
    from gpuops.extras.sizing.measuring import measure

    measured = measure(wish, site, apply=True, before=host_changes.before)
    for scheduler in first.plan.later:
        if measured.plan.rejections or measured.failed or host_changes.wrong:
            break
        host_changes.set(VgpuScheduler(scheduler), apply=True)
        if not host_changes.wrong:
            measured = measure(wish, site, apply=True, before=host_changes.before)
    # an open change of the host must be finished first
    if not host_changes.stopped and host_changes.why_not_as_before():
        host_changes.set_back(apply=True)
    return measured


def why_not_as_before(before: SchedulerBefore, site: Site) -> str:
    """Return that the GPU's scheduler differs from the one before the measurement, and the command that restores it.

    '' = the scheduler that is set and the one in force are those from before, or the GPU does not exist any more.
    """
    from gpuops.plan.hosts.scheduler.scheduler_change import restoring_command

    inventory = site.vcenter.inventory()
    gpu = _scheduler_of(before, inventory, site)
    if gpu is None or gpu.configured == gpu.effective == before.scheduler:
        return ""
    host = inventory.hosts[before.host].name
    # often equal: then it is named once
    now = " and ".join(dict.fromkeys(str(state or "not known") for state in (gpu.configured, gpu.effective)))
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
    """Names of the VMs whose shutdown the admin agreed to."""
    removed_first: tuple[str, ...] = ()
    """Names of the VMs that remain of an interrupted call: they are removed before the host is rebooted."""
    begun: bool = False
    """Whether a change was sent to the host, or may have been."""
    changes: list[ChangeReport] = field(default_factory=list)
    """The outcomes of the applied changes."""

    def set(self, scheduler: VgpuScheduler, *, apply: bool) -> ChangeReport:
        """Set the GPU's scheduler and reboot the host; without `apply` plan that."""
        from gpuops.plan.hosts.scheduler.scheduler_change import for_gpu

        return self._change(for_gpu(scheduler, str(self.before.gpu), self.host_name), apply=apply)

    def set_back(self, *, apply: bool) -> ChangeReport:
        """Set the scheduler from before the measurement again; without `apply` plan that."""
        from gpuops.plan.hosts.scheduler.scheduler_change import RestoreScheduler

        return self._change(RestoreScheduler(self.before, self.host_name), apply=apply)

    def why_not_as_before(self) -> str:
        return why_not_as_before(self.before, self.site)

    @property
    def wrong(self) -> bool:
        return any(map(_wrong, self.changes))

    @property
    def stopped(self) -> bool:
        """Return whether a change is open: that must be finished first."""
        return any(change.plan.feasible and _wrong(change) for change in self.changes)

    def restore_hint(self) -> str:
        """Return what to print after an interruption, when vCenter may not answer."""
        from gpuops.plan.hosts.scheduler.scheduler_change import restoring_command

        return (
            f"the scheduler of GPU {self.before.gpu} of {self.host_name} was {self.before.scheduler} before: run the "
            "same command again, which restores it at the end, or "
            f"{restoring_command(self.before, self.host_name)}"
        )

    def _change(self, request: HostRequest, *, apply: bool) -> ChangeReport:
        """Return the planned change, or with `apply` its outcome; refused if it would shut down VMs without consent."""
        from gpuops.api import change

        rolling, hear = self.setting.rolling, self.setting.hear
        # planned first: only the plan shows which VMs the change would shut down
        report = change(request, "scheduler set", rolling, self.site, apply=False)
        if not apply:
            return self._without_removed_first(report)
        self.begun = True
        unagreed = self._unagreed_shutdowns(report)
        if unagreed is None:
            report = change(
                request, "scheduler set", rolling, self.site, apply=True, consent=self._agree, on_progress=hear
            )
        else:
            report = replace(report, plan=Roll(rejections=(unagreed,)))
        self.changes.append(report)
        return report

    def _without_removed_first(self, report: ChangeReport) -> ChangeReport:
        """Return a feasible report if only VMs that are removed first block the emptying; else the same report."""
        against = [
            rejection
            for rejection in report.plan.rejections
            if not any(name in rejection.rule for name in self.removed_first)
        ]
        if against or not report.plan.rejections:
            return report
        return replace(report, plan=Roll(because=(f"{', '.join(self.removed_first)}: removed before that",)))

    def _unagreed_shutdowns(self, report: ChangeReport) -> Rejection | None:
        """Return why the change is not started: it would shut down VMs that were not shown before; None if not."""
        unagreed_vms = sorted(_vms_shut_down(report) - self.agreed)
        rule = f"{', '.join(unagreed_vms)} would be shut down now, which was not shown before"
        return (
            Rejection(self.host_name, rule, hint="run the same command again: it shows the change, and continues")
            if unagreed_vms
            else None
        )

    def _agree(self, report: ChangeReport) -> None:
        unagreed = self._unagreed_shutdowns(report)
        if unagreed is not None:
            raise Refused(str(unagreed), hint=unagreed.hint)


def _with_undone(measured: SharingMeasured, changes: tuple[ChangeReport, ...], undone: str) -> SchedulersMeasured:
    notes = (*measured.plan.notes, *((undone,) if undone else ()))
    return SchedulersMeasured(replace(measured, plan=replace(measured.plan, notes=notes)), changes, undone)


def _host_name(plan: MeasurePlan) -> str:
    assert plan.host is not None, "a plan without a host is refused"
    return plan.host.name


def _wrong(report: ChangeReport) -> bool:
    return report.exit_code != 0


def _vms_shut_down(report: ChangeReport) -> frozenset[str]:
    """Return the names of the VMs that the change shuts down."""
    from gpuops.plan.hosts.change.emptying import Leaving

    stopping = (Leaving.SHUT_DOWN, Leaving.POWER_OFF)
    return frozenset(
        departure.vm.name
        for host in report.plan.planned_hosts
        for departure in host.away
        if departure.leaving in stopping
    )


def _scheduler_of(before: SchedulerBefore, inventory: Inventory, site: Site) -> GpuScheduler | None:
    """Return the current scheduler of the GPU; None if the host or the GPU does not exist any more."""
    from gpuops.execute.site import catalog_of
    from gpuops.plan.hosts.scheduler.scheduler_state import scheduler_of

    if before.host not in inventory.hosts:
        return None
    read = site.hosts.with_settings(inventory, [before.host])
    gpus = scheduler_of(read.hosts[before.host], catalog_of(read)).gpus
    return next((state for state in gpus if state.gpu.address == before.gpu), None)


def _read_scheduler_before(plan: MeasurePlan, site: Site) -> SchedulerBefore:
    """Return the scheduler that the GPU is set to. Raises Refused if gpuops could not restore it after measuring."""
    from gpuops.execute.site import catalog_of
    from gpuops.plan.hosts.scheduler.scheduler_state import scheduler_of

    assert plan.host is not None and plan.gpu is not None, "a plan without a GPU is refused"
    read = site.hosts.with_settings(site.vcenter.inventory(), [plan.host.ref])
    gpus = scheduler_of(read.hosts[plan.host.ref], catalog_of(read)).gpus
    configured = next((state.configured for state in gpus if state.gpu.address == plan.gpu.address), None)
    settings = read.hosts[plan.host.ref].settings
    options = settings.module_options if settings is not None else None
    can_be_set_again = isinstance(configured, VgpuScheduler) and configured.weighted and not _only_averaging(configured)
    if not isinstance(configured, VgpuScheduler) or not can_be_set_again or options is None:
        raise Refused(
            f"{plan.host.name}: gpuops could not restore the scheduler of GPU {plan.gpu.address} after measuring: "
            f"{configured}",
            hint="leave --set-schedulers out, and set schedulers yourself: gpuops help hosts",
        )
    return SchedulerBefore(plan.host.ref, plan.gpu.address, configured, options)


def _only_averaging(scheduler: VgpuScheduler) -> bool:
    slices = scheduler.slices
    return isinstance(slices, Frequency) and slices.frequency_hz is None and slices.averaging is not None
