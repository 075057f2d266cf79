"""The function that measures how VMs share a GPU: makes them of a template, runs a command in them, removes them.

What is measured is kept after each count, and what is to be made before it is made. A call that was cut off, or that
waits for another scheduler, is gone on with by the same call: VMs that are there already are used, those that are not
are made, and at the end all are removed. Nothing but VMs with the name and the notes of this measurement is removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, PartlyDone, Refused, StepFailed, VmNotFound
from gpuops.model.sharing_measurement import MeasuredCount, MeasureWish, SharingMeasurement
from gpuops.plan.capacity.measure import PRIVILEGES, MeasurePlan, begins_s, gpu_of, measure_plan, others_on

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.execute.site.kept_measurement import MeasuringPort
    from gpuops.execute.state.lock import LockHold
    from gpuops.model.gpu import PhysicalGpu
    from gpuops.model.inventory import Inventory
    from gpuops.model.scheduler import SchedulerPolicy
    from gpuops.model.vm import Vm

BOOT_S: Final = 900.0
"""Until VMware Tools run in a new VM."""
TASK_S: Final = 600.0
_ID: Final = 4
"""Bytes."""

PlanConsent = Callable[[MeasurePlan], None]
"""Told of the plan just before anything is made; what it raises ends the call with nothing changed."""


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """What a call came to."""

    plan: MeasurePlan
    measurement: SharingMeasurement
    applied: bool
    left: tuple[str, ...] = ()
    """Names of its VMs that could not be removed, each with its reason."""

    @property
    def exit_code(self) -> int:
        """3 = nothing was begun, 4 = counts failed, wait for another scheduler, or VMs are left."""
        if self.plan.rejections:
            return 3
        failed = any(each.error for each in self.measurement.done)
        return 4 if self.applied and (failed or self.plan.later or self.left) else 0


def measure(wish: MeasureWish, site: Site, *, apply: bool, consent: PlanConsent) -> SharingMeasured:
    """What was measured so far, and with `apply` what this call added to it. All that is made is removed again.

    Raises UsageError for options or names that mean nothing, or while another measurement of this vCenter waits to go
    on, Locked while one runs, NotConnected; then the next call goes on.
    """
    from gpuops.execute.site.kept_measurement import keep_measurement, load_measurement, measuring_port

    port = measuring_port(site.vcenter)
    known = load_measurement(site.state_dir, site.vcenter.uuid)
    if known is not None and known.wish != wish:
        raise Refused(
            f"measurement {known.id} of {known.wish.template} did not end, and has other options",
            hint="gpuops size --measure --remove removes its VMs and forgets it",
        )
    measurement = known or SharingMeasurement(secrets.token_hex(_ID), wish)
    plan = _look(measurement, site)
    if plan.rejections or not apply:
        return SharingMeasured(plan, measurement, applied=False)
    consent(plan)
    with _alone(site):
        _unchanged(known, site)
        keep_measurement(site.state_dir, site.vcenter.uuid, measurement)
        run = _MeasuringCall(plan, measurement, site, port)
        try:
            run.counts()
        except (NotConnected, KeyboardInterrupt, SystemExit):
            site.say(
                f"measurement {measurement.id} was cut off, and its VMs stay: the same again goes on, "
                "gpuops size --measure --remove removes them"
            )
            raise
        except GpuopsError:
            run.remove()
            raise
        left = run.remove()
        _forget_if_done(run.measurement, plan, left, site)
    return SharingMeasured(plan, run.measurement, applied=True, left=left)


@dataclass(frozen=True, slots=True)
class MeasurementLeft:
    """A measurement that did not end, and what became of its VMs."""

    measurement: SharingMeasurement | None
    """None = there is none."""
    vms: tuple[str, ...] = ()
    """Names of those that were there."""
    left: tuple[str, ...] = ()
    """Of them those that could not be removed, and one that vCenter may still be making, each with its reason."""
    applied: bool = False


def remove_measurement(site: Site, *, apply: bool) -> MeasurementLeft:
    """The measurement that did not end; with `apply` its VMs are removed, and it is forgotten where none is left."""
    from gpuops.execute.site.kept_measurement import forget_measurement, load_measurement, measuring_port

    port = measuring_port(site.vcenter)
    known = load_measurement(site.state_dir, site.vcenter.uuid)
    if known is None:
        return MeasurementLeft(None)
    names = tuple(sorted(vm.name for vm in _own(known, site.vcenter.inventory())))
    if not apply:
        return MeasurementLeft(known, names)
    with _alone(site):
        _unchanged(known, site)
        left = (*_removed(known, site, port), *_coming(known, site))
        if not left:
            forget_measurement(site.state_dir, site.vcenter.uuid)
    return MeasurementLeft(known, names, left, applied=True)


def _forget_if_done(measurement: SharingMeasurement, plan: MeasurePlan, left: Sequence[str], site: Site) -> None:
    """What is measured whole is told once; with counts that failed the next call begins anew as well."""
    from gpuops.execute.site.kept_measurement import forget_measurement

    if not plan.later and not left and not any(each.error for each in measurement.done):
        forget_measurement(site.state_dir, site.vcenter.uuid)


def _alone(site: Site) -> AbstractContextManager[LockHold]:
    """While this lasts no other call of this machine measures in that vCenter. Raises Locked."""
    from gpuops.execute.state.lock import locked

    return locked(site.state_dir, f"{site.vcenter.uuid}-measure", site.clock(), alone=True, doing="size --measure")


def _unchanged(known: SharingMeasurement | None, site: Site) -> None:
    """Raises Refused where another call has begun, gone on with or ended a measurement since `known` was read: to write
    over what it has kept would leave its VMs to nobody."""
    from gpuops.execute.site.kept_measurement import load_measurement

    if load_measurement(site.state_dir, site.vcenter.uuid) != known:
        raise Refused("another call has measured in this vCenter meanwhile", hint="the same again looks at it anew")


def _look(measurement: SharingMeasurement, site: Site) -> MeasurePlan:
    from gpuops.execute.site import catalog_of
    from gpuops.plan.core.plan import Rejection
    from gpuops.plan.core.privileges import too_old
    from gpuops.plan.core.steps import RunInGuest

    inventory = site.vcenter.inventory()
    template = inventory.find_vm(measurement.wish.template)
    if template.devices is None:
        inventory = site.vcenter.observe(inventory, [template.ref])
    catalog = catalog_of(inventory)
    first = measure_plan(measurement, inventory, catalog, None)
    in_force = _in_force(first, inventory, site)
    plan = measure_plan(measurement, inventory, catalog, in_force)
    reasons = list(too_old(inventory))
    lacking = site.vcenter.lacking({template.ref: PRIVILEGES}).get(template.ref)
    if lacking:
        missing = ", ".join(sorted(lacking))
        reasons.append(Rejection(template.name, f"this login lacks {missing}", hint="ask for a role with it"))
    no_login = site.vcenter.no_way_in(RunInGuest(template.ref, "/bin/sh"))
    if no_login is not None:
        hint = "set GPUOPS_GUEST_USERNAME and GPUOPS_GUEST_PASSWORD_FILE"
        reasons.append(Rejection(template.name, no_login, hint=hint))
    return replace(plan, rejections=(*plan.rejections, *reasons))


def _in_force(plan: MeasurePlan, inventory: Inventory, site: Site) -> SchedulerPolicy | None:
    """The scheduler of the GPU that is measured; None = it is not known."""
    from gpuops.execute.site import catalog_of
    from gpuops.model.scheduler import VgpuScheduler
    from gpuops.plan.hosts.scheduler.state import scheduler_of

    if plan.host is None or plan.gpu is None:
        return None
    read = site.hosts.with_settings(inventory, [plan.host.ref])
    told = scheduler_of(read.hosts[plan.host.ref], catalog_of(read))
    found = next((each.effective for each in told.gpus if each.gpu.address == plan.gpu.address), None)
    return found.policy if isinstance(found, VgpuScheduler) else None


def _own(measurement: SharingMeasurement, inventory: Inventory) -> list[Vm]:
    return [vm for vm in inventory.vms.values() if measurement.owns(vm.name)]


@dataclass(slots=True)
class _MeasuringCall:
    """One call on its way; `measurement` is what was measured so far."""

    plan: MeasurePlan
    measurement: SharingMeasurement
    site: Site
    port: MeasuringPort

    def counts(self) -> None:
        """Measures what is due now, the fewest VMs first. A count that fails is told, and larger ones are not tried."""
        from gpuops.execute.site.kept_measurement import keep_measurement

        scheduler = self.plan.in_force
        if scheduler is None:
            return
        for sharers in self.plan.now:
            try:
                found = self._count(scheduler, sharers)
            except NotConnected:
                raise
            except GpuopsError as error:
                found = MeasuredCount(scheduler, sharers, error=error.message)
            self.measurement = self.measurement.with_count(found)
            keep_measurement(self.site.state_dir, self.site.vcenter.uuid, self.measurement)
            if found.error:
                return

    def remove(self) -> tuple[str, ...]:
        return _removed(self.measurement, self.site, self.port)

    def _count(self, scheduler: SchedulerPolicy, sharers: int) -> MeasuredCount:
        """So many VMs on the GPU, and what they took. Raises the error of whatever went wrong."""
        from gpuops.execute.site.kept_measurement import keep_measurement

        gpu = self.plan.gpu
        assert gpu is not None, "a plan without a GPU is refused"
        if sharers > self.measurement.made:  # on disk before the first is asked for
            self.measurement = replace(self.measurement, made=sharers)
            keep_measurement(self.site.state_dir, self.site.vcenter.uuid, self.measurement)
        self.site.say(f"{scheduler}, {sharers} of {max(self.measurement.wish.counts)} VMs on GPU {gpu.address}")
        refs = [self._running(number, gpu) for number in range(1, sharers + 1)]
        for ref in refs:
            if not self.site.vcenter.wait_for_guest(ref, BOOT_S, address=False).tools_running:
                name = self.site.vcenter.inventory().vm(ref).name
                raise StepFailed(f"{name}: VMware Tools did not run within {BOOT_S:.0f} s of its start")
        seen = self._alone_there(refs, gpu)
        found = self._measured(scheduler, refs, seen)
        self._alone_there(refs, gpu)
        return found

    def _alone_there(self, refs: Sequence[str], gpu: PhysicalGpu) -> Inventory:
        """The inventory, in which these VMs, and nobody else, are on the GPU. Raises StepFailed otherwise."""
        seen = self.site.vcenter.inventory()
        shared = gpu_of(self.measurement, seen)
        if shared is None or shared.address != gpu.address:
            raise StepFailed(f"its VMs are not all on GPU {gpu.address}, to which they are bound: nothing was measured")
        others = others_on(shared, refs, seen)
        if others:
            raise StepFailed(f"{', '.join(others)} shared GPU {gpu.address} with its VMs: what they took says nothing")
        return seen

    def _running(self, number: int, gpu: PhysicalGpu) -> str:
        """The VM of that number, made if it is not there, with its vGPU and powered on; its id."""
        from gpuops.api.vms import run
        from gpuops.plan.core.outcome import Verdict
        from gpuops.plan.vm.attach import Attach
        from gpuops.plan.vm.power import PowerPolicy

        vm = self._made(number, gpu)
        report = run(Attach(f"moid:{vm}", profile=self.plan.profile, power=PowerPolicy.ON), self.site, apply=True)
        if not report.plan.feasible:
            raise Refused("; ".join(each.line for each in report.plan.rejections))
        failed = next((each for each in report.outcomes if each.verdict is not Verdict.DONE), None)
        if failed is not None:
            raise StepFailed(f"{self.measurement.name(number)}: {failed.reason or failed.verdict}")
        return vm

    def _made(self, number: int, gpu: PhysicalGpu) -> str:
        from gpuops.execute.cloning import make
        from gpuops.plan.placement.wanted import pin_key
        from gpuops.plan.vm.clone import Clone

        wish, name = self.measurement.wish, self.measurement.name(number)
        before = self.site.vcenter.inventory()
        with suppress(VmNotFound):
            return self._there(name, before)
        planned = Clone(name, wish.template, wish.host).planned(before, None)
        if planned.new is None:
            raise Refused("; ".join(each.line for each in planned.rejections))
        bound = {pin_key(0): str(gpu.address)}
        try:
            make(replace(planned.new, notes=self.measurement.marker, settings=bound), self.site)
        except StepFailed:
            # one that was under way when the last call was cut off may have come in between
            with suppress(VmNotFound):
                return self._there(name, self.site.vcenter.inventory())
            raise
        try:
            return self._there(name, self.site.vcenter.inventory())
        except VmNotFound:
            raise OutcomeUnknown(f"{name}: vCenter does not show it", hint="the same again goes on") from None

    def _there(self, name: str, inventory: Inventory) -> str:
        """The id of its VM of that name. Raises VmNotFound, Refused for one that only has the name."""
        vm = inventory.find_vm(name)
        self.port.require_made(vm.ref, vm.name, self.measurement.marker)
        return vm.ref

    def _measured(self, scheduler: SchedulerPolicy, refs: Sequence[str], seen: Inventory) -> MeasuredCount:
        wish = self.measurement.wish
        alone = self.measurement.measured(scheduler, 1)
        alone_s = sum(alone.times_s) / len(alone.times_s) if alone is not None else 0.0
        began_s, started = self.site.passed_s(), []
        for number, ref in enumerate(refs):
            self.site.pause(max(0.0, began_s + begins_s(number, wish.overlap, alone_s) - self.site.passed_s()))
            op_id = f"gpuops-measure-{secrets.token_hex(8)}"
            started.append(self.port.start_command(ref, seen.vm(ref).name, wish.command, op_id))
        apart_s = self.site.passed_s() - began_s
        ends = {end.name: end for end in self.port.wait_for_commands(started, float(wish.limit_s))}
        failed = next((end for end in ends.values() if end.error), None)
        if failed is not None:
            raise StepFailed(f"{failed.name}: {failed.error}{_last_line(failed.printed)}")
        times = tuple(ends[each.name].took_s or 0.0 for each in started)
        return MeasuredCount(scheduler, len(refs), times, apart_s if wish.overlap == 1.0 else 0.0)


def _last_line(printed: str) -> str:
    lines = printed.strip().splitlines()
    return f": {lines[-1][:200]}" if lines else ""


def _removed(measurement: SharingMeasurement, site: Site, port: MeasuringPort) -> tuple[str, ...]:
    """Powers its VMs off and removes them; those that are left, each with its reason. Raises NotConnected."""
    left: dict[str, str] = {}
    for _ in range(2):  # off, then gone
        tasks = []
        for vm in _own(measurement, site.vcenter.inventory()):
            left[vm.ref] = ""
            op_id = f"gpuops-measure-{secrets.token_hex(8)}"
            try:
                task = port.remove_vm(vm.ref, vm.name, measurement.marker, op_id)
            except NotConnected:
                raise
            except (PartlyDone, Refused) as error:
                left[vm.ref] = error.message
                continue
            if task is not None:
                tasks.append(task)
        for end in site.vcenter.wait(tasks, TASK_S):
            if end.error is not None:
                site.say(f"measurement {measurement.id}: {end.error.message}")
    still = _own(measurement, site.vcenter.inventory())
    return tuple(f"{vm.name}: {left.get(vm.ref) or 'it is still there'}" for vm in still)


def _coming(measurement: SharingMeasurement, site: Site) -> tuple[str, ...]:
    """The template while vCenter clones it: a call may have asked for the VM that comes before it was cut off."""
    try:
        template = site.vcenter.inventory().find_vm(measurement.wish.template)
    except VmNotFound:
        return ()
    cloned = any("clone" in task.name.lower() for task in template.tasks)
    return (f"{template.name}: vCenter is still making a VM of it; the same again when that is done",) if cloned else ()
