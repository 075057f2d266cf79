"""The rules by which ESXi admits or refuses vGPUs on the GPUs of a host at power-on, resume and vMotion.

Pure: plain values in, seats or a refusal out. The rules, and where they come from:

* A GPU serves vGPUs when its graphics type in force is Shared Direct and it is not in passthrough (vSphere API,
  HostGraphicsInfo).
* Same-size mode: the first vGPU fixes the frame-buffer size until the GPU is empty; the count limit is the type's
  equal-size maximum; series may differ (vGPU 17, vSphere 8.0 U2). The host's assignment policy picks the GPU:
  `performance` the one with the fewest VMs, `consolidation` the fullest that still fits (vSphere API,
  HostGraphicsConfig). In the other modes the policy is ignored.
* Mixed-size mode: every size has fixed start offsets; a vGPU fits if one of them is free of overlap. The host takes
  the least used GPU and the least fragmenting offset (NVIDIA AI Enterprise docs, "vGPU types").
* MIG: a GPU in MIG mode takes only MIG-backed types, any other only time-sliced ones. GPU instances must not overlap
  and at most one owns the media engines (NVIDIA MIG User Guide). On Hopper ESXi keeps large instances possible (3g
  goes to 4 first); on Ampere it takes the lowest start.
* All vGPUs of one VM are of one GPU model, and all start or none does.

From memory, not documented: devices are seated in their order (pinned ones first) without a search over all
combinations; GPUs in same-size mode are preferred to those in mixed-size mode; ties go to the lowest PCI address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

from gpuops.sim.state.board import GpuBoard, GpuInstance, GpuMode, Shape, VgpuType


class VgpuPolicy(StrEnum):
    """HostGraphicsConfig.sharedPassthruAssignmentPolicy."""

    PERFORMANCE = "performance"
    CONSOLIDATION = "consolidation"


class GpuOrder(StrEnum):
    """Which of the GPUs that have room gets the next vGPU."""

    DOCUMENTED = "documented"
    EMPTIEST = "emptiest"
    FULLEST = "fullest"


class StartOrder(StrEnum):
    """Which of the free starts of a GPU gets the next vGPU."""

    DOCUMENTED = "documented"
    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass(frozen=True, slots=True)
class Deviation:
    """Where a host goes by other rules than the documented ones: what a client that expects these must notice."""

    gpus: GpuOrder = GpuOrder.DOCUMENTED
    starts: StartOrder = StartOrder.DOCUMENTED
    forbids: frozenset[str] = frozenset()
    """vGPU types that the host lists and whose VMs its driver refuses."""


DOCUMENTED: Final = Deviation()


@dataclass(frozen=True, slots=True)
class RunningVgpu:
    """One running vGPU: its VM, its GPU and, where the mode has one, its start (GiB or memory slices)."""

    vm: str
    pci_id: str
    type: VgpuType
    start: int | None = None


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """One physical GPU as admission sees it."""

    pci_id: str
    board: GpuBoard
    mode: GpuMode
    serves_vgpus: bool
    """Its graphics type in force is Shared Direct, and it is not in passthrough."""
    seats: tuple[RunningVgpu, ...] = ()
    is_faulty: bool = False
    """It is lost or requires a reset: nothing new starts on it, but the host still lists it."""

    @property
    def vm_count(self) -> int:
        return len({seat.vm for seat in self.seats})


@dataclass(frozen=True, slots=True)
class WantedVgpu:
    """One requested vGPU of a VM; `pin` is the PCI id of `pciPassthru<N>.cfg.gpu-pci-id`, if set."""

    type_name: str
    pin: str | None = None


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """Why a power-on is refused: one line per GPU that was considered, or one for the whole request."""

    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.reasons)


def admit(
    vm: str,
    requested_vgpus: Sequence[WantedVgpu],
    gpus: Sequence[GpuLoad],
    policy: VgpuPolicy,
    deviation: Deviation = DOCUMENTED,
) -> tuple[RunningVgpu, ...] | NotAdmitted:
    """Return a slot on a GPU for each requested vGPU, in their order, or the reasons to refuse the power-on."""
    refusal = _combination_refusal(requested_vgpus, gpus) or _driver_refusal(requested_vgpus, deviation)
    if refusal is not None:
        return refusal
    loads = {gpu.pci_id: gpu for gpu in sorted(gpus, key=lambda gpu: gpu.pci_id)}
    seats: dict[int, RunningVgpu] = {}
    # pinned vGPUs first: another one could take the room on the only GPU that they may use
    for index in sorted(range(len(requested_vgpus)), key=lambda index: requested_vgpus[index].pin is None):
        seat = _seat_vgpu(vm, requested_vgpus[index], loads.values(), policy, deviation)
        if isinstance(seat, NotAdmitted):
            return seat
        seats[index] = seat
        gpu = loads[seat.pci_id]
        loads[seat.pci_id] = replace(gpu, seats=(*gpu.seats, seat))
    return tuple(seats[index] for index in range(len(requested_vgpus)))


def offered_types(gpus: Iterable[GpuLoad]) -> tuple[str, ...]:
    """Return the vGPU types that the host offers now.

    A GPU whose vGPUs fix its size offers no types of other sizes; a GPU that is full still offers its types.
    """
    names: dict[str, None] = {}
    for gpu in gpus:
        if gpu.serves_vgpus:
            names.update(
                (type_.name, None) for type_ in gpu.board.types_in(gpu.mode) if _size_refusal(gpu, type_) is None
            )
    return tuple(names)


def supported_types(gpus: Iterable[GpuLoad]) -> tuple[VgpuType, ...]:
    """Every type the host's GPUs support in their present modes, whatever runs on them."""
    types: dict[str, VgpuType] = {}
    for gpu in gpus:
        if gpu.serves_vgpus:
            types.update((type_.name, type_) for type_ in gpu.board.types_in(gpu.mode))
    return tuple(types.values())


def _combination_refusal(requested_vgpus: Sequence[WantedVgpu], gpus: Sequence[GpuLoad]) -> NotAdmitted | None:
    """Return why one VM cannot have these vGPUs on this host, however free its GPUs are; None = it can."""
    boards: set[str] = set()
    for wish in requested_vgpus:
        boards_with_type = {gpu.board.name: gpu.board for gpu in gpus if wish.type_name in gpu.board.by_name}
        if not boards_with_type:
            return NotAdmitted((f"no GPU of this host supports {wish.type_name}",))
        boards.update(boards_with_type)
        limit = next(iter(boards_with_type.values())).by_name[wish.type_name].max_per_vm
        if limit is not None and len(requested_vgpus) > limit:
            return NotAdmitted((f"{wish.type_name}: at most {limit} in one VM, {len(requested_vgpus)} requested",))
    if len(boards) > 1:
        return NotAdmitted((f"the vGPUs of one VM must be of one GPU model, not {' and '.join(sorted(boards))}",))
    return None


def _driver_refusal(requested_vgpus: Sequence[WantedVgpu], deviation: Deviation) -> NotAdmitted | None:
    refused = next((wish.type_name for wish in requested_vgpus if wish.type_name in deviation.forbids), None)
    return NotAdmitted((f"the driver of this host does not start {refused}",)) if refused is not None else None


def _seat_vgpu(
    vm: str, wish: WantedVgpu, gpus: Iterable[GpuLoad], policy: VgpuPolicy, deviation: Deviation
) -> RunningVgpu | NotAdmitted:
    """Return a slot for the vGPU on the first GPU in order that takes it, or the reasons of all GPUs."""
    reasons = []
    for gpu in _in_order_of_choice(gpus, policy, deviation.gpus):
        if wish.pin is not None and gpu.pci_id != wish.pin:
            continue
        placement = _placement(wish.type_name, gpu, deviation.starts)
        if isinstance(placement, str):  # the reason why this GPU does not take it
            reasons.append(f"{gpu.pci_id}: {placement}")
        else:
            type_, start = placement
            return RunningVgpu(vm, gpu.pci_id, type_, start)
    return NotAdmitted(tuple(reasons) or (f"{wish.pin}: pinned to a GPU this host does not have",))


def _in_order_of_choice(gpus: Iterable[GpuLoad], policy: VgpuPolicy, order: GpuOrder) -> list[GpuLoad]:
    """Return the GPUs in the order of trial: same-size by the policy, then mixed-size, then multi-instance GPUs."""

    def key(gpu: GpuLoad) -> tuple[int, int, str]:
        if order is not GpuOrder.DOCUMENTED:
            return (0, gpu.vm_count if order is GpuOrder.EMPTIEST else -gpu.vm_count, gpu.pci_id)
        match gpu.mode:
            case GpuMode.SAME_SIZE if policy is VgpuPolicy.CONSOLIDATION:
                return (0, -gpu.vm_count, gpu.pci_id)
            case GpuMode.SAME_SIZE:
                return (0, gpu.vm_count, gpu.pci_id)
            case GpuMode.MIXED_SIZE:
                return (1, sum(seat.type.framebuffer_mib for seat in gpu.seats), gpu.pci_id)
            case _:
                return (2, 0, gpu.pci_id)

    return sorted(gpus, key=key)


def _placement(type_name: str, gpu: GpuLoad, order: StartOrder) -> tuple[VgpuType, int | None] | str:
    """Return (type, start of its placement or None in same-size mode) on this GPU, or the reason to refuse it."""
    type_ = gpu.board.by_name.get(type_name)
    if type_ is None:
        return f"{gpu.board.name} does not support {type_name}"
    if not gpu.serves_vgpus:
        return "does not serve vGPUs (graphics type or passthrough)"
    if gpu.is_faulty:
        return "is lost, or requires a reset"
    if not gpu.board.runs(type_, gpu.mode):
        return f"{type_name} does not run in mode {gpu.mode}"
    match gpu.mode:
        case GpuMode.SAME_SIZE:
            refused = _size_refusal(gpu, type_) or _count_refusal(gpu, type_)
            return refused or (type_, None)
        case GpuMode.MIXED_SIZE:
            start = _mixed_size_start(gpu, type_, order)
            return f"no placement id left for {type_name}" if start is None else (type_, start)
        case _:
            start = _instance_start(gpu, type_, order)
            return f"no GPU instance left for {type_name}" if start is None else (type_, start)


def _size_refusal(gpu: GpuLoad, type_: VgpuType) -> str | None:
    """Return the reason to refuse a type of another size than the vGPUs that run on a same-size GPU; None = none."""
    if gpu.mode is not GpuMode.SAME_SIZE or not gpu.seats:
        return None
    size_mib = gpu.seats[0].type.framebuffer_mib
    if size_mib == type_.framebuffer_mib:
        return None
    return f"locked to {size_mib} MiB vGPUs by {gpu.seats[0].vm}, {type_.name} has {type_.framebuffer_mib}"


def _count_refusal(gpu: GpuLoad, type_: VgpuType) -> str | None:
    limit = min([type_.max_per_gpu, *(seat.type.max_per_gpu for seat in gpu.seats)])
    return f"{len(gpu.seats)} of {limit} vGPUs run" if len(gpu.seats) >= limit else None


def _mixed_size_start(gpu: GpuLoad, type_: VgpuType, order: StartOrder) -> int | None:
    used_ranges = tuple((seat.start or 0, (seat.start or 0) + seat.type.size_gib) for seat in gpu.seats)
    if order is not StartOrder.DOCUMENTED:
        return _lowest_or_highest_start(order, type_.size_gib, type_.starts_gib, used_ranges)
    return _least_fragmenting(type_.size_gib, type_.starts_gib, used_ranges, gpu.board.mixed_shapes)


def _instance_start(gpu: GpuLoad, type_: VgpuType, order: StartOrder) -> int | None:
    """Return the first slice of the GPU instance for a MIG-backed vGPU: a shared one with room, or a new one; None =
    there is no room."""
    instance_type = type_.instance
    assert instance_type is not None, f"{type_.name} is not MIG-backed"
    shared = _instance_with_room(gpu, type_, instance_type)
    if shared is not None:
        return shared
    running = {(seat.start or 0, seat.type.instance) for seat in gpu.seats if seat.type.instance is not None}
    if instance_type.media and any(instance.media for _, instance in running):
        return None  # a GPU has its media engines only once
    used_ranges = [(start, start + instance.size) for start, instance in running]
    if order is not StartOrder.DOCUMENTED:
        return _lowest_or_highest_start(order, instance_type.size, instance_type.starts, used_ranges)
    if not gpu.board.careful_instances:  # the first free start; later boards keep room for large instances
        return next((start for start in instance_type.starts if _is_free(start, instance_type.size, used_ranges)), None)
    shapes = frozenset(
        (other_type.instance.size, other_type.instance.starts)
        for other_type in gpu.board.types_in(GpuMode.MULTI_INSTANCE)
        if other_type.instance is not None
    )
    return _least_fragmenting(instance_type.size, instance_type.starts, tuple(used_ranges), shapes)


def _lowest_or_highest_start(
    order: StartOrder, size: int, starts: Iterable[int], used_ranges: Iterable[tuple[int, int]]
) -> int | None:
    free_starts = [start for start in starts if _is_free(start, size, tuple(used_ranges))]
    return (min if order is StartOrder.LOWEST else max)(free_starts, default=None)


def _instance_with_room(gpu: GpuLoad, type_: VgpuType, requested_instance: GpuInstance) -> int | None:
    """The start of a running instance that several vGPUs of one size share (RTX PRO Blackwell), if one has room."""
    counts: dict[int, int] = {}
    for seat in gpu.seats:
        if seat.type.instance == requested_instance and seat.type.framebuffer_mib == type_.framebuffer_mib:
            counts[seat.start or 0] = counts.get(seat.start or 0, 0) + 1
    return next((start for start, count in sorted(counts.items()) if count < type_.max_per_instance), None)


@lru_cache(maxsize=4096)
def _least_fragmenting(
    size: int, starts: tuple[int, ...], used_ranges: tuple[tuple[int, int], ...], shapes: frozenset[Shape]
) -> int | None:
    """Return the free start after which most starts of all shapes stay free (the lowest of equals); None = none."""

    def count_free_starts_after(start: int) -> int:
        after = [*used_ranges, (start, start + size)]
        return sum(
            _is_free(shape_start, width, after) for width, starts_of_shape in shapes for shape_start in starts_of_shape
        )

    free_starts = [start for start in starts if _is_free(start, size, used_ranges)]
    return max(free_starts, key=lambda start: (count_free_starts_after(start), -start), default=None)


def _is_free(start: int, size: int, used_ranges: Iterable[tuple[int, int]]) -> bool:
    return all(start + size <= low or high <= start for low, high in used_ranges)
