"""Counts how many more vGPUs of a profile fit on a GPU as it is now.

The rules, per mode of the GPU (NVIDIA AI Enterprise, vGPU for Compute; NVIDIA Multi-Instance GPU User Guide):

* same size: the running vGPUs fix the frame-buffer size; the count is the smallest same-size maximum among them.
  Series may differ since vGPU 17 with vSphere 8.0 Update 2; which driver a host runs is not in the snapshot.
* mixed size: every size has fixed starts, and a vGPU needs one that is free.
* MIG: a vGPU needs a GPU instance that fits beside the others; only one instance owns the media engines.

A GPU in MIG mode runs only MIG-backed profiles, any other only time-sliced ones. If vCenter does not report
something, the answer is a range or unknown, never a wrong number.

vCenter shows which VMs are on a GPU, but neither the placement ids of their vGPUs in mixed-size mode nor their memory
slices in MIG mode. `spread` therefore looks at every way in which the running vGPUs can lie: the count is a range from
the worst way to the best.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from math import ceil, prod
from typing import Final, assert_never

from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import GraphicsType, PhysicalGpu, VgpuMode
from gpuops.model.devices.mig import InstanceProfile
from gpuops.model.devices.vgpu import VgpuProfile

_MOST_STATES: Final = 20_000
"""States that `spread` searches at most; with more (many sizes mixed on one GPU) it would take seconds."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """The size of a vGPU or GPU instance and where it may start on the GPU, both in GB or in memory slices."""

    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """The fewest and the most starts, over every way in which shapes can lie on a GPU."""

    fewest: int
    most: int


@lru_cache(maxsize=4096)
def spread(target: Shape, occupied: tuple[Shape, ...]) -> Spread | None:
    """Return how many starts of `target` stay free of the occupied shapes, in the worst and in the best case.

    Starts of one shape never overlap each other (they do not on any GPU of the catalogue), so free starts can all be
    used at once. None = the occupied shapes cannot all lie there, or there are too many ways to look at.
    """
    if all(len(shape.starts) == 1 for shape in occupied):
        return _spread_of_known_starts(target, occupied)
    counts = Counter(occupied)
    shapes = sorted(counts)
    places = sorted((start, index) for index, shape in enumerate(shapes) for start in shape.starts)
    begins = [start for start, _ in places]
    if len(places) * prod(count + 1 for count in counts.values()) > _MOST_STATES:
        return None

    # Walk over all places in the order of their starts, and at each place either put a shape there or not.
    @cache
    def covered_from(at: int, remaining: tuple[int, ...], last_hit: int) -> Spread | None:
        """Return the fewest and most starts of `target` that the shapes from `places[at:]` cover beyond `last_hit`.

        `remaining`: how many of each shape have no place yet. `last_hit`: the start that was covered last; -1 = none.
        """
        if not any(remaining):
            return Spread(0, 0)
        if at == len(places):
            return None
        start, index = places[at]
        if_place_skipped = covered_from(at + 1, remaining, last_hit)
        if not remaining[index]:
            return if_place_skipped
        end = start + shapes[index].size
        covered = _covered_starts(target, start, end)
        after_place = covered_from(
            bisect_left(begins, end),
            (*remaining[:index], remaining[index] - 1, *remaining[index + 1 :]),
            # A start that ends before this place ends cannot be covered again: forgetting it halves the states.
            covered[-1] if covered and target.starts[covered[-1]] + target.size > end else -1,
        )
        new = len(covered) - (last_hit in covered)
        if_place_used = None if after_place is None else Spread(after_place.fewest + new, after_place.most + new)
        return _widest(if_place_skipped, if_place_used)

    covered_spread = covered_from(0, tuple(counts[shape] for shape in shapes), -1)
    if covered_spread is None:
        return None
    total = len(target.starts)
    return Spread(total - covered_spread.most, total - covered_spread.fewest)


def _spread_of_known_starts(target: Shape, occupied: tuple[Shape, ...]) -> Spread | None:
    """Return the spread if each of the occupied shapes lies at a known start; None = they overlap."""
    intervals = sorted((shape.starts[0], shape.starts[0] + shape.size) for shape in occupied)
    if any(next_begin < end for (_, end), (next_begin, _) in pairwise(intervals)):
        return None
    covered = {number for begin, end in intervals for number in _covered_starts(target, begin, end)}
    free = len(target.starts) - len(covered)
    return Spread(free, free)


def _covered_starts(target: Shape, start: int, end: int) -> list[int]:
    """Return the starts of `target` (indexes) that are unusable because a shape lies from `start` to `end`."""
    return [
        number
        for number, target_start in enumerate(target.starts)
        if target_start < end and start < target_start + target.size
    ]


def _widest(first: Spread | None, second: Spread | None) -> Spread | None:
    """Return the range that includes both; None = neither way is possible."""
    if first is None or second is None:
        return first or second
    return Spread(min(first.fewest, second.fewest), max(first.most, second.most))


@dataclass(frozen=True, slots=True)
class Slots:
    """Room for more vGPUs of one profile on one GPU."""

    at_least: int
    """In the worst case, wherever the running vGPUs lie."""
    at_most: int | None
    """In the best case; None = unknown."""
    because: str = ""
    """Why there is no room, or why that is not certain; empty if both figures are equal and not zero."""
    contradictory: bool = field(default=False, compare=False)
    """Whether the reported vGPUs cannot all run there; the room is then unknown, because some must be elsewhere."""

    @property
    def possible(self) -> bool:
        """Return whether trying could succeed."""
        return self.at_most is None or self.at_most > 0

    @property
    def exact(self) -> bool:
        return self.at_least == self.at_most

    def limited_to(self, limit: int, because: str) -> Slots:
        """Return the slots with at most `limit` of them; `because` is the reason if that is fewer."""
        if self.at_most is not None and self.at_most <= limit:
            return self
        return Slots(min(self.at_least, limit), limit, self.because if limit else because)

    def as_doubtful(self, because: str) -> Slots:
        """Return the same slots with at least 0: it is not certain that any of them can be used."""
        return Slots(0, self.at_most, because) if self.possible else self


def total_slots(rooms: Sequence[Slots]) -> Slots:
    """Return the sum of the slots of several GPUs or hosts."""
    most = [room.at_most for room in rooms if room.at_most is not None]
    return Slots(
        at_least=sum(room.at_least for room in rooms),
        at_most=sum(most) if len(most) == len(rooms) else None,
        because=next((room.because for room in rooms if room.because), ""),
    )


def best_slots(rooms: Sequence[Slots]) -> Slots:
    """Return the slots of the GPU or host with the most, for a VM that needs all of them in one place."""
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
    """Return how many more vGPUs of `profile` fit on this GPU in addition to the running ones.

    `holders` are the profiles of the vGPUs running on it, one entry each; None = not known. `starts`: where each of
    them lies, as far as known (`VgpuPlacement.start`); () = not known for any. `profile` is an ESXi name.
    """
    no_slots = _slots_without_vgpus(gpu)
    if no_slots is not None:
        return no_slots
    vgpu_profile = catalog.profile(profile)
    if vgpu_profile is None:
        return _unknown_slots(f"{profile} is not in the catalogue")
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if board is None:
        return _unknown_slots(f"{gpu.name} is not in the catalogue")
    if vgpu_profile.board != board.key:
        return _no_slots(f"{profile} is not a profile of {board.name}")
    if holders is None:
        return _unknown_slots("which vGPUs run on it is not known")
    running = [catalog.profile(holder) for holder in holders]
    holder_profiles = tuple(holder for holder in running if holder is not None)
    if len(holder_profiles) < len(running):
        return _unknown_slots("a vGPU runs on it whose profile is not in the catalogue")
    starts_or_unknown = starts or (None,) * len(holder_profiles)
    return slots_in_mode(
        gpu.vgpu_mode, board, holder_profiles, vgpu_profile, starts_or_unknown, instances=gpu.gpu_instances
    )


def _slots_without_vgpus(gpu: PhysicalGpu) -> Slots | None:
    """Return no or unknown slots, with the reason, for a GPU that cannot run vGPUs now; None = it can."""
    if gpu.passthrough is not None and gpu.passthrough.active:
        return _no_slots("it is in passthrough")
    if gpu.vgpu_obstacle:
        return _no_slots(f"it {gpu.vgpu_obstacle}")
    if gpu.graphics_type is None:
        return _unknown_slots("its graphics type is not known")
    if gpu.graphics_type is not GraphicsType.SHARED_DIRECT:
        return _no_slots(f"its graphics type is {gpu.graphics_type}, vGPUs need {GraphicsType.SHARED_DIRECT}")
    return None


def slots_in_mode(
    mode: VgpuMode | None,
    board: Board,
    running: Sequence[VgpuProfile],
    vgpu_profile: VgpuProfile,
    starts: Sequence[int | None],
    *,
    instances: Sequence[str] | None = None,
) -> Slots:
    """Return how many more vGPUs of `vgpu_profile` fit on a GPU of that model and mode in addition to the running ones.

    `starts`: where each of the running ones lies, None where that is not known. `instances`: the only GPU instances
    that the GPU has; None = the host creates them as needed.
    """
    # the checks before `or` return no or contradictory slots, or None if a GPU in this mode can run all these vGPUs
    match mode:
        case VgpuMode.SAME_SIZE:
            return _slots_beside_mig_backed(running, vgpu_profile) or _same_size(running, vgpu_profile)
        case VgpuMode.MIXED_SIZE:
            return _slots_beside_mig_backed(running, vgpu_profile) or _mixed_size(board, running, vgpu_profile, starts)
        case VgpuMode.MULTI_INSTANCE:
            return _slots_beside_time_sliced(running, vgpu_profile) or _multi_instance(
                board, running, vgpu_profile, starts, instances
            )
        case VgpuMode.NONE:
            return _unknown_slots("it shows no vGPU mode")
        case None:
            return _slots_in_unknown_mode(board, running, vgpu_profile, starts)
        case _:
            assert_never(mode)


def _slots_in_unknown_mode(
    board: Board, running: Sequence[VgpuProfile], vgpu_profile: VgpuProfile, starts: Sequence[int | None]
) -> Slots:
    """Return the slots if vCenter does not report the mode: the running vGPUs, or the GPU model, may show it."""
    # vCenter reports the mode since 8.0 Update 3, the first release with mixed sizes: older ones have only same-size
    # mode and MIG mode, and a running vGPU shows which of the two it is.
    if running or board.mig is None:
        has_mig_backed = any(holder.mig_backed for holder in running)
        mode = VgpuMode.MULTI_INSTANCE if has_mig_backed else VgpuMode.SAME_SIZE
        return slots_in_mode(mode, board, running, vgpu_profile, starts)
    return Slots(0, vgpu_profile.max_per_gpu, "whether it is in MIG mode is not known")


def _slots_beside_mig_backed(running: Sequence[VgpuProfile], vgpu_profile: VgpuProfile) -> Slots | None:
    """Return no or contradictory slots, and why, if one of these vGPUs is MIG-backed; None = all are time-sliced."""
    if any(holder.mig_backed for holder in running):
        return _contradictory("a MIG-backed vGPU runs on it, but it is not in MIG mode")
    return _no_slots(f"{vgpu_profile.name} needs a GPU in MIG mode") if vgpu_profile.mig_backed else None


def _slots_beside_time_sliced(running: Sequence[VgpuProfile], vgpu_profile: VgpuProfile) -> Slots | None:
    """Return no or contradictory slots, and why, if one of these vGPUs is time-sliced; None = all are MIG-backed."""
    if not all(holder.mig_backed for holder in running):
        return _contradictory("a time-sliced vGPU runs on it, but it is in MIG mode")
    return None if vgpu_profile.mig_backed else _no_slots(f"{vgpu_profile.name} is time-sliced, the GPU is in MIG mode")


def _same_size(running: Sequence[VgpuProfile], vgpu_profile: VgpuProfile) -> Slots:
    holder_of_other_size = next(
        (holder for holder in running if holder.framebuffer_mib != vgpu_profile.framebuffer_mib), None
    )
    if holder_of_other_size is not None:
        size, locked = vgpu_profile.framebuffer_mib, holder_of_other_size.framebuffer_mib
        return _no_slots(
            f"locked to vGPUs of {locked} MiB while {len(running)} run, {vgpu_profile.name} has {size} MiB"
        )
    limit = min(profile.max_per_gpu for profile in (vgpu_profile, *running))
    return _exactly(limit - len(running), f"{len(running)} of {limit} vGPUs run")


def _mixed_size(
    board: Board, running: Sequence[VgpuProfile], vgpu_profile: VgpuProfile, starts: Sequence[int | None]
) -> Slots:
    """Return the room on a GPU in mixed-size mode: by the start positions of each size, where NVIDIA lists them."""
    used_mib = sum(holder.framebuffer_mib for holder in running)
    most_by_memory = max(0, board.framebuffer_mib - used_mib) // vgpu_profile.framebuffer_mib
    limit = vgpu_profile.max_per_gpu_mixed
    if limit is None:
        return Slots(0, most_by_memory, f"how many {vgpu_profile.name} fit in mixed-size mode is not known")
    no_start = f"{used_mib} of {board.framebuffer_mib} MiB used, no start left for {vgpu_profile.name}"
    # Each running vGPU of this size occupies one of the starts of this size.
    same_size_count = sum(holder.framebuffer_mib == vgpu_profile.framebuffer_mib for holder in running)
    if not vgpu_profile.placement_ids_mixed and same_size_count == len(running):
        # NVIDIA has not published the starts of this size, but it has published how many vGPUs of one size fit.
        return _exactly(limit - same_size_count, no_start)
    shapes = [_at_start(starts_gb(profile), start) for profile, start in zip(running, starts, strict=True)]
    are_starts_known = vgpu_profile.placement_ids_mixed and all(shape.starts for shape in shapes)
    free_spread = spread(starts_gb(vgpu_profile), tuple(shapes)) if are_starts_known else None
    if free_spread is None:
        most = min(max(0, limit - same_size_count), most_by_memory)
        return Slots(0, most, "where its vGPUs start is not known") if most else _no_slots(no_start)
    return _range(free_spread, no_start)


def starts_gb(profile: VgpuProfile) -> Shape:
    """Return the size of a vGPU in mixed-size mode in GB, and its placement ids as the starts."""
    return Shape(profile.framebuffer_mib // 1024, profile.placement_ids_mixed)


def _at_start(shape: Shape, start: int | None) -> Shape:
    """Return the shape at its start, if that is known; otherwise with all of its possible starts."""
    return shape if start is None else Shape(shape.size, (start,))


def _multi_instance(
    board: Board,
    running: Sequence[VgpuProfile],
    vgpu_profile: VgpuProfile,
    starts: Sequence[int | None],
    existing: Sequence[str] | None,
) -> Slots:
    """Return the room on a GPU in MIG mode, where each vGPU runs in a GPU instance.

    Where several vGPUs share an instance (RTX PRO), vGPUs that have stopped may leave those that run in any number of
    instances. Example: 17 vGPUs of 1g that start in turn, 8 to an instance, are in three; the first, the ninth and the
    last of them alone may still be in three, or in one. A 2g instance fits beside them only in the latter case.
    """
    instance_profile = instance_of(board, vgpu_profile)
    kinds = {holder: instance_of(board, holder) for holder in dict.fromkeys(running)}
    without_instance = next(
        (holder.name for holder, kind in kinds.items() if kind is None),
        vgpu_profile.name if instance_profile is None else "",
    )
    if instance_profile is None or without_instance:
        return _unknown_slots(f"the GPU instance of {without_instance} is not known")
    media_taken = any(kind is not None and kind.variant.owns_media for kind in kinds.values())
    # one instance of a GPU may own its media engines
    limit = int(not media_taken) if instance_profile.variant.owns_media else instance_profile.max_count
    rooms: list[Spread] = []
    fewest_instances = len(running)
    is_sharing_unknown = any(
        start is None and _per_instance(holder) > 1 for holder, start in zip(running, starts, strict=True)
    )
    # NVIDIA does not document whether vGPUs of one size or only of one profile share an instance: look at both
    for by_size in (True, False) if is_sharing_unknown else (True,):
        sharers = _sharers(board, running, starts, by_size=by_size)
        for instances in _instances_in_use(sharers, board.mig.memory_slices if board.mig else 0):
            free = _free_instances(instance_profile, instances, existing)
            if free is not None:
                fewest_instances = min(fewest_instances, sum(len(in_use.shapes) for in_use in instances))
                rooms.append(_vgpus_that_fit(free, limit, vgpu_profile, instances))
    if not rooms:
        return _contradictory(f"the GPU instances of its {len(running)} vGPUs cannot all be on it")
    room = Spread(min(candidate.fewest for candidate in rooms), max(candidate.most for candidate in rooms))
    if existing is not None:
        count, name = existing.count(instance_profile.name), instance_profile.name
        return _range(room, f"its {count} x {name} are in use" if count else f"its layout has no {name}")
    return _range(room, f"no GPU instance {instance_profile.name} fits beside the {fewest_instances} there")


def _free_instances(
    kind: InstanceProfile, in_use: Sequence[_InstancesInUse], existing: Sequence[str] | None
) -> Spread | None:
    """Return how many more GPU instances of a kind there may be; None = those in use cannot all be on the GPU.

    `existing`: the only instances that the GPU has; None = the host creates them as needed.
    """
    if existing is None:
        return spread(slices(kind), tuple(shape for group in in_use for shape in group.shapes))
    free = Counter(existing)
    for group in in_use:
        free[group.sharers.kind.name] -= len(group.shapes)
    return None if any(count < 0 for count in free.values()) else Spread(free[kind.name], free[kind.name])


@dataclass(frozen=True, slots=True)
class _Sharers:
    """The running vGPUs that may share GPU instances with each other.

    Those of one size share, of whatever series (`by_size`); or only those of one profile do. Which of the two is true
    is not documented: where it is not known which of them share, a slot is certain only if it exists either way.
    """

    profile: VgpuProfile
    """The profile of one of them."""
    by_size: bool
    kind: InstanceProfile
    per_instance: int
    vgpus_at: Mapping[int, int]
    """How many of them are in the instance with this start (memory slice)."""
    elsewhere: int
    """How many of them are in an instance whose start is not known."""

    def may_include(self, profile: VgpuProfile) -> bool:
        """Return whether a vGPU of that profile may share an instance with them."""
        return share_an_instance(self.profile, profile) if self.by_size else self.profile == profile

    def further_instances(self) -> range:
        """Return how many instances there may be besides those whose start is known."""
        spare = sum(max(0, self.per_instance - count) for count in self.vgpus_at.values())
        fewest = ceil(max(0, self.elsewhere - spare) / self.per_instance)
        # at most each of them is alone in an instance, where instances can be shared at all
        most = max(fewest, self.elsewhere) if self.per_instance > 1 else fewest
        return range(fewest, most + 1)

    def known_shapes(self) -> list[Shape]:
        """Return the instances whose start is known; one that the catalogue does not list keeps all possible starts."""
        shape = slices(self.kind)
        return [
            _at_start(shape, start if start in shape.starts else None)
            for start, count in self.vgpus_at.items()
            for _ in range(ceil(count / self.per_instance))
        ]


@dataclass(frozen=True, slots=True)
class _InstancesInUse:
    """One possible set of GPU instances in which the vGPUs of `sharers` run."""

    sharers: _Sharers
    shapes: tuple[Shape, ...]

    @property
    def spare(self) -> int:
        """Return how many more vGPUs of that size have room in them."""
        count = sum(self.sharers.vgpus_at.values()) + self.sharers.elsewhere
        return len(self.shapes) * self.sharers.per_instance - count


def _vgpus_that_fit(
    free: Spread, limit: int, vgpu_profile: VgpuProfile, instances: Sequence[_InstancesInUse]
) -> Spread:
    """Return how many more vGPUs fit: in new instances (`free`, at most `limit`) and in those in use."""
    in_used = sum(group.spare for group in instances if group.sharers.may_include(vgpu_profile))
    per_new = _per_instance(vgpu_profile)
    return Spread(min(free.fewest, limit) * per_new + in_used, min(free.most, limit) * per_new + in_used)


def _sharers(
    board: Board, running: Sequence[VgpuProfile], starts: Sequence[int | None], *, by_size: bool
) -> list[_Sharers]:
    """Return the running vGPUs in groups that may share GPU instances: by size if `by_size`, else by profile."""
    groups: dict[object, list[tuple[VgpuProfile, int | None]]] = {}
    for holder, start in zip(running, starts, strict=True):
        key = (holder.mig_profile, holder.framebuffer_mib) if by_size else holder.name
        groups.setdefault(key, []).append((holder, start))
    sharers = []
    for group in groups.values():
        holder, start_counts = group[0][0], Counter(start for _, start in group if start is not None)
        kind = instance_of(board, holder)
        assert kind is not None, "`_multi_instance` answers before this if a kind is not known"
        sharers.append(
            _Sharers(holder, by_size, kind, _per_instance(holder), start_counts, len(group) - start_counts.total())
        )
    return sharers


def _per_instance(profile: VgpuProfile) -> int:
    """Return how many vGPUs of the profile one GPU instance runs."""
    return profile.max_per_gpu_instance or 1


def _instances_in_use(sharers: Sequence[_Sharers], memory_slices: int) -> Iterator[tuple[_InstancesInUse, ...]]:
    """Yield every combination of instances that these groups may hold and that fits into `memory_slices`."""
    if not sharers:
        yield ()
        return
    group, known_shapes = sharers[0], sharers[0].known_shapes()
    for further in group.further_instances():
        shapes = (*known_shapes, *[slices(group.kind)] * further)
        remaining_slices = memory_slices - sum(shape.size for shape in shapes)
        if remaining_slices < 0:  # with more instances of this group even fewer remain
            return
        for other_groups in _instances_in_use(sharers[1:], remaining_slices):
            yield (_InstancesInUse(group, shapes), *other_groups)


def share_an_instance(profile: VgpuProfile, other_profile: VgpuProfile) -> bool:
    """Return whether vGPUs of both profiles may share a GPU instance: those of one size may, of any series."""
    return profile.mig_profile == other_profile.mig_profile and profile.framebuffer_mib == other_profile.framebuffer_mib


def slices(kind: InstanceProfile) -> Shape:
    """Return the size of a GPU instance in memory slices, and its starts."""
    return Shape(kind.memory_slices, kind.starts)


def instance_of(board: Board, profile: VgpuProfile) -> InstanceProfile | None:
    """Return the GPU instance that vGPUs of a MIG-backed profile run in; None = it is time-sliced, or not known."""
    return board.mig.profile(profile.mig_profile) if board.mig and profile.mig_profile else None


def _range(room: Spread, none_because: str) -> Slots:
    if room.fewest == room.most:
        return _exactly(room.most, none_because)
    return Slots(room.fewest, room.most, "depends on where the running vGPUs start, which vCenter does not tell")


def _exactly(count: int, none_because: str) -> Slots:
    return Slots(count, count) if count > 0 else _no_slots(none_because)


def _no_slots(because: str) -> Slots:
    return Slots(0, 0, because)


def _unknown_slots(because: str) -> Slots:
    return Slots(0, None, because)


def _contradictory(because: str) -> Slots:
    return Slots(0, None, because, contradictory=True)
