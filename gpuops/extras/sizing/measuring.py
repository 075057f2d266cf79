"""Measures how VMs share a GPU (`gpuops measure`): clones them, runs a command in them, removes them.

VMs are measured for one count after another. Each result is stored at once, and the number of VMs before they are
cloned. Run the same command again to continue after an interruption or after a change of the scheduler: it powers off
existing VMs, in which the command may still run, uses them, clones missing ones, and finally removes all. Only VMs with
the name and the notes of this measurement are powered off or removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from gpuops.errors import GpuopsError, NotConnected, Refused, StepFailed, VmNotFound, report_exit_code
from gpuops.execute.site import agreed
from gpuops.execute.site.agreement import apply_agreed
from gpuops.extras.sizing.measure_plan import (
    PRIVILEGES,
    MeasurePlan,
    WholeGpu,
    begins_s,
    gpu_of,
    measure_plan,
    others_on,
)
from gpuops.model.measurements.measurement import GPU_USE
from gpuops.model.measurements.sharing_measurement import (
    MeasuredCount,
    MeasuredDevice,
    MeasureWish,
    SchedulerBefore,
    SharingMeasurement,
)

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.execute.site.guest_work import GuestWork
    from gpuops.execute.state.lock import LockHold
    from gpuops.model.devices.gpu import PhysicalGpu
    from gpuops.model.devices.scheduler import SchedulerPolicy
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.model.vcenter.vm import Vm

BOOT_S: Final = 900.0
"""Time limit until VMware Tools run in a new VM."""
MEASURE: Final = "measure"
"""The kind of run that makes and removes VMs, in journals."""
ROUNDS: Final = 2
"""A VM is powered off in the first round, and removed in the second."""
_SAMPLE_S: Final = 20


def own_vms(measurement: SharingMeasurement, inventory: Inventory) -> list[Vm]:
    return [vm for vm in inventory.vms.values() if measurement.owns(vm.name)]


@dataclass(slots=True)
class MeasuringCall:
    """One call of the measurement; `measurement` is what was measured so far."""

    plan: MeasurePlan
    measurement: SharingMeasurement
    site: Site
    port: GuestWork
    has_ended_commands: bool = False
    """Whether the VMs that an interrupted call left were powered off."""

    def counts(self) -> None:
        """Measure the counts that are due: whole GPUs first, then the fewest VMs first, up to the first failure."""
        scheduler = self.plan.in_force
        if scheduler is None:
            return
        for whole in self.plan.whole:
            self._remove_all()  # existing VMs have another device
            self._measure_and_keep(scheduler, 1, whole)
        if self.measurement.wish.whole:
            self._remove_all()  # for the same reason
        for sharers in self.plan.now:
            if self._measure_and_keep(scheduler, sharers).error:
                return

    def _measure_and_keep(
        self, scheduler: SchedulerPolicy, sharers: int, whole: WholeGpu | None = None
    ) -> MeasuredCount:
        """Measure a count, or note why it failed; store it on disk and return it. Raises NotConnected."""
        from gpuops.execute.site.kept_measurement import keep_measurement

        try:
            count = self._measure_count(scheduler, sharers, whole)
        except NotConnected:
            raise
        except GpuopsError as error:
            count = MeasuredCount(scheduler, sharers, error=error.message)
        count = replace(count, device=whole.device if whole is not None else MeasuredDevice.SHARE)
        self.measurement = self.measurement.with_count(count)
        keep_measurement(self.site.state_dir, self.site.vcenter.uuid, self.measurement)
        return count

    def _remove_all(self) -> None:
        remaining_vms = self.remove()
        if remaining_vms:
            message = f"measurement {self.measurement.id} could not remove all its VMs: {remaining_vms[0]}"
            raise StepFailed(message, hint="gpuops measure --remove removes them")

    def remove(self) -> tuple[str, ...]:
        return remove_vms(self.measurement, self.site)

    def _measure_count(self, scheduler: SchedulerPolicy, sharers: int, whole: WholeGpu | None) -> MeasuredCount:
        """Run the command in this number of VMs on the GPU, and return how long they took. Raises the first error.

        `whole`: run it in one VM with this whole GPU instead.
        """
        from gpuops.execute.site.kept_measurement import keep_measurement

        gpu = self.plan.gpu
        assert gpu is not None, "a plan without a GPU is refused"
        if not self.has_ended_commands:
            self._end_commands()
            self.has_ended_commands = True
        if sharers > self.measurement.made:  # on disk before the first clone is requested
            self.measurement = replace(self.measurement, made=sharers)
            keep_measurement(self.site.state_dir, self.site.vcenter.uuid, self.measurement)
        of_counts = f"{scheduler}, {sharers} of {max(self.measurement.wish.counts)} VMs on GPU {gpu.address}"
        self.site.say(of_counts if whole is None else f"1 VM with a whole GPU: {whole}")
        refs = [self._start_vm(number, gpu, whole) for number in range(1, sharers + 1)]
        for ref in refs:
            if not self.site.vcenter.wait_for_guest(ref, BOOT_S, address=False).tools_running:
                name = self.site.vcenter.inventory().vm(ref).name
                raise StepFailed(f"{name}: VMware Tools did not run within {BOOT_S:.0f} s of its start")
        if whole is not None and whole.address is not None:  # in DirectPath I/O no other VM can use its GPU
            return self._run_commands(scheduler, refs, self.site.vcenter.inventory())
        before = self._require_alone(refs, gpu)
        count = self._run_commands(scheduler, refs, before)
        after = self._require_alone(refs, gpu)  # another VM may have started there meanwhile
        return replace(count, gpu_use=self._gpu_use(gpu, before, after))

    def _end_commands(self) -> None:
        """Power off the VMs that an interrupted call left: its command may still run in them. Raises StepFailed."""
        from gpuops.execute.steps.vm_runs import execute_steps, settled_run, step_failure
        from gpuops.model.vcenter.vm import PowerState
        from gpuops.plan.core.steps import PowerOffForRemoval

        inventory = self.site.vcenter.inventory()
        running_vms = [vm for vm in own_vms(self.measurement, inventory) if vm.power is not PowerState.OFF]
        if not running_vms:
            return
        steps = [PowerOffForRemoval(vm.ref, vm.name, self.measurement.marker) for vm in running_vms]
        with self.site.unlocked_journal() as journal, settled_run(MEASURE, inventory, journal, self.site) as run:
            outcomes = execute_steps(steps, inventory, journal, run, self.site)
        failures = [failure for outcome in outcomes.values() if (failure := step_failure(outcome))]
        if failures:
            raise StepFailed(failures[0])

    def _gpu_use(self, gpu: PhysicalGpu, before: Inventory, after: Inventory) -> float | None:
        """Return the mean use of the GPU between two snapshots, 0 to 1, from the host's samples of 20 s.

        None = there is no sample yet.
        """
        from gpuops.advise.gpu_counters import gpus_of_instances

        host = self.plan.host
        if host is None:
            return None
        # a sample covers the 20 s before its end: the first one must begin after `before`
        first_s, span = before.taken_at.timestamp() + _SAMPLE_S, (before.taken_at, after.taken_at)
        use_samples: list[int] = []
        for batch in self.site.vcenter.samples("HostSystem", [host.ref], (GPU_USE,), _SAMPLE_S, span, lambda: None):
            for samples in batch:
                # series are named `counter@instance`, one for each GPU
                series = {name.partition("@")[2]: readings for name, readings in samples.values.items() if "@" in name}
                addresses = gpus_of_instances(series, host)
                for instance, readings in series.items():
                    if addresses.get(instance) == gpu.address:
                        use_samples += readings[(samples.ends >= first_s) & (readings >= 0)].tolist()
        return sum(use_samples) / len(use_samples) / 10_000 if use_samples else None  # hundredths of a percent

    def _require_alone(self, refs: Sequence[str], gpu: PhysicalGpu) -> Inventory:
        """Return a new inventory. Raises StepFailed unless it shows exactly these VMs on the GPU."""
        inventory = self.site.vcenter.inventory()
        shared = gpu_of(self.measurement, inventory)
        if shared is None or shared.address != gpu.address:
            raise StepFailed(
                f"nothing was measured: the VMs are bound to GPU {gpu.address}, but not all of them are on it"
            )
        other_vms = others_on(shared, refs, inventory)
        if other_vms:
            raise StepFailed(
                f"{', '.join(other_vms)} shared GPU {gpu.address} with the measured VMs, so the result is invalid: "
                "keep other VMs off it and measure again"
            )
        return inventory

    def _start_vm(self, number: int, gpu: PhysicalGpu, whole: WholeGpu | None) -> str:
        """Create the VM of that number if it is missing, attach its device, power it on; return its id."""
        from gpuops.api.vms import run
        from gpuops.model.vcenter.vm import pin_key
        from gpuops.plan.core.plan import Verdict
        from gpuops.plan.vm.attach import Attach
        from gpuops.plan.vm.vm_blockers import PowerPolicy

        if whole is not None and whole.address is not None:
            vm = self._make_vm(number, {})
            request = Attach(f"moid:{vm}", device=(str(whole.address),), power=PowerPolicy.ON)
        else:
            vm = self._make_vm(number, {pin_key(0): str(gpu.address)})
            profile = self.plan.profile if whole is None else whole.profile
            request = Attach(f"moid:{vm}", profile=profile, power=PowerPolicy.ON)
        report = run(request, self.site, apply=True)
        if not report.plan.feasible:
            raise Refused("; ".join(rejection.line for rejection in report.plan.rejections))
        failed = next((outcome for outcome in report.outcomes if outcome.verdict is not Verdict.DONE), None)
        if failed is not None:
            raise StepFailed(f"{self.measurement.name(number)}: {failed.reason or failed.verdict}")
        return vm

    def _make_vm(self, number: int, settings: Mapping[str, str]) -> str:
        """Clone the VM of that number from the template, unless it exists; return its id. Raises Refused."""
        from gpuops.execute.steps.vm_runs import CREATION_S, creation_error, request_vms, settle_steps, settled_run
        from gpuops.plan.vm.clone import Clone

        wish, name = self.measurement.wish, self.measurement.name(number)
        before = self.site.vcenter.inventory()
        with suppress(VmNotFound):
            return self._find_own(name, before)
        scheduler_before = self.measurement.before
        host = wish.host if scheduler_before is None else scheduler_before.host
        planned = Clone(name, wish.template, host).planned(before, None)
        if planned.new is None:
            raise Refused("; ".join(rejection.line for rejection in planned.rejections))
        step = replace(planned.new, notes=self.measurement.marker, settings=settings)
        with self.site.unlocked_journal() as journal, settled_run(MEASURE, before, journal, self.site) as run:
            ended, after = request_vms([step], before, journal, run, self.site)
            outcomes, after = settle_steps(after, journal, run, self.site, timeout_s=CREATION_S)
        try:
            return self._find_own(name, after)
        except VmNotFound:  # not on the new snapshot: the clone failed
            raise creation_error(name, (ended | outcomes).get(step.vm)) from None

    def _find_own(self, name: str, inventory: Inventory) -> str:
        """Return the id of the measurement's VM of that name. Raises VmNotFound, Refused for a VM without its notes."""
        vm = inventory.find_vm(name)
        self.port.require_made(vm.ref, vm.name, self.measurement.marker)
        return vm.ref

    def _run_commands(self, scheduler: SchedulerPolicy, refs: Sequence[str], inventory: Inventory) -> MeasuredCount:
        """Start the command in each VM, one after another as the overlap requires, and return how long each ran."""
        wish = self.measurement.wish
        alone = self.measurement.measured_count(scheduler, 1)
        alone_s = sum(alone.times_s) / len(alone.times_s) if alone is not None else 0.0
        began_s, started = self.site.passed_s(), []
        for number, ref in enumerate(refs):
            self.site.pause(max(0.0, began_s + begins_s(number, wish.overlap, alone_s) - self.site.passed_s()))
            op_id = f"gpuops-measure-{secrets.token_hex(8)}"
            started.append(self.port.start_command(ref, inventory.vm(ref).name, wish.command, op_id))
        apart_s = self.site.passed_s() - began_s
        ends = {end.name: end for end in self.port.wait_for_commands(started, float(wish.limit_s))}
        failed = next((end for end in ends.values() if end.error), None)
        if failed is not None:
            raise StepFailed(f"{failed.name}: {failed.error}{_last_line(failed.printed)}")
        times = tuple(ends[command.name].took_s or 0.0 for command in started)
        # with an overlap below 1 the VMs are meant to begin apart
        return MeasuredCount(scheduler, len(refs), times, apart_s if wish.overlap == 1.0 else 0.0)


def _last_line(printed: str) -> str:
    lines = printed.strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""


def remove_vms(measurement: SharingMeasurement, site: Site) -> tuple[str, ...]:
    """Power off and remove the VMs of the measurement; return those that remain, each with the reason.

    Raises NotConnected. The journal is written without the lock of rotations: no rotation uses these VMs, and only one
    measurement runs at a time.
    """
    from gpuops.execute.steps.vm_runs import execute_steps, next_removal_step, settled_run, step_failure

    inventory = site.vcenter.inventory()
    if not own_vms(measurement, inventory):
        return ()
    failures: dict[str, str] = {}
    with site.unlocked_journal() as journal, settled_run(MEASURE, inventory, journal, site) as run:
        for _ in range(ROUNDS):  # a step for each VM: power it off, then remove it
            steps = [next_removal_step(vm, measurement.marker) for vm in own_vms(measurement, inventory)]
            outcomes = execute_steps(steps, inventory, journal, run, site)
            failures.update((ref, step_failure(outcome)) for ref, outcome in outcomes.items())
            inventory = site.vcenter.inventory()
    remaining_vms = own_vms(measurement, inventory)
    return tuple(f"{vm.name}: {failures.get(vm.ref) or 'it is still there'}" for vm in remaining_vms)


_ID: Final = 4
"""Bytes."""


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """The outcome of a call."""

    plan: MeasurePlan
    measurement: SharingMeasurement
    applied: bool
    left: tuple[str, ...] = ()
    """Names of its VMs that could not be removed, each with its reason."""

    @property
    def exit_code(self) -> int:
        """Return 3 if nothing was started, 4 if counts failed or wait for another scheduler, or VMs remain."""
        partly = self.applied and (self.failed or self.plan.later)
        return report_exit_code(refused=self.plan.rejections, partly=partly)

    @property
    def deeds(self) -> tuple[object, ...] | None:
        """Return what is measured, and on which GPU; None = the plan is refused."""
        plan = self.plan
        places = (plan.host and plan.host.ref, plan.gpu and plan.gpu.address)
        return None if plan.rejections else (*places, plan.profile, plan.in_force, plan.now, plan.later, plan.whole)

    @property
    def failed(self) -> bool:
        """Return whether a count failed, or VMs remain."""
        return bool(self.left) or any(count.error for count in self.measurement.done)


def measure(
    wish: MeasureWish,
    site: Site,
    *,
    apply: bool,
    consent: Callable[[SharingMeasured], None] = agreed,
    before: SchedulerBefore | None = None,
) -> SharingMeasured:
    """Return the stored measurement; with `apply` measure the missing counts first. Removes all VMs that it creates.

    `before`: the scheduler that the caller sets back at the end; until then the measurement is kept.
    Raises UsageError for unknown options or names, Refused while another measurement of this vCenter is unfinished,
    Locked while one runs, NotConnected if vCenter does not answer: the next call then continues.
    """
    from gpuops.execute.site.guest_work import guest_work
    from gpuops.execute.site.kept_measurement import keep_measurement, load_measurement

    port = guest_work(site.vcenter)
    stored = load_measurement(site.state_dir, site.vcenter.uuid)
    if stored is not None and stored.wish != wish:
        raise Refused(
            f"measurement {stored.id} of {stored.wish.template} did not end, and has other options",
            hint="to remove its VMs and forget it, run gpuops measure --remove",
        )
    measurement = stored or SharingMeasurement(secrets.token_hex(_ID), wish, before=before)

    def look_again(_: object) -> SharingMeasured:
        _require_unchanged(stored, site)
        return SharingMeasured(_plan_on_new_snapshot(measurement, site), measurement, applied=False)

    def measure_counts(planned: SharingMeasured, _: object) -> SharingMeasured:
        keep_measurement(site.state_dir, site.vcenter.uuid, measurement)
        run = MeasuringCall(planned.plan, measurement, site, port)
        try:
            run.counts()
        except (NotConnected, KeyboardInterrupt, SystemExit):
            site.say(
                f"measurement {measurement.id} was interrupted, and its VMs stay: run the same command again to "
                "continue, or gpuops measure --remove to remove them"
            )
            raise
        except GpuopsError:
            run.remove()
            raise
        remaining = run.remove()
        _forget_if_done(run.measurement, planned.plan, remaining, site)
        return SharingMeasured(planned.plan, run.measurement, applied=True, left=remaining)

    planned = SharingMeasured(_plan_on_new_snapshot(measurement, site), measurement, applied=False)
    lock = partial(_lock_measurements, site)
    return apply_agreed(planned, consent, measure_counts, apply=apply, lock=lock, look_again=look_again)


@dataclass(frozen=True, slots=True)
class MeasurementLeft:
    """An unfinished measurement, and the outcome for its VMs."""

    measurement: SharingMeasurement | None
    """None = no measurement is unfinished."""
    vms: tuple[str, ...] = ()
    """Names of its VMs before the removal."""
    left: tuple[str, ...] = ()
    """VMs that could not be removed, and one that vCenter may still be cloning, each with its reason."""
    undone: str = ""
    """That the GPU has another scheduler than before the measurement, and the command that sets it back."""
    applied: bool = False

    @property
    def deeds(self) -> SharingMeasurement | None:
        return self.measurement


def remove_measurement(
    site: Site, *, apply: bool, consent: Callable[[MeasurementLeft], None] = agreed
) -> MeasurementLeft:
    """Return the unfinished measurement; with `apply` remove its VMs, and forget it if no VM remains."""
    from gpuops.execute.site.guest_work import guest_work
    from gpuops.execute.site.kept_measurement import forget_measurement, load_measurement
    from gpuops.extras.sizing.measured_schedulers import why_not_as_before

    guest_work(site.vcenter)  # refuses a saved inventory
    stored = load_measurement(site.state_dir, site.vcenter.uuid)
    if stored is None:
        return MeasurementLeft(None)
    names = tuple(sorted(vm.name for vm in own_vms(stored, site.vcenter.inventory())))
    undone = why_not_as_before(stored.before, site) if stored.before is not None else ""
    planned = MeasurementLeft(stored, names, undone=undone)

    def look_again(_: object) -> MeasurementLeft:
        _require_unchanged(stored, site)
        return planned

    def remove(planned: MeasurementLeft, _: object) -> MeasurementLeft:
        remaining = (*remove_vms(stored, site), *_clone_in_progress(stored, site))
        if not remaining:
            forget_measurement(site.state_dir, site.vcenter.uuid)
        return replace(planned, left=remaining, applied=True)

    return apply_agreed(
        planned, consent, remove, apply=apply, lock=partial(_lock_measurements, site), look_again=look_again
    )


def _forget_if_done(measurement: SharingMeasurement, plan: MeasurePlan, remaining: Sequence[str], site: Site) -> None:
    """Forget a complete measurement, so that the next call starts a new one; keep one with failed counts."""
    from gpuops.execute.site.kept_measurement import forget_measurement

    waits = plan.later or measurement.before is not None
    if not waits and not remaining and not any(count.error for count in measurement.done):
        forget_measurement(site.state_dir, site.vcenter.uuid)


def _lock_measurements(site: Site) -> AbstractContextManager[LockHold]:
    """Lock measurements in this vCenter on this machine. Raises Locked."""
    from gpuops.execute.state.lock import locked

    return locked(site.state_dir, f"{site.vcenter.uuid}-measure", site.clock(), alone=True, doing="measure")


def _require_unchanged(stored: SharingMeasurement | None, site: Site) -> None:
    """Raise Refused if another call has changed the stored measurement since `stored` was read.

    Overwriting it would leave VMs that no measurement names.
    """
    from gpuops.execute.site.kept_measurement import load_measurement

    if load_measurement(site.state_dir, site.vcenter.uuid) != stored:
        raise Refused("another call has changed this measurement meanwhile", hint="run the same command again")


def _plan_on_new_snapshot(measurement: SharingMeasurement, site: Site) -> MeasurePlan:
    """Return the plan on a new snapshot, with all reasons to refuse it."""
    from gpuops.execute.site import catalog_of
    from gpuops.plan.core.privileges import privilege_rejection, too_old
    from gpuops.plan.core.rejection import Rejection
    from gpuops.plan.core.steps import RunInGuest

    inventory = site.vcenter.inventory()
    template = inventory.find_vm(measurement.wish.template)
    if template.devices is None:
        inventory = site.vcenter.observe(inventory, [template.ref])
    catalog = catalog_of(inventory)
    # this plan only selects the GPU whose scheduler the final plan needs
    first = measure_plan(measurement, inventory, catalog, None)
    in_force = _in_force(first, inventory, site)
    plan = measure_plan(measurement, inventory, catalog, in_force)
    reasons = list(too_old(inventory))
    lacking = site.vcenter.lacking({template.ref: PRIVILEGES}).get(template.ref)
    if lacking:
        reasons.append(privilege_rejection(template.name, lacking))
    # any command: only the login of the guest is checked
    no_login = site.vcenter.no_way_in(RunInGuest(template.ref, "/bin/sh"))
    if no_login is not None:
        hint = "set GPUOPS_GUEST_USERNAME and GPUOPS_GUEST_PASSWORD_FILE"
        reasons.append(Rejection(template.name, no_login, hint=hint))
    return replace(plan, rejections=(*plan.rejections, *reasons))


def _in_force(plan: MeasurePlan, inventory: Inventory, site: Site) -> SchedulerPolicy | None:
    """Return the scheduler of the measured GPU; None if it is not known."""
    from gpuops.execute.site import catalog_of
    from gpuops.model.devices.scheduler import VgpuScheduler
    from gpuops.plan.hosts.scheduler.scheduler_state import scheduler_of

    if plan.host is None or plan.gpu is None:
        return None
    read = site.hosts.with_settings(inventory, [plan.host.ref])
    schedulers = scheduler_of(read.hosts[plan.host.ref], catalog_of(read))
    effective = next((gpu.effective for gpu in schedulers.gpus if gpu.gpu.address == plan.gpu.address), None)
    return effective.policy if isinstance(effective, VgpuScheduler) else None


def _clone_in_progress(measurement: SharingMeasurement, site: Site) -> tuple[str, ...]:
    """Return a reason if vCenter still clones the template: the clone may be of an interrupted call."""
    try:
        template = site.vcenter.inventory().find_vm(measurement.wish.template)
    except VmNotFound:
        return ()
    cloned = any("clone" in task.name.lower() for task in template.tasks)
    return (
        (f"{template.name}: vCenter is still cloning it: run gpuops measure --remove again when the clone is complete",)
        if cloned
        else ()
    )
