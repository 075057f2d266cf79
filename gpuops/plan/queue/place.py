"""Finds places for VMs that do not exist yet, one after another, each in the room that the earlier ones leave.

Order: priority, then those that name their GPUs, then size (GPU memory, memory, vCPUs), then name. Workloads of one
affinity are one unit: placed in turn with its largest, all on one host or none. Where that leaves some without a place,
and the order in which they are listed surely places more GPU memory, that order is the answer. Nothing is written: the
answer is a value, and so is the snapshot.

Why one after another and not all at once: it is the rule that `attach` follows, so the answer is what will happen when
the VMs are made in this order. With `optimize` a solver looks at the whole queue (`batch/`).

The finished plan is played on the snapshot, to find what may still go wrong. New VMs are started as listed. Suspended
VMs come back after them in any order, since users may log in in any order.

How each new VM gets the GPU that its place counts on: the host chooses the GPU of a vGPU at power-on, by its assignment
policy and by what runs then. The same VMs started in another order may end on other GPUs, and the last one on none.
Each host gets the first of these that is proven:

1. Every order ends well, because all that may compete have one size.
2. Each vGPU is pinned to its GPU, and on every GPU the vGPUs meant for it fit in any order.
3. Every order was followed, of the pinned VMs and then of the VMs as they are, on any GPU with room that the host may
   choose, and none ends badly. `_MAX_WAYS` limits this and is shared among the hosts.
4. The VMs are started in the order of the answer, which is how their places were found. Of pinned VMs this applies only
   to those on GPUs where an order may end badly.

Where slots of the cluster are reserved for others, it also matters which GPU the host takes if every VM finds one: the
VMs are pinned, or started in the order of the answer. Source: NVIDIA vGPU docs, "vGPU types" (one size per GPU in
same-size mode); see `placement/vm_demand.py` for the pin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Final

from gpuops.advise.capacity import free_slots
from gpuops.advise.occupancy import GpuState, Tenant, gpu_states, may_run, with_expected
from gpuops.errors import UsageError, report_exit_code
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host import Host, NumaPolicy
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, VgpuDevice, Vm, pins_of
from gpuops.model.workloads.workload import Workload
from gpuops.plan.core.command_line import Option, word
from gpuops.plan.core.passthru_devices import with_passthru_numbers
from gpuops.plan.core.rejection import some_names
from gpuops.plan.devices.goal import profile_meant, profiles_to_keep
from gpuops.plan.devices.settings import nodes_of, numa_binding_text
from gpuops.plan.placement.gpu_filters import matches_type
from gpuops.plan.placement.keep_free import KeepFreeOption, KeptCount, is_reserved_in, kept_counts, kept_profiles
from gpuops.plan.placement.project import take
from gpuops.plan.placement.seating import seat
from gpuops.plan.placement.start_orders import LateVm, States, find_late_vm, key_of, possible_starts
from gpuops.plan.placement.suspended_vms import Claim, Return, SuspendedPolicy, claims, later_returns, with_claims
from gpuops.plan.placement.vm_demand import NOTHING_KEPT, KeepFree, PinPolicy, WantsDynamic, demands_of
from gpuops.plan.queue.batch.batch_model import expecting_starts
from gpuops.plan.queue.batch.place_all import BatchResult, place_all
from gpuops.plan.queue.one_by_one import Queue
from gpuops.plan.queue.one_workload import Placed, Refusal, Steering
from gpuops.plan.queue.suggestions import RoomByMoves
from gpuops.plan.queue.workload_hosts import running, scope_of, vm_of


def choose_steering(
    placed: Sequence[Placed], waiting: Sequence[Claim], pin: PinPolicy, inventory: Inventory, catalog: Catalog
) -> tuple[Placed, ...]:
    """Decide for each place how its VM gets the planned GPUs (`Steering`), pinning vGPUs where that is needed.

    `waiting`: suspended VMs that come back to these hosts. `inventory`: the snapshot without their claims.
    """
    # VMs can only take GPUs from each other on one host, and only GPUs of the model that they need.
    groups: dict[tuple[str, str], list[Placed]] = {}
    for placed_vm in placed:
        groups.setdefault((placed_vm.placement.host.ref, contested_model(placed_vm.vm, catalog)), []).append(placed_vm)
    # how many ways in which starts may end are followed for each group
    max_ways = max(_MIN_WAYS_PER_GROUP, _MAX_WAYS // max(1, len(groups)))
    steered_by_name: dict[str, Placed] = {}
    for (ref, model), group in groups.items():
        host = inventory.hosts[ref]
        returning = [claim.vm for claim in waiting if claim.host.ref == ref and not claim.lost and claim.vm.devices]
        returning_rivals = tuple(vm for vm in returning if contested_model(vm, catalog) == model)
        profiles = {name for placed_vm in group for name in placed_vm.vm.profiles}
        states = tuple(
            state
            for state in gpu_states(host, inventory, catalog)
            if any(may_run(state.gpu, name, catalog) is not False for name in profiles)
        )
        is_reserved = is_reserved_in(host, inventory)
        competitors = _Competitors(tuple(group), returning_rivals, states, host, max_ways, catalog, is_reserved)
        steered_by_name |= {placed_vm.workload.name: placed_vm for placed_vm in competitors.with_steering(pin)}
    return tuple(steered_by_name[placed_vm.workload.name] for placed_vm in placed)


@dataclass(frozen=True, slots=True)
class _Competitors:
    """The new and the suspended VMs of one GPU model on one host, which may take GPUs from each other."""

    new: tuple[Placed, ...]
    returning: tuple[Vm, ...]
    states: tuple[GpuState, ...]
    host: Host
    max_ways: int
    """Limit of the ways in which starts may end that are followed."""
    catalog: Catalog
    is_reserved: bool
    """Whether slots of the cluster are reserved for others: then it matters which GPU the host takes, even where every
    VM finds one, for the slots that another GPU has left may be those that are reserved."""

    def with_steering(self, pin: PinPolicy) -> tuple[Placed, ...]:
        """Return the new VMs, pinned where that helps, with the first steering that is proven (see the module)."""
        if len(self.new) == 1 and not self.returning:
            return tuple(map(_with_proven_steering, self.new))
        # 1. Any order ends well, because all that compete are alike.
        if not self.is_reserved and self._whole_devices_are_safe() and self._vgpus_are_interchangeable():
            return tuple(replace(placed_vm, steering=Steering.ANY_ORDER) for placed_vm in self.new)
        # 2. Any order ends well if the vGPUs are pinned.
        with_pins = self.new if pin is PinPolicy.NEVER else tuple(map(_pin_all, self.new))
        keeps_reserved = not self.is_reserved or not any(map(_has_unpinned, with_pins))
        pins_suffice = not self.returning and self._pinned_fit_in_any_order(with_pins)
        if keeps_reserved and (pins_suffice or self._every_order_ends_well(with_pins)):
            return tuple(map(_with_proven_steering, with_pins))
        # 3. Any order that was followed ends well without further pins.
        if not self.is_reserved and pin is not PinPolicy.NEVER and self._every_order_ends_well(self.new):
            return tuple(map(_with_proven_steering, self.new))
        # 4. The order of the answer.
        return tuple(self._in_listed_order(with_pins))

    def _in_listed_order(self, new: Sequence[Placed]) -> Iterator[Placed]:
        """Yield the VMs to start in the order of the answer. Pinned VMs whose GPUs have room in any order are exempt.

        The exemption requires that all VMs are pinned and no suspended VM comes back: then no VM on one GPU takes
        anything from another GPU.
        """
        gpus_are_separate = not self.returning and self._whole_devices_are_safe() and not any(map(_has_unpinned, new))
        profiles_by_gpu = _profiles_by_gpu(new)
        order_matters_on = {
            state.gpu.address
            for state in self.states
            if not self._fit_in_any_order(state, profiles_by_gpu.get(state.gpu.address, []))
        }
        for placed_vm in new:
            if gpus_are_separate and order_matters_on.isdisjoint(placed_vm.placement.seats.values()):
                yield _with_proven_steering(placed_vm)
            else:
                yield replace(placed_vm, steering=Steering.LISTED_ORDER)

    def _whole_devices_are_safe(self) -> bool:
        """Whether no device that one VM requests by type can be meant for another VM: at most one type is requested,
        and if one is, no other VM names its devices."""
        all_vms = (*(placed_vm.vm for placed_vm in self.new), *self.returning)
        all_devices = (device for vm in all_vms for device in vm.devices or ())
        types = {(device.allowed, device.label) for device in all_devices if isinstance(device, DynamicDevice)}
        some_are_named = any(placed_vm.workload.device for placed_vm in self.new)
        # devices named by their addresses count as one more type
        return len(types) + some_are_named <= 1

    def _vgpus_are_interchangeable(self) -> bool:
        """Whether all vGPUs are alike and have room together: then it does not matter which GPU each of them gets.

        Alike means one size, one number per GPU, and the same start offsets in modes that have them. Such vGPUs never
        overlap each other's places, whatever else runs there.
        """
        if any(placed_vm.placement.pins or placed_vm.workload.device_group is not None for placed_vm in self.new):
            return False
        if any(pins_of(vm) for vm in self.returning):
            return False
        profiles = [name for vm in (*(placed_vm.vm for placed_vm in self.new), *self.returning) for name in vm.profiles]
        if not profiles:
            return True
        if len({_slot_shape(name, self.catalog) for name in profiles}) > 1:
            return False
        slots = (free_slots(s.gpu, s.holders, profiles[0], self.catalog, s.starts) for s in self.states)
        return sum(slot.at_least for slot in slots) >= len(profiles)

    def _every_order_ends_well(self, new: Sequence[Placed]) -> bool:
        """Whether all find their vGPUs in every order, on whichever GPU with room the host starts each; False = not
        proven. Members of a device group get joined GPUs, which cannot be predicted here."""
        if not self._whole_devices_are_safe():
            return False
        if any(placed_vm.workload.device_group is not None for placed_vm in new):
            return False
        new_vms = [running(placed_vm.vm, placed_vm.placement, placed_vm.workload.numa) for placed_vm in new]
        coming = [*new_vms, *self.returning]
        return find_late_vm(coming, self.states, self.host, self.catalog, self.max_ways, any_gpu=True) is None

    def _pinned_fit_in_any_order(self, pinned: Sequence[Placed]) -> bool:
        """Whether all vGPUs are pinned, and on each GPU those meant for it fit together wherever they start."""
        if not self._whole_devices_are_safe() or any(map(_has_unpinned, pinned)):
            return False
        profiles_by_gpu = _profiles_by_gpu(pinned)
        return all(self._fit_in_any_order(state, profiles_by_gpu.get(state.gpu.address, [])) for state in self.states)

    def _fit_in_any_order(self, state: GpuState, profiles: Sequence[str]) -> bool:
        """Whether each of the vGPUs still fits on the GPU if it starts last, wherever the others start."""
        if state.holders is None:
            return not profiles
        # None: it is unknown where on the GPU the others start
        starts_before_last = (*state.starts, *[None] * (len(profiles) - 1))
        for number, last in enumerate(profiles):
            holders_before_last = (*state.holders, *profiles[:number], *profiles[number + 1 :])
            if not free_slots(state.gpu, holders_before_last, last, self.catalog, starts_before_last).at_least:
                return False
        return True


_MAX_WAYS: Final = 4000
"""How many ways in which starts may end are followed for one plan: about a second."""
_MIN_WAYS_PER_GROUP: Final = 20
"""Each group of competitors gets at least this many, even in a plan with very many groups."""


def contested_model(vm: Vm, catalog: Catalog) -> str:
    """Return the GPU model that the VM competes for on its host; all whole GPUs count as one model."""
    if not vm.profiles:
        return "whole"
    board = catalog.board_of(vm.profiles[0])
    return board.key if board else "unknown"


def _slot_shape(profile: str, catalog: Catalog) -> tuple[object, ...]:
    """Return a key that is equal for profiles whose vGPUs can take each other's places on a GPU."""
    facts = catalog.profile(profile)
    if facts is None:
        return (profile,)
    return (facts.framebuffer_mib, facts.max_per_gpu, facts.placement_ids_mixed, facts.mig_profile)


def _pin_all(placed: Placed) -> Placed:
    """Pin each vGPU to its seat; the host chooses the GPUs of a device group."""
    if placed.workload.device_group is not None:
        return placed
    pins = {ordinal: placed.placement.seats[ordinal] for ordinal, _ in _vgpus_of(placed)}
    return replace(placed, placement=replace(placed.placement, pins=pins))


def _vgpus_of(placed: Placed) -> list[tuple[int, VgpuDevice]]:
    numbered = with_passthru_numbers(placed.vm.devices or ())
    return [(ordinal, device) for ordinal, device in numbered if isinstance(device, VgpuDevice)]


def _profiles_by_gpu(placed: Sequence[Placed]) -> dict[PciAddress, list[str]]:
    """Return the profiles of the vGPUs that the plan puts on each GPU."""
    profiles_by_gpu: dict[PciAddress, list[str]] = {}
    for placed_vm in placed:
        for ordinal, device in _vgpus_of(placed_vm):
            profiles_by_gpu.setdefault(placed_vm.placement.seats[ordinal], []).append(device.profile)
    return profiles_by_gpu


def _has_unpinned(placed: Placed) -> bool:
    return any(ordinal not in placed.placement.pins for ordinal, _ in _vgpus_of(placed))


def _with_proven_steering(placed: Placed) -> Placed:
    """Return the place with the steering of a VM that finds its GPUs in any order: pinned if it has pins."""
    return replace(placed, steering=Steering.PINNED if placed.placement.pins else Steering.ANY_ORDER)


def warn_of_starts(
    placed: Sequence[Placed], waiting: Sequence[Claim], inventory: Inventory, catalog: Catalog
) -> tuple[str, ...]:
    """Return what may go wrong although each VM has its place, one line each. `waiting` are suspended VMs that come
    back; `inventory` is the snapshot as vCenter shows it, without their claims."""
    returning = [claim for claim in waiting if not claim.lost]
    lines = [*_simulate_starts(placed, returning, inventory, catalog), *_warn_of_taken_devices(placed, returning)]
    # Where the order matters, the VMs of a host are started in the listed order, and then the suspended ones in any.
    in_order: dict[tuple[str, str], list[Placed]] = {}
    for placed_vm in placed:
        if placed_vm.steering is Steering.LISTED_ORDER and placed_vm.vm.vgpus:
            key = (placed_vm.placement.host.ref, contested_model(placed_vm.vm, catalog))
            in_order.setdefault(key, []).append(placed_vm)
    for (ref, model), group in in_order.items():
        returning_vms = [claim.vm for claim in returning if claim.host.ref == ref]
        returning_rivals = [vm for vm in returning_vms if contested_model(vm, catalog) == model]
        lines += _follow_listed_order(group, returning_rivals, inventory.hosts[ref], inventory, catalog)
    return tuple(dict.fromkeys(lines))


def _simulate_starts(
    placed: Sequence[Placed], returning: Sequence[Claim], inventory: Inventory, catalog: Catalog
) -> Iterator[str]:
    """Start the VMs one by one where their hosts are expected to put them, counting memory and whole devices too."""
    snapshot = inventory
    for placed_vm in placed:
        vm = running(placed_vm.vm, placed_vm.placement, placed_vm.workload.numa)
        seating = seat(vm, demands_of(vm.devices or (), pins_of(vm)), snapshot.hosts[vm.host or ""], snapshot, catalog)
        by_order = placed_vm.steering is Steering.LISTED_ORDER
        if not seating.complete or (by_order and seating.seats != placed_vm.placement.seats):
            yield _warn_of_other_gpus(placed_vm)
        snapshot = take(vm, snapshot, catalog)
    if not placed or not returning:
        return
    # Suspended VMs whose GPUs were sure before these starts, and are not any more.
    hosts = sorted({placed_vm.placement.host.ref for placed_vm in placed})
    claims_after = claims(snapshot, catalog, hosts, {claim.vm.ref for claim in returning})
    endangered = {claim.vm.ref for claim in claims_after if claim.lost or claim.doubts}
    for claim in returning:
        if not claim.doubts and claim.vm.ref in endangered:
            yield f"{claim.vm.name} (suspended) may find no GPU on {claim.host.name} when it comes back"


def _warn_of_taken_devices(placed: Sequence[Placed], returning: Sequence[Claim]) -> Iterator[str]:
    """Yield a warning for each device of a suspended VM that its host may give to a new VM, because the new VM only
    requests a type of device."""
    for placed_vm in placed:
        host, name = placed_vm.placement.host, placed_vm.vm.name
        types = [demand for demand in demands_of(placed_vm.vm.devices or (), {}) if isinstance(demand, WantsDynamic)]
        planned_addresses = ", ".join(map(str, placed_vm.placement.seats.values()))
        for claim in returning:
            if not types or claim.host.ref != host.ref:
                continue
            addresses = {device.address for device in claim.vm.devices or () if isinstance(device, DirectPathDevice)}
            for gpu in host.gpus:
                if gpu.address in addresses and any(matches_type(gpu, demand) for demand in types):
                    rule = f"{host.name} may give {name} the GPU {gpu.address} of {claim.vm.name} (suspended)"
                    yield f"{rule}; to prevent that, attach {planned_addresses} with gpuops attach --device"


def _follow_listed_order(
    new: Sequence[Placed], returning: Sequence[Vm], host: Host, inventory: Inventory, catalog: Catalog
) -> Iterator[str]:
    """Start new VMs of one GPU model on one host in this order, then the suspended ones in any order, and yield what
    may go wrong. Nothing is known after the first VM that may get other GPUs than planned."""
    states_now = gpu_states(host, inventory, catalog)
    planned_states = states_now
    for placed_vm in new:
        if placed_vm.placement.doubts:
            return  # a warning tells that already, and what follows is unknown
        vm = running(placed_vm.vm, placed_vm.placement, placed_vm.workload.numa)
        ways, certain = possible_starts(vm, planned_states, host, catalog)
        planned_states = _with_planned_vgpus(planned_states, placed_vm, catalog)
        if not certain or any(key_of(way) != key_of(planned_states) for way in ways):
            yield _warn_of_other_gpus(placed_vm)
            return
    # A suspended VM may be late whatever starts before it, or only because of the new VMs.
    late_anyway = find_late_vm(returning, states_now, host, catalog) if returning else None
    late = late_anyway or (find_late_vm(returning, planned_states, host, catalog) if returning else None)
    if late is not None:
        yield _late_text(late, host, anyway=late_anyway is not None)


def _with_planned_vgpus(states: States, placed: Placed, catalog: Catalog) -> States:
    """Return the GPUs with the vGPUs of the VM on the GPUs that are planned for them."""
    state_of = {state.gpu.address: state for state in states}
    for ordinal, device in _vgpus_of(placed):
        address = placed.placement.seats.get(ordinal)
        if address is not None and address in state_of:
            tenant = Tenant(placed.vm.ref, placed.vm.name, device.profile)
            state_of[address] = with_expected(state_of[address], tenant, catalog)
    return tuple(state_of.values())


def _warn_of_other_gpus(placed: Placed) -> str:
    names = ", ".join(str(address) for address in sorted(set(placed.placement.seats.values())))
    return f"{placed.placement.host.name} may give {placed.vm.name} other GPUs than {names}: use --pin auto to bind it"


def _late_text(late: LateVm, host: Host, *, anyway: bool) -> str:
    which = f"{late.vm.name} (suspended)"
    if late.unproven:
        return f"whether {which} and the others find their GPUs on {host.name} in any order could not be proven"
    after = f" after {some_names([vm.name for vm in late.after])}" if late.after else ""
    whatever = ", whatever else starts there" if anyway else ""
    return f"{which} may find no GPU on {host.name} when it comes back{after}{whatever}"


@dataclass(frozen=True, slots=True)
class Placements:
    """The answer for each workload, in the order in which they were placed."""

    before: Inventory
    answers: tuple[Placed | Refusal, ...]
    claims: tuple[Claim, ...] = ()
    """Suspended VMs whose GPUs are kept for them."""
    doubts: tuple[str, ...] = ()
    """What may go wrong although each workload has its place."""
    bindings: tuple[str, ...] = ()
    """The cost of binding them to NUMA nodes."""
    optimum: BatchResult | None = None
    """How close to the best this is; None unless `--optimize` was given."""
    later: tuple[Return, ...] = ()
    """Suspended VMs for which nothing is kept: they come back after all these workloads have ended."""

    keep: KeepFree = NOTHING_KEPT
    """What every place had to leave free."""
    kept: tuple[KeptCount, ...] = ()
    """How much of it they leave free, by cluster."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about all of them together."""
        return (*self.doubts, *self.bindings)

    @property
    def placed(self) -> tuple[Placed, ...]:
        return tuple(answer for answer in self.answers if isinstance(answer, Placed))

    @property
    def refused(self) -> tuple[Refusal, ...]:
        return tuple(answer for answer in self.answers if isinstance(answer, Refusal))

    @property
    def exit_code(self) -> int:
        """3 if a workload has no place, else 0."""
        return report_exit_code(refused=self.refused)


@dataclass(frozen=True, slots=True)
class Place:
    """The request of `gpuops place`."""

    workloads: tuple[Workload, ...]
    pin: Annotated[
        PinPolicy,
        Option("auto: bind vGPUs to their GPUs where the order of power-on or --numa required depends on it."),
    ] = PinPolicy.AUTO
    suspended: Annotated[
        SuspendedPolicy,
        Option("claim: the GPUs of suspended VMs are kept for their return. ignore: they are free."),
    ] = SuspendedPolicy.CLAIM
    keep_free: KeepFreeOption = ()
    optimize: Annotated[
        bool, Option("Place all requests at once with a solver, and show how much any plan could place.")
    ] = False
    explain: Annotated[bool, Option("Show every host and GPU that was considered, and why it was chosen or not.")] = (
        False
    )

    def __post_init__(self) -> None:
        """Require unique names, by which results are shown. Raises UsageError."""
        object.__setattr__(self, "pin", word(PinPolicy, self.pin, "pin"))
        object.__setattr__(self, "suspended", word(SuspendedPolicy, self.suspended, "suspended"))
        object.__setattr__(self, "keep_free", tuple(self.keep_free))
        kept_profiles(self.keep_free)
        names = Counter(workload.name for workload in self.workloads)
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            raise UsageError(f"two requests are named {twice[0]!r}", hint="give each request its own name")

    @property
    def needs_tags(self) -> bool:
        """Whether a workload asks for hosts by their tags, which the bulk read leaves out."""
        return any(workload.tag for workload in self.workloads)

    @property
    def until(self) -> datetime | None:
        """When all workloads have ended; None if the end of one is unknown."""
        ends = [workload.until for workload in self.workloads]
        known_ends = [end for end in ends if end is not None]
        return max(known_ends) if known_ends and len(known_ends) == len(ends) else None

    def config_targets(self, inventory: Inventory) -> Collection[str]:
        """Refs of the hosts whose QueryConfigTarget the answer needs: those a device group may be on."""
        grouped = (workload for workload in self.workloads if workload.device_group is not None)
        return sorted({host.ref for workload in grouped for host in scope_of(workload).hosts(inventory)})

    def check_profiles(self, inventory: Inventory, catalog: Catalog) -> None:
        """Raise ProfileUnknown or ProfileAmbiguous for a profile of a request, naming all requests with such names."""
        errors: list[tuple[Workload, UsageError]] = []
        for workload in self.workloads:
            for vgpus in workload.vgpus:
                try:
                    profile_meant(vgpus.profile, vm_of(workload), None, inventory, catalog)
                except UsageError as error:
                    errors.append((workload, error))
        if not errors:
            return
        _, first_error = errors[0]
        if len(self.workloads) == 1:
            raise first_error
        messages = (f"request {workload.name}: {error.message}" for workload, error in errors)
        raise type(first_error)("; ".join(messages), hint=first_error.hint)

    def placements(self, inventory: Inventory, catalog: Catalog) -> Placements:
        """Return a place for each workload in this snapshot, or every reason why it has no place. Raises ProfileUnknown
        if `--keep-free` names an unknown profile."""
        keep = KeepFree(profiles_to_keep(self.keep_free, inventory, catalog))
        # 1. Suspended VMs keep their GPUs, unless they come back after all workloads have ended.
        keeps_claims = self.suspended is SuspendedPolicy.CLAIM
        later, unclear_returns = later_returns(inventory, self.until) if keeps_claims else ((), ())
        later_refs = {later_return.vm.ref for later_return in later}
        with_suspended, waiting = with_claims(inventory, catalog, later_refs) if keeps_claims else (inventory, ())
        # 2. The places.
        queue = Queue(with_suspended, catalog, self.explain, self.pin, keep_free=keep)
        optimum: BatchResult | None = None
        if self.optimize:
            queue, optimum = place_all(queue, self.workloads)
        else:
            queue = queue.with_best(self.workloads)
        # 3. How each VM gets the GPUs that its place counts on, and what may go wrong.
        expects_starts = optimum is not None and optimum.expects_starts
        snapshot = expecting_starts(inventory, with_suspended) if expects_starts else inventory
        placed = tuple(answer for answer in queue.answers if isinstance(answer, Placed))
        placed = choose_steering(placed, waiting, self.pin, snapshot, catalog)
        doubts = (*unclear_returns, *warn_of_starts(placed, waiting, snapshot, catalog))
        # 4. Which vMotions would make room for a refused workload. They are not searched for workloads that must share
        #    a host (affinity).
        placed_by_name = {placed_vm.workload.name: placed_vm for placed_vm in placed}
        room = RoomByMoves(queue.inventory, inventory)
        answers: list[Placed | Refusal] = []
        for answer in queue.answers:
            if isinstance(answer, Placed):
                answers.append(placed_by_name[answer.workload.name])
            elif answer.workload.affinity is None:
                answers.append(replace(answer, moves=room.after_moves(queue.question_for(answer.workload))))
            else:
                answers.append(answer)
        return Placements(
            inventory,
            tuple(answers),
            waiting,
            doubts,
            tuple(_binding_costs(placed)),
            optimum,
            later,
            keep,
            tuple(kept_counts(keep, with_suspended, queue.inventory, catalog)),
        )


def _binding_costs(placed: Iterable[Placed]) -> Iterator[str]:
    """Yield what binding VMs to NUMA nodes costs, one line for all of them."""
    required = [placed_vm for placed_vm in placed if placed_vm.workload.numa is NumaPolicy.REQUIRED]
    bound_vms = [placed_vm for placed_vm in required if placed_vm.placement.local_nodes]
    if len(bound_vms) == 1:
        yield numa_binding_text([bound_vms[0].workload.name], nodes_of(bound_vms[0].placement))
    elif bound_vms:
        yield numa_binding_text([placed_vm.workload.name for placed_vm in bound_vms], "their NUMA nodes")
