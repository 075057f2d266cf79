"""Ground: what does not change while VMs of one cluster move: its hosts, GPUs and VMs, and what is worth freeing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpuops.advise.capacity import Slots
from gpuops.advise.occupancy import GpuState, Tenant
from gpuops.advise.room import Rooms
from gpuops.model.catalog import Board, Catalog
from gpuops.model.gpu import AssignmentPolicy, GraphicsType, PhysicalGpu
from gpuops.model.host import Host
from gpuops.plan.defrag.goal import Goal
from gpuops.plan.defrag.pieces import CERTAIN, LISTED, Content, Piece
from gpuops.plan.defrag.table import HostNow


@dataclass(frozen=True, slots=True)
class Stand:
    """One host of the cluster."""

    host: Host
    gpus: tuple[PhysicalGpu, ...]
    """By address."""
    unclear: tuple[str, ...]
    """By GPU: why nobody can say what is or would be free there; empty = the search knows."""
    counted: tuple[bool, ...]
    """By GPU: whether it is worth anything when it is free."""

    @property
    def policy(self) -> AssignmentPolicy | None:
        return self.host.assignment_policy


@dataclass(slots=True)
class Ground:
    """The rules of advise, remembered: a search asks them about the same few GPUs a hundred thousand times."""

    stands: Sequence[Stand]
    pieces: Sequence[Piece]
    goal: Goal
    catalog: Catalog
    _rooms: Rooms = field(init=False)
    _slots: dict[tuple[object, ...], Slots] = field(default_factory=dict)
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _kinds: tuple[tuple[int, ...], ...] = field(init=False)
    _sorts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._rooms = Rooms(self.catalog)
        self._kinds = tuple(
            tuple(
                self._number("gpu", _facts(gpu), unclear, counted)
                for gpu, unclear, counted in zip(stand.gpus, stand.unclear, stand.counted, strict=True)
            )
            for stand in self.stands
        )
        self._sorts = tuple(self._sort(number, stand) for number, stand in enumerate(self.stands))

    def _sort(self, number: int, stand: Stand) -> int:
        """Hosts of one sort can change places, with all that is on them, and nothing else changes."""
        welcome = frozenset(piece.kind for piece in self.pieces if number in piece.allowed)
        return self._number("host", stand.policy, welcome)

    def host_now(
        self,
        number: int,
        contents: tuple[Content, ...],
        free_mib: int,
        blurred: frozenset[int] = frozenset(),
        lost: frozenset[int] = frozenset(),
    ) -> HostNow:
        """The host with what is on it."""
        return HostNow(
            number,
            contents,
            free_mib,
            blurred,
            lost,
            worth=sum(self.worth(number, gpu, content) for gpu, content in enumerate(contents)),
            key=self._key(number, contents, free_mib, lost),
        )

    def worth(self, host: int, gpu: int, content: Content) -> int:
        """What of the goal the GPU has room for, surely."""
        if not self.stands[host].counted[gpu]:
            return 0
        if self.goal.profile is None:
            return int(not content)
        return self.slots(host, gpu, content, self.goal.profile).at_least

    def slots(self, host: int, gpu: int, content: Content, profile: str) -> Slots:
        """Room for more vGPUs of a profile on a GPU that holds this at the most."""
        known = all(seat[2] == CERTAIN for seat in content)
        holding = tuple(sorted(seat[1] for seat in content)) if known else content
        key = (self._kinds[host][gpu], known, holding, profile)
        if key not in self._slots:
            self._slots[key] = self._asked(self.stands[host], gpu, content, profile)
        return self._slots[key]

    def _asked(self, stand: Stand, gpu: int, content: Content, profile: str) -> Slots:
        tenants = tuple(Tenant(str(number), str(number), name, sure == CERTAIN) for number, name, sure in content)
        listed = tuple(str(number) for number, _, sure in content if sure == LISTED)
        state = GpuState(replace(stand.gpus[gpu], vms=listed), tenants, stand.unclear[gpu])
        found = self._rooms.on(state, (profile,)).get(profile)
        return Slots(0, 0, "is of another model") if found is None else found

    def board(self, host: int, gpu: int) -> Board | None:
        """The model of a GPU; None = not in the catalogue."""
        found = self.stands[host].gpus[gpu]
        return self.catalog.board_by_pci(found.vendor_id, found.device_id, found.subsystem_id)

    def kind_of_gpu(self, host: int, gpu: int, content: Content) -> tuple[object, ...]:
        """The same for GPUs that are alike with what is on them."""
        on_it = sorted((self.pieces[seat[0]].kind, seat[1], seat[2]) for seat in content)
        return (self._kinds[host][gpu], tuple(on_it))

    def _key(self, number: int, contents: Iterable[Content], free_mib: int, lost: frozenset[int]) -> int:
        gpus = (
            self._number("content", self.kind_of_gpu(number, gpu, content), self._lost(content, lost))
            for gpu, content in enumerate(contents)
        )
        return self._number("now", self._sorts[number], free_mib, *sorted(gpus))

    def _lost(self, content: Content, lost: frozenset[int]) -> tuple[int, ...]:
        return tuple(sorted(self.pieces[seat[0]].kind for seat in content if seat[0] in lost)) if lost else ()

    def _number(self, *facts: object) -> int:
        return self._numbers.setdefault(facts, len(self._numbers))


def _facts(gpu: PhysicalGpu) -> tuple[object, ...]:
    given = gpu.passthrough is not None and gpu.passthrough.active
    return (gpu.vendor_id, gpu.device_id, gpu.subsystem_id, gpu.graphics_type, gpu.vgpu_mode, given)


def serves_vgpus(gpu: PhysicalGpu) -> bool:
    """Whether the GPU is there for vGPUs, now and surely (vSphere API, HostGraphicsInfo.graphicsType)."""
    given = gpu.passthrough is not None and gpu.passthrough.active
    return gpu.graphics_type is GraphicsType.SHARED_DIRECT and not given
