"""Previews a night at a given moment, with the proof that every desktop can return. Nothing is changed.

`rotate plan` shows it, from a snapshot of vCenter.

The proof lists the order in which the desktops of each host return, and the place that each then gets. If all vGPUs of
a GPU have one size, the place is the number of a slot. On a mixed-size or MIG GPU it is the start of a placement: the
ids shown do not overlap each other or those of VMs that run all night; the host may choose others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from gpuops.advise.forecast import Forecast
from gpuops.errors import report_exit_code
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.mig import arrangements
from gpuops.model.devices.vgpu import VgpuProfile
from gpuops.model.time_text import format_clock
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.window import Night
from gpuops.plan.core.plan import Report
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.placement.project import project
from gpuops.plan.placement.seating import Room, reduced_to_host
from gpuops.plan.placement.suspended_vms import refuse_stranded, resume_or_power_on, return_order, suspend_or_shut_down
from gpuops.plan.rotation.ml_queue.ml_vms import Start
from gpuops.plan.rotation.ml_queue.team_shares import gpus_of_vm
from gpuops.plan.rotation.nights.bounds import RunPeriod, refuse_without_hours
from gpuops.plan.rotation.nights.desktops import running_desktops
from gpuops.plan.rotation.nights.night import RotateNight
from gpuops.plan.rotation.nights.night_plan import NightPlan
from gpuops.plan.rotation.prerequisites import find_lock_vm_problem

FORECAST_MARGIN: Final = timedelta(hours=2)
"""The forecast is shown for this time before desktops are due, and for the same time after."""


@dataclass(frozen=True, slots=True)
class ExpectedRun:
    """One ML VM that would run, when, and on how many GPUs."""

    start: Start
    run: RunPeriod
    gpus: float
    """Its devices as a number of GPUs: a vGPU of which four fit on a GPU is 0.25."""

    @property
    def gpu_hours(self) -> float | None:
        """The GPUs times the hours; None without a window, because the end of the run is unknown."""
        if self.run.ends is None:
            return None
        return self.gpus * (self.run.ends - self.run.begins).total_seconds() / 3600


@dataclass(frozen=True, slots=True)
class NightPreview:
    """The preview of one night."""

    at: datetime
    inventory: Inventory
    night_plan: NightPlan
    expected_runs: tuple[ExpectedRun, ...]
    proofs: tuple[HostProof, ...]
    """The proof for each host that its desktops can return."""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """Pool -> its forecast until the end of `morning`; empty = nothing was measured."""
    no_forecast: str = ""
    """Why the measurements cannot be read; empty = they can."""
    timers: tuple[str, ...] = ()
    """Where the timers and cron lines of this machine do not fit the windows of the policy."""

    @property
    def night(self) -> Night | None:
        return self.night_plan.bounds.night

    @property
    def morning(self) -> tuple[datetime, datetime]:
        """The hours for which a forecast is shown."""
        return morning_of(self.night, self.at)

    @property
    def gpu_hours(self) -> float | None:
        """The sum over all ML VMs; None = the end of the night is unknown."""
        hours = [expected_run.gpu_hours for expected_run in self.expected_runs]
        return None if None in hours else sum(run_hours for run_hours in hours if run_hours is not None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Probable mistakes in the policy, and why a night would be refused before it is planned."""
        policy, warnings = self.night_plan.policy, [*self.night_plan.plan().warnings]
        lock_vm_problem = find_lock_vm_problem(policy, self.inventory)
        if lock_vm_problem is not None:
            warnings.append(f"{lock_vm_problem}: no night begins (gpuops rotate init --policy FILE)")
        without_hours = refuse_without_hours(policy)
        if without_hours is not None:
            warnings.append(without_hours.line)
        if self.no_forecast:
            warnings.append(f"no forecast: {self.no_forecast}")
        return (*warnings, *self.timers, *self._users_before_return())

    def _users_before_return(self) -> Iterator[str]:
        """Yield a warning for each pool that needs more desktops than stay running before the others return."""
        night, plan = self.night, self.night_plan
        if night is None:
            return
        taken_desktops = [*plan.bounds.taken_desktops, *plan.decision.desktops]
        running = running_desktops(plan.policy, self.inventory.vms.values())
        for pool in plan.policy.pools:
            hosts = {vm.host or "" for vm in taken_desktops if plan.policy.pool_of(vm) == pool}
            begins = min((plan.return_times[host] for host in hosts if host in plan.return_times), default=None)
            if pool.name not in self.forecasts or begins is None:
                continue
            leaving = [vm for vm in plan.decision.desktops if plan.policy.pool_of(vm) == pool]
            stay = running[pool.name] - len(leaving)
            shortage = self.forecasts[pool.name].first_above(stay, self.at, begins)
            if shortage is not None:
                need_clock = format_clock(shortage.begin.astimezone(night.zone))
                return_clock = format_clock(begins.astimezone(night.zone))
                yield (
                    f"pool {pool.name}: {shortage.in_use} of its desktops are expected in use at {need_clock}, {stay} "
                    f"stay running and the return of the others begins at {return_clock}: set an earlier `back_by`, or "
                    f"`floor: {shortage.in_use}`"
                )

    @property
    def report(self) -> Report:
        return Report(None, self.inventory, self.night_plan.plan())

    @property
    def exit_code(self) -> int:
        """3 if the night would be refused, otherwise 0."""
        return report_exit_code(refused=self.night_plan.refusals)


def morning_of(night: Night | None, at: datetime) -> tuple[datetime, datetime]:
    """Return the time from two hours before desktops are due until two hours after; without a window the next hours."""
    if night is None:
        return at, at + 2 * FORECAST_MARGIN
    return max(at, night.back_by - FORECAST_MARGIN), night.back_by + FORECAST_MARGIN


def preview_night(
    request: RotateNight,
    inventory: Inventory,
    catalog: Catalog,
    at: datetime,
    forecasts: Mapping[str, Forecast] | None = None,
    no_forecast: str = "",
) -> NightPreview:
    """Return the preview of the night that would begin at this moment."""
    survey = request.survey_desktops(inventory, catalog, at)
    night_plan = request.night_plan(survey, inventory, catalog, at)
    bounds, starts = night_plan.bounds, night_plan.decision.starts
    load = bounds.load(starts)
    expected_runs = tuple(
        ExpectedRun(start, bounds.run(start, load), gpus_of_vm(start.vm, catalog)) for start in starts
    )
    desktops = (*bounds.taken_desktops, *night_plan.decision.desktops)
    proofs = prove(desktops, request.snapshot_at_return(bounds, inventory), catalog)
    return NightPreview(at, inventory, night_plan, expected_runs, proofs, forecasts or {}, no_forecast)


_MIB_PER_GB = 1024


@dataclass(frozen=True, slots=True)
class PlaceOnGpu:
    """The place of a returned desktop on one GPU."""

    gpu: PciAddress
    place: str
    """`slot 2 of 4`, `placement id 8`, or `whole`."""

    def __str__(self) -> str:
        return f"{self.gpu} {self.place}"


@dataclass(frozen=True, slots=True)
class ReturnedDesktop:
    """One returned desktop, and its places."""

    vm: Vm
    places: tuple[PlaceOnGpu, ...]


@dataclass(frozen=True, slots=True)
class HostProof:
    """The proof that the desktops of one host can return, or why they cannot."""

    host: Host
    order: tuple[ReturnedDesktop, ...]
    instants: int
    """Number of checked moments: after each suspend, all desktops suspended until then must fit back."""
    refusals: tuple[Rejection, ...] = ()
    """Why the desktops cannot return; empty = proved."""


def prove(desktops: Sequence[Vm], inventory: Inventory, catalog: Catalog) -> tuple[HostProof, ...]:
    """Return the proofs, sorted by host name. In `inventory` no ML VM of the night is running."""
    hosts = {vm.host for vm in desktops} & inventory.hosts.keys()
    by_name = sorted((inventory.hosts[ref] for ref in hosts if ref), key=lambda host: host.name)
    return tuple(
        _prove_host(host, [vm for vm in desktops if vm.host == host.ref], inventory, catalog) for host in by_name
    )


def _prove_host(host: Host, desktops: list[Vm], inventory: Inventory, catalog: Catalog) -> HostProof:
    """Return the proof of one host: where each desktop returns to, or why desktops could not return."""
    # A night may be interrupted after any suspend, so the desktops suspended until then must fit back each time.
    room = Room(catalog, certain=False)
    instants = range(1, len(desktops) + 1)
    refusals = [
        refusal for number in instants for refusal in refuse_stranded(desktops[:number], inventory, catalog, room)
    ]
    # Suspend all desktops and resume them in the order of the morning; the snapshot then shows where each one is.
    world = reduced_to_host(host, inventory)
    for vm in desktops:
        world = project(suspend_or_shut_down(vm), world)
    order = [vm for part in return_order(desktops, world, catalog) for vm in part]
    for vm in order:
        world = project(resume_or_power_on(world.vm(vm.ref)), world, catalog)
    places = {vm.ref: tuple(_places_of(vm, order, world, catalog)) for vm in order}
    returned = tuple(ReturnedDesktop(vm, places[vm.ref]) for vm in order)
    return HostProof(host, returned, len(instants), tuple(dict.fromkeys(refusals)))


def _places_of(vm: Vm, order: Sequence[Vm], world: Inventory, catalog: Catalog) -> Iterator[PlaceOnGpu]:
    """Yield the place of the desktop on each of its GPUs. `order`: the desktops in the order of their return."""
    host = world.hosts[vm.host or ""]
    for gpu in host.gpus:
        if vm.ref in (gpu.vms or ()):
            yield PlaceOnGpu(gpu.address, _places_on_gpu(gpu, order, world, catalog).get(vm.ref, "a slot"))
    yield from (PlaceOnGpu(binding.address, "whole") for binding in host.bindings if binding.vm == vm.ref)


def _places_on_gpu(gpu: PhysicalGpu, order: Sequence[Vm], world: Inventory, catalog: Catalog) -> dict[str, str]:
    """Map VM ref -> its place on the GPU: first the VMs that run there all night, then the order of return."""
    refs = list(gpu.vms or ())
    returned = [vm.ref for vm in order if vm.ref in refs]
    tenants: list[tuple[str, VgpuProfile]] = []
    for ref in (*(ref for ref in refs if ref not in returned), *returned):
        vm = world.vms.get(ref)
        if vm is not None and vm.power is PowerState.ON:
            profiles = (catalog.profile(name) for name in vm.profiles)
            tenants += [(ref, profile) for profile in profiles if profile is not None]
    if gpu.vgpu_mode in (VgpuMode.MIXED_SIZE, VgpuMode.MULTI_INSTANCE):
        return {ref: f"placement id {start}" for ref, start in _placement_starts(gpu, tenants, catalog).items()}
    slots: dict[str, int] = {}
    for number, (ref, _) in enumerate(tenants, 1):
        slots.setdefault(ref, number)
    at_most = min((profile.max_per_gpu for _, profile in tenants), default=len(tenants))
    return {ref: f"slot {number} of {at_most}" for ref, number in slots.items()}


def _placement_starts(gpu: PhysicalGpu, tenants: Sequence[tuple[str, VgpuProfile]], catalog: Catalog) -> dict[str, int]:
    """Map VM ref -> a start so that no placements overlap; empty if the catalogue does not know the GPU."""
    largest_first = sorted(tenants, key=lambda tenant: -tenant[1].framebuffer_mib)
    if gpu.vgpu_mode is VgpuMode.MIXED_SIZE:
        placement_ids = next(_side_by_side([profile for _, profile in largest_first], ()), ())
        # If they do not fit next to each other, there are no ids.
        return {ref: start for (ref, _), start in zip(largest_first, placement_ids, strict=False)}
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is None or board.mig is None:
        return {}
    mig_profiles = [(ref, board.mig.profile(profile.mig_profile or "")) for ref, profile in largest_first]
    requested_profiles = [mig_profile for _, mig_profile in mig_profiles if mig_profile is not None]
    placements = list(next(arrangements(requested_profiles, board.mig), ()))
    starts: dict[str, int] = {}
    # Each VM gets one of the placements of its profile.
    for ref, mig_profile in mig_profiles:
        placement = next((placement for placement in placements if placement.profile == mig_profile), None)
        if placement is not None:
            placements.remove(placement)
            starts[ref] = placement.start
    return starts


def _side_by_side(profiles: Sequence[VgpuProfile], placed: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, ...]]:
    """Yield every way to give each profile a start, in GB, so that no placements overlap."""
    if not profiles:
        yield tuple(start for start, _ in placed)
        return
    size_gb = ceil(profiles[0].framebuffer_mib / _MIB_PER_GB)
    for start in profiles[0].placement_ids_mixed:
        end = start + size_gb
        if all(end <= other_start or other_end <= start for other_start, other_end in placed):
            yield from _side_by_side(profiles[1:], (*placed, (start, end)))
