"""Plans `gpuops host scheduler set`, and the way back after a measurement (`RestoreScheduler`).

A GPU's scheduler is restored to exactly the earlier option text, if no other part of the text has changed meanwhile:

    before   NVreg_A=1                                                          best effort, no entry
    now      NVreg_A=1 NVreg_RegistryDwordsPerDevice=pci=0000:5e:00.0;RmPVMRL=0x01
    restored NVreg_A=1                                                          not ...;RmPVMRL=0x00
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

from gpuops.errors import UsageError
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu
from gpuops.model.devices.scheduler import DriverBranch, Frequency, SchedulerPolicy, TimeSlices, VgpuScheduler
from gpuops.model.measurements.sharing_measurement import SchedulerBefore
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.command_line import ClusterName, GpusOfHosts, HostPattern, Option, hosts_called
from gpuops.plan.core.plan import Plan, refuse
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import ConfigureModule, GpuDifference, HostStep
from gpuops.plan.hosts.host_plan import HostPart, combine_parts, select_hosts
from gpuops.plan.hosts.scheduler import module_options
from gpuops.plan.hosts.scheduler.module_options import encode
from gpuops.plan.hosts.scheduler.scheduler_state import (
    HostScheduler,
    branch_blockers,
    gpu_blockers,
    host_blockers,
    reason_unscheduled,
    scheduler_of,
    unchecked_rules,
    warn_of_resets,
)

_QUANTITY: Final = re.compile(r"(\d{1,6})\s*([a-z]*)", re.IGNORECASE)
_BRANCH: Final = re.compile(r"r?(\d{3})", re.IGNORECASE)

FREED_FRAMES: Final = (
    "the frame-rate limiter acts with best effort only (NVIDIA AI Enterprise docs): desktops are no longer held to "
    "45 (B types) or 60 (A, Q types) frames a second"
)
LIMITED_FRAMES: Final = (
    "with best effort the frame-rate limiter acts again (NVIDIA AI Enterprise docs): desktops are held to 45 (B types) "
    "or 60 (A, Q types) frames a second"
)


@dataclass(frozen=True, slots=True)
class SetScheduler:
    """A request to set the scheduler of GPUs, from the next boot of their hosts on."""

    run_kind: ClassVar[str] = "setscheduler"

    scheduler: Annotated[SchedulerPolicy, Option("How the GPU's time is divided among its VMs.")]
    time_slice: Annotated[
        str | None, Option("Fixed time slices of 1 to 30 ms; `default`: the driver's length.", "2ms")
    ] = None
    frequency: Annotated[str | None, Option("Adaptive round robin at 63 to 960 Hz (from vGPU 15 on).", "480Hz")] = None
    averaging: Annotated[int | None, Option("Its averaging factor, 1 to 60; with --frequency.", "33")] = None
    gpu: GpusOfHosts = ()
    """Empty = every GPU that serves vGPUs."""
    host: HostPattern = None
    cluster: ClusterName = None
    driver_branch: Annotated[
        str | None, Option("The branch of the hosts' driver, if vCenter does not report it.", "R550")
    ] = None

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Refs of the selected hosts. Raises UsageError, HostNotFound."""
        return tuple(host.ref for host in self._hosts(inventory))

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the change of each host's module options. Raises UsageError."""
        scheduler, stated_branch = self.requested_scheduler(), self._stated_branch()
        gpus = tuple(PciAddress.parse(text) for text in self.gpu)
        scope = Scope(cluster=self.cluster, host=self.host)
        hosts = self._hosts(inventory)
        if not hosts:
            return refuse(scope.nowhere("scheduler", inventory))
        parts = []
        for host in hosts:
            # If other selected hosts have GPUs with a scheduler, the request is about a cluster, and GPUs in MIG mode
            # on this host are skipped. Otherwise it is about this host, and is refused because of them.
            other_gpus = [gpu for other_host in hosts if other_host is not host for gpu in other_host.gpus]
            is_about_cluster = not gpus and any(reason_unscheduled(gpu) is None for gpu in other_gpus)
            in_mig_mode = tuple(gpu for gpu in host.gpus if reason_unscheduled(gpu) == "MIG")
            left_out = in_mig_mode if is_about_cluster else ()
            part = _plan_host(scheduler_of(host, catalog), scheduler, stated_branch, gpus, inventory, catalog, left_out)
            parts.append(part)
        plan = combine_parts(parts, "scheduler", _frame_rate_notes(parts, scheduler))
        changed_hosts = [inventory.hosts[step.host] for step in (*plan.steps, *plan.due)]
        return replace(plan, warnings=(*plan.warnings, *warn_of_resets(changed_hosts, inventory)))

    def _hosts(self, inventory: Inventory) -> tuple[Host, ...]:
        return select_hosts("host scheduler set", self.host, self.cluster, inventory)

    def requested_scheduler(self) -> VgpuScheduler:
        """Return the scheduler that the options describe. Raises UsageError for options that exclude each other."""
        adaptive = self.frequency is not None or self.averaging is not None
        if self.time_slice is not None and adaptive:
            hint = "the driver uses either time slices, or adaptive round robin with a frequency: remove one of them"
            raise UsageError("--time-slice and --frequency exclude each other", hint=hint)
        if self.averaging is not None and self.frequency is None:
            raise UsageError(
                "--averaging needs --frequency", hint="as NVIDIA documents the pair: --frequency 480Hz --averaging 33"
            )
        if self.scheduler is SchedulerPolicy.BEST_EFFORT and (self.time_slice is not None or adaptive):
            hint = "remove --time-slice, --frequency and --averaging, or use --scheduler equal-share"
            raise UsageError("best effort has neither time slices nor a frequency", hint=hint)
        if self.time_slice is not None:
            length = None if self.time_slice == "default" else _quantity("--time-slice", self.time_slice, "ms")
            return VgpuScheduler(self.scheduler, TimeSlices(length))
        if self.frequency is not None:
            return VgpuScheduler(
                self.scheduler, Frequency(_quantity("--frequency", self.frequency, "Hz"), self.averaging)
            )
        return VgpuScheduler(self.scheduler)

    def _stated_branch(self) -> DriverBranch | None:
        if self.driver_branch is None:
            return None
        match = _BRANCH.fullmatch(self.driver_branch.strip())
        if match is None:
            raise UsageError(f"{self.driver_branch!r} is not a driver branch", hint="write it as R550")
        return DriverBranch(int(match[1]))


def _plan_host(
    host_scheduler: HostScheduler,
    scheduler: VgpuScheduler,
    stated_branch: DriverBranch | None,
    gpus: tuple[PciAddress, ...],
    inventory: Inventory,
    catalog: Catalog,
    left_out: tuple[PhysicalGpu, ...],
) -> HostPart:
    """Return the part of one host. `stated_branch`: the driver branch that the admin gave; `left_out`: GPUs without a
    scheduler, which are skipped because the request names no GPU."""
    host = host_scheduler.host
    # If none is named: those that serve vGPUs. GPUs in MIG mode are included, to be refused by name.
    gpus_to_set = tuple(gpu for gpu in host.gpus if reason_unscheduled(gpu) in (None, "MIG"))
    if gpus:
        gpus_to_set = tuple(gpu for gpu in host.gpus if gpu.address in gpus)
    if left_out:
        # The other GPUs are then named one by one: the entry for all GPUs would include those that are left out.
        gpus_to_set = tuple(gpu for gpu in gpus_to_set if gpu not in left_out)
        gpus = tuple(gpu.address for gpu in gpus_to_set)
    notes = tuple(
        f"{host.name} {gpu.address}: in MIG mode, where no scheduler applies; left as it is" for gpu in left_out
    )
    if left_out and not gpus_to_set:
        return HostPart(host.name, because=notes)
    if not gpus and not gpus_to_set:
        return HostPart(host.name, because=(f"{host.name}: none of its GPUs serves vGPUs; left as it is",))
    existing = {gpu.address for gpu in host.gpus}
    missing = tuple(Rejection(host.name, f"has no GPU {address}") for address in gpus if address not in existing)
    refusals_by_gpu = {
        gpu.address: tuple(gpu_blockers(gpu, host, scheduler, inventory, catalog)) for gpu in gpus_to_set
    }
    # `named`: whether the admin named the GPUs.
    rejections = (
        *host_blockers(host_scheduler, inventory),
        *branch_blockers(host_scheduler, stated_branch, scheduler),
        *missing,
        *_with_hints(refusals_by_gpu, named=bool(gpus) and not left_out),
    )
    if rejections:
        return HostPart(host.name, rejections)
    warnings = tuple(text for gpu in gpus_to_set for text in unchecked_rules(gpu, host, inventory, catalog))
    part = _change(host_scheduler, scheduler, host_scheduler.branch or stated_branch, gpus_to_set, gpus, warnings)
    return replace(part, because=(*notes, *part.because))


def _change(
    host_scheduler: HostScheduler,
    scheduler: VgpuScheduler,
    branch: DriverBranch | None,
    gpus_to_set: tuple[PhysicalGpu, ...],
    gpus: tuple[PciAddress, ...],
    warnings: tuple[str, ...],
) -> HostPart:
    """Return the change of the host, or a note that nothing changes."""
    host, options = host_scheduler.host, host_scheduler.settings.module_options or ""
    round_robin = branch.round_robin if branch else None
    before = {gpu.address: module_options.read(options, gpu.address, round_robin) for gpu in gpus_to_set}
    if all(reading == scheduler for reading in before.values()):
        due = ConfigureModule(host.ref, options, options) if host_scheduler.settings.reboot_pending else None
        pending = "; a reboot is pending" if due else ""
        return HostPart(host.name, because=(f"{host.name} is set to {scheduler} already{pending}",), due=due)
    after = module_options.set_word(options, encode(scheduler, round_robin), gpus)
    changed = tuple(
        GpuDifference(address, str(reading), str(scheduler))
        for address, reading in before.items()
        if reading != scheduler
    )
    return HostPart(host.name, step=ConfigureModule(host.ref, options, after, changed), warnings=warnings)


def _with_hints(refusals_by_gpu: dict[PciAddress, tuple[Rejection, ...]], *, named: bool) -> Iterable[Rejection]:
    """Return the refusals of GPUs. If none was named, the hint has the --gpu options of the GPUs that can be set."""
    settable = [str(address) for address, rejections in refusals_by_gpu.items() if not rejections]
    hint = f"set only the other GPUs: {' '.join(f'--gpu {address}' for address in settable)}"
    for rejections in refusals_by_gpu.values():
        for rejection in rejections:
            yield rejection if named or not settable else Rejection(rejection.subject, rejection.rule, hint=hint)


def _frame_rate_notes(parts: list[HostPart], scheduler: VgpuScheduler) -> tuple[str, ...]:
    """Return a note on frame rates, if a GPU changes from best effort to a share or back."""
    best_effort = str(SchedulerPolicy.BEST_EFFORT)
    before = {difference.before == best_effort for part in parts if part.step for difference in part.step.gpus}
    if scheduler.policy is SchedulerPolicy.BEST_EFFORT:
        return (LIMITED_FRAMES,) if False in before else ()
    return (FREED_FRAMES,) if True in before else ()


def _quantity(option: str, text: str, unit: str) -> int:
    """Parse a whole number, with or without its unit. Raises UsageError."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2].lower() not in ("", unit.lower()):
        raise UsageError(f"{option} {text}: not a whole number of {unit}", hint=f"write it as {option} 2{unit}")
    return int(match[1])


@dataclass(frozen=True, slots=True)
class RestoreScheduler:
    """A request to restore the earlier scheduler of one GPU, from the next boot of its host on."""

    run_kind: ClassVar[str] = "restorescheduler"

    before: SchedulerBefore
    host_name: str

    def hosts(self, inventory: Inventory) -> Collection[str]:
        """Return the ref of its host. Raises HostNotFound."""
        return self._setting.hosts(inventory)

    def plan(self, inventory: Inventory, catalog: Catalog) -> Plan[HostStep]:
        """Return the plan of `scheduler set`, but with the earlier option text if only this GPU's entry changed."""
        plan = self._setting.plan(inventory, catalog)
        waves = tuple(replace(wave, steps=tuple(map(self._with_earlier_options, wave.steps))) for wave in plan.waves)
        return replace(plan, waves=waves)

    @property
    def _setting(self) -> SetScheduler:
        return for_gpu(self.before.scheduler, str(self.before.gpu), self.host_name)

    def _with_earlier_options(self, step: HostStep) -> HostStep:
        before = self.before
        if isinstance(step, ConfigureModule) and module_options.differs_only_for(
            before.options, step.before, before.gpu
        ):
            return replace(step, after=before.options)
        return step


def for_gpu(scheduler: VgpuScheduler, gpu: str, host_name: str) -> SetScheduler:
    """Return the request that sets one GPU of one host to it."""
    time_slice, frequency, averaging = _option_values(scheduler)
    return SetScheduler(
        SchedulerPolicy(scheduler.policy),
        time_slice=time_slice,
        frequency=frequency,
        averaging=averaging,
        gpu=(gpu,),
        host=hosts_called(host_name),
    )


def restoring_command(before: SchedulerBefore, host_name: str) -> str:
    """Return the command that sets the earlier scheduler again."""
    request = for_gpu(before.scheduler, str(before.gpu), host_name)
    options = (
        ("scheduler", request.scheduler),
        ("time-slice", request.time_slice),
        ("frequency", request.frequency),
        ("averaging", request.averaging),
        ("gpu", before.gpu),
        ("host", host_name),
        ("reboot", "rolling"),
    )
    return "gpuops host scheduler set " + " ".join(f"--{name} {text}" for name, text in options if text is not None)


def _option_values(scheduler: VgpuScheduler) -> tuple[str | None, str | None, int | None]:
    """Return the values of `--time-slice`, `--frequency` and `--averaging` for it."""
    match scheduler.slices:
        case TimeSlices(time_slice_ms=length):
            return ("default" if length is None else f"{length}ms"), None, None
        case Frequency(frequency_hz=hertz, averaging=averaging) if hertz is not None:
            return None, f"{hertz}Hz", averaging
        case _:
            return None, None, None
