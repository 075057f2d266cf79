"""The place of one workload on one snapshot with how its VM is made there, or every reason why it has none.

A host that is too small is not asked for its GPUs, and a profile that is none is looked for nowhere: fast, and right
for a workload that gets a place. One that is refused is told everything at once, or its owner mends one thing to meet
the next.
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
from gpuops.plan.core.plan import Choice, Rejection
from gpuops.plan.core.steps import NewDevice, NewDirectPath, NewDynamic, NewVgpu, VmChange
from gpuops.plan.devices.baseline import KEY
from gpuops.plan.devices.goal import Goal
from gpuops.plan.devices.rules import Case, findings
from gpuops.plan.devices.settings import Fitting, change_of, wider
from gpuops.plan.placement.explain import as_device_group, explain_gpus, may_be_remote, remote_memory, warn_of_displaced
from gpuops.plan.placement.fleet.site_demand import ShapeCounts
from gpuops.plan.placement.host_filters import refusals
from gpuops.plan.placement.multi_node import place_near
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.wanted import NOTHING_KEPT, KeepFree, PinPolicy, Placement, Wanted, demands_of
from gpuops.plan.queue.eligible_hosts import EligibleHosts, eligible_hosts, scope_of
from gpuops.plan.queue.workload_vm import Devices, choices_of_devices, running, vm_of


class Steering(StrEnum):
    """Why a new VM gets the GPUs that its place counts on, although its host chooses them at power-on."""

    ANY_ORDER = "any order"
    """Whichever GPU the host gives to whom, all of them find one."""
    PINNED = "pinned"
    """Each vGPU is bound to its GPU, and there all of them fit in any order."""
    LISTED_ORDER = "listed order"
    """The VMs of the host are started in the order of the answer, before suspended ones come back to it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A workload with a place: the VM it would be, where, and what is worth a line about it."""

    workload: Workload
    vm: Vm
    placement: Placement
    warnings: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    steering: Steering = Steering.LISTED_ORDER


@dataclass(frozen=True, slots=True)
class Refusal:
    """A workload without one, and every reason."""

    workload: Workload
    rejections: tuple[Rejection, ...]
    nearest: str = ""
    """What little less would have found a place, and where; empty = nothing near."""
    moves: str = ""
    """The few vMotions after which it would have one, and where; empty = none are known."""
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Where the earlier workloads of each word of anti-affinity and spread went: (host ref, name)."""

    apart: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    spread: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def after(self, placed: Placed) -> Neighbours:
        workload, there = placed.workload, (placed.placement.host.ref, placed.workload.name)
        return Neighbours(_and(self.apart, workload.anti_affinity, there), _and(self.spread, workload.spread, there))


@dataclass(frozen=True, slots=True)
class WorkloadQuestion:
    """The question. `only` and `without` narrow it to a host, or away from hosts that were tried."""

    workload: Workload
    inventory: Inventory
    catalog: Catalog
    neighbours: Neighbours = field(default_factory=Neighbours)
    explain: bool = False
    pin: PinPolicy = PinPolicy.AUTO
    coming: ShapeCounts = field(default_factory=dict)
    """What other workloads ask for that have no place yet."""
    only: str | None = None
    without: frozenset[str] = frozenset()
    keep_free: KeepFree = NOTHING_KEPT
    every_reason: bool = True
    """Whether a refusal also tells what was not looked at because the first reasons were enough."""
    any_reason: bool = True
    """Whether anybody looks at the reasons of a refusal."""

    def answer(self) -> Placed | Refusal:
        """The first of the devices that would serve which finds a place; what is scarcer stays free."""
        rejections: list[Rejection] = []
        choices: list[Choice] = []
        choices_known = choices_of_devices(self.workload, self.inventory, self.catalog)
        unknown = tuple(each for each in choices_known if isinstance(each, Rejection))
        if unknown:
            return Refusal(self.workload, tuple(dict.fromkeys((*unknown, *self._besides_devices()))))
        for devices in choices_known:
            assert not isinstance(devices, Rejection)
            vm = vm_of(self.workload, devices)
            eligible, wanted = self._asked(vm, devices)
            found = place_near(wanted, self.inventory, self.catalog) if wanted.hosts else ()
            if isinstance(found, Placement):
                vm = vm_of(self.workload, devices, found.host.version)
                if self.workload.device_group is not None:
                    found = as_device_group(vm, found, self.inventory, self.catalog)
                told = self._choices(wanted, eligible, found.choices)
                return Placed(self.workload, vm, found, self.warnings(vm, found), (*choices, *told))
            rejections += (*eligible.refused, *found)
            if self.every_reason:
                meant = scope_of(self.workload).hosts(self.inventory)
                rejections += on_their_gpus(vm, eligible, meant, self.inventory, self.catalog)
            choices += self._choices(wanted, eligible, map(Choice.refused, found))
        return Refusal(self.workload, tuple(dict.fromkeys(rejections)), choices=tuple(choices))

    def _besides_devices(self) -> tuple[Rejection, ...]:
        if not self.every_reason:
            return ()
        vm = vm_of(self.workload)
        # That nobody offers the group is said already.
        eligible, _ = replace(self, workload=replace(self.workload, device_group=None))._asked(vm, ())
        return without_devices(vm, eligible, self.inventory)

    def _asked(self, vm: Vm, devices: Devices) -> tuple[EligibleHosts, Wanted]:
        apart = self.neighbours.apart.get(self.workload.anti_affinity or "", ())
        beside = self.neighbours.spread.get(self.workload.spread or "", ())
        eligible = eligible_hosts(self.workload, vm, apart, self.inventory, self.catalog)
        hosts = tuple(ref for ref in eligible.hosts if self.only in (None, ref) and ref not in self.without)
        wanted = Wanted(
            vm,
            demands_of(devices, {}),
            hosts,
            self.workload.numa,
            self.pin,
            tuple(ref for ref, _ in beside),
            self.explain,
            reasons=self.any_reason,
            grouped=self.workload.device_group is not None,
            chooses_gpu=True,
            coming=self.coming,
            keep_free=self.keep_free,
        )
        return eligible, wanted

    def warnings(self, vm: Vm, placement: Placement) -> tuple[str, ...]:
        """What is worth a line about the VM in this place."""
        _, doubts = findings(
            Case(
                vm,
                vm.devices or (),
                grouped=self.workload.device_group is not None,
                host=placement.host,
                catalog=self.catalog,
            )
        )
        there = running(vm, placement, self.workload.numa)
        return (
            *doubts,
            *placement.doubts,
            *_unbound(self.workload, vm, placement),
            *([wider(vm, placement, self.workload.numa)] if placement.numa_nodes else []),
            *remote_memory(vm, self.workload.numa, placement, self.inventory),
            *may_be_remote(vm, self.workload.numa, placement, self.inventory),
            *warn_of_displaced(there, placement.host, self.inventory, self.catalog),
        )

    def _choices(self, wanted: Wanted, eligible: EligibleHosts, found: Iterable[Choice]) -> tuple[Choice, ...]:
        """Every host and every GPU looked at; none where nobody asked why."""
        if not self.explain:
            return ()
        told = (*found, *map(Choice.refused, (*eligible.refused, *eligible.elsewhere)))
        subjects = {choice.subject for choice in told}
        gpus = [
            line
            for ref in wanted.hosts
            for line in explain_gpus(wanted, self.inventory.hosts[ref], self.inventory, self.catalog)
        ]
        room = {line.subject: line.reason for line in gpus}
        scored = (
            replace(line, reason=f"{room[line.subject]}: {line.reason}")
            if line.feasible and line.subject in room
            else line
            for line in told
        )
        more = (line for line in gpus if line.subject not in subjects)
        return tuple(sorted((*scored, *more), key=lambda choice: choice.subject))


def _unbound(workload: Workload, vm: Vm, placement: Placement) -> tuple[str, ...]:
    """What `required` cannot promise: a device given by its kind is the host's choice, and nothing pins it."""
    whole = any(isinstance(device, DynamicDevice) for device in vm.devices or ())
    if workload.numa is not NumaPolicy.REQUIRED or not whole:
        return ()
    addresses = ", ".join(map(str, placement.seats.values()))
    where = ", ".join(map(str, placement.bound_to))
    rule = f"the host may give {vm.name} devices of another NUMA node than {where}"
    return (f"{rule}: gpuops attach --device names them ({addresses})",)


def _and(
    known: Mapping[str, tuple[tuple[str, str], ...]], word: str | None, there: tuple[str, str]
) -> Mapping[str, tuple[tuple[str, str], ...]]:
    return known if word is None else {**known, word: (*known.get(word, ()), there)}


def relaxed(trial: WorkloadQuestion, workload: Workload) -> WorkloadQuestion:
    """The same question about a workload that asks for less, and nobody asks why."""
    return replace(trial, workload=workload, explain=False, every_reason=False, any_reason=False)


def without_devices(vm: Vm, eligible: EligibleHosts, inventory: Inventory) -> tuple[Rejection, ...]:
    """Why no host that is meant would take the VM even without a GPU; () = one would."""
    if not eligible.hosts:
        return eligible.refused
    wanted = Wanted(vm, (), eligible.hosts)
    against = [refusals(wanted, inventory.hosts[ref], inventory) for ref in eligible.hosts]
    return (*eligible.refused, *(reason for each in against for reason in each)) if all(against) else ()


def on_their_gpus(
    vm: Vm, eligible: EligibleHosts, hosts: tuple[Host, ...], inventory: Inventory, catalog: Catalog
) -> Iterator[Rejection]:
    """What hosts that are refused for something else lack too, and their GPUs. `hosts` are those that are meant."""
    demands = demands_of(vm.devices or (), {})
    if any(getattr(device, "group", None) is not None for device in vm.devices or ()):
        return  # who offers no such group is asked for no part of it
    asked = frozenset(eligible.hosts)
    for host in hosts:
        wanted = Wanted(vm, demands, (host.ref,))
        refused = refusals(wanted, host, inventory)
        # Without a number it is no want of size: what a host without such profiles lacks beside them helps nobody.
        if any(reason.needed is None for reason in refused):
            continue
        if host.ref not in asked:
            yield from refused  # nobody has asked it yet
        if host.ref not in asked or refused:
            yield from seat(vm, demands, host, inventory, catalog).rejections


def recipe(placed: Placed, catalog: Catalog) -> VmChange:
    """The devices and settings that a new VM is to have beside its vCPUs and memory; all memory is reserved."""
    made = vm_of(placed.workload, version=placed.placement.host.version)
    bare = replace(made, memory_locked=None, memory_reservation_mib=None)
    goal = Goal(kept=(), add=tuple(map(_new, placed.vm.devices or ())), device_group=placed.workload.device_group)
    change = change_of(Fitting(bare, goal, placed.placement, placed.workload.numa, catalog))
    return replace(change, extra_config={key: value for key, value in change.extra_config.items() if key != KEY})


def _new(device: GpuDevice) -> NewDevice:
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
