"""Measure one count of VMs after another: create the VMs, run a command in them, remove them.

Only VMs with the name and the notes of the measurement are removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuops.errors import GpuopsError, NotConnected, Refused, StepFailed, VmNotFound
from gpuops.extras.sizing.measure_plan import MeasurePlan, WholeGpu, begins_s, gpu_of, others_on
from gpuops.model.measurements.measurement import GPU_USE
from gpuops.model.measurements.sharing_measurement import MeasuredCount, MeasuredDevice, SharingMeasurement

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.execute.site.kept_measurement import MeasuringPort
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
    port: MeasuringPort

    def counts(self) -> None:
        """Measure the counts that are due: whole GPUs first, then the fewest VMs first, up to the first failure."""
        scheduler = self.plan.in_force
        if scheduler is None:
            return
        for whole in self.plan.whole:
            self._remove_all()  # existing VMs have another device
            self._measure_and_keep(scheduler, 1, whole)
        if self.measurement.wish.whole:
            self._remove_all()
        for sharers in self.plan.now:
            if self._measure_and_keep(scheduler, sharers).error:
                return

    def _measure_and_keep(
        self, scheduler: SchedulerPolicy, sharers: int, whole: WholeGpu | None = None
    ) -> MeasuredCount:
        """Measure a count, store it on disk and return it."""
        from gpuops.execute.site.kept_measurement import keep_measurement

        try:
            count = self._count(scheduler, sharers, whole)
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
            raise StepFailed(f"measurement {self.measurement.id}: {remaining_vms[0]}")

    def remove(self) -> tuple[str, ...]:
        return remove_vms(self.measurement, self.site)

    def _count(self, scheduler: SchedulerPolicy, sharers: int, whole: WholeGpu | None) -> MeasuredCount:
        """Run this number of VMs on the GPU, and return how long they took. Raises the first error."""
        from gpuops.execute.site.kept_measurement import keep_measurement

        gpu = self.plan.gpu
        assert gpu is not None, "a plan without a GPU is refused"
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
        if whole is not None and whole.address is not None:  # its GPU is its own
            return self._run_commands(scheduler, refs, self.site.vcenter.inventory())
        before = self._require_alone(refs, gpu)
        count = self._run_commands(scheduler, refs, before)
        after = self._require_alone(refs, gpu)
        return replace(count, gpu_use=self._gpu_use(gpu, before, after))

    def _gpu_use(self, gpu: PhysicalGpu, before: Inventory, after: Inventory) -> float | None:
        """Return the mean of the host's samples of 20 s between two snapshots; None if it has no sample yet."""
        from gpuops.advise.gpu_counters import gpus_of_instances

        host = self.plan.host
        if host is None:
            return None
        first_s, span = before.taken_at.timestamp() + _SAMPLE_S, (before.taken_at, after.taken_at)
        use_samples: list[int] = []
        for batch in self.site.vcenter.samples("HostSystem", [host.ref], (GPU_USE,), _SAMPLE_S, span, lambda: None):
            for samples in batch:
                series = {name.partition("@")[2]: readings for name, readings in samples.values.items() if "@" in name}
                addresses = gpus_of_instances(series, host)
                for instance, readings in series.items():
                    if addresses.get(instance) == gpu.address:
                        use_samples += readings[(samples.ends >= first_s) & (readings >= 0)].tolist()
        return sum(use_samples) / len(use_samples) / 10_000 if use_samples else None  # hundredths of a percent

    def _require_alone(self, refs: Sequence[str], gpu: PhysicalGpu) -> Inventory:
        """Return the inventory. Raises StepFailed unless exactly these VMs are on the GPU."""
        inventory = self.site.vcenter.inventory()
        shared = gpu_of(self.measurement, inventory)
        if shared is None or shared.address != gpu.address:
            raise StepFailed(f"its VMs are not all on GPU {gpu.address}, to which they are bound: nothing was measured")
        other_vms = others_on(shared, refs, inventory)
        if other_vms:
            raise StepFailed(
                f"{', '.join(other_vms)} shared GPU {gpu.address} with its VMs: what they took says nothing"
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
        from gpuops.execute.steps.vm_runs import CREATION_S, creation_error, request_vms, settle_steps, settled_run
        from gpuops.plan.vm.clone import Clone

        wish, name = self.measurement.wish, self.measurement.name(number)
        before = self.site.vcenter.inventory()
        with suppress(VmNotFound):
            return self._find_own(name, before)
        set_back = self.measurement.before
        host = wish.host if set_back is None else set_back.host
        planned = Clone(name, wish.template, host).planned(before, None)
        if planned.new is None:
            raise Refused("; ".join(rejection.line for rejection in planned.rejections))
        step = replace(planned.new, notes=self.measurement.marker, settings=settings)
        with self.site.unlocked_journal() as journal, settled_run(MEASURE, before, journal, self.site) as run:
            ended, after = request_vms([step], before, journal, run, self.site)
            outcomes, after = settle_steps(after, journal, run, self.site, timeout_s=CREATION_S)
        try:
            return self._find_own(name, after)
        except VmNotFound:
            raise creation_error(name, (ended | outcomes).get(step.vm)) from None

    def _find_own(self, name: str, inventory: Inventory) -> str:
        """Return the id of the measurement's VM of that name. Raises VmNotFound, Refused for a VM without its notes."""
        vm = inventory.find_vm(name)
        self.port.require_made(vm.ref, vm.name, self.measurement.marker)
        return vm.ref

    def _run_commands(self, scheduler: SchedulerPolicy, refs: Sequence[str], inventory: Inventory) -> MeasuredCount:
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
        for _ in range(ROUNDS):
            steps = [next_removal_step(vm, measurement.marker) for vm in own_vms(measurement, inventory)]
            outcomes = execute_steps(steps, inventory, journal, run, site)
            failures.update((ref, step_failure(outcome)) for ref, outcome in outcomes.items())
            inventory = site.vcenter.inventory()
    remaining_vms = own_vms(measurement, inventory)
    return tuple(f"{vm.name}: {failures.get(vm.ref) or 'it is still there'}" for vm in remaining_vms)
