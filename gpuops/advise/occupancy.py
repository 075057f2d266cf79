"""Which vGPUs run on each GPU of a host, how many more fit, and where the host is expected to start the next one.

vCenter lists the VMs on a GPU, not which vGPU of a VM is where (vSphere API, HostGraphicsInfo.vm). If the place of a
vGPU is not known, it counts on every GPU that it may be on: a GPU may seem fuller than it is, never emptier.

Room: such a vGPU takes a slot on a GPU in the worst case and none in the best; the room for more is the range between.
Placement relies on the worst case only. If the vGPUs that may be on a GPU are more than it can hold, some of them must
be on another one, and those that are certainly on it limit the room.

Placement uses the expected start for the vGPUs that a plan starts; where running vGPUs lie is read. The rules, by mode
of the GPU:

* mixed size: the free start that leaves the most starts of all sizes free (NVIDIA AI Enterprise, vGPU for Compute);
* MIG, Hopper and later: the same, so that large GPU instances stay possible (F. Denneman, "Architecting AI
  Infrastructure": a 3g goes to slice 4 first); Ampere: the lowest free start;
* ties go to the lowest start (from memory, not documented).

A host that chooses otherwise may refuse a later power-on of the same plan, which then ends with the host's reason; the
next read of its nvidia-smi shows the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

from gpuops.advise.capacity import Shape, Slots, free_slots, instance_of, share_an_instance, slices, starts_gb
from gpuops.model.devices.catalog import Board, Catalog, Generation
from gpuops.model.devices.gpu import PhysicalGpu, VgpuMode, VgpuPlacement
from gpuops.model.devices.vgpu import VgpuProfile
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Awaited, Vm, passthru_number, pins_of


@dataclass(frozen=True, slots=True)
class Tenant:
    """One running vGPU on a GPU."""

    vm: str
    name: str
    """The VM's name."""
    profile: str
    certain: bool = True
    """False: it may as well be on another GPU of the host."""
    start: int | None = None
    """Where it lies on the GPU (`VgpuPlacement.start`); None = not known, or the mode has no starts."""
    awaited: Awaited | None = None
    """Why a plan counts it although it does not run; None = it runs."""


@dataclass(frozen=True)
class GpuState:
    """One GPU and the vGPUs that run on it. Without slots, because `_placement_traits` is cached on first use."""

    gpu: PhysicalGpu
    tenants: tuple[Tenant, ...] = ()
    unclear: str = ""
    """Why it is not known what runs on it; empty = `tenants` lists everything that may run there."""

    @property
    def holders(self) -> tuple[str, ...] | None:
        """Return the profiles of the vGPUs that may be on it; None = not known."""
        return None if self.unclear else tuple(tenant.profile for tenant in self.tenants)

    @property
    def starts(self) -> tuple[int | None, ...]:
        """Return the start of each of the holders; None = not known."""
        return tuple(tenant.start for tenant in self.tenants)

    @property
    def fewest(self) -> tuple[tuple[str, ...], ...]:
        """Return sets of profiles, each sorted: at least the vGPUs of one of these sets run on the GPU, maybe more.

        A VM that the GPU lists has at least one vGPU on it. If the VM has several profiles, it is not known which one
        that is: each choice gives a set.
        """
        sets = {tuple(sorted(tenant.profile for tenant in self.tenants if tenant.certain))}
        vms_with_certain_vgpu = {tenant.vm for tenant in self.tenants if tenant.certain}
        listed_vms = {tenant.vm for tenant in self.tenants if tenant.vm in (self.gpu.vms or ())}
        for vm in sorted(listed_vms - vms_with_certain_vgpu):
            vm_profiles = {tenant.profile for tenant in self.tenants if tenant.vm == vm}
            sets = {tuple(sorted((*profile_set, profile))) for profile_set in sets for profile in vm_profiles}
        return tuple(sorted(sets))

    @property
    def vm_names(self) -> tuple[str, ...]:
        """Return names of the VMs on it, each once, sorted."""
        return tuple(sorted({tenant.name for tenant in self.tenants}))

    def placement_key(self, vm: str) -> object:
        """Return a key that is equal for GPUs on which a place for `vm` is judged in the same way.

        Such GPUs differ only in their addresses and in which VMs are on them.
        """
        return (
            self._placement_traits,
            tuple([number for number, tenant in enumerate(self.tenants) if tenant.vm == vm]),
        )

    @cached_property
    def _placement_traits(self) -> object:
        gpu = self.gpu
        tenants: tuple[object, ...] = tuple((tenant.profile, tenant.start, tenant.awaited) for tenant in self.tenants)
        if not all(tenant.certain for tenant in self.tenants):
            # then `fewest` also depends on which vGPUs belong to one VM: number the VMs in the order of their vGPUs
            numbers: dict[str, int] = {}
            vms = ((numbers.setdefault(t.vm, len(numbers)), t.certain, t.vm in (gpu.vms or ())) for t in self.tenants)
            tenants = tuple(zip(tenants, vms, strict=True))
        return _token((gpu.admission_traits, gpu.vgpus is None, self.unclear, tenants))

    def with_tenants(self, *tenants: Tenant) -> GpuState:
        return GpuState(self.gpu, (*self.tenants, *tenants), self.unclear)

    def without(self, vm: str) -> GpuState:
        remaining_tenants = tuple(tenant for tenant in self.tenants if tenant.vm != vm)
        return self if len(remaining_tenants) == len(self.tenants) else replace(self, tenants=remaining_tenants)


@cache
def _token(traits: tuple[object, ...]) -> object:
    """Return one object for all equal arguments, which hashes and compares much faster than they do."""
    return object()


def may_run(gpu: PhysicalGpu, profile: str, catalog: Catalog) -> bool | None:
    """Return whether the GPU is of the model that the profile is made for, whatever its mode; None = not known."""
    facts = catalog.profile(profile)
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    return None if facts is None or board is None else facts.board == board.key


def gpu_states(host: Host, inventory: Inventory, catalog: Catalog) -> tuple[GpuState, ...]:
    """Return the GPUs of a host with the vGPUs that run on each, by PCI address."""
    vms = inventory.vms_on(host)
    cached_states = inventory.worked_out.setdefault(gpu_states, {})
    assert isinstance(cached_states, dict), "only this function uses this key"
    # A plan asks each host several times: its last answer is remembered.
    cached_answer = cached_states.get(host.ref)
    if (
        isinstance(cached_answer, _CachedStates)
        and cached_answer.host is host
        and cached_answer.vms is vms
        and cached_answer.catalog is catalog
    ):
        return cached_answer.states
    states = _place_tenants(host, inventory, catalog)
    refs_on_host = {vm.ref for vm in vms}
    # A VM of another host that a GPU lists may change while this host stays the same: such an answer is not kept.
    if all(refs_on_host.issuperset(gpu.vms or ()) for gpu in host.gpus):
        cached_states[host.ref] = _CachedStates(host, vms, catalog, states)
    return states


@dataclass(frozen=True, slots=True)
class _CachedStates:
    """An answer of `gpu_states`, with the objects that it was made from."""

    host: Host
    vms: tuple[Vm, ...]
    catalog: Catalog
    states: tuple[GpuState, ...]


def _place_tenants(host: Host, inventory: Inventory, catalog: Catalog) -> tuple[GpuState, ...]:
    """Put the vGPUs of running VMs on GPUs: by reported placements, else by pins, else wherever they may be."""
    gpus = sorted(host.gpus, key=lambda gpu: gpu.address)
    tenants: list[list[Tenant]] = [[] for _ in gpus]
    gpus_listing_vm: dict[str, list[int]] = {}
    for index, gpu in enumerate(gpus):
        for ref in gpu.vms or ():
            gpus_listing_vm.setdefault(ref, []).append(index)
    placements = _placements_by_vm(gpus)
    for vm in inventory.vms_on(host):
        profiles = vm.profiles if vm.may_run else ()
        if profiles:
            listing_gpus = gpus_listing_vm.get(vm.ref, ())
            # (index of the GPU, vGPU) for each GPU that a vGPU is or may be on
            seats = (
                _placed_seats(vm, profiles, placements)
                or _pinned_seats(vm, listing_gpus, gpus)
                or _possible_seats(vm, profiles, listing_gpus, gpus, catalog)
            )
            for index, tenant in seats:
                tenants[index].append(tenant)
    return tuple(
        GpuState(gpu, tuple(gpu_tenants), _why_unclear(gpu, inventory.vms))
        for gpu, gpu_tenants in zip(gpus, tenants, strict=True)
    )


def _why_unclear(gpu: PhysicalGpu, vms: Mapping[str, Vm]) -> str:
    """Return why it is not known what runs on the GPU; empty = it is known."""
    if gpu.vms is None:
        return "the host does not tell which VMs run on it"
    for ref in gpu.vms:
        vm = vms.get(ref)
        if vm is None:
            return f"it runs {ref}, a VM that this login cannot see"
        if vm.devices is None and vm.may_run:
            return f"it runs {vm.name}, whose devices cannot be read"
    return ""


def _placements_by_vm(gpus: Sequence[PhysicalGpu]) -> dict[str, list[tuple[int, VgpuPlacement]]]:
    """Return by VM each vGPU that the host's nvidia-smi lists, with the index of its GPU.

    If nvidia-smi lists other VMs on a GPU than vCenter does now, it was read too early or too late, and is ignored.
    """
    placements: dict[str, list[tuple[int, VgpuPlacement]]] = {}
    for index, gpu in enumerate(gpus):
        if gpu.vgpus is not None and {placement.vm for placement in gpu.vgpus} == set(gpu.vms or ()):
            for placement in gpu.vgpus:
                placements.setdefault(placement.vm, []).append((index, placement))
    return placements


def _placed_seats(
    vm: Vm, profiles: Sequence[str], placements: Mapping[str, Sequence[tuple[int, VgpuPlacement]]]
) -> list[tuple[int, Tenant]]:
    """Return where nvidia-smi shows the VM's vGPUs, with the index of the GPU; [] if it shows other profiles."""
    seats = placements.get(vm.ref, ())
    if sorted(placement.profile for _, placement in seats) != sorted(profiles):
        return []
    return [
        (index, Tenant(vm.ref, vm.name, placement.profile, True, placement.start, vm.awaited))
        for index, placement in seats
    ]


def _pinned_seats(vm: Vm, listing_gpus: Sequence[int], gpus: Sequence[PhysicalGpu]) -> list[tuple[int, Tenant]]:
    """Return the GPU (index) to which the VM's own pins bind each of its vGPUs; [] unless exactly these GPUs list it.

    `listing_gpus`: the indexes of the GPUs that list the VM.

    A pin that was changed since the VM started names a GPU that does not list it, unless it was changed for another of
    the same VM's GPUs. A VM on one GPU needs no pin.
    """
    if len(listing_gpus) < 2:
        return []
    index_of = {gpus[index].address: index for index in listing_gpus}
    pins = pins_of(vm)
    pinned_vgpus = [(pins.get(passthru_number(device.key)), device.profile) for device in vm.vgpus]
    # also unequal if a vGPU has no pin: its address is None
    if {address for address, _ in pinned_vgpus} != set(index_of):
        return []
    return [
        (index_of[address], Tenant(vm.ref, vm.name, profile, awaited=vm.awaited))
        for address, profile in pinned_vgpus
        if address is not None
    ]


def _possible_seats(
    vm: Vm, profiles: Sequence[str], listing_gpus: Sequence[int], gpus: Sequence[PhysicalGpu], catalog: Catalog
) -> Iterable[tuple[int, Tenant]]:
    """Yield where each vGPU of a running VM may be: on the GPUs that list the VM, or on all GPUs of its model.

    Yields the index of the GPU and the vGPU; a vGPU that may be on several GPUs is yielded for each of them.
    `listing_gpus`: the indexes of the GPUs that list the VM.
    """
    is_listed = bool(listing_gpus)
    for index in listing_gpus or range(len(gpus)):
        possible_profiles = [profile for profile in profiles if may_run(gpus[index], profile, catalog) is not False]
        is_one_profile = len(set(possible_profiles)) == 1
        if is_listed and is_one_profile:
            # Every GPU that lists the VM has at least one, so this one has no more than the others leave.
            possible_profiles = possible_profiles[: max(1, len(profiles) - len(listing_gpus) + 1)]
        for number, profile in enumerate(possible_profiles):
            # if the vGPUs are of one profile, the first of them is on each GPU that lists the VM
            certain = is_listed and (len(listing_gpus) == 1 or (is_one_profile and number == 0))
            yield index, Tenant(vm.ref, vm.name, profile, certain, awaited=vm.awaited)


_GpuKind = tuple[object, ...]
"""What the room on a GPU depends on; GPUs with equal keys have the same room."""
_ProfileSets = tuple[tuple[str, ...], ...]
"""`GpuState.fewest`."""


def room_for(state: GpuState, profile: str, catalog: Catalog) -> Slots:
    """Return the room for more vGPUs of the profile if all vGPUs that may be on the GPU are on it.

    If these are more than it can hold, the range of room between the certain ones and all of them.
    """
    fullest = free_slots(state.gpu, state.holders, profile, catalog, state.starts)
    if not fullest.contradictory:
        return fullest
    return _range_between(state.gpu, state.holders, state.starts, state.fewest, profile, catalog)


def range_of_room(state: GpuState, profile: str, catalog: Catalog) -> Slots:
    """Return the room for more vGPUs of the profile: the least and the most over all ways in which vGPUs may lie
    there."""
    return _range_between(state.gpu, state.holders, state.starts, state.fewest, profile, catalog)


class Rooms:
    """The room on many GPUs. Most GPUs of a fleet are alike, so it is computed once for each kind of GPU."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._rooms_by_kind: dict[_GpuKind, Mapping[str, Slots]] = {}

    def on(self, state: GpuState, profiles: tuple[str, ...]) -> Mapping[str, Slots]:
        """Return the range of room for each of these profiles that the GPU's model can run, or may be able to run."""
        # The order of the vGPUs does not matter: sorted, more GPUs are alike.
        vgpus = sorted(((tenant.profile, tenant.start) for tenant in state.tenants), key=str)
        holders = None if state.holders is None else tuple(holder for holder, _ in vgpus)
        starts, fewest = tuple(start for _, start in vgpus), state.fewest
        kind = (*state.gpu.admission_traits, holders, starts, fewest, profiles)
        return self._of_kind(
            kind,
            state.gpu,
            profiles,
            lambda profile: _range_between(state.gpu, holders, starts, fewest, profile, self._catalog),
        )

    def on_if_full(self, state: GpuState, profiles: tuple[str, ...]) -> Mapping[str, Slots]:
        """Return `room_for` each of these profiles that the GPU's model can run, or may be able to run."""
        # the first word keeps these answers apart from those of `on`
        kind = ("if full", *state.gpu.admission_traits, state.holders, state.starts, state.fewest, profiles)
        return self._of_kind(kind, state.gpu, profiles, lambda profile: room_for(state, profile, self._catalog))

    def _of_kind(
        self, kind: _GpuKind, gpu: PhysicalGpu, profiles: tuple[str, ...], room: Callable[[str], Slots]
    ) -> Mapping[str, Slots]:
        if kind not in self._rooms_by_kind:
            runnable = [profile for profile in profiles if may_run(gpu, profile, self._catalog) is not False]
            self._rooms_by_kind[kind] = {profile: room(profile) for profile in runnable}
        return self._rooms_by_kind[kind]


def _range_between(
    gpu: PhysicalGpu,
    holders: tuple[str, ...] | None,
    starts: tuple[int | None, ...],
    fewest: _ProfileSets,
    profile: str,
    catalog: Catalog,
) -> Slots:
    """Return the range of room between the fullest GPU (all `holders` run on it) and the emptiest (`fewest`)."""
    fullest = free_slots(gpu, holders, profile, catalog, starts)
    if holders is None or fewest == (tuple(sorted(holders)),):
        return fullest
    slots_of_sets = (free_slots(gpu, holder_set, profile, catalog) for holder_set in fewest)
    emptiest = [slots for slots in slots_of_sets if not slots.contradictory]
    if not emptiest:
        return fullest
    most = [slots.at_most for slots in emptiest if slots.at_most is not None]
    at_least = min(fullest.at_least, *(slots.at_least for slots in emptiest))
    at_most = max(most) if len(most) == len(emptiest) else None
    if at_most is not None and fullest.at_most is not None:
        # For an empty GPU whose mode is not reported, less room may be known than for one whose vGPUs show its mode.
        at_most = max(at_most, fullest.at_most)
    return Slots(at_least, at_most, _range_reason(fullest, emptiest[0], at_most))


def _range_reason(fullest: Slots, emptiest: Slots, at_most: int | None) -> str:
    if fullest.possible and not fullest.contradictory:
        return fullest.because or emptiest.because
    if at_most == 0:
        return emptiest.because if fullest.contradictory else fullest.because
    return "depends on which vGPUs run on it, which vCenter does not tell"


_KEEP_LARGE_POSSIBLE = (Generation.HOPPER, Generation.BLACKWELL)
"""Generations whose hosts start a vGPU in MIG mode so that large GPU instances stay possible."""


def with_expected(state: GpuState, tenant: Tenant, catalog: Catalog) -> GpuState:
    """Return the GPU with this vGPU too, where the host is expected to let it start."""
    return state.with_tenants(replace(tenant, start=expected_start(state, tenant.profile, catalog)))


def expected_start(state: GpuState, profile: str, catalog: Catalog) -> int | None:
    """Return the start at which the host is expected to place one more vGPU of this profile (`VgpuPlacement.start`).

    None = there is no room, it is not known where the running ones lie, or the GPU's mode has no starts.
    """
    if state.gpu.vgpus is None or state.unclear or any(tenant.start is None for tenant in state.tenants):
        return None
    gpu, vgpu_profile = state.gpu, catalog.profile(profile)
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    tenant_profiles = [catalog.profile(tenant.profile) for tenant in state.tenants]
    if vgpu_profile is None or board is None or any(facts is None for facts in tenant_profiles):
        return None
    if not free_slots(gpu, state.holders, profile, catalog, state.starts).possible:
        return None
    # each start is known here; `or 0` is for the type checker only
    running = [
        (facts, tenant.start or 0) for facts, tenant in zip(tenant_profiles, state.tenants, strict=True) if facts
    ]
    match gpu.vgpu_mode:
        case VgpuMode.MIXED_SIZE:
            shapes = _shapes_of(board, gpu.vgpu_mode)
        case VgpuMode.MULTI_INSTANCE:
            shared = _instance_with_room(running, vgpu_profile)
            if shared is not None:
                return shared
            # other generations take the lowest free start: there are no shapes to keep room for
            keeps_large_possible = board.generation in _KEEP_LARGE_POSSIBLE
            shapes = _shapes_of(board, gpu.vgpu_mode) if keeps_large_possible else frozenset()
        case _:
            return None
    held_shapes = [(_shape(board, facts, gpu.vgpu_mode), start) for facts, start in running]
    if any(shape is not None and start not in shape.starts for shape, start in held_shapes):
        return None  # the host counts in other units than the catalogue
    new_shape = _shape(board, vgpu_profile, gpu.vgpu_mode)
    occupied = {(start, start + shape.size) for shape, start in held_shapes if shape is not None}
    return None if new_shape is None else _least_fragmenting(new_shape, tuple(sorted(occupied)), shapes)


def _instance_with_room(running: Sequence[tuple[VgpuProfile, int]], vgpu_profile: VgpuProfile) -> int | None:
    """Return the start of the first GPU instance that vGPUs share (RTX PRO Blackwell) and that has room for one
    more."""
    starts = sorted(start for facts, start in running if share_an_instance(facts, vgpu_profile))
    limit = vgpu_profile.max_per_gpu_instance or 1
    return next((start for start in starts if starts.count(start) < limit), None)


def _shape(board: Board, facts: VgpuProfile, mode: VgpuMode) -> Shape | None:
    if mode is VgpuMode.MIXED_SIZE:
        return starts_gb(facts) if facts.placement_ids_mixed else None
    kind = instance_of(board, facts)
    return None if kind is None else slices(kind)


def _shapes_of(board: Board, mode: VgpuMode) -> frozenset[Shape]:
    """Return the shapes of all vGPUs that GPUs of the model can run in this mode."""
    is_mig = mode is VgpuMode.MULTI_INSTANCE
    shapes = (_shape(board, profile, mode) for profile in board.profiles if profile.mig_backed is is_mig)
    return frozenset(shape for shape in shapes if shape is not None)


@lru_cache(maxsize=4096)
def _least_fragmenting(new_shape: Shape, occupied: tuple[tuple[int, int], ...], shapes: frozenset[Shape]) -> int | None:
    """Return the free start after which the most starts of all shapes are free; the lowest of several."""

    def free_after(start: int) -> int:
        after = (*occupied, (start, start + new_shape.size))
        return sum(_is_free(other_start, shape.size, after) for shape in shapes for other_start in shape.starts)

    free = [start for start in new_shape.starts if _is_free(start, new_shape.size, occupied)]
    return max(free, key=lambda start: (free_after(start), -start), default=None)


def _is_free(start: int, size: int, occupied: Iterable[tuple[int, int]]) -> bool:
    return all(start + size <= begin or end <= start for begin, end in occupied)
