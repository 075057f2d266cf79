"""Plans `gpuops measure` (GPU, VMs, command, or all reasons to refuse), and fits the model to its results. Pure.

All VMs are bound to one GPU without running VMs, so that they share it only with each other, whatever the host's
assignment policy is; the binding is part of the clone. gpuops does not change the scheduler itself: that would take
the host out of service. An admin sets it (`gpuops host scheduler set`), and the next call measures with it.

The fit looks for the busy share that explains the measured times best. It tries all shares from 0 to 1 in steps of a
thousandth and takes the one with the least squared errors of the logarithms, over all counts and schedulers together.
Each time is divided by that of one VM under the same scheduler, as in the model. Fixed share therefore shows nothing:
under it no VM notices the others.

    best effort, 2 VMs took 1.33 times as long: a busy share of 0.5, for which the model says 1.333
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuops.advise.capacity import free_slots
from gpuops.advise.occupancy import gpu_states
from gpuops.errors import UsageError
from gpuops.extras.sizing.sharing import staggered_slowdowns
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.devices.vgpu import VgpuProfile
from gpuops.model.measurements.sharing_measurement import (
    MeasuredCount,
    MeasuredDevice,
    MeasureWish,
    SchedulerBefore,
    SharingMeasurement,
)
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.devices.goal import profile_meant
from gpuops.plan.placement.gpu_filters import holders, judge_device
from gpuops.plan.placement.host_filters import unreachable
from gpuops.plan.placement.vm_demand import WantsDirectPath

PRIVILEGES: Final = (
    "VirtualMachine.Provisioning.DeployTemplate",
    "VirtualMachine.Config.AddRemoveDevice",
    "VirtualMachine.Config.AdvancedConfig",
    "VirtualMachine.Interact.PowerOn",
    "VirtualMachine.Interact.PowerOff",
    "VirtualMachine.Inventory.Delete",
    "VirtualMachine.GuestOperations.Execute",
    "VirtualMachine.GuestOperations.Modify",
    "VirtualMachine.GuestOperations.Query",
)
"""Checked on the template, because its clones do not exist yet (vSphere API reference, privileges of methods)."""
MOST: Final = 64
"""More vGPUs than a GPU holds."""


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A whole GPU for one VM, to be measured beside those that share one."""

    device: MeasuredDevice
    profile: str = ""
    """The profile of a vGPU that has the whole GPU."""
    address: PciAddress | None = None
    """The address of a GPU in DirectPath I/O."""

    def __str__(self) -> str:
        return self.profile if self.address is None else f"DirectPath I/O, GPU {self.address}"


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """The work of this call, and the work that waits for another scheduler on the host."""

    measurement: SharingMeasurement
    profile: str
    slots: int
    """How many vGPUs of the profile a GPU holds."""
    template: Vm | None = None
    host: Host | None = None
    gpu: PhysicalGpu | None = None
    in_force: SchedulerPolicy | None = None
    """The scheduler of that GPU; None = it is not known."""
    now: tuple[int, ...] = ()
    """Counts that are measured now, ascending."""
    later: tuple[SchedulerPolicy, ...] = ()
    whole: tuple[WholeGpu, ...] = ()
    """Whole GPUs, which are measured first, with one VM each."""
    notes: tuple[str, ...] = ()
    rejections: tuple[Rejection, ...] = ()


def measure_plan(
    measurement: SharingMeasurement, inventory: Inventory, catalog: Catalog, in_force: SchedulerPolicy | None
) -> MeasurePlan:
    """Return the plan for the rest of the measurement on this snapshot.

    `in_force`: the scheduler of the measured GPU; None = it is not known, or not read yet. Raises UsageError for
    invalid options or names.
    """
    wish = measurement.wish
    _check(wish)
    template = inventory.find_vm(wish.template)
    scheduler_before = measurement.before
    host = inventory.find_host(wish.host) if wish.host is not None else inventory.host_of(template)
    if scheduler_before is not None:  # the scheduler was set on this host; the template may be on another one by now
        host = inventory.hosts.get(scheduler_before.host)
    name = profile_meant(wish.profile, template, host, inventory, catalog)
    profile = catalog.profile(name)
    if profile is None:
        raise UsageError(f"{name} is not in the catalogue", hint="gpuops inventory --profiles lists what is offered")
    if profile.mig_backed:
        raise UsageError(
            f"{name} is MIG-backed: each vGPU has its own part of the GPU, so they share no time",
            hint=f"gpuops capacity --profile {name} shows how many fit",
        )
    # without --schedulers only the one in force is measured
    schedulers = wish.schedulers or ((in_force,) if in_force is not None else ())
    counts_now = tuple(
        count
        for count in wish.counts
        if in_force in schedulers and in_force and not measurement.measured_count(in_force, count)
    )
    later_schedulers = tuple(
        scheduler
        for scheduler in schedulers
        if scheduler is not in_force
        and any(measurement.measured_count(scheduler, sharers) is None for sharers in wish.counts)
    )
    own_vms = {vm.ref for vm in inventory.vms.values() if measurement.owns(vm.name)}
    required_gpu = scheduler_before.gpu if scheduler_before is not None else None
    gpu = _gpu(host, name, wish, own_vms, required_gpu, inventory, catalog) if host is not None else None
    whole, notes = (
        _plan_whole_gpus(measurement, profile, template, own_vms, host, inventory, catalog) if wish.whole else ((), ())
    )
    # a complete measurement uses no GPU, so nothing can refuse it
    is_complete = bool(schedulers) and not counts_now and not later_schedulers and not whole
    reasons = (
        ()
        if is_complete
        else tuple(_refusals(template, host, gpu, name, profile.max_per_gpu, wish, in_force, scheduler_before))
    )
    slots = profile.max_per_gpu
    return MeasurePlan(
        measurement,
        name,
        slots,
        template,
        host,
        gpu,
        in_force,
        counts_now,
        later_schedulers,
        whole,
        notes,
        rejections=reasons,
    )


def gpu_of(measurement: SharingMeasurement, inventory: Inventory) -> PhysicalGpu | None:
    """Return the GPU that its VMs are on now; None = they are on none, or on several."""
    own_vms = {vm.ref for vm in inventory.vms.values() if measurement.owns(vm.name)}
    gpus = [gpu for host in inventory.hosts.values() for gpu in host.gpus if own_vms & set(gpu.vms or ())]
    return gpus[0] if len(gpus) == 1 else None


def others_on(gpu: PhysicalGpu, refs: Sequence[str], inventory: Inventory) -> tuple[str, ...]:
    """Names of the VMs that share it beside these: an idle vGPU has its part of the time too, unless it is shared by
    best effort."""
    other_vms = sorted({ref for ref in gpu.vms or () if ref not in refs})
    return tuple(inventory.vms[ref].name if ref in inventory.vms else ref for ref in other_vms)


def begins_s(number: int, overlap: float, alone_s: float) -> float:
    """Return how long after the first VM (number 0) the VM of that number begins, in seconds.

    `overlap`: the share of its work that each VM does next to the following one.
    """
    return number * (1.0 - overlap) * alone_s


def _check(wish: MeasureWish) -> None:
    if not wish.command.strip():
        raise UsageError("--guest-command is empty", hint="give a shell command: --guest-command 'python3 a.py'")
    wrong = next((count for count in wish.counts if not 1 <= count <= MOST), None)
    if wrong is not None:
        raise UsageError(
            f"--counts {wrong}: a GPU cannot be shared by that many VMs", hint=f"choose 1 to {MOST}: --counts 1,2,4,8"
        )
    if wish.limit_s < 1:
        raise UsageError(
            f"--timeout {wish.limit_s} is not a number of seconds above 0",
            hint="set the time limit of the command: --timeout 3600",
        )


def _gpu(
    host: Host,
    profile: str,
    wish: MeasureWish,
    own_vms: set[str],
    only: PciAddress | None,
    inventory: Inventory,
    catalog: Catalog,
) -> PhysicalGpu | None:
    """Return the first GPU of the host that runs no other VMs and has room for all VMs of the measurement, or None.

    `only`: consider only the GPU with this address.
    """
    for state in gpu_states(host, inventory, catalog):
        if only is not None and state.gpu.address != only:
            continue
        other_tenants = [tenant for tenant in state.tenants if tenant.vm not in own_vms]
        if state.unclear or other_tenants:  # unclear: other VMs may run on it
            continue
        if free_slots(state.gpu, (), profile, catalog).at_least >= max(wish.counts):
            return state.gpu
    return None


def _plan_whole_gpus(
    measurement: SharingMeasurement,
    profile: VgpuProfile,
    template: Vm,
    own_vms: set[str],
    host: Host | None,
    inventory: Inventory,
    catalog: Catalog,
) -> tuple[tuple[WholeGpu, ...], tuple[str, ...]]:
    """Return the whole GPUs that are still to be measured for comparison, and a note for each that cannot be.

    These are one GPU in DirectPath I/O, and a vGPU that has a GPU to itself, both of the measured GPU model.
    """
    board = catalog.board(profile.board)
    if host is None or board is None:
        return (), ()
    whole_gpus, notes = [], []
    if measurement.measured_whole(MeasuredDevice.DIRECT_PATH) is None:
        # the GPUs that VMs of this measurement already have; others must be free ("" = nothing is against it)
        own_devices = {at for at, ref in holders(host, inventory).items() if ref in own_vms}
        same_model_gpus = [
            gpu for gpu in host.gpus if catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id) is board
        ]
        free = [
            gpu
            for gpu in same_model_gpus
            if gpu.passed_through
            and (
                gpu.address in own_devices
                or judge_device(WantsDirectPath(0, gpu.address), template, host, inventory) == ""
            )
        ]
        if free:
            whole_gpus.append(WholeGpu(MeasuredDevice.DIRECT_PATH, address=free[0].address))
        else:
            notes.append(f"{host.name} has no free {board.name} in DirectPath I/O: that is not measured")
    if profile.max_per_gpu > 1 and measurement.measured_whole(MeasuredDevice.WHOLE_VGPU) is None:
        whole_profiles = (
            vgpu_profile
            for vgpu_profile in board.profiles
            if vgpu_profile.max_per_gpu == 1 and not vgpu_profile.mig_backed
        )
        whole_profile = next(
            (vgpu_profile for vgpu_profile in whole_profiles if vgpu_profile.series is profile.series), None
        )
        if whole_profile is not None:
            whole_gpus.append(WholeGpu(MeasuredDevice.WHOLE_VGPU, profile=whole_profile.name))
        else:
            notes.append(f"{board.name} has no vGPU of this series with a whole GPU: that is not measured")
    return tuple(whole_gpus), tuple(notes)


def _refusals(
    template: Vm,
    host: Host | None,
    gpu: PhysicalGpu | None,
    profile: str,
    slots: int,
    wish: MeasureWish,
    in_force: SchedulerPolicy | None,
    before: SchedulerBefore | None,
) -> Iterator[Rejection]:
    if not template.template:
        yield Rejection(
            template.name, "is not a template", hint="choose a template: gpuops clones no VM that may be in use"
        )
    if template.devices:
        yield Rejection(template.name, "has GPU devices of its own", hint="choose a template without GPU devices")
    if host is None:
        yield Rejection(template.name, "its host cannot be read", hint="choose a host: --host HOST")
        return
    out_of_reach = unreachable(host)
    if out_of_reach is not None:
        yield out_of_reach
    vms = "1 VM" if max(wish.counts) == 1 else f"{max(wish.counts)} VMs"
    if max(wish.counts) > slots:
        yield Rejection(host.name, f"a GPU holds at most {slots} vGPUs of {profile}, --counts has {max(wish.counts)}")
    elif gpu is None and before is not None:
        rule = f"GPU {before.gpu}, where the measurement began, is not free for {vms} of {profile}"
        yield Rejection(
            host.name,
            rule,
            hint="free the GPU and run the same command again, or stop the measurement: gpuops measure --remove",
        )
    elif gpu is None:
        yield Rejection(
            host.name,
            f"has no unused GPU with room for {vms} of {profile}",
            hint="choose another host (--host), or free a GPU: gpuops defrag --dry-run",
        )
    elif in_force is None:
        yield Rejection(
            host.name, f"the scheduler of GPU {gpu.address} cannot be read", hint="see gpuops host scheduler show"
        )


def later_commands(plan: MeasurePlan) -> Sequence[str]:
    """Return the command for each scheduler that is not in force; the same measurement continues after it."""
    host = plan.host.name if plan.host is not None else ""
    return [
        f"gpuops host scheduler set --scheduler {scheduler} --host {host} --reboot rolling" for scheduler in plan.later
    ]


_STEPS = 1000
WHOLE = "whole vGPU"


@dataclass(frozen=True, slots=True)
class NormalisedCount:
    """One count, divided by what one VM took alone under its scheduler; None = that was not measured."""

    count: MeasuredCount
    mean: float | None
    least: float | None = None
    most: float | None = None
    model: float | None = None
    """The prediction of the fitted busy share; None = nothing was fitted."""


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """All counts, and the busy share by which the model is closest to them."""

    rows: tuple[NormalisedCount, ...]
    busy: float | None
    """The fitted busy share; None = no count above 1 was measured under a scheduler that depends on it."""
    worst_error: float | None = None
    """The largest error of the model, as a share of the measured time."""


def measured_curve(counts: Sequence[MeasuredCount], slots: int, overlap: float) -> MeasuredCurve:
    """Return the times of these counts relative to one VM alone, and the busy share for which the model fits best.

    `slots`: how many vGPUs of the profile a GPU holds; `overlap`: as in `staggered_slowdowns`.
    """
    shared = [measured_count for measured_count in counts if measured_count.device is MeasuredDevice.SHARE]
    alone = {
        measured_count.scheduler: float(np.mean(measured_count.times_s))
        for measured_count in shared
        if measured_count.sharers == 1 and measured_count.times_s
    }
    rows = tuple(
        _normalise(measured_count, alone)
        for measured_count in sorted(
            shared, key=lambda measured_count: (measured_count.scheduler, measured_count.sharers)
        )
    )
    # under fixed share no VM notices the others, so its times tell nothing about the busy share
    fitted_rows = [
        row
        for row in rows
        if row.mean is not None and row.count.sharers > 1 and row.count.scheduler is not SchedulerPolicy.FIXED_SHARE
    ]
    if not fitted_rows:
        return MeasuredCurve(rows, None)
    shares = np.linspace(0.0, 1.0, _STEPS + 1)
    # logarithms: half as long and twice as long are equal errors; `or 1.0` is for mypy, no mean is None here
    measured_logs = np.log([row.mean or 1.0 for row in fitted_rows])
    errors = [
        float(((np.log(_models(fitted_rows, share, slots, overlap)) - measured_logs) ** 2).sum()) for share in shares
    ]
    busy = float(shares[int(np.argmin(errors))])
    predicted = {
        (row.count.scheduler, row.count.sharers): _model(row.count, busy, slots, overlap) for row in rows if row.mean
    }
    worst = max(abs(predicted[row.count.scheduler, row.count.sharers] / (row.mean or 1.0) - 1.0) for row in fitted_rows)
    return MeasuredCurve(tuple(_with_model(row, predicted) for row in rows), busy, worst)


def overheads(counts: Sequence[MeasuredCount]) -> Mapping[str, float]:
    """Return how many times as long one VM alone took with a vGPU as one with a GPU in DirectPath I/O.

    The keys are `WHOLE` for a vGPU that has a GPU to itself, and the schedulers for a vGPU that may share it. 1.05 =
    virtualisation and the scheduler cost 5 %, with no other VM on the GPU. Empty = DirectPath I/O was not measured.
    """
    times = {
        measured_count.device: float(np.mean(measured_count.times_s))
        for measured_count in counts
        if measured_count.times_s
    }
    direct_s = times.get(MeasuredDevice.DIRECT_PATH)
    if direct_s is None:
        return {}
    by_scheduler = {
        measured_count.scheduler.value: measured_count
        for measured_count in counts
        if measured_count.sharers == 1 and measured_count.device is MeasuredDevice.SHARE
    }
    whole = next(
        (measured_count for measured_count in counts if measured_count.device is MeasuredDevice.WHOLE_VGPU), None
    )
    measured = ({WHOLE: whole} if whole is not None else {}) | by_scheduler
    return {
        name: float(np.mean(measured_count.times_s)) / direct_s
        for name, measured_count in measured.items()
        if measured_count.times_s
    }


def _normalise(count: MeasuredCount, alone: Mapping[SchedulerPolicy, float]) -> NormalisedCount:
    base = alone.get(count.scheduler)
    if not base or not count.times_s:
        return NormalisedCount(count, None)
    times = [time_s / base for time_s in count.times_s]
    return NormalisedCount(count, float(np.mean(times)), min(times), max(times))


def _with_model(row: NormalisedCount, foreseen: Mapping[tuple[SchedulerPolicy, int], float]) -> NormalisedCount:
    model = foreseen.get((row.count.scheduler, row.count.sharers))
    return NormalisedCount(row.count, row.mean, row.least, row.most, model)


def _models(rows: Sequence[NormalisedCount], busy: float, slots: int, overlap: float) -> list[float]:
    return [_model(row.count, busy, slots, overlap) for row in rows]


def _model(count: MeasuredCount, busy: float, slots: int, overlap: float) -> float:
    """Return the predicted mean slowdown of `count` VMs, compared with one VM under the same scheduler."""
    together = staggered_slowdowns(count.scheduler, busy, count.sharers, slots, overlap).mean()
    return float(together / staggered_slowdowns(count.scheduler, busy, 1, slots, overlap).mean())
