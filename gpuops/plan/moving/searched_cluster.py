"""A cluster as the defragmentation search sees it: hosts, GPUs and VMs by number, and who is where.

`defrag.py` builds it; `moves.py`, `move_search.py` and `frontier.py` work on it. `ClusterModel` is what does not
change while VMs move, a `ClusterState` is one value per host and says who is where. VMs that are alike are one kind,
and hosts with the same key are alike now and for every move to come: the search looks at one of them only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuops.advise.capacity import Slots
from gpuops.advise.fragmentation import FragmentationMeasure
from gpuops.advise.occupancy import GpuState, Rooms, Tenant
from gpuops.model.devices.catalog import Board, Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, PhysicalGpu
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.moving.movability import Movability, MoveMethod, TargetHosts
from gpuops.plan.placement.vm_demand import PinPolicy


@dataclass(frozen=True, slots=True)
class FreeingGoal:
    """What is to be freed: slots of `profile`, or with None GPUs that nothing runs on. With `measure` the goal is that
    less of the free memory is fragmented."""

    profile: str | None = None
    measure: FragmentationMeasure | None = None

    @property
    def whole_gpus(self) -> bool:
        return self.profile is None and self.measure is None


POSSIBLE, LISTED, CERTAIN = 0, 1, 2
"""How certain it is that a vGPU is on a GPU: it may be there, its VM is listed there, it is certainly there."""


class VgpuOnGpu(NamedTuple):
    """A vGPU that is, or may be, on a GPU."""

    vm: int
    """The number of its VM."""
    profile: str
    certainty: int


GpuContent = tuple[VgpuOnGpu, ...]
"""The vGPUs that may be on one GPU."""


@dataclass(frozen=True, slots=True)
class SearchVm:
    """One VM of the search: it runs with a vGPU, or is suspended and comes back to one."""

    number: int
    vm: Vm
    profiles: tuple[str, ...]
    memory_mib: int
    """What it reserves where it arrives."""
    reserved_mib: int
    """What its move surely frees on its host."""
    allowed: frozenset[int]
    """Numbers of the hosts that may take it; empty = it may not move."""
    running: bool
    """False = suspended: its slots are kept, but no host counts it when it chooses a GPU."""
    bindable: bool
    """Whether each of its vGPUs may be bound to a GPU where it arrives: it is off for its move."""
    kind: int

    @property
    def movable(self) -> bool:
        return bool(self.allowed)


def make_search_vms(
    movabilities: Sequence[Movability],
    gpu_counts: Mapping[str, int],
    targets: TargetHosts,
    ways: frozenset[MoveMethod],
    pin: PinPolicy = PinPolicy.NEVER,
) -> tuple[SearchVm, ...]:
    """Return the VMs of the search, numbered in the order of `movabilities`.

    `gpu_counts`: VM ref -> on how many GPUs it is or may be. `ways`: the methods by which VMs may move in this plan.
    `pin`: whether VMs that move powered off may be bound to a GPU.
    """
    numbers = {host.ref: number for number, host in enumerate(targets.hosts)}
    kinds: dict[tuple[object, ...], int] = {}
    vms = []
    for number, movability in enumerate(movabilities):
        vm = movability.vm
        allowed: frozenset[int] = frozenset()
        if movability.way in ways:
            refs, _ = targets.of(vm, running=movability.way is MoveMethod.VMOTION)
            allowed = frozenset(numbers[ref] for ref in refs)
        # A VM that only its own host may take cannot move.
        if allowed <= {numbers.get(vm.host or "")}:
            allowed = frozenset()
        running = vm.power is not PowerState.SUSPENDED
        bindable = bool(allowed) and movability.way is MoveMethod.POWERED_OFF and pin is not PinPolicy.NEVER
        memory_mib, reserved_mib = vm.memory_mib or 0, vm.memory_reservation_mib or 0
        kind_key: tuple[object, ...] = (vm.profiles, memory_mib, reserved_mib, allowed, running, bindable)
        if len(vm.profiles) > 1 or gpu_counts.get(vm.ref) != 1:
            kind_key = (vm.ref,)  # it is or may be on several GPUs, so it equals no other VM
        kind = kinds.setdefault(kind_key, len(kinds))
        vms.append(SearchVm(number, vm, vm.profiles, memory_mib, reserved_mib, allowed, running, bindable, kind))
    return tuple(vms)


def gpus_per_vm(states: Iterable[GpuState]) -> Counter[str]:
    """Return the number of GPUs that each VM is on, or may be on."""
    return Counter(ref for state in states for ref in {tenant.vm for tenant in state.tenants})


def gpu_contents(states: Iterable[GpuState], numbers: Mapping[str, int]) -> tuple[GpuContent, ...]:
    """Return the content of each of these GPUs, with VMs by number."""
    contents: list[GpuContent] = []
    for state in states:
        vgpus = []
        for tenant in state.tenants:
            certainty = CERTAIN if tenant.certain else LISTED if tenant.vm in (state.gpu.vms or ()) else POSSIBLE
            vgpus.append(VgpuOnGpu(numbers[tenant.vm], tenant.profile, certainty))
        contents.append(tuple(vgpus))
    return tuple(contents)


@dataclass(frozen=True, slots=True)
class HostContents:
    """One host between two moves: what is on it, and what is free."""

    number: int
    contents: tuple[GpuContent, ...]
    """By GPU, in the order of their addresses."""
    free_mib: int
    """Memory that a VM can surely still reserve."""
    ambiguous_gpus: frozenset[int]
    """GPUs that were alike when a VM arrived on one of them. Which of them has it is unknown."""
    fixed_vms: frozenset[int]
    """Numbers of the VMs that do not move again. They were on ambiguous GPUs when a VM arrived, so it is unknown which
    of them share a GPU with it; or they are pinned to GPU addresses, which mean other GPUs on another host."""
    worth: int
    """How much of the goal is free on this host."""
    key: int
    """Equal for hosts that are alike now and for every move to come."""


ClusterState = tuple[HostContents, ...]


@dataclass(frozen=True, slots=True)
class VmMove:
    """The move of a VM to a host, both by number."""

    search_vm: int
    to: int
    gpus: tuple[int, ...] = ()
    """The GPU that each of its vGPUs is bound to there; () = the host chooses."""


def with_host(cluster_state: ClusterState, host_now: HostContents) -> ClusterState:
    """Return the state with one host replaced."""
    return (*cluster_state[: host_now.number], host_now, *cluster_state[host_now.number + 1 :])


@dataclass(frozen=True, slots=True)
class ClusterHost:
    """One host of the cluster, and what is known of its GPUs."""

    host: Host
    gpus: tuple[PhysicalGpu, ...]
    """By address."""
    unclear: tuple[str, ...]
    """By GPU: why its free room is unknown; empty = it is known."""
    counted: tuple[bool, ...]
    """By GPU: whether it counts towards the goal when it is free."""

    @property
    def policy(self) -> AssignmentPolicy | None:
        return self.host.assignment_policy


@dataclass(slots=True)
class ClusterModel:
    """Hosts, VMs and the goal, which do not change while VMs move, and a cache of the free slots of GPUs. A search asks
    about the same few GPUs a hundred thousand times, so each answer of the placement rules is cached."""

    cluster_hosts: Sequence[ClusterHost]
    search_vms: Sequence[SearchVm]
    goal: FreeingGoal
    catalog: Catalog
    _rooms: Rooms = field(init=False)
    _slots: dict[tuple[object, ...], Slots] = field(default_factory=dict)
    _fragments: dict[tuple[object, ...], int] = field(default_factory=dict)
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _kinds: tuple[tuple[int, ...], ...] = field(init=False)
    _host_sorts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._rooms = Rooms(self.catalog)
        kinds, host_sorts = [], []
        for number, cluster_host in enumerate(self.cluster_hosts):
            facts = zip(cluster_host.gpus, cluster_host.unclear, cluster_host.counted, strict=True)
            # GPUs get the same number if these facts are equal: the search may then exchange them.
            kinds.append(
                tuple(self._number("gpu", gpu.admission_traits, unclear, counted) for gpu, unclear, counted in facts)
            )
            # Hosts of one sort could be exchanged, with all that is on them, without any effect.
            may_take = frozenset(search_vm.kind for search_vm in self.search_vms if number in search_vm.allowed)
            host_sorts.append(self._number("host", cluster_host.policy, may_take))
        self._kinds, self._host_sorts = tuple(kinds), tuple(host_sorts)

    def host_state(
        self,
        number: int,
        contents: tuple[GpuContent, ...],
        free_mib: int,
        ambiguous_gpus: frozenset[int] = frozenset(),
        fixed_vms: frozenset[int] = frozenset(),
    ) -> HostContents:
        """Return the state of the host with these vGPUs on its GPUs."""
        return HostContents(
            number,
            contents,
            free_mib,
            ambiguous_gpus,
            fixed_vms,
            worth=sum(self.worth(number, gpu, content) for gpu, content in enumerate(contents)),
            key=self._key(number, contents, free_mib, fixed_vms),
        )

    def worth(self, host: int, gpu: int, content: GpuContent) -> int:
        """Return how much of the goal is surely free on the GPU: slots, or 1 for a GPU that nothing runs on.

        If the goal is less fragmentation, return the fragmented MiB as a negative number, so that more is better.
        """
        if not self.cluster_hosts[host].counted[gpu]:
            return 0
        if self.goal.measure is not None:
            return -self._fragmented_mib(host, gpu, content, self.goal.measure)
        return self.count_free(host, gpu, content)

    def count_free(self, host: int, gpu: int, content: GpuContent) -> int:
        """Return how many slots of the goal's profile the GPU surely has, or 1 for a GPU that nothing runs on."""
        if not self.cluster_hosts[host].counted[gpu]:
            return 0
        if self.goal.profile is None:
            return int(not content)
        return self.slots(host, gpu, content, self.goal.profile).at_least

    def count_all_free(self, cluster_state: ClusterState) -> int:
        """Return the sum of `count_free` over all GPUs."""
        return sum(
            self.count_free(host_now.number, gpu, content)
            for host_now in cluster_state
            for gpu, content in enumerate(host_now.contents)
        )

    def _fragmented_mib(self, host: int, gpu: int, content: GpuContent, measure: FragmentationMeasure) -> int:
        key = self._content_key(host, gpu, content)
        if key not in self._fragments:
            state = self._gpu_state(host, gpu, content)
            self._fragments[key] = round(measure.free_mib(state) * measure.unusable_share(state))
        return self._fragments[key]

    def slots(self, host: int, gpu: int, content: GpuContent, profile: str) -> Slots:
        """Return the slots for more vGPUs of a profile on a GPU with this content, some of which may be elsewhere."""
        key = (*self._content_key(host, gpu, content), profile)
        if key not in self._slots:
            slots = self._rooms.on(self._gpu_state(host, gpu, content), (profile,)).get(profile)
            self._slots[key] = Slots(0, 0, "is of another model") if slots is None else slots
        return self._slots[key]

    def _content_key(self, host: int, gpu: int, content: GpuContent) -> tuple[object, ...]:
        """Return a key that is equal for GPUs that are alike and have the same room."""
        is_certain = all(vgpu.certainty == CERTAIN for vgpu in content)
        holding = tuple(sorted(vgpu.profile for vgpu in content)) if is_certain else content
        return (self._kinds[host][gpu], is_certain, holding)

    def _gpu_state(self, host: int, gpu: int, content: GpuContent) -> GpuState:
        cluster_host = self.cluster_hosts[host]
        tenants = tuple(Tenant(str(number), str(number), name, sure == CERTAIN) for number, name, sure in content)
        listed = tuple(str(number) for number, _, sure in content if sure == LISTED)
        return GpuState(replace(cluster_host.gpus[gpu], vms=listed), tenants, cluster_host.unclear[gpu])

    def board(self, host: int, gpu: int) -> Board | None:
        """Return the model of a GPU; None = not in the catalogue."""
        physical_gpu = self.cluster_hosts[host].gpus[gpu]
        return self.catalog.board_by_pci(physical_gpu.vendor_id, physical_gpu.device_id, physical_gpu.subsystem_id)

    def kind_of_gpu(self, host: int, gpu: int, content: GpuContent) -> tuple[object, ...]:
        """Return a key that is equal for GPUs that are alike and hold alike VMs."""
        on_it = sorted((self.search_vms[vgpu.vm].kind, vgpu.profile, vgpu.certainty) for vgpu in content)
        return (self._kinds[host][gpu], tuple(on_it))

    def _key(self, number: int, contents: Iterable[GpuContent], free_mib: int, fixed_vms: frozenset[int]) -> int:
        """Return a number that is equal for hosts whose future moves and gains are the same."""
        gpus = []
        for gpu, content in enumerate(contents):
            fixed_kinds = sorted(self.search_vms[vgpu.vm].kind for vgpu in content if vgpu.vm in fixed_vms)
            gpus.append(self._number("content", self.kind_of_gpu(number, gpu, content), tuple(fixed_kinds)))
        return self._number("now", self._host_sorts[number], free_mib, *sorted(gpus))

    def _number(self, *facts: object) -> int:
        """Return a number that is equal for equal facts."""
        return self._numbers.setdefault(facts, len(self._numbers))
