"""The place of one workload in one snapshot and how its VM is made there, or every reason why it has no place.

For a workload that gets a place, the GPUs of a host that is too small are not checked, and an unknown profile is not
searched for. A refusal lists all reasons at once, so that users need not fix them one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from gpuops.model.devices.catalog import Catalog
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, GpuDevice, OtherPassthrough, VgpuDevice, Vm
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.plan import Choice
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu, VmChange
from gpuops.plan.devices.goal import Goal
from gpuops.plan.devices.rules import Case, findings
from gpuops.plan.devices.settings import KEY, Fitting, change_of, numa_spread_text
from gpuops.plan.placement.explain import (
    as_device_group,
    explain_gpus,
    remote_memory,
    warn_of_displaced,
    warn_of_remote_memory,
)
from gpuops.plan.placement.fleet.site_demand import ShapeCounts
from gpuops.plan.placement.host_filters import refusals
from gpuops.plan.placement.multi_node import place_near
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.vm_demand import NOTHING_KEPT, KeepFree, PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.queue.workload_hosts import (
    Devices,
    EligibleHosts,
    choices_of_devices,
    eligible_hosts,
    running,
    scope_of,
    vm_of,
)


class Steering(StrEnum):
    """Why a new VM gets the GPUs that its place counts on, although its host chooses them at power-on."""

    ANY_ORDER = "any order"
    """Every VM finds a GPU, whichever GPUs the host chooses."""
    PINNED = "pinned"
    """Each vGPU is pinned to its GPU, where they all fit in any order."""
    LISTED_ORDER = "listed order"
    """The VMs of the host must be started in the order of the answer, before suspended VMs come back to it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A workload with a place: its VM, the place and warnings about it."""

    workload: Workload
    vm: Vm
    placement: Placement
    warnings: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    steering: Steering = Steering.LISTED_ORDER


@dataclass(frozen=True, slots=True)
class Refusal:
    """A workload without a place, and every reason."""

    workload: Workload
    rejections: tuple[Rejection, ...]
    nearest: str = ""
    """The smallest change of the workload with which it has a place, and where; empty = no small change helps."""
    moves: str = ""
    """The few vMotions after which it would have a place, and where; empty = unknown."""
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Where the earlier workloads of each anti-affinity and spread group went: (host ref, name)."""

    apart: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    spread: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def after(self, placed: Placed) -> Neighbours:
        """Return these neighbours and the workload that was placed, in its groups if it is in any."""
        apart, spread = dict(self.apart), dict(self.spread)
        host_and_name = (placed.placement.host.ref, placed.workload.name)
        for groups, group in ((apart, placed.workload.anti_affinity), (spread, placed.workload.spread)):
            if group is not None:
                groups[group] = (*groups.get(group, ()), host_and_name)
        return Neighbours(apart, spread)


@dataclass(frozen=True, slots=True)
class WorkloadQuestion:
    """Where one workload goes in one snapshot. `only` limits it to one host; hosts in `without` were already tried."""

    workload: Workload
    inventory: Inventory
    catalog: Catalog
    neighbours: Neighbours = field(default_factory=Neighbours)
    explain: bool = False
    pin: PinPolicy = PinPolicy.AUTO
    coming: ShapeCounts = field(default_factory=dict)
    """The demand of other workloads that have no place yet."""
    only: str | None = None
    without: frozenset[str] = frozenset()
    keep_free: KeepFree = NOTHING_KEPT
    every_reason: bool = True
    """Whether a refusal also lists reasons that were not checked because the first reasons were enough."""
    any_reason: bool = True
    """Whether the reasons of a refusal are needed at all: without them a refusal is found faster."""

    def answer(self) -> Placed | Refusal:
        """Place the first suitable choice of devices that finds a place; choices of scarcer GPUs come later."""
        rejections: list[Rejection] = []
        choices: list[Choice] = []
        device_choices = choices_of_devices(self.workload, self.inventory, self.catalog)
        unknown_devices = [choice for choice in device_choices if isinstance(choice, Rejection)]
        if unknown_devices:
            other_reasons = self._reasons_besides_devices()
            return Refusal(self.workload, tuple(dict.fromkeys((*unknown_devices, *other_reasons))))
        for devices in device_choices:
            assert not isinstance(devices, Rejection), "unknown devices were refused above"
            vm = vm_of(self.workload, devices)
            eligible, needs = self._needs_and_hosts(vm, devices)
            place_or_reasons = place_near(needs, self.inventory, self.catalog) if needs.hosts else ()
            if isinstance(place_or_reasons, Placement):
                vm = vm_of(self.workload, devices, place_or_reasons.host.version)
                if self.workload.device_group is not None:
                    place_or_reasons = as_device_group(vm, place_or_reasons, self.inventory, self.catalog)
                choices += self._choices(needs, eligible, place_or_reasons.choices)
                return Placed(self.workload, vm, place_or_reasons, self.warnings(vm, place_or_reasons), tuple(choices))
            rejections += (*eligible.refused, *place_or_reasons)
            if self.every_reason:
                scope_hosts = scope_of(self.workload).hosts(self.inventory)
                rejections += unreported_rejections(vm, eligible, scope_hosts, self.inventory, self.catalog)
            choices += self._choices(needs, eligible, map(Choice.refused, place_or_reasons))
        return Refusal(self.workload, tuple(dict.fromkeys(rejections)), choices=tuple(choices))

    def _reasons_besides_devices(self) -> tuple[Rejection, ...]:
        """Return why no host would take the VM even if its devices were known and free."""
        if not self.every_reason:
            return ()
        vm = vm_of(self.workload)
        # Without the device group, because another reason already says that no host offers it.
        eligible, _ = replace(self, workload=replace(self.workload, device_group=None))._needs_and_hosts(vm, ())
        return refusals_without_gpus(vm, eligible, self.inventory)

    def _needs_and_hosts(self, vm: Vm, devices: Devices) -> tuple[EligibleHosts, Wanted]:
        """Return the hosts that the workload may go to, and what its VM needs there."""
        # (host ref, name) of the workloads placed already that are in the same group
        same_anti_affinity = self.neighbours.apart.get(self.workload.anti_affinity or "", ())
        same_spread = self.neighbours.spread.get(self.workload.spread or "", ())
        eligible = eligible_hosts(self.workload, vm, same_anti_affinity, self.inventory, self.catalog)
        hosts = tuple(ref for ref in eligible.hosts if self.only in (None, ref) and ref not in self.without)
        needs = Wanted(
            vm,
            demands_of(devices, {}),
            hosts,
            self.workload.numa,
            self.pin,
            tuple(ref for ref, _ in same_spread),
            self.explain,
            reasons=self.any_reason,
            grouped=self.workload.device_group is not None,
            chooses_gpu=True,
            coming=self.coming,
            keep_free=self.keep_free,
        )
        return eligible, needs

    def warnings(self, vm: Vm, placement: Placement) -> tuple[str, ...]:
        """Return the warnings about the VM in this place."""
        grouped = self.workload.device_group is not None
        _, doubts = findings(Case(vm, vm.devices or (), grouped, placement.host, self.catalog))
        running_vm = running(vm, placement, self.workload.numa)
        return (
            *doubts,
            *placement.doubts,
            *_warn_of_other_numa_node(self.workload, vm, placement),
            *([numa_spread_text(vm, placement, self.workload.numa)] if placement.numa_nodes else []),
            *remote_memory(vm, self.workload.numa, placement, self.inventory),
            *warn_of_remote_memory(vm, self.workload.numa, placement, self.inventory),
            *warn_of_displaced(running_vm, placement.host, self.inventory, self.catalog),
        )

    def _choices(self, needs: Wanted, eligible: EligibleHosts, place_choices: Iterable[Choice]) -> tuple[Choice, ...]:
        """Return a line for every host and GPU that was checked; empty unless `explain` is set."""
        if not self.explain:
            return ()
        lines = [*place_choices, *map(Choice.refused, (*eligible.refused, *eligible.elsewhere))]
        gpu_lines = [
            line
            for ref in needs.hosts
            for line in explain_gpus(needs, self.inventory.hosts[ref], self.inventory, self.catalog)
        ]
        # A GPU that is a place of its own has one line: the room on it, then why it was chosen or not.
        room_texts = {line.subject: line.reason for line in gpu_lines}
        subjects = {line.subject for line in lines}
        for number, line in enumerate(lines):
            if line.feasible and line.subject in room_texts:
                lines[number] = replace(line, reason=f"{room_texts[line.subject]}: {line.reason}")
        lines += (line for line in gpu_lines if line.subject not in subjects)
        return tuple(sorted(lines, key=lambda choice: choice.subject))


def _warn_of_other_numa_node(workload: Workload, vm: Vm, placement: Placement) -> tuple[str, ...]:
    """Warn of a device requested by type: the host chooses it, so `--numa required` cannot promise its NUMA node."""
    is_requested_by_type = any(isinstance(device, DynamicDevice) for device in vm.devices or ())
    if workload.numa is not NumaPolicy.REQUIRED or not is_requested_by_type:
        return ()
    addresses = ", ".join(map(str, placement.seats.values()))
    where = ", ".join(map(str, placement.local_nodes))
    rule = f"the host may give {vm.name} devices of another NUMA node than {where}"
    return (f"{rule}; to prevent that, attach these with gpuops attach --device: {addresses}",)


def without_reasons(question: WorkloadQuestion, workload: Workload) -> WorkloadQuestion:
    """Return the question for a smaller workload, without reasons."""
    return replace(question, workload=workload, explain=False, every_reason=False, any_reason=False)


def refusals_without_gpus(vm: Vm, eligible: EligibleHosts, inventory: Inventory) -> tuple[Rejection, ...]:
    """Return why no requested host would take the VM even without a GPU; () if one would."""
    rejections = list(eligible.refused)
    needs = Wanted(vm, (), eligible.hosts)
    for ref in eligible.hosts:
        host_reasons = refusals(needs, inventory.hosts[ref], inventory)
        if not host_reasons:
            return ()
        rejections += host_reasons
    return tuple(rejections)


def unreported_rejections(
    vm: Vm, eligible: EligibleHosts, hosts: tuple[Host, ...], inventory: Inventory, catalog: Catalog
) -> Iterator[Rejection]:
    """Yield the reasons against the requested hosts that the placement did not report.

    For a host that was not eligible: all reasons. For a host whose GPUs the placement did not check: what these GPUs
    lack for the VM.
    """
    demands = demands_of(vm.devices or (), {})
    if any(getattr(device, "group", None) is not None for device in vm.devices or ()):
        return  # a host without the device group is not checked for the members of it
    eligible_refs = frozenset(eligible.hosts)
    for host in hosts:
        was_checked = host.ref in eligible_refs
        host_reasons = refusals(Wanted(vm, demands, (host.ref,)), host, inventory)
        # A reason without a number is not about size, for example a missing profile: then other shortages do not help.
        if any(reason.needed is None for reason in host_reasons):
            continue
        if not was_checked:
            yield from host_reasons
        # The GPUs of an eligible host were checked with the placement, except where its other reasons ended that.
        if host_reasons or not was_checked:
            yield from seat(vm, demands, host, inventory, catalog).rejections


def recipe(placed: Placed, catalog: Catalog) -> VmChange:
    """Return the devices and settings of the new VM in addition to its vCPUs and memory; all memory is reserved."""
    new_vm = vm_of(placed.workload, version=placed.placement.host.version)
    # `change_of` then yields every setting that the VM needs, not only those that differ.
    bare_vm = replace(new_vm, memory_locked=None, memory_reservation_mib=None)
    goal = Goal(kept=(), add=tuple(map(_as_new, placed.vm.devices or ())), device_group=placed.workload.device_group)
    change = change_of(Fitting(bare_vm, goal, placed.placement, placed.workload.numa, catalog))
    # A new VM has no earlier settings to keep, so `KEY` is left out.
    return replace(change, extra_config={key: setting for key, setting in change.extra_config.items() if key != KEY})


def _as_new(device: GpuDevice) -> NewDevice:
    match device:
        case VgpuDevice(profile=profile):
            return NewVgpu(profile)
        case DirectPathDevice(address=address):
            return NewDirectPath(address, "", "", device.vendor_id, device.device_id)
        case DynamicDevice(allowed=allowed, label=label):
            return NewDynamic(allowed, label)
        case OtherPassthrough():
            raise AssertionError("no workload asks for one")
        case _:
            assert_never(device)
