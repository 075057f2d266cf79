"""How many more vGPUs of a profile does a GPU take, as it is now?

The rules, per mode of the GPU (NVIDIA AI Enterprise, vGPU for Compute; NVIDIA Multi-Instance GPU User Guide):

* same size: the running vGPUs fix the frame-buffer size; the count is the smallest same-size maximum among them.
  Series may differ since vGPU 17 with vSphere 8.0 Update 2; which driver a host runs is not in the snapshot.
* mixed size: every size has fixed starts, and a vGPU needs one that is free.
* MIG: a vGPU needs a GPU instance that fits beside the others; only one instance owns the media engines.

A GPU in MIG mode runs only MIG-backed profiles, any other only time-sliced ones. What vCenter does not tell makes the
answer a range or unknown, never a wrong number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from gpuops.advise.spread import Shape, Spread, spread
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import GraphicsType, PhysicalGpu, VgpuMode
from gpuops.model.devices.mig import InstanceProfile
from gpuops.model.devices.vgpu import VgpuProfile


@dataclass(frozen=True, slots=True)
class Slots:
    """Room for more vGPUs of one profile on one GPU."""

    at_least: int
    """However the running vGPUs lie."""
    at_most: int | None
    """At the best; None = unknown."""
    because: str = ""
    """Why there is none, or why it is not known for certain; empty when both figures are one and not zero."""
    contradictory: bool = field(default=False, compare=False)
    """What is said to run there cannot all run there: unknown, because some of it must be elsewhere."""

    @property
    def possible(self) -> bool:
        """Whether trying could succeed."""
        return self.at_most is None or self.at_most > 0

    @property
    def exact(self) -> bool:
        return self.at_least == self.at_most

    def capped(self, limit: int, because: str) -> Slots:
        """The same with no more than `limit`; `because` where that takes something away."""
        if self.at_most is not None and self.at_most <= limit:
            return self
        return Slots(min(self.at_least, limit), limit, self.because if limit else because)

    def doubted(self, because: str) -> Slots:
        """The same, where it is not certain that any of it can be used."""
        return Slots(0, self.at_most, because) if self.possible else self


def total(rooms: Sequence[Slots]) -> Slots:
    """Room in all of these places together."""
    most = [room.at_most for room in rooms if room.at_most is not None]
    return Slots(
        at_least=sum(room.at_least for room in rooms),
        at_most=sum(most) if len(most) == len(rooms) else None,
        because=next((room.because for room in rooms if room.because), ""),
    )


def best(rooms: Sequence[Slots]) -> Slots:
    """Room in the best of these places, for what must have all of it in one."""
    most = [room.at_most for room in rooms if room.at_most is not None]
    return Slots(
        at_least=max((room.at_least for room in rooms), default=0),
        at_most=max(most, default=0) if len(most) == len(rooms) else None,
        because=next((room.because for room in rooms if room.because), ""),
    )


def free_slots(
    gpu: PhysicalGpu,
    holders: Sequence[str] | None,
    profile: str,
    catalog: Catalog,
    starts: Sequence[int | None] = (),
) -> Slots:
    """How many more vGPUs of `profile` fit this GPU beside the running ones.

    `holders` are the profiles of the vGPUs running on it, one entry each; None = not known. `starts`: where each of
    them lies, as far as known (`VgpuPlacement.start`); () = of none. `profile` is an ESXi name.
    """
    refused = _serves_no_vgpu(gpu)
    if refused is not None:
        return refused
    wanted = catalog.profile(profile)
    if wanted is None:
        return _unknown(f"{profile} is not in the catalogue")
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is None:
        return _unknown(f"{gpu.name} is not in the catalogue")
    if wanted.board != board.key:
        return _none(f"{profile} is not a profile of {board.name}")
    if holders is None:
        return _unknown("which vGPUs run on it is not known")
    running = [catalog.profile(holder) for holder in holders]
    known = tuple(holder for holder in running if holder is not None)
    if len(known) < len(running):
        return _unknown("a vGPU runs on it whose profile is not in the catalogue")
    return _in_mode(gpu.vgpu_mode, board, known, wanted, starts or (None,) * len(known))


def _serves_no_vgpu(gpu: PhysicalGpu) -> Slots | None:
    if gpu.passthrough is not None and gpu.passthrough.active:
        return _none("it is in passthrough")
    if gpu.vgpu_obstacle:
        return _none(f"it {gpu.vgpu_obstacle}")
    if gpu.graphics_type is None:
        return _unknown("its graphics type is not known")
    if gpu.graphics_type is not GraphicsType.SHARED_DIRECT:
        return _none(f"its graphics type is {gpu.graphics_type}, vGPUs need {GraphicsType.SHARED_DIRECT}")
    return None


def _in_mode(
    mode: VgpuMode | None,
    board: Board,
    running: Sequence[VgpuProfile],
    wanted: VgpuProfile,
    starts: Sequence[int | None],
) -> Slots:
    match mode:
        case VgpuMode.SAME_SIZE:
            return _time_sliced_only(running, wanted) or _same_size(running, wanted)
        case VgpuMode.MIXED_SIZE:
            return _time_sliced_only(running, wanted) or _mixed_size(board, running, wanted, starts)
        case VgpuMode.MULTI_INSTANCE:
            return _mig_backed_only(running, wanted) or _multi_instance(board, running, wanted, starts)
        case VgpuMode.NONE:
            return _unknown("it shows no vGPU mode")
        case None:
            return _in_unknown_mode(board, running, wanted, starts)
        case _:
            assert_never(mode)


def _in_unknown_mode(
    board: Board, running: Sequence[VgpuProfile], wanted: VgpuProfile, starts: Sequence[int | None]
) -> Slots:
    """vCenter tells the mode from 8.0 Update 3 on, the first with mixed sizes: before, only MIG is in question."""
    if running or board.mig is None:
        multi_instance = any(holder.mig_backed for holder in running)
        mode = VgpuMode.MULTI_INSTANCE if multi_instance else VgpuMode.SAME_SIZE
        return _in_mode(mode, board, running, wanted, starts)
    return Slots(0, wanted.max_per_gpu, "whether it is in MIG mode is not known")


def _time_sliced_only(running: Sequence[VgpuProfile], wanted: VgpuProfile) -> Slots | None:
    if any(holder.mig_backed for holder in running):
        return _contradictory("a MIG-backed vGPU runs on it, but it is not in MIG mode")
    return _none(f"{wanted.name} needs a GPU in MIG mode") if wanted.mig_backed else None


def _mig_backed_only(running: Sequence[VgpuProfile], wanted: VgpuProfile) -> Slots | None:
    if not all(holder.mig_backed for holder in running):
        return _contradictory("a time-sliced vGPU runs on it, but it is in MIG mode")
    return None if wanted.mig_backed else _none(f"{wanted.name} is time-sliced, the GPU is in MIG mode")


def _same_size(running: Sequence[VgpuProfile], wanted: VgpuProfile) -> Slots:
    other = next((holder for holder in running if holder.framebuffer_mib != wanted.framebuffer_mib), None)
    if other is not None:
        size, locked = wanted.framebuffer_mib, other.framebuffer_mib
        return _none(f"locked to vGPUs of {locked} MiB while {len(running)} run, {wanted.name} has {size} MiB")
    limit = min(profile.max_per_gpu for profile in (wanted, *running))
    return _exactly(limit - len(running), f"{len(running)} of {limit} vGPUs run")


def _mixed_size(
    board: Board, running: Sequence[VgpuProfile], wanted: VgpuProfile, starts: Sequence[int | None]
) -> Slots:
    used_mib = sum(holder.framebuffer_mib for holder in running)
    left_mib = max(0, board.framebuffer_mib - used_mib)
    by_memory = left_mib // wanted.framebuffer_mib
    limit = wanted.max_per_gpu_mixed
    if limit is None:
        return Slots(0, by_memory, f"how many {wanted.name} fit in mixed-size mode is not known")
    # Each running one of this size has one of its starts.
    alike = sum(holder.framebuffer_mib == wanted.framebuffer_mib for holder in running)
    if not wanted.placement_ids_mixed and alike == len(running):
        # Its starts are not published, the count of vGPUs of one size is.
        return _exactly(limit - alike, _no_start(board, used_mib, wanted))
    shapes = [_lying(starts_gb(profile), start) for profile, start in zip(running, starts, strict=True)]
    known = wanted.placement_ids_mixed and all(shape.starts for shape in shapes)
    found = spread(starts_gb(wanted), tuple(shapes)) if known else None
    if found is None:
        most = min(max(0, limit - alike), by_memory)
        return (
            Slots(0, most, "where its vGPUs start is not known") if most else _none(_no_start(board, used_mib, wanted))
        )
    return _range(found, _no_start(board, used_mib, wanted))


def _no_start(board: Board, used_mib: int, wanted: VgpuProfile) -> str:
    return f"{used_mib} of {board.framebuffer_mib} MiB used, no start left for {wanted.name}"


def starts_gb(profile: VgpuProfile) -> Shape:
    """What a vGPU takes of a GPU in mixed-size mode, in GB, and its placement ids."""
    return Shape(profile.framebuffer_mib // 1024, profile.placement_ids_mixed)


def _lying(shape: Shape, start: int | None) -> Shape:
    """The shape where it is known to lie, or wherever it may."""
    return shape if start is None else Shape(shape.size, (start,))


def _multi_instance(
    board: Board, running: Sequence[VgpuProfile], wanted: VgpuProfile, starts: Sequence[int | None]
) -> Slots:
    kind = instance_of(board, wanted)
    instances: list[InstanceProfile] = []
    shapes: list[Shape] = []
    started = 0
    for holder, start, count in _by_instance(running, starts):
        held, sharing = instance_of(board, holder), holder.max_per_gpu_instance or 1
        if held is None:
            return _unknown(f"the GPU instance of {holder.name} is not known")
        # Where vGPUs of one profile share an instance (RTX PRO), the fewest instances they can live in leave the same
        # room for that profile as any other way to share: what a further instance offers, its start no longer does.
        needed = -(-count // sharing)
        instances += [held] * needed
        shapes += [_lying(slices(held), start)] * needed
        if holder == wanted or (start is not None and share_an_instance(holder, wanted)):
            started += needed * sharing - count
    if kind is None:
        return _unknown(f"the GPU instance of {wanted.name} is not known")
    found = spread(slices(kind), tuple(shapes))
    if found is None:
        return _contradictory(f"the GPU instances of its {len(running)} vGPUs cannot all be on it")
    media_taken = any(instance.variant.owns_media for instance in instances)
    limit = int(not media_taken) if kind.variant.owns_media else kind.max_count
    each = wanted.max_per_gpu_instance or 1
    room = Spread(min(found.fewest, limit) * each + started, min(found.most, limit) * each + started)
    return _range(room, f"no GPU instance {kind.name} fits beside the {len(instances)} there")


def _by_instance(
    running: Sequence[VgpuProfile], starts: Sequence[int | None]
) -> Iterator[tuple[VgpuProfile, int | None, int]]:
    """The vGPUs of one profile that nobody knows the starts of, and those of each known start: a profile, the start,
    how many.

    Those of one profile are counted together unless all of them are known, for they may share instances.
    """
    lying = tuple(zip(running, starts, strict=True))
    unsure = {holder for holder, start in lying if start is None}
    unknown = Counter(holder for holder in running if holder in unsure)
    known = Counter(start for holder, start in lying if holder not in unsure)
    yield from ((holder, None, count) for holder, count in unknown.items())
    for start, count in known.items():
        yield next(holder for holder, its in lying if its == start and holder not in unsure), start, count


def share_an_instance(one: VgpuProfile, other: VgpuProfile) -> bool:
    """Whether vGPUs of both may run in one GPU instance: it is shared by vGPUs of one size, of whatever series."""
    return one.mig_profile == other.mig_profile and one.framebuffer_mib == other.framebuffer_mib


def slices(kind: InstanceProfile) -> Shape:
    """What a GPU instance takes of a GPU in MIG mode, in memory slices, and its starts."""
    return Shape(kind.memory_slices, kind.starts)


def instance_of(board: Board, profile: VgpuProfile) -> InstanceProfile | None:
    """The GPU instance that vGPUs of a MIG-backed profile run in; None = it is time-sliced, or not known."""
    return board.mig.profile(profile.mig_profile) if board.mig and profile.mig_profile else None


def _range(room: Spread, none_because: str) -> Slots:
    if room.fewest == room.most:
        return _exactly(room.most, none_because)
    return Slots(room.fewest, room.most, "depends on where the running vGPUs start, which vCenter does not tell")


def _exactly(count: int, none_because: str) -> Slots:
    return Slots(count, count) if count > 0 else _none(none_because)


def _none(because: str) -> Slots:
    return Slots(0, 0, because)


def _unknown(because: str) -> Slots:
    return Slots(0, None, because)


def _contradictory(because: str) -> Slots:
    return Slots(0, None, because, contradictory=True)
